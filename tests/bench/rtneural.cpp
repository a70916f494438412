// Times a layer of RTNeural (float, xsimd) as inference.py does: prints us for one sample, the best of 400
// repeats.
// -DLAYER=DenseT<float, 8, 8>, -DINITIAL=randomise_dense<float>(layer), -DSIZE=8
#include <RTNeural/RTNeural.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <layer_creator.hpp>

static RTNeural::ModelT<float, SIZE, SIZE, RTNeural::LAYER> model;

int main()
{
    using clock = std::chrono::steady_clock;
    enum { CALLS = 200 };
    alignas(64) float x[SIZE];
    double            best = 1e30;
    auto             &layer = model.get<0>();
    INITIAL;
    for (int i = 0; i < SIZE; ++i) x[i] = std::sin((float)i);
    for (int repeat = 0; repeat < 400; ++repeat) {
        const auto begin = clock::now();
        for (int i = 0; i < CALLS; ++i) {
            model.forward(x);
            x[0] = 0.5f * model.getOutputs()[0]; // so that each call is needed
        }
        const std::chrono::duration<double, std::micro> time = clock::now() - begin;
        best = std::min(best, time.count() / CALLS);
    }
    std::printf("%g\n", best);
    return 0;
}
