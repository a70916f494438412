/* Stands in for NCCL between the emulated GPUs of one process, whose ranks are its threads: each call is work
 * of its stream, which goes no further until all ranks' have come. Calls that differ between ranks are a
 * fault, and so are calls that some ranks capture and others do not while buffers in graphs are registered:
 * NVLink SHARP registers them by a meeting of the hosts (nvls.cc). A captured call holds its communicator
 * until its graphs are gone, and until then abort and finalize do not end (init.cc, commDestroySync). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
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
enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER };
enum { SUM, AVERAGE = 4 };
enum { FLOAT = 7, BFLOAT16 = 9 };

struct call {
    int         kind, type, operation, root; /* -1: of no meaning */
    const void *from;
    void       *to;
    size_t      count;
    bool        captured;
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
    std::atomic<bool>      given_up{false}, finalized{false};
    std::atomic<int>       held{0}; /* by graphs */
    std::thread::id        owner = std::this_thread::get_id();
};
struct emulator_comm {
    std::shared_ptr<member> self;
};

static std::mutex                                    lock;   /* of what follows, and of joining */
static std::map<std::string, std::shared_ptr<world>> worlds; /* those that somebody is still to join */
static int                                           named;

static std::atomic<int64_t> reduced; /* bytes that ranks gave for sums and means */

static size_t width(int type)
{
    return type == BFLOAT16 ? 2 : 4;
}

static std::vector<float> read(const call &c)
{
    std::vector<float> values(c.count);
    if (c.type == FLOAT) memcpy(values.data(), c.from, c.count * sizeof(float));
    for (size_t i = 0; i < c.count && c.type == BFLOAT16; i++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)c.from)[i] << 16;
        memcpy(&values[i], &bits, sizeof bits);
    }
    return values;
}

/* BF16 to nearest even. */
static void write(const call &c, const std::vector<float> &values)
{
    if (c.type == FLOAT) memcpy(c.to, values.data(), values.size() * sizeof(float));
    for (size_t i = 0; i < values.size() && c.type == BFLOAT16; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        ((uint16_t *)c.to)[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
}

static bool registers_in_graphs(void)
{
    const char *value = getenv("NCCL_GRAPH_REGISTER");
    return value == NULL || strcmp(value, "0") != 0;
}

static void meet(world *w)
{
    const call &same = w->calls[0];
    const bool  reduces = same.kind == ALL_REDUCE || same.kind == REDUCE;
    for (const call &c : w->calls) {
        if (c.captured != same.captured && registers_in_graphs())
            emulator_report("NCCL: some ranks capture a call, and others do not");
        if (c.kind == same.kind && c.type == same.type && c.operation == same.operation &&
            c.root == same.root && c.count == same.count)
            continue;
        emulator_report("NCCL: the ranks' calls differ");
        return;
    }
    std::vector<float> result = read(w->calls[same.kind == BROADCAST ? (size_t)same.root : 0]);
    for (size_t rank = 1; rank < w->calls.size() && same.kind != BROADCAST; rank++) {
        const std::vector<float> part = read(w->calls[rank]);
        for (size_t i = 0; i < part.size() && reduces; i++) result[i] += part[i];
        if (!reduces) result.insert(result.end(), part.begin(), part.end());
    }
    for (size_t i = 0; i < result.size() && same.operation == AVERAGE; i++)
        result[i] /= (float)w->calls.size();
    if (reduces) reduced += (int64_t)(w->calls.size() * same.count * width(same.type));
    for (size_t rank = 0; rank < w->calls.size(); rank++)
        if (same.kind != REDUCE || (int)rank == same.root) write(w->calls[rank], result);
}

static int enqueue(emulator_comm *comm, const char *name, call own, void *stream)
{
    std::shared_ptr<member> self = comm->self, holds;
    own.captured = emulator_captures(stream);
    if (own.captured) {
        self->held++;
        holds = std::shared_ptr<member>(self.get(), [self](member *) { self->held--; });
    }
    auto arrive = [=] {
        world *w = self->all.get();
        (void)holds;
        self->arrived++;
        if (w->aborted || emulator_nccl() < 0) return;
        w->calls[self->rank] = own;
        if (++w->here < w->calls.size()) return;
        meet(w);
        w->here = 0;
        w->done++;
    };
    cudaError_t error = emulator_call((cudaStream_t)stream, name, arrive);
    if (error == cudaSuccess)
        error = emulator_wait((cudaStream_t)stream,
                              [=] { return self->all->done >= self->arrived || self->given_up; });
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
    if (settings->size != sizeof *settings || settings->magic != 0xcafebeef || settings->blocking != 0)
        return INVALID_ARGUMENT;
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
    const bool                        waits = comm->self->finalized && comm->self->held > 0;
    *state = w->aborted ? REMOTE_ERROR : w->joined < w->calls.size() || waits ? IN_PROGRESS : SUCCESS;
    return SUCCESS;
}
int ncclCommAbort(emulator_comm *comm)
{
    const std::shared_ptr<member> self = comm->self;
    self->all->aborted = self->given_up = true;
    if (self->held > 0 && self->owner == std::this_thread::get_id())
        emulator_report("ncclCommAbort waits for graphs that hold the communicator, on the thread that is to "
                        "destroy them");
    else
        while (self->held > 0) std::this_thread::yield();
    delete comm;
    return SUCCESS;
}
int ncclCommFinalize(emulator_comm *comm)
{
    comm->self->finalized = true;
    return IN_PROGRESS;
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
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, emulator_comm *comm,
                  void *stream)
{
    return enqueue(comm, "ncclAllReduce", {ALL_REDUCE, type, operation, -1, from, to, count, false}, stream);
}
int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root,
               emulator_comm *comm, void *stream)
{
    return enqueue(comm, "ncclReduce", {REDUCE, type, operation, root, from, to, count, false}, stream);
}
int ncclAllGather(const void *from, void *to, size_t count, int type, emulator_comm *comm, void *stream)
{
    return enqueue(comm, "ncclAllGather", {ALL_GATHER, type, -1, -1, from, to, count, false}, stream);
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, emulator_comm *comm,
                  void *stream)
{
    return enqueue(comm, "ncclBroadcast", {BROADCAST, type, -1, root, from, to, count, false}, stream);
}
/* Since the last call. */
int64_t emulator_reduced_bytes(void)
{
    return reduced.exchange(0);
}
}
