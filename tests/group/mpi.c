/* Ranks that mpirun started: the checks of checks.h in order, a TAP line each, of rank 0 for all. Instead:
 *     mpi FOLDER shard      these checks with groups whose ranks share the optimizers' states out
 *     mpi FOLDER bf16       these checks with groups whose gradients travel as BF16
 *     mpi FOLDER hang N     the last N ranks sleep, and the others say what they hear
 *     mpi FOLDER kill       rank 1 is killed behind the checkpoint after 4 updates
 *     mpi FOLDER resume     4 more from there, and another checkpoint
 *     mpi FOLDER threads    each rank says how many it has */
#define GPUNN_IMPLEMENTATION
#include <signal.h>

#include "checks.h"

static bool gather(void *user, void *parts, size_t bytes)
{
    (void)user;
    return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, parts, (int)bytes, MPI_BYTE, MPI_COMM_WORLD) ==
           MPI_SUCCESS;
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

static bool check_hang(const ranks *r, int hanging)
{
    const task task = {.optimizer = 1};
    float      losses[STEPS];
    ranked     n = ranked_open(r->dev, &task);
    bool good = EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) && steps(r, &n, &task, 0, losses);
    if (gpunn_group_rank(r->group) >= gpunn_group_size(r->group) - hanging)
        (void)sleep(6);
    else if (good) {
        const gpunn_status status = gpunn_train_step(n.opt, n.loss);
        printf("rank %d: %d %s\n", gpunn_group_rank(r->group), (int)status, gpunn_error(r->dev));
        (void)fflush(stdout);
    }
    ranked_close(&n);
    return good;
}

/* Epochs of 4 updates, each behind the last one's checkpoint. */
static bool check_kill(const ranks *r, bool kills)
{
    enum { EACH = 4 };
    const task task = {.optimizer = 1};
    const int  count = EACH * WHOLE * gpunn_group_size(r->group);
    float(*x)[IN] = calloc((size_t)count, sizeof *x);
    int64_t *t = calloc((size_t)count, sizeof *t);
    char     path[300];
    ranked   n = ranked_open(r->dev, &task);
    (void)snprintf(path, sizeof path, "%s/run.ckpt", r->folder);
    samples(x, t, count, 3);
    gpunn_loader *loader = gpunn_loader_create(
        n.model, .fields = {{.input = n.x, .samples = x}, {.input = n.t, .samples = t}}, .count = count,
        .batch_size = WHOLE, .shuffle = true, .group = r->group);
    bool good = EXPECT(r, loader) && EXPECT(r, gpunn_distribute(n.opt, r->group) == GPUNN_OK) &&
                (kills || EXPECT(r, gpunn_checkpoint_load(n.opt, loader, path) == GPUNN_OK)) &&
                EXPECT(r, gpunn_fit(n.opt, .loss = n.loss, .train = loader, .epochs = 1) == GPUNN_OK) &&
                EXPECT(r, gpunn_checkpoint_save(n.opt, loader, path) == GPUNN_OK);
    if (good && gpunn_group_rank(r->group) == 0)
        printf("after %d updates%s\n", (int)gpunn_step_count(n.opt), kills ? ", and rank 1 is killed" : "");
    (void)fflush(stdout);
    if (good && kills && gpunn_group_rank(r->group) == 1) (void)raise(SIGKILL);
    if (good && kills)
        good = EXPECT(r, gpunn_fit(n.opt, .loss = n.loss, .train = loader, .epochs = 1) == GPUNN_OK);
    gpunn_loader_destroy(loader);
    ranked_close(&n);
    free(x);
    free(t);
    return good;
}

/* Devices of which nobody has said how many threads they have. */
static int say_threads(void)
{
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU);
    gpunn_group  *group = gpunn_group_open(dev);
    printf("rank %d: %d threads\n", gpunn_group_rank(group), gpunn_device_threads(dev));
    gpunn_group_close(group);
    gpunn_device_close(dev);
    return group == NULL;
}

int main(int count, char **arguments)
{
    if (count > 2 && strcmp(arguments[2], "threads") == 0) return say_threads();
    shards = count > 2 && strcmp(arguments[2], "shard") == 0;
    rounds = count > 2 && strcmp(arguments[2], "bf16") == 0;
    const char   *alone = count > 2 && !shards && !rounds ? arguments[2] : NULL;
    const bool    hangs = alone && strcmp(alone, "hang") == 0;
    char          why[WHY] = "";
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = 1);
    gpunn_group  *group = gpunn_group_open(dev, .timeout = hangs ? 2 : 60, .shard = shards,
                                           .bf16_gradients = rounds);
    const ranks   r = {dev, group, arguments[1], why, gather, NULL};
    int           failed = 0;
    if (group == NULL) {
        printf("not ok 1 - group: %s\n", gpunn_error(dev));
        return 1;
    }
    const int size = gpunn_group_size(group), checked = (int)(sizeof checks / sizeof *checks);
    for (int i = 0; i < checked && alone == NULL; i++) {
        const bool good = all_good(&r, checks[i].run(&r));
        failed += !good;
        gpunn_clear_error(dev);
        if (gpunn_group_rank(group) == 0)
            printf("%sok %d - %s, %d ranks\n", good ? "" : "not ", i + 1, checks[i].name, size);
    }
    if (hangs) failed += !check_hang(&r, atoi(arguments[3]));
    if (alone && !hangs) failed += !check_kill(&r, strcmp(alone, "kill") == 0);
    gpunn_group_close(group);
    gpunn_device_close(dev);
    return failed != 0;
}
