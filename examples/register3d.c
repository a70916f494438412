/* register3d.c - deformable registration of two volumes: finds for each voxel of FIXED where in MOVING it
 * comes from.
 *
 * Shows: grid_sample of a volume, a displacement field as the parameter, similarity and smoothness as the
 *        loss, several resolutions, one model for each.
 * Build: cc -O3 -march=native -I. examples/register3d.c -o register3d -lm
 *        nvcc -O3 -arch=native -I. examples/register3d.c gpunn_cuda.cu -o register3d
 *        with stb_image_write.h (apt-get install libstb-dev); for .nii.gz also -DGPUNN_ZLIB and -lz
 * Run:   ./register3d    a phantom and a known deformation of it, 64 voxels along each axis
 *        ./register3d MOVING.nii FIXED.nii                NIfTI-1
 *        ./register3d A.raw B.raw --size 64x64x64 --type u8
 *            depth, height, width; u8 i8 i16 u16 i32 u32 f32 f64
 *        ./register3d --time    a step of 48^3 and of 192^3 on the CPU and on the GPU
 *        --help explains all options
 * Writes register3d_warped.nii (MOVING as FIXED), _field.nii (displacement x, y, z in voxels), _before.png
 * and _after.png: middle slices along each axis of FIXED, MOVING or the warped MOVING, and their
 * difference, into out/.
 * Expect: the loss falls on each level; the phantom's mean endpoint error falls from about 3 voxels to
 *         below 0.4.
 * Time:  about a second on two cores for the phantom.
 * Next:  two volumes of your own; --similarity lncc where they differ in brightness. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"
#include "volume.h"

#include <time.h>
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>

enum { MAX_LEVELS = 8, SMALLEST = 4 }; /* SMALLEST: voxels along an axis of the coarsest level */
enum { MSE, NCC, LNCC };

typedef struct options {
    const char *paths[2], *out;
    /* type, similarity: the enums' */
    int type, size[3], synthetic, similarity, levels, steps, window, threads;
    /* smooth < 0: what suits the similarity */
    float shift[3], lr, smooth;
    bool  cpu, losses, time;
} options;

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_INFO) fprintf(stderr, "%s\n", message);
}

static double seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the model of one level ---- */
static const float identity[12] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};

/* The grid that samples each voxel of a volume of that size (depth, height, width) at its own place. */
static gpunn_tensor *identity_grid(gpunn_model *model, const int *size)
{
    gpunn_tensor *theta = gpunn_constant(model, GPUNN_SHAPE(1, 3, 4), identity);
    return gpunn_affine_grid(theta, GPUNN_SHAPE(size[0], size[1], size[2]), false);
}

typedef struct network {
    gpunn_model     *model;
    gpunn_tensor    *moving, *fixed, *field, *warped, *loss;
    gpunn_optimizer *adam;
} network;

static network build(gpunn_device *dev, const int *size, const options *o)
{
    network     net;
    gpunn_init  zeros = {GPUNN_INIT_ZEROS, 0, 0};
    gpunn_shape shape = GPUNN_SHAPE(1, 1, size[0], size[1], size[2]);
    /* a voxel in the grid's coordinates */
    const float unit[3] = {2 / (float)size[2], 2 / (float)size[1], 2 / (float)size[0]};
    net.model = gpunn_model_create(dev);
    net.moving = gpunn_input(net.model, "moving", GPUNN_F32, shape);
    net.fixed = gpunn_input(net.model, "fixed", GPUNN_F32, shape);
    net.field = gpunn_parameter(net.model, "field", GPUNN_SHAPE(1, size[0], size[1], size[2], 3), zeros);
    gpunn_tensor *units = gpunn_constant(net.model, GPUNN_SHAPE(3), unit);
    gpunn_tensor *grid = gpunn_add(identity_grid(net.model, size), gpunn_mul(net.field, units));
    net.warped = gpunn_grid_sample(net.moving, grid, .padding_mode = GPUNN_GRID_BORDER);
    gpunn_tensor *similarity = o->similarity == MSE ? gpunn_mse_loss(net.warped, net.fixed)
                               : o->similarity == NCC
                                   ? gpunn_ncc_loss(net.warped, net.fixed)
                                   : gpunn_ncc_loss(net.warped, net.fixed, .window = o->window);
    gpunn_tensor *energy = gpunn_gradient_energy(net.field, GPUNN_AXES(1, 2, 3));
    net.loss = gpunn_add(similarity, gpunn_mul_scalar(energy, o->smooth));
    net.adam = gpunn_adam(net.model, .lr = o->lr);
    return net;
}

static void destroy(network *net)
{
    gpunn_optimizer_destroy(net->adam);
    gpunn_model_destroy(net->model);
}

static size_t voxels_of(const int *size)
{
    return (size_t)size[0] * (size_t)size[1] * (size_t)size[2];
}

static bool train(network *net, const options *o)
{
    for (int step = 1; step <= o->steps; step++) {
        if (gpunn_train_step(net->adam, net->loss) != GPUNN_OK) return false;
        if (o->losses) printf("step %d: loss %.9g\n", step, (double)gpunn_item(net->loss));
    }
    return true;
}

/* Optimises the field on one level, from what it holds; warped receives the moving volume through it. */
static bool run_level(gpunn_device *dev, const int *size, const options *o, const float *moving,
                      const float *fixed, float *field, float *warped)
{
    network net = build(dev, size, o);
    size_t  bytes = voxels_of(size) * sizeof(float);
    double  start = seconds();
    bool    good = gpunn_write(net.moving, moving, bytes) == GPUNN_OK &&
                gpunn_write(net.fixed, fixed, bytes) == GPUNN_OK &&
                gpunn_write(net.field, field, 3 * bytes) == GPUNN_OK && train(&net, o);
    if (good)
        printf("%d x %d x %d: loss %.6f after %d steps", size[0], size[1], size[2],
               (double)gpunn_item(net.loss), o->steps);
    if (good) printf(", %.1f ms each\n", 1000 * (seconds() - start) / o->steps);
    good = good && gpunn_forward(&net.warped, 1) == GPUNN_OK &&
           gpunn_read(net.warped, warped, bytes) == GPUNN_OK &&
           gpunn_read(net.field, field, 3 * bytes) == GPUNN_OK;
    destroy(&net);
    return good;
}

/* A volume, or a field whose displacements grow with it, at another resolution, trilinearly. */
static bool resize(gpunn_device *dev, const float *from, const int *size, float *to, const int *to_size,
                   bool is_field)
{
    int           channels = is_field ? 3 : 1;
    float         growth[3];
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(1, size[0], size[1], size[2], channels));
    gpunn_tensor *y = gpunn_interpolate(gpunn_permute(x, GPUNN_AXES(0, 4, 1, 2, 3)),
                                        .mode = GPUNN_INTERPOLATE_LINEAR,
                                        .size = {to_size[0], to_size[1], to_size[2]});
    y = gpunn_permute(y, GPUNN_AXES(0, 2, 3, 4, 1));
    for (int i = 0; i < 3; i++) growth[i] = (float)to_size[2 - i] / (float)size[2 - i];
    if (is_field) y = gpunn_mul(y, gpunn_constant(model, GPUNN_SHAPE(3), growth));
    size_t bytes = (size_t)channels * sizeof(float);
    bool   good = gpunn_write(x, from, voxels_of(size) * bytes) == GPUNN_OK &&
                gpunn_forward(&y, 1) == GPUNN_OK && gpunn_read(y, to, voxels_of(to_size) * bytes) == GPUNN_OK;
    gpunn_model_destroy(model);
    return good;
}

/* Coarse to fine. field and warped: of the volumes' size. */
static bool register_volumes(gpunn_device *dev, const options *o, const volume *moving, const volume *fixed,
                             float *field, float *warped)
{
    int    size[MAX_LEVELS][3], levels = 1, allocated;
    float *pair[MAX_LEVELS][2] = {{moving->voxels, fixed->voxels}};
    bool   good = true;
    memcpy(size[0], fixed->size, sizeof size[0]);
    for (; levels < o->levels; levels++) {
        for (int i = 0; i < 3; i++) size[levels][i] = (size[levels - 1][i] + 1) / 2;
        if (size[levels][0] < SMALLEST || size[levels][1] < SMALLEST || size[levels][2] < SMALLEST) break;
    }
    /* a field on its way to the next level */
    float *other = (float *)malloc(3 * voxels_of(size[0]) * sizeof *other);
    for (allocated = 1; allocated < levels && good; allocated++)
        for (int i = 0; i < 2; i++) {
            pair[allocated][i] = (float *)malloc(voxels_of(size[allocated]) * sizeof(float));
            good = good && pair[allocated][i] &&
                   resize(dev, pair[allocated - 1][i], size[allocated - 1], pair[allocated][i],
                          size[allocated], false);
        }
    for (size_t i = 0; i < 3 * voxels_of(size[levels - 1]); i++)
        field[i] = o->shift[i % 3] * (float)size[levels - 1][2 - i % 3] / (float)size[0][2 - i % 3];
    for (int level = levels - 1; level >= 0 && good && other; level--) {
        if (level < levels - 1) {
            memcpy(other, field, 3 * voxels_of(size[level + 1]) * sizeof *other);
            good = resize(dev, other, size[level + 1], field, size[level], true);
        }
        good = good && run_level(dev, size[level], o, pair[level][0], pair[level][1], field, warped);
    }
    for (int level = 1; level < allocated; level++)
        for (int i = 0; i < 2; i++) free(pair[level][i]);
    free(other);
    if (!good || !other) fprintf(stderr, "%s\n", gpunn_last_status(dev) ? gpunn_error(dev) : "out of memory");
    return good && other;
}

/* ---- the built-in pair ---- */
/* A body with soft edges, organs and a texture, at x, y, z from -1 to 1. */
static float phantom(float x, float y, float z)
{
    static const float organs[5][5] = {/* centre, 1 / (2 radius^2), brightness */
                                       {-0.35f, -0.2f, 0.1f, 14, 0.5f},
                                       {0.35f, -0.1f, -0.2f, 18, -0.35f},
                                       {0, 0.4f, 0.2f, 22, 0.45f},
                                       {0.1f, -0.45f, -0.1f, 25, 0.4f},
                                       {-0.2f, 0.15f, -0.45f, 20, -0.3f}};
    float r = x * x / 0.72f + y * y / 0.6f + z * z / 0.65f, body = 1 / (1 + expf(12 * (r - 1))), value = 0.5f;
    for (int i = 0; i < 5; i++) {
        float dx = x - organs[i][0], dy = y - organs[i][1], dz = z - organs[i][2];
        value += organs[i][4] * expf(-organs[i][3] * (dx * dx + dy * dy + dz * dz));
    }
    return body * (value + 0.2f * sinf(9 * x + 2 * y) * sinf(8 * y - 3 * z) * sinf(10 * z + x));
}

/* The known displacement in voxels, 0 at the faces of the volume of n voxels along each axis. */
static void known_field(const float *at, int n, float *u)
{
    float fade = (1 - at[0] * at[0]) * (1 - at[1] * at[1]) * (1 - at[2] * at[2]) * 0.06f * (float)n;
    u[0] = fade * sinf(2.5f * at[1] + 0.5f);
    u[1] = fade * cosf(2.0f * at[2] - 1.0f * at[0]);
    u[2] = fade * sinf(2.2f * at[0] + 1.5f * at[1]);
}

/* The position from -1 to 1 of voxel i. */
static void position(int64_t i, const int *size, float *at)
{
    at[0] = (2 * (float)(i % size[2]) + 1) / (float)size[2] - 1;
    at[1] = (2 * (float)(i / size[2] % size[1]) + 1) / (float)size[1] - 1;
    at[2] = (2 * (float)(i / size[2] / size[1]) + 1) / (float)size[0] - 1;
}

/* fixed is moving, sampled through the known field. */
static bool make_pair(int n, volume *moving, volume *fixed)
{
    for (int i = 0; i < 3; i++) moving->size[i] = fixed->size[i] = n;
    int64_t count = volume_count(moving);
    moving->voxels = (float *)malloc((size_t)count * sizeof(float));
    fixed->voxels = (float *)malloc((size_t)count * sizeof(float));
    if (!moving->voxels || !fixed->voxels)
        return volume_fail("--synthetic", "the volumes do not fit into memory");
    for (int64_t i = 0; i < count; i++) {
        float at[3], u[3], voxel = 2 / (float)n;
        position(i, moving->size, at);
        known_field(at, n, u);
        moving->voxels[i] = phantom(at[0], at[1], at[2]);
        fixed->voxels[i] = phantom(at[0] + voxel * u[0], at[1] + voxel * u[1], at[2] + voxel * u[2]);
    }
    return true;
}

/* Mean and largest distance to the known field in the body; field NULL: of no displacement. */
static void print_error(const char *when, const volume *fixed, const float *field)
{
    double  sum = 0, largest = 0;
    int64_t inside = 0;
    for (int64_t i = 0; i < volume_count(fixed); i++) {
        float  at[3], u[3];
        double squares = 0;
        if (fixed->voxels[i] < 0.25f) continue;
        position(i, fixed->size, at);
        known_field(at, fixed->size[0], u);
        for (int k = 0; k < 3; k++) {
            double distance = (double)(u[k] - (field ? field[3 * i + k] : 0));
            squares += distance * distance;
        }
        sum += sqrt(squares);
        if (sqrt(squares) > largest) largest = sqrt(squares);
        inside++;
    }
    printf("endpoint error %s: mean %.4f, max %.4f voxels\n", when, sum / (double)inside, largest);
}

/* ---- pictures: middle slices along each axis, one below the other; beside each other two volumes and their
 * difference -- */
static bool write_slices(const char *path, const volume *fixed, const float *other)
{
    int      depth = fixed->size[0], height = fixed->size[1], width = fixed->size[2];
    int      wide = width > height ? width : height, rows = height + depth + depth;
    uint8_t *pixels = (uint8_t *)calloc((size_t)rows * 3 * (size_t)wide, 1);
    if (pixels == NULL) return volume_fail(path, "out of memory");
    for (int row = 0; row < rows; row++)
        for (int x = 0; x < (row < height + depth ? width : height); x++) {
            int64_t z = row < height ? depth / 2 : row < height + depth ? row - height : row - height - depth;
            int64_t y = row < height ? row : row < height + depth ? height / 2 : x;
            int64_t i = (z * height + y) * width + (row < height + depth ? x : width / 2);
            float   value[3] = {fixed->voxels[i], other[i], fabsf(fixed->voxels[i] - other[i])};
            for (int k = 0; k < 3; k++) {
                float level = 255 * value[k] + 0.5f;
                pixels[((size_t)row * 3 + (size_t)k) * (size_t)wide + (size_t)x] = (uint8_t)(level < 0 ? 0
                                                                                             : level > 255
                                                                                                 ? 255
                                                                                                 : level);
            }
        }
    bool good = stbi_write_png(path, 3 * wide, rows, 1, pixels, 3 * wide) != 0;
    free(pixels);
    return good || volume_fail(path, "the file cannot be written");
}

/* ---- times ---- */
static bool print_times(options o, gpunn_device_type type)
{
    static const int sizes[] = {48, 192};
    gpunn_device    *dev = gpunn_device_open(.type = type, .threads = o.threads, .log_fn = log_line);
    if (dev == NULL) return volume_fail("--time", gpunn_error(NULL));
    printf("%s\n", gpunn_device_name(dev));
    bool good = true;
    for (int i = 0; i < 2 && good; i++) {
        int     size[3] = {sizes[i], sizes[i], sizes[i]};
        volume  moving = {.voxels = NULL}, fixed = {.voxels = NULL};
        network net = build(dev, size, &o);
        size_t  bytes = voxels_of(size) * sizeof(float);
        double  start = 0;
        good = make_pair(sizes[i], &moving, &fixed) &&
               gpunn_write(net.moving, moving.voxels, bytes) == GPUNN_OK &&
               gpunn_write(net.fixed, fixed.voxels, bytes) == GPUNN_OK;
        for (int step = -2; step < o.steps && good; step++) { /* two to warm up */
            if (step == 0) good = gpunn_synchronize(dev) == GPUNN_OK, start = seconds();
            good = good && gpunn_train_step(net.adam, net.loss) == GPUNN_OK;
        }
        good = good && gpunn_synchronize(dev) == GPUNN_OK;
        if (good) printf("%d^3: %.2f ms a step\n", sizes[i], 1000 * (seconds() - start) / o.steps);
        destroy(&net);
        free(moving.voxels);
        free(fixed.voxels);
    }
    if (!good && gpunn_last_status(dev) != GPUNN_OK) fprintf(stderr, "%s\n", gpunn_error(dev));
    gpunn_device_close(dev);
    return good;
}

/* ---- the program ---- */
/* To 0 .. 1. */
static bool normalise(const char *path, volume *v)
{
    float low = v->voxels[0], high = low;
    for (int64_t i = 0; i < volume_count(v); i++) {
        low = v->voxels[i] < low ? v->voxels[i] : low;
        high = v->voxels[i] > high ? v->voxels[i] : high;
    }
    if (!(high > low)) return volume_fail(path, "all voxels are equal: there is nothing to register");
    for (int64_t i = 0; i < volume_count(v); i++) v->voxels[i] = (v->voxels[i] - low) / (high - low);
    return true;
}

static bool read_pair(const options *o, volume *moving, volume *fixed)
{
    if (o->paths[0] == NULL) return make_pair(o->synthetic, moving, fixed);
    memcpy(moving->size, o->size, sizeof o->size);
    memcpy(fixed->size, o->size, sizeof o->size);
    if (!volume_read(o->paths[0], moving, (volume_type)o->type) ||
        !volume_read(o->paths[1], fixed, (volume_type)o->type))
        return false;
    if (memcmp(moving->size, fixed->size, sizeof fixed->size) != 0) {
        fprintf(stderr, "%s is %d x %d x %d and %s %d x %d x %d: resample one of them, sizes must be equal\n",
                o->paths[0], moving->size[0], moving->size[1], moving->size[2], o->paths[1], fixed->size[0],
                fixed->size[1], fixed->size[2]);
        return false;
    }
    return normalise(o->paths[0], moving) && normalise(o->paths[1], fixed);
}

static bool save(const options *o, const volume *fixed, const float *moving, const float *warped,
                 const float *field)
{
    char                     path[4][512];
    static const char *const names[4] = {"warped.nii", "field.nii", "before.png", "after.png"};
    for (int i = 0; i < 4; i++)
        if (snprintf(path[i], sizeof path[i], "%s/register3d_%s", o->out, names[i]) >= (int)sizeof path[i])
            return volume_fail("--out", "the folder's name is too long");
    return volume_write(path[0], fixed, warped, 1) && volume_write(path[1], fixed, field, 3) &&
           write_slices(path[2], fixed, moving) && write_slices(path[3], fixed, warped);
}

static bool run(const options *o)
{
    volume        moving = {.voxels = NULL}, fixed = {.voxels = NULL};
    gpunn_device *dev = NULL;
    float        *field = NULL, *warped = NULL;
    bool          good = read_pair(o, &moving, &fixed) && options_make_folder("register3d", o->out);
    if (good) {
        dev = gpunn_device_open(.type = o->cpu ? GPUNN_DEVICE_CPU : GPUNN_DEVICE_AUTO, .threads = o->threads,
                                .log_fn = log_line);
        field = (float *)malloc(3 * (size_t)volume_count(&fixed) * sizeof *field);
        warped = (float *)malloc((size_t)volume_count(&fixed) * sizeof *warped);
        good = dev && field && warped;
        if (!good) fprintf(stderr, "%s\n", dev ? "out of memory" : gpunn_error(NULL));
    }
    if (good) printf("%s\n", gpunn_device_name(dev));
    if (good && o->paths[0] == NULL) print_error("before", &fixed, NULL);
    good = good && register_volumes(dev, o, &moving, &fixed, field, warped);
    if (good && o->paths[0] == NULL) print_error("after", &fixed, field);
    good = good && save(o, &fixed, moving.voxels, warped, field);
    gpunn_device_close(dev);
    free(field);
    free(warped);
    free(moving.voxels);
    free(fixed.voxels);
    return good;
}

static bool parse_shift(const char *text, float shift[3])
{
    char *end;
    for (int i = 0; i < 3; i++, text = end + 1) {
        shift[i] = (float)gpunn_strtod(text, &end);
        if (end == text || *end != (i < 2 ? ',' : 0)) return false;
    }
    return true;
}

static void parse(int argc, char **argv, options *o)
{
    const char  *size = NULL, *shift = "0,0,0";
    char         rest;
    const option known[] = {
        {"MOVING", "the volume that is deformed, NIfTI-1 or raw; default: a phantom", .text = &o->paths[0]},
        {"FIXED", "the volume that it shall fit", .text = &o->paths[1]},
        {"--size DxHxW", "depth, height and width of raw volumes, as 64x64x64", .text = &size},
        {"--type " VOLUME_TYPE_NAMES, "element type of raw volumes", .choice = &o->type},
        {"--time", "only the time of a step of 48^3 and of 192^3 voxels, on the CPU and on the GPU",
         .flag = &o->time},
        {"--similarity mse|ncc|lncc",
         "mean squared error, or cross-correlation, of the whole volume or in windows",
         .choice = &o->similarity},
        {"--window N", "side of lncc's windows, odd", .number = &o->window, .lowest = 3, .highest = 99},
        {"--smooth X", "weight of the field's roughness; default 0.001, ncc: 0.01, lncc: 0.1",
         .real = &o->smooth},
        {"--levels N", "resolutions, each of half the one before", .number = &o->levels, .lowest = 1,
         .highest = MAX_LEVELS},
        {"--steps N", "on each level", .number = &o->steps, .lowest = 1},
        {"--lr X", "Adam's learning rate, in voxels", .real = &o->lr, .lowest = 1e-9},
        {"--shift X,Y,Z", "where the displacement starts, in voxels", .text = &shift},
        {"--synthetic N", "side of the phantom", .number = &o->synthetic, .lowest = 8, .highest = 1000},
        {"--cpu", "even where there is a GPU", .flag = &o->cpu},
        {"--threads N", "of the CPU; default: all processors", .number = &o->threads, .lowest = 1},
        {"--out FOLDER", "folder for the results, made where there is none", .text = &o->out},
        {"--losses", "prints the loss of each step", .flag = &o->losses}};
    const size_t count = sizeof known / sizeof *known;
    options_read(known, count, argc, argv);
    if (size &&
        (sscanf(size, "%9dx%9dx%9d%c", &o->size[0], &o->size[1], &o->size[2], &rest) != 3 || o->size[0] < 1))
        options_fail(argv[0], known, count, "--size is '%s', but takes depth x height x width, as 64x64x64",
                     size);
    if (!parse_shift(shift, o->shift) ||
        !(fabsf(o->shift[0]) + fabsf(o->shift[1]) + fabsf(o->shift[2]) < 1e4f))
        options_fail(argv[0], known, count, "--shift is '%s', but takes three numbers, as 1.5,0,-2", shift);
    if (o->paths[0] && o->paths[1] == NULL)
        options_fail(argv[0], known, count, "two volumes are needed, the moving and the fixed one");
    if (o->window % 2 == 0) options_fail(argv[0], known, count, "--window is %d, but must be odd", o->window);
}

int main(int argc, char **argv)
{
    options            o = {.out = "out",
                            .type = VOLUME_U8,
                            .synthetic = 64,
                            .levels = 3,
                            .steps = 100,
                            .window = 9,
                            .lr = 0.1f,
                            .smooth = -1};
    static const float smooth[] = {0.001f, 0.01f, 0.1f};
    parse(argc, argv, &o);
    if (o.smooth < 0) o.smooth = smooth[o.similarity];
    if (!o.time) return run(&o) ? 0 : 1;
    bool good = print_times(o, GPUNN_DEVICE_CPU);
    if (good && gpunn_cuda_device_count() > 0)
        good = print_times(o, GPUNN_DEVICE_CUDA);
    else if (good)
        printf("no GPU\n");
    return good ? 0 : 1;
}
