/* classify.c - a trained network in a program that has no library: is the sum of 20 numbers positive?
 *
 * Shows: NAME_inference.h with the weights inside: what a microcontroller or a real-time thread needs.
 * Build: python3 -m generator examples/kernels/simple_nn.json --inference --outputs t9 \
 *            --weights examples/plain_c/simple_nn.safetensors -o examples/plain_c/simple_nn
 *        cc -O2 examples/plain_c/classify.c -o classify
 * Run:   ./classify
 * Expect: about 99 % of 1000 random samples.
 * Time:  less than a second on one core.
 * Next:  weights of your own by --weights, and --int8: examples/guides/small_programs.md. */
#define SIMPLE_NN_INFERENCE_IMPLEMENTATION
#include "simple_nn_inference.h"

#include <stdio.h>

int main(void)
{
    static simple_nn_scratch scratch;
    unsigned                 random = 1, right = 0;
    for (int sample = 0; sample < 1000; ++sample) {
        float x[20], probability, sum = 0;
        for (int i = 0; i < 20; ++i) {
            random = random * 1664525u + 1013904223u;
            sum += x[i] = (float)(random >> 8) / 8388608.0f - 1;
        }
        simple_nn_forward(&simple_nn_trained, x, &probability, &scratch);
        right += (probability > 0.5f) == (sum > 0);
    }
    printf("%.1f %% of 1000 samples, with %d bytes of scratch\n", right / 10.0, SIMPLE_NN_SCRATCH_BYTES);
    return 0;
}
