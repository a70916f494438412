/* Every kind of save on a disk that fails at each of its calls, in every way (disk.h): the old file or the
 * new one is whole, and the next save leaves nothing beside it. A loss of power later does not take a save
 * back. Every kind of load, the same way: the object is as it was or as the file says. A file of TensorBoard
 * grows by whole events. GPUNN_TEST_ROUNDS: of saves in which calls fail by chance. */
#define _GNU_SOURCE
#include "../test.h"
#include "../../examples/tensorboard.h"
#include "disk.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const disk *the_disk;

enum { ROWS = 53, COLUMNS = 61 }; /* more than the library's buffer */
typedef struct object {
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_tensor    *loss;
    gpunn_optimizer *opt;
    gpunn_array      array;
    const char      *name; /* of the spec */
} object;

static void build(object *o, gpunn_device *dev)
{
    o->dev = dev;
    o->model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x = gpunn_input(o->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, COLUMNS));
    gpunn_tensor *t = gpunn_input(o->model, "t", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, ROWS));
    o->loss = MADE(dev, gpunn_mse_loss(gpunn_dropout(gpunn_linear(x, "fc", .out_features = ROWS), 0.25f), t));
    o->opt = MADE(dev, gpunn_adam(o->model, .lr = 0.01f));
}
static void unbuild(object *o)
{
    gpunn_optimizer_destroy(o->opt);
    gpunn_model_destroy(o->model);
}

/* One of two contents, all of which differ. */
static void set(object *o, int which)
{
    float *values = test_randoms(ROWS * COLUMNS, 5 + (uint32_t)which, 1);
    OK(o->dev, write_floats(gpunn_find(o->model, "x"), values, 3 * COLUMNS));
    OK(o->dev, write_floats(gpunn_find(o->model, "t"), values, 3 * ROWS));
    OK(o->dev, gpunn_train_step(o->opt, o->loss)); /* the optimizer has its state */
    OK(o->dev, write_floats(gpunn_find(o->model, "fc.weight"), values, ROWS * COLUMNS));
    memcpy(o->array.data, values, o->array.bytes);
    o->name = which ? "new" : "old";
    free(values);
}

static gpunn_status save_weights(object *o, const char *path)
{
    return gpunn_save(o->model, path);
}
static gpunn_status load_weights(object *o, const char *path)
{
    return gpunn_load(o->model, path);
}
static gpunn_status save_checkpoint(object *o, const char *path)
{
    return gpunn_checkpoint_save(o->opt, NULL, path);
}
static gpunn_status load_checkpoint(object *o, const char *path)
{
    return gpunn_checkpoint_load(o->opt, NULL, path);
}
static gpunn_status save_spec(object *o, const char *path)
{
    return gpunn_spec_save(o->model, path, .name = o->name, .loss = o->loss, .optimizer = o->opt);
}
static gpunn_status take_model(object *o, gpunn_model *model)
{
    if (model == NULL) return gpunn_last_status(o->dev);
    unbuild(o);
    o->model = model;
    o->loss = MADE(o->dev, gpunn_spec_loss(model));
    o->opt = MADE(o->dev, gpunn_spec_optimizer(model));
    o->name = NULL; /* the spec's */
    return GPUNN_OK;
}
static gpunn_status load_spec(object *o, const char *path)
{
    return take_model(o, gpunn_spec_load(o->dev, path));
}
static gpunn_status save_model(object *o, const char *path)
{
    return gpunn_model_save(o->model, path, .name = o->name, .loss = o->loss, .optimizer = o->opt);
}
static gpunn_status load_model(object *o, const char *path)
{
    return take_model(o, gpunn_model_load(o->dev, path));
}
static gpunn_status save_npy(object *o, const char *path)
{
    return gpunn_write_npy(o->dev, path, &o->array);
}
static gpunn_status loaded(object *o, gpunn_status status, gpunn_array *array)
{
    if (status != GPUNN_OK) return status;
    gpunn_array_free(o->dev, &o->array);
    o->array = *array;
    return GPUNN_OK;
}
static gpunn_status load_npy(object *o, const char *path)
{
    gpunn_array array;
    return loaded(o, gpunn_read_npy(o->dev, path, &array), &array);
}
static gpunn_status save_array(object *o, const char *path)
{
    const char *name = "array";
    return gpunn_write_safetensors(o->dev, path, &name, &o->array, 1);
}
static gpunn_status load_array(object *o, const char *path)
{
    gpunn_array array;
    return loaded(o, gpunn_read_safetensors(o->dev, path, "array", &array), &array);
}
typedef struct kind {
    const char *name;
    gpunn_status (*save)(object *o, const char *path), (*load)(object *o, const char *path);
} kind;
static const kind kinds[] = {{"weights", save_weights, load_weights},
                             {"checkpoint", save_checkpoint, load_checkpoint},
                             {"spec", save_spec, load_spec},
                             {"model", save_model, load_model},
                             {"npy", save_npy, load_npy},
                             {"safetensors", save_array, load_array}};

/* ---- files ---- */
/* New files that saves have left. */
static int stale(const char *folder)
{
    int  count = 0;
    DIR *directory = opendir(folder);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += strncmp(entry->d_name, ".gpunn-", 7) == 0;
    (void)closedir(directory);
    return count;
}

typedef struct bytes {
    unsigned char *data; /* NULL: there is no file */
    size_t         size;
} bytes;
static bytes contents(const char *path)
{
    bytes b = {NULL, 0};
    if (access(path, F_OK) == 0) b.data = file_read(path, &b.size);
    return b;
}
static bool same(const char *path, bytes expected)
{
    const bytes b = contents(path);
    const bool  result = (b.data == NULL) == (expected.data == NULL) && b.size == expected.size &&
                        (b.size == 0 || memcmp(b.data, expected.data, b.size) == 0);
    free(b.data);
    return result;
}

typedef struct saves {
    fixture    *f;
    object      o;
    const kind *kind;
    const char *path, *other;
    bytes       whole[2]; /* 0: the file's content, 1: the object's */
} saves;

static saves begin(fixture *f, const kind *k)
{
    saves s = {.f = f, .kind = k, .path = test_path(f, "file"), .other = test_path(f, "other")};
    build(&s.o, f->dev);
    gpunn_array array = {
        GPUNN_F32, 2, {ROWS, COLUMNS}, ROWS * COLUMNS * sizeof(float), test_randoms(ROWS * COLUMNS, 1, 1)};
    OK(f->dev, gpunn_write_npy(f->dev, s.other, &array));
    OK(f->dev, gpunn_read_npy(f->dev, s.other, &s.o.array)); /* the library's memory */
    free(array.data);
    for (int i = 0; i < 2; i++) {
        set(&s.o, i);
        OK(f->dev, k->save(&s.o, i ? s.other : s.path));
        s.whole[i] = contents(i ? s.other : s.path);
    }
    assert_false(same(s.path, s.whole[1]));
    return s;
}
static void end(saves *s)
{
    assert_int_equal(unlink(s->path) | unlink(s->other), 0);
    for (int i = 0; i < 2; i++) free(s->whole[i].data);
    gpunn_array_free(s->o.dev, &s->o.array);
    unbuild(&s->o);
}
static void put_old(const saves *s, bool there)
{
    if (there)
        file_write(s->path, s->whole[0].data, s->whole[0].size);
    else
        (void)unlink(s->path);
}

static char at[96]; /* the fault, for messages */
#define EXPECT(condition)                                                   \
    do {                                                                    \
        if (!(condition)) fail_msg("%s: %s does not hold", at, #condition); \
    } while (0)

/* The file after a save that gave this status, and after the next one, which nothing disturbs. */
static void check_saved(saves *s, bool there, gpunn_status status, bool whole_either)
{
    const bytes none = {NULL, 0}, old = there ? s->whole[0] : none;
    const bool  is_new = same(s->path, s->whole[1]);
    if (status != GPUNN_OK) {
        EXPECT(status == GPUNN_ERR_IO);
        EXPECT(gpunn_last_status(s->o.dev) == GPUNN_ERR_IO && strstr(gpunn_error(s->o.dev), "cannot write"));
        gpunn_clear_error(s->o.dev);
    }
    if (whole_either)
        EXPECT(is_new || same(s->path, old));
    else
        EXPECT(status == GPUNN_OK ? is_new : same(s->path, old));
    OK(s->o.dev, s->kind->save(&s->o, s->path));
    EXPECT(same(s->path, s->whole[1]));
    EXPECT(stale(s->f->folder) == 0);
}

/* ---- one call after another ---- */
static const struct {
    int         how;
    const char *name;
} ways[] = {{EIO, "EIO"},
            {ENOSPC, "ENOSPC"},
            {EINTR, "EINTR"},
            {DISK_SHORT, "short"},
            {DISK_KILL, "killed"},
            {DISK_KILL_BEHIND, "killed behind"},
            {DISK_LOSE_DATA, "power lost, names kept"},
            {DISK_LOSE_NAMES, "power lost"}};

/* The program's end where no call was left to break, and the loss of power after it. */
static void end_child(int how, gpunn_status status)
{
    if (how <= DISK_LOSE_DATA) the_disk->lose(how);
    _exit(status == GPUNN_OK ? 0 : 1);
}

/* or there is no new file */
static const char *const must_work[] = {"create", "write", "fsync", "rename", NULL};
static bool              is_one_of(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

static void test_save(void **state)
{
    fixture *f = *state;
    saves    s = begin(f, f->data);
    long     faults = 0;
    for (int i = 0; i < 2 * COUNT(ways); i++) {
        const int  how = ways[i / 2].how;
        const bool there = i % 2;
        for (long n = 1;; n++, faults++) {
            (void)snprintf(at, sizeof at, "%s, %s, call %ld, %s", s.kind->name,
                           there ? "over an old file" : "new", n, ways[i / 2].name);
            put_old(&s, there);
            if (how < DISK_SHORT) {
                int         status;
                const pid_t child = fork();
                if (child == 0) {
                    the_disk->break_call(n, how);
                    end_child(how, s.kind->save(&s.o, s.path));
                }
                assert_int_equal(waitpid(child, &status, 0), child);
                if (!WIFSIGNALED(status)) {
                    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0 && same(s.path, s.whole[1]));
                    break;
                }
                EXPECT(WTERMSIG(status) == SIGKILL);
                check_saved(&s, there, GPUNN_OK, true);
                continue;
            }
            the_disk->break_call(n, how);
            const gpunn_status status = s.kind->save(&s.o, s.path);
            const char        *call = the_disk->failed();
            const bool         unsynced = the_disk->unsynced();
            the_disk->break_call(0, 0);
            EXPECT(!unsynced);
            const size_t used = strlen(at);
            (void)snprintf(at + used, sizeof at - used, ", %s", call);
            if (*call == 0) {
                EXPECT(status == GPUNN_OK);
                EXPECT(same(s.path, s.whole[1]));
                break;
            }
            if (how == DISK_SHORT || (how == EINTR && strcmp(call, "write") == 0)) EXPECT(status == GPUNN_OK);
            if (how > 0 && how != EINTR && is_one_of(call, must_work)) EXPECT(status != GPUNN_OK);
            if (strcmp(call, "unlink") != 0) EXPECT(stale(f->folder) == 0);
            check_saved(&s, there, status, false);
        }
    }
    print_message("# %ld faults\n", faults);
    end(&s);
}

/* The object is as the file says or as it was. */
static void test_load(void **state)
{
    static const char *const needed[] = {"open", "read", NULL};
    fixture                 *f = *state;
    saves                    s = begin(f, f->data);
    const char              *again = test_path(f, "again");
    long                     faults = 0;
    for (int i = 0; ways[i].how >= DISK_SHORT; i++) {
        for (long n = 1;; n++, faults++) {
            const int how = ways[i].how;
            the_disk->break_call(n, how);
            const gpunn_status status = s.kind->load(&s.o, s.path);
            const char        *call = the_disk->failed();
            the_disk->break_call(0, 0);
            (void)snprintf(at, sizeof at, "%s, loaded, call %ld, %s, %s", s.kind->name, n, ways[i].name,
                           call);
            if (status != GPUNN_OK) {
                EXPECT(status == GPUNN_ERR_IO && gpunn_last_status(f->dev) == status);
                EXPECT(strstr(gpunn_error(f->dev), "cannot read"));
                gpunn_clear_error(f->dev);
            }
            if (*call == 0 || how == DISK_SHORT || (how == EINTR && strcmp(call, "read") == 0))
                EXPECT(status == GPUNN_OK);
            if (how > 0 && how != EINTR && is_one_of(call, needed)) EXPECT(status != GPUNN_OK);
            OK(f->dev, s.kind->save(&s.o, again));
            EXPECT(same(again, s.whole[status == GPUNN_OK ? 0 : 1]));
            OK(f->dev, s.kind->load(&s.o, s.other));
            if (*call == 0) break;
        }
    }
    print_message("# %ld faults\n", faults);
    assert_int_equal(unlink(again), 0);
    end(&s);
}

/* ---- calls fail by chance ---- */
static void test_chance(void **state)
{
    fixture       *f = *state;
    saves          s = begin(f, f->data);
    const long     rounds = test_setting("GPUNN_TEST_ROUNDS", 200);
    const uint32_t seed = test_seed();
    long           failed = 0;
    for (long round = 0; round < rounds; round++) {
        const bool there = round % 2;
        (void)snprintf(at, sizeof at, "%s, round %ld", s.kind->name, round);
        put_old(&s, there);
        the_disk->chance(2 + (unsigned)(round / 2 % 15), seed + (unsigned)round);
        const gpunn_status status = s.kind->save(&s.o, s.path);
        const bool         unsynced = the_disk->unsynced();
        the_disk->break_call(0, 0);
        EXPECT(!unsynced);
        failed += status != GPUNN_OK;
        check_saved(&s, there, status, false);
    }
    print_message("# %ld of %ld saves failed\n", failed, rounds);
    end(&s);
}

/* ---- gpunn_fit, which writes four files after each epoch ---- */
static bool is_whole_history(const char *path, const char *start, const char *last)
{
    const bytes b = contents(path);
    const bool  result = b.data == NULL ||
                        (strncmp((char *)b.data, start, strlen(start)) == 0 && b.size > strlen(last) &&
                         strcmp((char *)b.data + b.size - strlen(last), last) == 0);
    free(b.data);
    return result;
}
static int lines(const char *path)
{
    const bytes b = contents(path);
    int         count = 0;
    for (size_t i = 0; i < b.size; i++) count += b.data[i] == '\n';
    free(b.data);
    return count;
}
static void test_fit(void **state)
{
    enum { SAMPLES = 6 };
    fixture    *f = *state;
    const char *paths[] = {test_path(f, "csv"), test_path(f, "svg"), test_path(f, "weights"),
                           test_path(f, "checkpoint")};
    float      *x = test_randoms(SAMPLES * COLUMNS, 1, 1), *t = test_randoms(SAMPLES * ROWS, 2, 1);
    long        faults = 0;
    for (int i = 0; i < COUNT(ways); i++) {
        bool reached = true;
        for (long n = 1; reached; n++, faults += reached) {
            const int    how = ways[i].how;
            object       o;
            pid_t        child = 0;
            int          ended = 0;
            gpunn_status status = GPUNN_OK;
            gpunn_model *second = NULL;
            (void)snprintf(at, sizeof at, "fit, call %ld, %s", n, ways[i].name);
            build(&o, f->dev);
            gpunn_loader *loader = MADE(
                f->dev, gpunn_loader_create(o.model, .count = SAMPLES, .batch_size = 3, .shuffle = true,
                                            .fields = {{.input = gpunn_find(o.model, "x"), .samples = x},
                                                       {.input = gpunn_find(o.model, "t"), .samples = t}}));
#define FIT(epochs_)                                                                                \
    gpunn_fit(o.opt, .loss = o.loss, .train = loader, .epochs = (epochs_), .history_csv = paths[0], \
              .history_svg = paths[1], .best_weights = paths[2], .checkpoint = paths[3])
            OK(f->dev, FIT(1));
            if (how < DISK_SHORT) {
                if ((child = fork()) == 0) {
                    the_disk->break_call(n, how);
                    end_child(how, FIT(1));
                }
                assert_int_equal(waitpid(child, &ended, 0), child);
                reached = WIFSIGNALED(ended);
                EXPECT(reached ? WTERMSIG(ended) == SIGKILL : WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
            } else {
                the_disk->break_call(n, how);
                status = FIT(1);
                reached = *the_disk->failed() != 0;
                const bool unsynced = the_disk->unsynced();
                the_disk->break_call(0, 0);
                EXPECT(!unsynced && (status == GPUNN_OK || status == GPUNN_ERR_IO));
                gpunn_clear_error(f->dev);
            }
            EXPECT(is_whole_history(paths[0], "epoch,", "\n") &&
                   (lines(paths[0]) == 2 || lines(paths[0]) == 3));
            EXPECT(is_whole_history(paths[1], "<svg", "</svg>\n"));
            second = MADE(f->dev, gpunn_model_create(f->dev));
            MADE(f->dev, gpunn_linear(gpunn_input(second, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, COLUMNS)),
                                      "fc", .out_features = ROWS));
            OK(f->dev, gpunn_load(second, paths[2]));
            gpunn_model_destroy(second);
            OK(f->dev, gpunn_checkpoint_load(o.opt, loader, paths[3]));
            OK(f->dev, FIT(1)); /* which goes on from there */
            EXPECT(lines(paths[0]) == gpunn_step_count(o.opt) / 2 + 1);
            EXPECT(stale(f->folder) == 0);
            for (int p = 0; p < COUNT(paths); p++) EXPECT(unlink(paths[p]) == 0);
            gpunn_loader_destroy(loader);
            unbuild(&o);
        }
    }
    print_message("# %ld faults\n", faults);
    free(x), free(t);
}

/* ---- a file of TensorBoard, to which events are appended ---- */
enum { EVENTS = 3 };
typedef struct board_run {
    bool opened, closed;
    int  events; /* that were written, the program was told */
} board_run;

static board_run write_events(const char *folder)
{
    board_run    run = {.opened = false};
    text_error   error = {""};
    tensorboard *board = tensorboard_open(folder, NULL, &error);
    run.opened = board != NULL;
    EXPECT(run.opened == (error.text[0] == 0));
    for (int i = 0; run.opened && i < EVENTS; i++)
        run.events += tensorboard_scalar(board, "loss", i + 1, 0.5);
    run.closed = run.opened && tensorboard_close(board);
    return run;
}

static uint64_t number_at(const unsigned char *at, int size)
{
    uint64_t number = 0;
    while (size-- > 0) number = number << 8 | at[size];
    return number;
}
static bool has_sum(const unsigned char *at, size_t size)
{
    return number_at(at + size, 4) == tensorboard__masked(tensorboard__crc(0, at, size));
}
/* The whole events before the end or the last one's first part; -1: something else is there. */
static int whole_events(const bytes *b)
{
    int count = 0;
    for (size_t at = 0;; count++) {
        const unsigned char *event = b->data + at;
        const size_t         left = b->size - at;
        if (left < 12) return count;
        const size_t length = (size_t)number_at(event, 8);
        if (!has_sum(event, 8)) return -1;
        if (left < length + 16) return count;
        if (!has_sum(event + 12, length)) return -1;
        at += length + 16;
    }
}

/* Takes the one file of TensorBoard out of a folder. */
static bytes take_events(const char *folder)
{
    bytes b = {NULL, 0};
    DIR  *directory = opendir(folder);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char path[512];
        if (strncmp(entry->d_name, "events", 6) != 0) continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        EXPECT(b.data == NULL);
        b = contents(path);
        EXPECT(unlink(path) == 0);
    }
    (void)closedir(directory);
    return b;
}

/* Whether there was a call left to kill before or behind. */
static bool killed_board(const char *folder, int how, long n)
{
    int         status;
    const pid_t child = fork();
    if (child == 0) {
        the_disk->break_call(n, how);
        _exit(write_events(folder).closed ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    EXPECT(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    const bytes b = take_events(folder);
    EXPECT(whole_events(&b) >= 0);
    free(b.data);
    return WIFSIGNALED(status);
}
/* Writes events while calls fail: the program is told of each one that the file has. */
static board_run broken_board(const char *folder, const char **call)
{
    const board_run run = write_events(folder);
    *call = the_disk->failed();
    the_disk->break_call(0, 0);
    const bytes b = take_events(folder);
    EXPECT((b.data != NULL) == run.opened);
    EXPECT(!run.opened || whole_events(&b) == run.events + 1);
    EXPECT(!run.closed || run.events == EVENTS);
    free(b.data);
    return run;
}
/* Whether there was a call left to fail. */
static bool failed_board(const char *folder, int how, long n)
{
    const char *call;
    the_disk->break_call(n, how);
    const board_run run = broken_board(folder, &call);
    EXPECT(run.closed == (*call == 0 || how == DISK_SHORT));
    return *call != 0;
}

static void test_tensorboard(void **state)
{
    fixture       *f = *state;
    const uint32_t seed = test_seed();
    const char    *call;
    long           faults = 0, told = 0;
    (void)test_path(f, "");
    for (int i = 0; ways[i].how > DISK_LOSE_DATA; i++) {
        bool reached = true;
        for (long n = 1; reached; n++, faults += reached) {
            (void)snprintf(at, sizeof at, "TensorBoard, call %ld, %s", n, ways[i].name);
            reached = (ways[i].how < DISK_SHORT ? killed_board : failed_board)(f->folder, ways[i].how, n);
        }
    }
    for (unsigned round = 0; round < 200; round++) {
        (void)snprintf(at, sizeof at, "TensorBoard, round %u", round);
        the_disk->chance(2 + round % 5, seed + round);
        told += !broken_board(f->folder, &call).closed;
    }
    print_message("# %ld faults, %ld of 200 boards failed by chance\n", faults, told);
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[64];
    int                      count = 0;
    (void)argc;
    the_disk = dlsym(RTLD_DEFAULT, "the_disk");
    if (the_disk == NULL && getenv("LD_PRELOAD") == NULL) { /* begin again with it */
        (void)setenv("LD_PRELOAD", "build/robustness/disk.so", 1);
        (void)execv("/proc/self/exe", argv);
    }
    (void)unsetenv("LD_PRELOAD");
    if (the_disk == NULL) {
        printf("1..1\nnot ok 1 - build/robustness/disk.so is not loaded\n");
        return 1;
    }
    for (int i = 0; i < COUNT(kinds); i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s saved", kinds[i].name);
        count += each_backend(tests + count, name, test_save, &kinds[i]);
        (void)snprintf(name, sizeof name, "%s loaded", kinds[i].name);
        count += each_backend(tests + count, name, test_load, &kinds[i]);
        (void)snprintf(name, sizeof name, "%s saved by chance", kinds[i].name);
        count += each_backend(tests + count, name, test_chance, &kinds[i]);
    }
    count += each_backend(tests + count, "fit", test_fit, NULL);
    count += each_backend(tests + count, "TensorBoard", test_tensorboard, NULL);
    return _cmocka_run_group_tests("saves", tests, (size_t)count, NULL, NULL);
}
