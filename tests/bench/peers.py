#!/usr/bin/env python3
"""Compares gpunn with ONNX Runtime, KANN with BLAS and tiny-dnn, at the same work in one run, and prints a
table.

    pip install onnxruntime onnx onnxscript torch && apt-get install libopenblas-dev
    ninja build/gpunn.o build/run_model
    python3 tests/bench/peers.py [--kann FOLDER] [--tiny-dnn FOLDER] [--only PATTERN] [--rounds 5]
                                 [--threads 1,2]

FOLDER is a checkout of github.com/attractivechaos/kann or github.com/tiny-dnn/tiny-dnn; without it that peer
is left out. ONNX Runtime evaluates what torch.onnx writes for a module with random weights. It is called from
Python with its input and output bound. gpunn evaluates what export_torch writes for the module. Against the
others gpunn takes training steps, from the same weights on the same batch. Peers alternate. ms: the median
over rounds, each the best within a tenth of a second. ratio: the median over rounds of the peer's time
divided by gpunn's. difference: the largest of all outputs, relative to the largest value. For losses after 20
steps of SGD it is relative to their change. `nothing` adds 1 to two numbers, which shows the cost of a call.
A row whose difference is too large has no times."""
import argparse
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

SECONDS = 0.1  # of a round
TOLERANCE = {"evaluation": 1e-4, "training step": 1e-3}  # of a difference

# The part that the programs share. The rest of each is make_own for gpunn, and peer_open, _weights (from
# gpunn's), _step, _sgd and _loss.
PROGRAM = r"""
static void own_step(void) { run(&w); }

static double own_loss(void)
{
    if (gpunn_forward(&w.loss, 1) != GPUNN_OK) die(&w);
    return (double)gpunn_item(w.loss);
}

static void read_weights(gpunn_tensor *t, float *values, size_t count)
{
    if (gpunn_read(t, values, count * sizeof *values) != GPUNN_OK) die(&w);
}

/* The least time of a step. */
static double ms_of(void (*step)(void), double seconds)
{
    const double end = now() + seconds;
    double       least = INFINITY, begin;
    do {
        begin = now();
        step();
        least = fmin(least, now() - begin);
    } while (begin < end);
    return 1e3 * least;
}

static void restore(void)
{
    write_weights(&w);
    peer_weights();
}

/* Usage: peers THREADS ROUNDS SECONDS
 * Prints the loss, and both after 20 steps of SGD; then for each round ms of a step of gpunn's and of
  * the peer's. */
int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    const int threads = atoi(argv[1]), rounds = atoi(argv[2]);
    w.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = threads);
    if (w.dev == NULL) return 1;
    w.model = gpunn_model_create(w.dev);
    make_own();
    write_weights(&w);
    peer_open(threads);
    restore();
    gpunn_optimizer *opt = w.opt, *sgd = gpunn_sgd(w.model, .lr = RATE);
    const double     before = own_loss();
    w.opt = sgd;
    for (int i = 0; i < 20; i++) {
        own_step();
        peer_sgd();
    }
    printf("%.9g %.9g %.9g\n", before, own_loss(), peer_loss());
    w.opt = opt ? opt : sgd;
    for (int round = -1; round < rounds; round++) { /* the first to warm up */
        double ms[2];
        restore();
        for (int turn = 0; turn < 2; turn++) {
            const int peer = (round + turn) & 1;
            ms[peer] = ms_of(peer ? peer_step : own_step, atof(argv[3]));
        }
        if (round >= 0) printf("%.9g %.9g\n", ms[0], ms[1]);
    }
    return 0;
}
"""
# A perceptron with RMSprop, which is KANN's optimizer; its epsilon is inside the root.
KANN = r"""#define _POSIX_C_SOURCE 200809L
#include "gpunn.h"
#include "workloads.h"
#include <kann.h>

static const int sizes[] = {%(sizes)s};
enum { BATCH = %(batch)d, LAYERS = sizeof sizes / sizeof *sizes - 1, BINARY = %(binary)d };
#define RATE 0.05f       /* of SGD */
static const float lr = 1e-5f; /* of RMSprop: the weights stay about where they begin */

static workload w;
static kann_t  *ann;
static float   *square, *x, *y; /* the mean square of each gradient; inputs; targets, one-hot */

static void make_own(void)
{
    gpunn_tensor *h = input(&w, "x", BATCH, GPUNN_SHAPE(GPUNN_BATCH, sizes[0]));
    for (int i = 1; i <= LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "fc%%d", i);
        h = gpunn_linear(h, name, .out_features = sizes[i]);
        if (i < LAYERS) h = gpunn_relu(h);
    }
    if (BINARY) {
        gpunn_tensor *t = input(&w, "t", BATCH, GPUNN_SHAPE(GPUNN_BATCH, 1));
        float         targets[BATCH];
        for (int i = 0; i < BATCH; i++) targets[i] = (float)(i & 1);
        if (gpunn_write(t, targets, sizeof targets) != GPUNN_OK) die(&w);
        w.loss = gpunn_bce_loss(gpunn_sigmoid(h), t);
    } else
        w.loss = gpunn_cross_entropy(h, labels(&w, BATCH, sizes[LAYERS]));
    w.opt = gpunn_rmsprop(w.model, .lr = lr, .alpha = 0.9f, .eps = 1e-3f); /* the square root of KANN's */
}

static void read_weights(gpunn_tensor *t, float *values, size_t count);

/* A layer's weights and bias are in both of the same shape; KANN's in the order of the layers. */
static void peer_weights(void)
{
    int layer[3] = {0, 0, 0};
    for (int i = 0; i < ann->n; i++) {
        kad_node_t *p = ann->v[i];
        if (!kad_is_var(p)) continue;
        char name[16];
        snprintf(name, sizeof name, p->n_d == 2 ? "fc%%d.weight" : "fc%%d.bias", ++layer[p->n_d]);
        read_weights(gpunn_find(w.model, name), p->x, (size_t)kad_len(p));
    }
}

static void peer_open(int threads)
{
    kad_node_t *h = kann_layer_input(sizes[0]);
    for (int i = 1; i < LAYERS; i++) h = kad_relu(kann_layer_dense(h, sizes[i]));
    ann = kann_new(kann_layer_cost(h, sizes[LAYERS], BINARY ? KANN_C_CEB : KANN_C_CEM), 0);
    kann_set_batch_size(ann, BATCH);
    kann_switch(ann, 1);
    if (threads > 1) kann_mt(ann, threads, BATCH);
    square = (float *)calloc((size_t)kann_size_var(ann), sizeof *square);
    x = (float *)room(BATCH * sizes[0], sizeof *x);
    y = (float *)calloc((size_t)(BATCH * sizes[LAYERS]), sizeof *y);
    for (int i = 0; i < BATCH * sizes[0]; i++) x[i] = noise(i, 0);
    for (int i = 0; i < BATCH; i++)
        y[i * sizes[LAYERS] + (BINARY ? 0 : i * 7 %% sizes[LAYERS])] = BINARY ? (float)(i & 1) : 1;
    kann_feed_bind(ann, KANN_F_IN, 0, &x);
    kann_feed_bind(ann, KANN_F_TRUTH, 0, &y);
}

static void peer_step(void)
{
    (void)kann_cost(ann, 0, 1);
    kann_RMSprop(kann_size_var(ann), lr, NULL, 0.9f, ann->g, ann->x, square);
}

static void peer_sgd(void)
{
    (void)kann_cost(ann, 0, 1);
    for (int i = 0; i < kann_size_var(ann); i++) ann->x[i] -= RATE * ann->g[i];
}

static double peer_loss(void) { return (double)kann_cost(ann, 0, 0); }
"""
# LeNet of workloads.h with SGD without momentum, which tiny-dnn's fit would reset each time.
TINY_DNN = r"""#include <tiny_dnn/tiny_dnn.h>

#include "gpunn.h"
#include "workloads.h"

using namespace tiny_dnn;
enum { BATCH = %(batch)d };
#define RATE 0.05f

static workload            w;
static network<sequential> net;
static std::vector<vec_t>  x, y;

static void make_own(void)
{
    make_lenet(&w, BATCH);
    gpunn_optimizer_destroy(w.opt);
    w.opt = NULL;
}

static void read_weights(gpunn_tensor *t, float *values, size_t count);

/* A convolution's weights lie as gpunn's; a linear layer's are [in, out]. */
static void peer_weights(void)
{
    static const char *names[] = {"conv1", "conv2", "fc1", "fc2", "fc3"};
    int                layer = 0;
    for (size_t i = 0; i < net.layer_size(); i++) {
        std::vector<vec_t *> weights = net[i]->weights();
        if (weights.empty()) continue;
        const std::string  name = names[layer++];
        vec_t             &weight = *weights[0], &bias = *weights[1];
        std::vector<float> values(weight.size());
        read_weights(gpunn_find(w.model, (name + ".weight").c_str()), values.data(), values.size());
        read_weights(gpunn_find(w.model, (name + ".bias").c_str()), bias.data(), bias.size());
        const size_t outputs = bias.size(), inputs = weight.size() / outputs;
        for (size_t k = 0; k < values.size(); k++)
            weight[name[0] == 'f' ? k %% inputs * outputs + k / inputs : k] = values[k];
    }
}

static void peer_open(int)
{
    net << convolutional_layer(32, 32, 5, 3, 6) << relu_layer() << max_pooling_layer(28, 28, 6, 2)
        << convolutional_layer(14, 14, 5, 6, 16) << relu_layer() << max_pooling_layer(10, 10, 16, 2)
        << fully_connected_layer(400, 120) << relu_layer() << fully_connected_layer(120, 84) << relu_layer()
        << fully_connected_layer(84, 10) << softmax_layer();
    net.init_weight();
    for (int i = 0; i < BATCH; i++) {
        x.push_back(vec_t(3072));
        y.push_back(vec_t(10));
        for (int k = 0; k < 3072; k++) x[i][k] = noise(3072 * i + k, 0);
        y[i][i * 7 %% 10] = 1;
    }
}

static void peer_step(void)
{
    static gradient_descent optimizer;
    optimizer.alpha = RATE / BATCH; /* it adds up the gradients of a batch */
    net.fit<cross_entropy_multiclass>(optimizer, x, y, BATCH, 1);
}

static void peer_sgd(void) { peer_step(); }

static double peer_loss(void) { return net.get_loss<cross_entropy_multiclass>(x, y) / BATCH; }
"""


def modules():
    """For each title of ONNX Runtime's evaluations: a function that returns the module, and its inputs'
    shapes."""
    import torch
    from torch import nn
    from tests.bench import bench_torch

    class Nothing(nn.Module):
        def forward(self, x):
            return x + 1

    def resnet():
        module = bench_torch.resnet(1000)
        with torch.no_grad():
            module.train()(torch.rand(16, 3, 64, 64))  # so that its norms have statistics
        return module

    def bert():
        return nn.Sequential(*[bench_torch.BertLayer() for _ in range(12)])

    def perceptron(*sizes):
        layers = [part for pair in zip(sizes, sizes[1:]) for part in (nn.Linear(*pair), nn.ReLU())]
        return lambda: nn.Sequential(*layers[:-1])

    return {"ResNet-18, 224 x 224": (resnet, [(1, 3, 224, 224), (8, 3, 224, 224)]),
            "ResNet-18, 64 x 64": (resnet, [(1, 3, 64, 64), (8, 3, 64, 64)]),
            "BERT-base, 128 tokens": (bert, [(1, 128, 768), (8, 128, 768)]),
            "784-256-128-10": (perceptron(784, 256, 128, 10), [(1, 784)]),
            "20-50-1": (perceptron(20, 50, 1), [(1, 20)]), "nothing": (Nothing, [(1, 2)])}


def best_of(session, x, repeats):
    """ONNX Runtime's best time in ms, and its output."""
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu")
    times = []
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times[2:]), binding.copy_outputs_to_cpu()[0]


def evaluations(pattern, rounds, threads_of):
    """Rows of ONNX Runtime's evaluations."""
    import numpy
    import torch
    from generator import export_torch
    from generator.exchange import tensor_files
    from generator.exchange.spec_writer import save_safetensors
    from tests.bench import real_models
    for title, (factory, shapes) in modules().items():
        for shape in shapes if re.search(pattern, title + ", evaluation ONNX Runtime") else []:
            with tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(1)
                module, name = factory().eval(), os.path.join(folder, "model")
                x = torch.rand(shape)
                names = {"input_names": ["x"], "output_names": ["y"]}
                export_torch.export(module, (x,), name + ".json", name + ".safetensors", dynamic_batch=False,
                                    **names)
                torch.onnx.export(module, (x,), name + ".onnx", verbose=False, **names)
                x = x.numpy()
                save_safetensors(name + ".in", {"x": tensor_files.for_gpunn(real_models.as_array(x))})
                for threads in threads_of:
                    session = real_models.session_of(name + ".onnx", threads)
                    once, expected = best_of(session, x, 3)
                    repeats = max(3, min(20000, int(1e3 * SECONDS / once)))
                    real_models.run_model(name, threads)
                    difference = real_models.difference(name, ["y"], [expected.astype(numpy.float64)])
                    pairs = [(real_models.run_model(name, threads, repeats), best_of(session, x, repeats)[0])
                             for _ in range(rounds)]
                    yield title + ", evaluation", shape[0], threads, "ONNX Runtime", pairs, difference


def trained(program, rounds, threads, **environment):
    """ms of both in each round, and the difference of their losses after 20 steps, relative to their
    change."""
    done = subprocess.run([program, str(threads), str(rounds), str(SECONDS)], stdout=subprocess.PIPE,
                          check=True, text=True, env=dict(os.environ, **environment))
    (before, own, peer), *pairs = [list(map(float, line.split())) for line in done.stdout.splitlines()]
    return pairs, abs(own - peer) / abs(before - own)


def built(text, folder, compiler, *flags):
    """The program from a peer's text and PROGRAM."""
    program, source = (os.path.join(folder, "peers"),
                       os.path.join(folder, "peers.c" if compiler == "gcc" else "peers.cc"))
    with open(source, "w", encoding="ascii") as file:
        file.write(text + PROGRAM)
    own = ["-I" + ROOT, "-I" + os.path.join(ROOT, "tests", "bench"), source,
           os.path.join(ROOT, "build", "gpunn.o")]
    subprocess.run([compiler, "-O3", "-march=native", "-w", *own, *flags, "-o", program, "-lz", "-lm",
                    "-lpthread"], check=True)
    return program


def beside_kann(place, pattern, rounds, threads_of):
    """Rows of perceptrons trained by KANN. Each of its threads has a BLAS of its own."""
    flags = ["-std=gnu11", "-DHAVE_CBLAS", "-DHAVE_PTHREAD", "-I" + place, os.path.join(place, "kautodiff.c"),
             os.path.join(place, "kann.c"), "-lopenblas"]
    for sizes, batch in ((20, 50, 1), 32), ((784, 256, 128, 10), 64):
        title = "-".join(map(str, sizes)) + ", training step"
        if not re.search(pattern, title + " KANN"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            text = KANN % {"sizes": ", ".join(map(str, sizes)), "batch": batch, "binary": sizes[-1] == 1}
            program = built(text, folder, "gcc", *flags)
            for threads in threads_of:
                yield (title, batch, threads, "KANN",
                       *trained(program, rounds, threads, OPENBLAS_NUM_THREADS="1"))


def beside_tiny_dnn(place, pattern, rounds, threads_of):
    """Rows of LeNet trained by tiny-dnn, which uses OpenMP threads."""
    for batch in 4, 128:
        title = "LeNet, training step"
        for threads in threads_of if re.search(pattern, title + " tiny-dnn") else []:
            flags = ["-DCNN_SINGLE_THREAD"] if threads == 1 else ["-DCNN_USE_OMP", "-fopenmp"]
            with tempfile.TemporaryDirectory() as folder:
                program = built(TINY_DNN % {"batch": batch}, folder, "g++", "-std=gnu++14", "-DCNN_USE_AVX",
                                "-I" + place, *flags)
                yield (title, batch, threads, "tiny-dnn",
                       *trained(program, rounds, threads, OMP_NUM_THREADS=str(threads)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kann", metavar="FOLDER")
    parser.add_argument("--tiny-dnn", metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="PATTERN", help="of a row's work and its peer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    options = parser.parse_args()
    threads, wrong = list(map(int, options.threads.split(","))), 0
    rows = [evaluations(options.only, options.rounds, threads)]
    if options.kann:
        rows.append(beside_kann(os.path.abspath(options.kann), options.only, options.rounds, threads))
    if options.tiny_dnn:
        rows.append(beside_tiny_dnn(os.path.abspath(options.tiny_dnn), options.only, options.rounds, threads))
    print("| work | batch | threads | gpunn ms | peer | peer ms | ratio | difference |\n" + "|---" * 8 + "|",
          flush=True)
    for title, batch, count, peer, pairs, difference in itertools.chain(*rows):
        own, other = ("%.4g" % statistics.median(column) for column in zip(*pairs))
        ratio = "%.2f" % statistics.median(b / a for a, b in pairs)
        if not difference <= TOLERANCE[title.rpartition(", ")[2]]:
            own = other = ratio = "wrong"
            wrong += 1
        cells = title, str(batch), str(count), own, peer, other, ratio, "%.1e" % difference
        print("| %s |" % " | ".join(cells), flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
