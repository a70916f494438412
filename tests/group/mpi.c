/* Ranks that mpirun started: the checks of checks.h in order, a TAP line each, of rank 0 for all. `mpi FOLDER hang` instead: the last
 * rank sleeps, and the others say what they hear. */
#define GPUNN_IMPLEMENTATION
#include "checks.h"

static bool gather(void *user, void *parts, size_t bytes)
{
    (void)user;
    return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, parts, (int)bytes, MPI_BYTE, MPI_COMM_WORLD) == MPI_SUCCESS;
}

/* Whether it went well on all ranks; prints what did not. */
static bool all_good(const ranks *r, bool good)
{
    int one = good, all = 0;
    if (!good) printf("# rank %d: %s\n", gpunn_group_rank(r->group), r->why);
    (void)fflush(stdout);
    (void)MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all != 0;
}

static bool check_hang(const ranks *r)
{
    const task task = {.optimizer = 1};
    float      losses[STEPS];
    ranked     n = ranked_open(r->dev, &task);
    bool       good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && steps(r, &n, &task, 0, losses);
    if (gpunn_group_rank(r->group) == gpunn_group_size(r->group) - 1)
        (void)sleep(6);
    else if (good) {
        const gpunn_status status = gpunn_train_step(n.opt, n.loss);
        printf("rank %d: %d %s\n", gpunn_group_rank(r->group), (int)status, gpunn_error(r->dev));
        (void)fflush(stdout);
    }
    ranked_close(&n);
    return good;
}

int main(int count, char **arguments)
{
    const bool    hangs = count > 2;
    char          why[WHY] = "";
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = 1);
    gpunn_group  *group = gpunn_group_open(dev, .timeout = hangs ? 2 : 60);
    const ranks   r = {dev, group, arguments[1], why, gather, NULL};
    int           failed = 0;
    if (group == NULL) {
        printf("not ok 1 - group: %s\n", gpunn_error(dev));
        return 1;
    }
    const int size = gpunn_group_size(group), checked = (int)(sizeof checks / sizeof *checks);
    for (int i = 0; i < checked && !hangs; i++) {
        const bool good = all_good(&r, checks[i].run(&r));
        failed += !good;
        gpunn_clear_error(dev);
        if (gpunn_group_rank(group) == 0) printf("%sok %d - %s, %d ranks\n", good ? "" : "not ", i + 1, checks[i].name, size);
    }
    if (hangs) failed += !check_hang(&r);
    gpunn_group_close(group);
    gpunn_device_close(dev);
    return failed != 0;
}
