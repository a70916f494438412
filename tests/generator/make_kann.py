"""Writes expected/kann.json with KANN (https://github.com/attractivechaos/kann, r557): files of kann_save, as
base64, and what KANN computes of them.

    python3 tests/generator/make_kann.py FOLDER     FOLDER: KANN's sources"""
import base64
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = r"""
#include "kann.h"
#include <stdio.h>
#include <stdlib.h>

static void list(FILE *f, const char *name, const float *x, int count)
{
    fprintf(f, "\"%s\": [", name);
    for (int i = 0; i < count; i++) fprintf(f, "%s%.9g", i ? ", " : "", x[i]);
    fprintf(f, "], ");
}

/* steps: 0 for a network without recurrence, or to take one step of it */
static void write_case(const char *name, kad_node_t *cost, int samples, int in, int out, int steps)
{
    kann_t *a = kann_new(cost, 0), *b;
    char    path[64];
    float  *x, *y, *xs[16], *ys[16], value;
    int     times = steps ? steps : 1;
    for (int i = 0; i < kann_size_var(a); i++) a->x[i] += 0.1f * (i % 7 - 3);
    sprintf(path, "%s.kann", name);
    kann_save(path, a);
    x = calloc(times * samples * in, sizeof *x);
    y = calloc(times * samples * out, sizeof *y);
    for (int i = 0; i < times * samples * in; i++) x[i] = 2 * kad_drand(0) - 1;
    for (int i = 0; i < times * samples; i++) y[i * out + i % out] = 1;
    for (int t = 0; t < times; t++) xs[t] = x + t * samples * in, ys[t] = y + t * samples * out;
    b = steps ? kann_unroll(a, steps) : a;
    kann_set_batch_size(b, samples);
    kann_feed_bind(b, KANN_F_IN, 0, xs);
    kann_feed_bind(b, KANN_F_TRUTH, 0, ys);
    kann_switch(b, 0);
    value = kann_cost(b, 0, 0);
    sprintf(path, "%s.json", name);
    FILE *f = fopen(path, "w");
    fprintf(f, "{");
    list(f, "input", x, times * samples * in);
    list(f, "truth", y, times * samples * out);
    list(f, "cost", &value, 1);
    kann_eval(b, KANN_F_OUT, 0);
    float all[256];
    int   count = 0;
    for (int i = 0; i < b->n; i++)
        for (int k = 0; b->v[i]->ext_flag & KANN_F_OUT && k < kad_len(b->v[i]); k++)
            all[count++] = b->v[i]->x[k];
    list(f, "output", all, count);
    fprintf(f, "\"variables\": %d, \"samples\": %d, \"steps\": %d}\n", kann_size_var(a), samples, steps);
    fclose(f);
}

static kad_node_t *image(int rank, int channels, int rows, int columns)
{
    kad_node_t *t = rank == 4 ? kad_feed(4, 1, channels, rows, columns) : kad_feed(3, 1, channels, columns);
    t->ext_flag |= KANN_F_IN;
    return t;
}

int main(void)
{
    kad_node_t *t, *part, *truth;
    kann_srand(3);
    t = kad_relu(kann_layer_layernorm(kann_layer_dense(kann_layer_input(5), 6)));
    write_case("mlp", kann_layer_cost(kann_layer_dropout(t, 0.2f), 3, KANN_C_CEM), 4, 5, 3, 0);

    t = kad_relu(kann_layer_conv2d(image(4, 2, 7, 6), 3, 3, 3, 1, 1, 1, 1)); /* padding above and left */
    t = kad_sigm(kann_layer_conv2d(kad_max2d(t, 2, 2, 2, 2, 0, 0), 4, 2, 3, 1, 1, 0, 1));
    write_case("conv2d", kann_layer_cost(t, 2, KANN_C_CEB), 3, 84, 2, 0);

    t = kad_max1d(kad_tanh(kann_layer_conv1d(image(3, 2, 0, 16), 8, 5, 1, 2)), 2, 2, 0);
    t = kad_avg1d(kann_layer_conv1d(t, 2, 3, 2, 0), 2, 2, 0);
    t = kad_exp(kad_sin(kad_square(kad_1minus(t))));
    write_case("conv1d", kann_layer_cost(t, 2, KANN_C_MSE), 3, 32, 2, 0);

    t = kann_layer_gru(kann_layer_input(2), 5, KANN_RNN_VAR_H0);
    t = kann_layer_rnn(kann_layer_lstm(t, 4, KANN_RNN_NORM), 3, 0);
    write_case("rnn", kann_layer_cost(t, 2, KANN_C_CEM), 3, 2, 2, 4);

    t = kann_layer_gru(kann_layer_input(2), 5, 0); /* as kann_apply1 computes it: one step */
    write_case("step", kann_layer_cost(t, 2, KANN_C_MSE), 3, 2, 2, 0);

    t = kann_layer_lstm(kann_layer_input(2), 4, 0); /* one output after the last step */
    t = kad_softmax(kann_layer_dense(kad_avg(1, &t), 2));
    t->ext_flag |= KANN_F_OUT;
    truth = kad_feed(2, 1, 2);
    truth->ext_flag |= KANN_F_TRUTH;
    write_case("summary", kad_ce_multi(t, truth), 3, 2, 2, 3);

    t = image(3, 4, 0, 6);
    part = kad_reverse(kad_slice(t, 2, 3, 6), 2);
    t = kad_concat(2, 2, kad_slice(t, 2, 1, 4), part);
    t = kad_sub(t, kad_mul(t, kann_new_bias(6)));
    t = kad_log(kad_add(kad_square(t), kann_new_scalar(KAD_CONST, 1.5f)));
    t = kad_reduce_mean(kad_reshape(t, 3, (int[]){-1, 8, 3}), 2);
    write_case("shapes", kann_layer_cost(kad_reshape(t, 2, (int[]){-1, 8}), 2, KANN_C_CEB_NEG), 3, 24, 2, 0);
}
"""


def main():
    sources = [os.path.join(os.path.abspath(sys.argv[1]), name) for name in ("kann.c", "kautodiff.c")]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "make.c"), "w", encoding="ascii") as file:
            file.write(PROGRAM)
        subprocess.run(["cc", "-O1", "-I", sys.argv[1], "make.c", *sources, "-o", "make", "-lm"], cwd=folder,
                       check=True)
        subprocess.run(["./make"], cwd=folder, check=True)
        cases = {}
        for name in sorted(one[:-5] for one in os.listdir(folder) if one.endswith(".kann")):
            with open(os.path.join(folder, name + ".json"), encoding="ascii") as file:
                cases[name] = json.load(file)
            with open(os.path.join(folder, name + ".kann"), "rb") as file:
                cases[name]["file"] = base64.b64encode(file.read()).decode()
    with open(os.path.join(HERE, "expected", "kann.json"), "w", encoding="ascii") as file:
        file.write("{\n" + ",\n".join("%s: %s" % (json.dumps(name), json.dumps(case))
                                      for name, case in cases.items()) + "\n}\n")


if __name__ == "__main__":
    main()
