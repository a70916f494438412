/* Runs a generated file's kernels on the CPU, for test_emit_c.py. Cases come on stdin and results go to
 * stdout, in numbers of 8 bytes: kernel (one byte), direction (3: an update), batch, threads, seed, step,
 * random streams: their number and each; operands: their number, and of each whether it is added to, its
 * bytes (-1: NULL) and, padded, its memory. Results: what the function returned, then the memory of all
 * operands. Of an update: 3, its number, threads, the place of weight_decay; in thousand millionths scale,
 * limit, weight_decay, lr and what its row has ONCE; then the operands parameter, gradient and states. LANES in the
 * environment: what gpunn_kernel_call says of the processor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include KERNELS

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define SET JOIN(NAME, _kernels)

/* gpunn.h's, of which only declarations are here: one index after the other, the last first. */
void gpunn_parallel(int threads, void (*task)(void *arg, int index, int threads), void *arg)
{
    for (int i = threads < 1 ? 1 : threads; i-- > 0;) task(arg, i, threads < 1 ? 1 : threads);
}

enum { MOST = 64 };

typedef struct block {
    int64_t bytes;
    char   *data;
} block;

static void take(void *to, size_t bytes)
{
    if (bytes > 0 && fread(to, bytes, 1, stdin) != 1) exit(2);
}

static int64_t number(void)
{
    int64_t value;
    take(&value, sizeof value);
    return value;
}

static int64_t read_blocks(block *blocks, unsigned char *accumulate)
{
    int64_t count = number();
    for (int64_t i = 0; i < count; i++) {
        char padding[8];
        accumulate[i] = (unsigned char)number();
        blocks[i].bytes = number();
        blocks[i].data = NULL;
        if (blocks[i].bytes < 0) continue;
        blocks[i].data = (char *)malloc((size_t)blocks[i].bytes);
        if (blocks[i].data == NULL) exit(2);
        take(blocks[i].data, (size_t)blocks[i].bytes);
        take(padding, (size_t)(-blocks[i].bytes & 7));
    }
    return count;
}

static void give_blocks(block *blocks, int64_t count, int64_t status)
{
    fwrite(&status, sizeof status, 1, stdout);
    for (int64_t i = 0; i < count; i++) {
        const char padding[8] = {0};
        if (blocks[i].data == NULL) continue;
        fwrite(blocks[i].data, 1, (size_t)blocks[i].bytes, stdout);
        fwrite(padding, 1, (size_t)(-blocks[i].bytes & 7), stdout);
        free(blocks[i].data);
    }
}

static int lanes(void)
{
    const char *text = getenv("LANES");
    return text ? atoi(text) : 0;
}

static void run_update(int64_t which, int64_t threads)
{
    gpunn_update         u;
    gpunn_update_numbers numbers;
    block                blocks[MOST];
    unsigned char        accumulate[MOST];
    float                given[4 + GPUNN_UPDATE_NUMBERS]; /* scale, limit, weight decay, lr, once */
    int64_t              decay = number();
    memset(&u, 0, sizeof u);
    numbers.go = true;
    for (int i = 0; i < 4 + GPUNN_UPDATE_NUMBERS; i++) given[i] = (float)((double)number() * 1e-9);
    int64_t count = read_blocks(blocks, accumulate);
    numbers.scale = given[0];
    u.gradient_limit = given[1];
    u.setting[decay] = given[2];
    numbers.lr = given[3];
    memcpy(numbers.once, given + 4, sizeof numbers.once);
    u.count = blocks[0].bytes / 4;
    u.parameter = (float *)(void *)blocks[0].data;
    u.gradient = (const float *)(const void *)blocks[1].data;
    for (int i = 0; i < 3; i++) u.state[i] = (float *)(void *)blocks[2 + i].data;
    give_blocks(blocks, count, SET.updates[which].cpu(&u, &numbers, (int)threads, lanes()));
}

int main(void)
{
    for (int kernel = getchar(); kernel != EOF; kernel = getchar()) {
        block             blocks[MOST];
        void             *data[MOST];
        unsigned char     accumulate[MOST];
        uint32_t          random_streams[8];
        uint64_t          random[2];
        gpunn_kernel_call call;
        int64_t           direction = number();
        memset(&call, 0, sizeof call);
        call.batch = number();
        call.threads = (int)number();
        call.lanes = lanes();
        if (direction == 3) {
            run_update(call.batch, call.threads);
            continue;
        }
        for (int i = 0; i < 2; i++) random[i] = (uint64_t)number();
        int64_t random_stream_count = number();
        for (int64_t i = 0; i < random_stream_count; i++) random_streams[i] = (uint32_t)number();
        int64_t count = read_blocks(blocks, accumulate);
        for (int64_t i = 0; i < count; i++) data[i] = blocks[i].data;
        const gpunn_kernel_program *program = &SET.kernels[kernel].program[direction];
        if (program->operand_count != count) exit(3);
        size_t bytes = program->cpu_workspace(call.batch, call.threads);
        call.data = data;
        call.accumulate = accumulate;
        call.random_streams = random_streams;
        call.random = random;
        call.workspace = malloc(bytes);
        give_blocks(blocks, count, program->cpu(&call));
        free(call.workspace);
    }
    return 0;
}
