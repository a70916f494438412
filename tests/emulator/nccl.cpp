/* Stands in for NCCL between the emulated GPUs of one process, whose ranks are its threads: each call is work of its stream, which goes
 * no further until all ranks' have come. Calls that differ between ranks are a fault. */
#include <stdio.h>
#include <string.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_runtime.h"

struct id {
    char text[128];
};
struct config {
    size_t   size;
    unsigned magic, version;
    int      blocking;
};
enum { SUCCESS, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS };
enum { ALL_REDUCE_AVERAGE = 4, BROADCAST, ALL_GATHER };

struct call {
    int          kind, root;
    const float *from;
    float       *to;
    size_t       count;
};
struct world {
    size_t            joined, here;
    long              done; /* calls */
    std::atomic<bool> aborted;
    std::vector<call> calls; /* of each rank, the one that is under way */
};
struct member {
    member(const std::shared_ptr<world> &all, size_t rank) : all(all), rank(rank)
    {
    }
    std::shared_ptr<world> all;
    size_t                 rank;
    long                   arrived = 0; /* at so many calls */
    std::atomic<bool>      given_up{false};
};
struct emulator_comm {
    std::shared_ptr<member> self;
};

static std::mutex                                    lock;   /* of what follows, and of joining */
static std::map<std::string, std::shared_ptr<world>> worlds; /* those that somebody is still to join */
static int                                           named;

static void exchange(world *w)
{
    for (const call &c : w->calls)
        if (c.kind != w->calls[0].kind || c.root != w->calls[0].root || c.count != w->calls[0].count) {
            emulator_report("NCCL: the ranks' calls differ");
            return;
        }
    const call        &first = w->calls[(size_t)w->calls[0].root];
    std::vector<float> result(first.from, first.from + first.count);
    for (size_t rank = 1; rank < w->calls.size() && w->calls[0].kind == ALL_REDUCE_AVERAGE; rank++)
        for (size_t i = 0; i < result.size(); i++) result[i] += w->calls[rank].from[i];
    for (size_t i = 0; i < result.size() && w->calls[0].kind == ALL_REDUCE_AVERAGE; i++) result[i] /= (float)w->calls.size();
    for (size_t rank = 1; rank < w->calls.size() && w->calls[0].kind == ALL_GATHER; rank++)
        result.insert(result.end(), w->calls[rank].from, w->calls[rank].from + w->calls[rank].count);
    for (const call &c : w->calls) memcpy(c.to, result.data(), result.size() * sizeof(float));
}

static int enqueue(emulator_comm *comm, const char *name, call own, void *stream)
{
    std::shared_ptr<member> self = comm->self;
    auto                    arrive = [=] {
        world *w = self->all.get();
        self->arrived++;
        if (w->aborted || emulator_nccl() < 0) return;
        w->calls[self->rank] = own;
        if (++w->here < w->calls.size()) return;
        exchange(w);
        w->here = 0;
        w->done++;
    };
    cudaError_t error = emulator_call((cudaStream_t)stream, name, arrive);
    if (error == cudaSuccess)
        error = emulator_wait((cudaStream_t)stream, [=] { return self->all->done >= self->arrived || self->given_up; });
    return error == cudaSuccess ? SUCCESS : 1;
}

extern "C" {
int ncclGetVersion(int *version)
{
    *version = 22907;
    return SUCCESS;
}
int ncclGetUniqueId(id *name)
{
    const std::lock_guard<std::mutex> guard(lock);
    memset(name, 0, sizeof *name);
    (void)snprintf(name->text, sizeof name->text, "emulated %d", named++);
    return SUCCESS;
}
int ncclCommInitRankConfig(emulator_comm **comm, int size, id name, int rank, const config *settings)
{
    const std::lock_guard<std::mutex> guard(lock);
    if (settings->size != sizeof *settings || settings->magic != 0xcafebeef || settings->blocking != 0) return INVALID_ARGUMENT;
    std::shared_ptr<world> &all = worlds[name.text];
    if (!all) {
        all = std::make_shared<world>();
        all->calls.resize((size_t)size);
    }
    *comm = new emulator_comm{std::make_shared<member>(all, (size_t)rank)};
    if (++all->joined == (size_t)size) worlds.erase(name.text);
    return IN_PROGRESS;
}
int ncclCommGetAsyncError(emulator_comm *comm, int *state)
{
    const std::lock_guard<std::mutex> guard(lock);
    const world                      *w = comm->self->all.get();
    *state = w->aborted ? REMOTE_ERROR : w->joined < w->calls.size() ? IN_PROGRESS : SUCCESS;
    return SUCCESS;
}
int ncclCommAbort(emulator_comm *comm)
{
    const std::lock_guard<std::mutex> guard(lock);
    comm->self->all->aborted = comm->self->given_up = true;
    delete comm;
    return SUCCESS;
}
int ncclCommFinalize(emulator_comm *)
{
    return SUCCESS;
}
int ncclCommDestroy(emulator_comm *comm)
{
    delete comm;
    return SUCCESS;
}
const char *ncclGetErrorString(int result)
{
    return result == REMOTE_ERROR ? "remote process exited or there was a network error" : "invalid argument";
}
int ncclGroupStart(void)
{
    return SUCCESS;
}
int ncclGroupEnd(void)
{
    return SUCCESS;
}
int ncclAllReduce(const void *from, void *to, size_t count, int, int operation, emulator_comm *comm, void *stream)
{
    return enqueue(comm, "ncclAllReduce", {operation, 0, (const float *)from, (float *)to, count}, stream);
}
int ncclAllGather(const void *from, void *to, size_t count, int, emulator_comm *comm, void *stream)
{
    return enqueue(comm, "ncclAllGather", {ALL_GATHER, 0, (const float *)from, (float *)to, count}, stream);
}
int ncclBroadcast(const void *from, void *to, size_t count, int, int root, emulator_comm *comm, void *stream)
{
    return enqueue(comm, "ncclBroadcast", {BROADCAST, root, (const float *)from, (float *)to, count}, stream);
}
}
