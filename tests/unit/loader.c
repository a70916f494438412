/* Loaders: order, shuffling, partial batches, u8 images, callbacks, workers, errors. The TSan build runs this
 * program too. */
#include "../test.h"

#include "../emulator/memory.h"

enum { SAMPLES = 23, WIDTH = 3, TURNED_PIXELS = 3 * 7 * 6 };
static float   rows[SAMPLES][WIDTH];
static int32_t numbers[SAMPLES];

static gpunn_tensor *x, *t;
static void          make_inputs(fixture *f)
{
    x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WIDTH)));
    t = MADE(f->dev, gpunn_input(f->model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)));
    for (int i = 0; i < SAMPLES; i++) {
        numbers[i] = i;
        for (int k = 0; k < WIDTH; k++) rows[i][k] = (float)(10 * i + k);
    }
}
#define FIELDS                                                 \
    {                                                          \
        {.input = x, .samples = rows},                         \
        {                                                      \
            .input = t, .samples = numbers, .dtype = GPUNN_I32 \
        }                                                      \
    }

/* One epoch: the sample numbers in their order; checks that the fields stay together. Returns the number of
 * samples. */
static int epoch(fixture *f, gpunn_loader *loader, int batch_size, int64_t *order)
{
    int count = 0, batches = 0;
    while (gpunn_next(loader)) {
        float     values[SAMPLES][WIDTH];
        int64_t   labels[SAMPLES];
        const int n = gpunn_loader_batch_size(loader);
        assert_true(n >= 1 && n <= batch_size && count + n <= SAMPLES);
        OK(f->dev, gpunn_read(x, values, (size_t)n * sizeof *values));
        OK(f->dev, gpunn_read(t, labels, (size_t)n * sizeof *labels));
        for (int i = 0; i < n; i++) {
            assert_true(labels[i] >= 0 && labels[i] < SAMPLES);
            for (int k = 0; k < WIDTH; k++) assert_true(values[i][k] == (float)(10 * labels[i] + k));
            order[count++] = labels[i];
        }
        batches++;
    }
    OK(f->dev, gpunn_last_status(f->dev));
    assert_int_equal(batches, gpunn_loader_batches(loader));
    return count;
}

static void check_permutation(const int64_t *order, int count)
{
    bool seen[SAMPLES] = {false};
    assert_int_equal(count, SAMPLES);
    for (int i = 0; i < count; i++) {
        assert_false(seen[order[i]]);
        seen[order[i]] = true;
    }
}

static void test_order(void **state)
{
    fixture *f = *state;
    int64_t  order[SAMPLES];
    make_inputs(f);
    gpunn_loader *loader = MADE(
        f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES, .batch_size = 5));
    for (int pass = 0; pass < 3; pass++) {
        assert_int_equal(epoch(f, loader, 5, order), SAMPLES);
        for (int i = 0; i < SAMPLES; i++) assert_int_equal(order[i], i);
    }
    assert_int_equal(gpunn_loader_batches(loader), 5);
    assert_true(gpunn_next(loader) && gpunn_next(loader));
    gpunn_loader_rewind(loader);
    assert_int_equal(epoch(f, loader, 5, order), SAMPLES);
    assert_int_equal(order[0], 0);
    gpunn_loader_destroy(loader);
    loader = MADE(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES, .batch_size = 5,
                                              .drop_last = true));
    assert_int_equal(epoch(f, loader, 5, order), 20);
    assert_int_equal(gpunn_loader_batches(loader), 4);
    gpunn_loader_destroy(loader);
    /* 32 by default: one partial batch */
    loader = MADE(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES));
    assert_int_equal(epoch(f, loader, 32, order), SAMPLES);
    assert_int_equal(gpunn_loader_batches(loader), 1);
    gpunn_loader_destroy(loader);
}

/* The same seed gives the same order whatever the workers; each epoch another one. */
static void test_shuffle(void **state)
{
    fixture *f = *state;
    int64_t  first[3][SAMPLES], order[3][SAMPLES];
    make_inputs(f);
    for (int workers = 0; workers < 4; workers++) {
        gpunn_loader *loader = MADE(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES,
                                                                .batch_size = 4, .shuffle = true, .seed = 77,
                                                                .workers = workers));
        for (int pass = 0; pass < 3; pass++) check_permutation(order[pass], epoch(f, loader, 4, order[pass]));
        if (workers == 0) memcpy(first, order, sizeof first);
        assert_memory_equal(first, order, sizeof first);
        /* rewinding within an epoch gives the same epoch again */
        assert_true(gpunn_next(loader));
        int64_t label[4], again[4];
        OK(f->dev, gpunn_read(t, label, sizeof label));
        assert_true(gpunn_next(loader));
        gpunn_loader_rewind(loader);
        assert_true(gpunn_next(loader));
        OK(f->dev, gpunn_read(t, again, sizeof again));
        assert_memory_equal(label, again, sizeof again);
        gpunn_loader_destroy(loader); /* in the middle of an epoch */
    }
    assert_memory_not_equal(first[0], first[1], sizeof first[0]);
    assert_memory_not_equal(first[1], first[2], sizeof first[0]);
    int moved = 0;
    for (int i = 0; i < SAMPLES; i++) moved += first[0][i] != i;
    assert_true(moved > SAMPLES / 2);
    gpunn_loader *other = MADE(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES,
                                                           .batch_size = 4, .shuffle = true, .seed = 78));
    check_permutation(order[0], epoch(f, other, 4, order[0]));
    assert_memory_not_equal(first[0], order[0], sizeof first[0]);
    gpunn_loader_destroy(other);
}

/* Every place of every sample is as likely as another: 23 samples, 2000 epochs, chi-squared with 22^2 degrees
 * of freedom. */
static void test_shuffle_is_fair(void **state)
{
    fixture   *f = *state;
    static int counts[SAMPLES][SAMPLES];
    int64_t    order[SAMPLES];
    const int  epochs = 2000;
    make_inputs(f);
    memset(counts, 0, sizeof counts);
    gpunn_loader *loader = MADE(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES,
                                                            .batch_size = 23, .shuffle = true));
    for (int pass = 0; pass < epochs; pass++) {
        check_permutation(order, epoch(f, loader, 23, order));
        for (int i = 0; i < SAMPLES; i++) counts[i][order[i]]++;
    }
    double chi = 0, expected = (double)epochs / SAMPLES;
    for (int i = 0; i < SAMPLES; i++)
        for (int k = 0; k < SAMPLES; k++)
            chi += (counts[i][k] - expected) * (counts[i][k] - expected) / expected;
    assert_true(chi > 484 - 5 * sqrt(2 * 484) && chi < 484 + 5 * sqrt(2 * 484));
    gpunn_loader_destroy(loader);
}

/* A share of the samples goes to a second loader: each sample to one of both, the same by the same seed. */
static void test_share(void **state)
{
    fixture *f = *state;
    int64_t  order[2][SAMPLES], again[SAMPLES];
    make_inputs(f);
    for (int way = 0; way < 4; way++) {
        gpunn_loader *rest = NULL,
                     *loader = MADE(f->dev, gpunn_loader_create(
                                                f->model, .fields = FIELDS, .count = SAMPLES, .batch_size = 4,
                                                .shuffle = way % 2, .workers = way / 2, .seed = 5,
                                                .validation_share = 0.3f, .validation = &rest));
        assert_int_equal(epoch(f, loader, 4, order[0]), SAMPLES - 7);
        assert_int_equal(epoch(f, rest, 4, order[1]), 7);
        memcpy(order[0] + SAMPLES - 7, order[1], 7 * sizeof *again);
        check_permutation(order[0], SAMPLES);
        for (int i = 1; i < 7; i++) assert_true(order[1][i] > order[1][i - 1]);
        assert_true(order[1][0] < SAMPLES - 7); /* not the last ones */
        if (way == 0) memcpy(again, order[1], sizeof again);
        assert_memory_equal(again, order[1], 7 * sizeof *again);
        /* another epoch has the same samples; the second loader lives on alone */
        assert_int_equal(epoch(f, loader, 4, order[0]), SAMPLES - 7);
        memcpy(order[0] + SAMPLES - 7, order[1], 7 * sizeof *again);
        check_permutation(order[0], SAMPLES);
        gpunn_loader_destroy(loader);
        assert_int_equal(epoch(f, rest, 4, order[0]), 7);
        gpunn_loader_destroy(rest);
    }
    gpunn_loader *rest = NULL, *other = NULL,
                 *loader = MADE(f->dev,
                                gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES, .seed = 6,
                                                    .validation_share = 0.3f, .validation = &rest));
    assert_int_equal(epoch(f, rest, 32, order[0]), 7);
    assert_memory_not_equal(again, order[0], 7 * sizeof *again);
    gpunn_loader_destroy(loader);
    gpunn_loader_destroy(rest);
    const float bad[] = {-0.5f, 0.01f, 0.99f, 1, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FAILS_NULL(f->dev,
                   gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES,
                                       .validation_share = bad[i], .validation = &other),
                   GPUNN_ERR_ARGUMENT, "validation_share");
        assert_null(other);
    }
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES, .validation_share = 0.5f),
               GPUNN_ERR_ARGUMENT, "validation is NULL");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES, .validation = &other),
               GPUNN_ERR_ARGUMENT, "validation_share is 0");
}

/* Each sample is held out as often as any other, and each pair of neighbours. */
static void test_share_is_fair(void **state)
{
    fixture  *f = *state;
    int       held[SAMPLES] = {0}, pairs[SAMPLES] = {0};
    int64_t   order[SAMPLES];
    const int draws = 2000, left = 7;
    make_inputs(f);
    for (int seed = 1; seed <= draws; seed++) {
        gpunn_loader *rest = NULL,
                     *loader = MADE(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES,
                                                                .seed = (uint64_t)seed, .validation = &rest,
                                                                .validation_share = 0.3f));
        assert_int_equal(epoch(f, rest, 32, order), left);
        for (int i = 0; i < left; i++) held[order[i]]++;
        for (int i = 1; i < left; i++) pairs[order[i]] += order[i] == order[i - 1] + 1;
        gpunn_loader_destroy(loader);
        gpunn_loader_destroy(rest);
    }
    const double p = (double)left / SAMPLES, both = p * (left - 1) / (SAMPLES - 1);
    for (int i = 0; i < SAMPLES; i++) {
        assert_true(fabs(held[i] - draws * p) < 5 * sqrt(draws * p * (1 - p)));
        assert_true(i == 0 || fabs(pairs[i] - draws * both) < 5 * sqrt(draws * both * (1 - both)));
    }
}

static void test_images(void **state)
{
    fixture *f = *state;
    enum { N = 3, C = 3, PIXELS = 4 };
    unsigned char images[N][C][PIXELS];
    float         value[N][C][PIXELS];
    /* the third std is left 0, which means 1 */
    const float mean[] = {0.5f, 0.25f, 0}, std[] = {0.5f, 2, 1};
    for (int i = 0; i < N * C * PIXELS; i++) (&images[0][0][0])[i] = (unsigned char)(i * 7);
    gpunn_tensor *image = MADE(f->dev,
                               gpunn_input(f->model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, C, 2, 2)));
    for (int workers = 0; workers < 2; workers++) {
        gpunn_loader *loader = MADE(f->dev, gpunn_loader_create(f->model, .count = N, .batch_size = N,
                                                                .workers = workers,
                                                                .fields = {{.input = image,
                                                                            .samples = images,
                                                                            .dtype = GPUNN_U8,
                                                                            .mean = {0.5f, 0.25f},
                                                                            .std = {0.5f, 2}}}));
        assert_true(gpunn_next(loader));
        OK(f->dev, gpunn_read(image, value, sizeof value));
        for (int n = 0; n < N; n++)
            for (int c = 0; c < C; c++)
                for (int k = 0; k < PIXELS; k++) {
                    const float expected = ((float)images[n][c][k] / 255 - mean[c]) / std[c];
                    check_close(&value[n][c][k], &expected, 1, 1e-6, 1e-6);
                }
        gpunn_loader_destroy(loader);
    }
    unsigned char classes[5] = {0, 255, 7, 1, 9};
    bool          flags[5] = {true, false, true, true, false};
    gpunn_tensor *label = MADE(f->dev, gpunn_input(f->model, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_tensor *flag = MADE(f->dev, gpunn_input(f->model, "flag", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_tensor *any = MADE(f->dev, gpunn_input(f->model, "any", GPUNN_BOOL, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_tensor *byte = MADE(f->dev, gpunn_input(f->model, "byte", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_loader *loader = MADE(
        f->dev, gpunn_loader_create(f->model, .count = 5, .batch_size = 5,
                                    .fields = {{.input = label, .samples = classes, .dtype = GPUNN_U8},
                                               {.input = flag, .samples = flags, .dtype = GPUNN_BOOL},
                                               {.input = any, .samples = classes, .dtype = GPUNN_U8},
                                               {.input = byte, .samples = classes, .dtype = GPUNN_BOOL}}));
    int64_t wide[5];
    float   numbers_of_flags[5];
    assert_true(gpunn_next(loader));
    OK(f->dev, gpunn_read(label, wide, sizeof wide));
    OK(f->dev, gpunn_read(flag, numbers_of_flags, sizeof numbers_of_flags));
    for (int i = 0; i < 5; i++)
        assert_true(wide[i] == classes[i] && numbers_of_flags[i] == (flags[i] ? 1.0f : 0.0f));
    gpunn_tensor *narrow[] = {any, byte};
    for (int k = 0; k < 2; k++) {
        uint8_t ones[5]; /* any byte but 0 is true */
        OK(f->dev, gpunn_read(narrow[k], ones, sizeof ones));
        for (int i = 0; i < 5; i++) assert_int_equal(ones[i], classes[i] != 0);
    }
    gpunn_loader_destroy(loader);
}

/* ---- crops and flips ---- */
enum { PLANES = 2, HEIGHT = 5, COLUMNS = 4, IMAGES = 64, PADDING = 2 };
typedef unsigned char plane[HEIGHT][COLUMNS];
static plane          images[IMAGES][PLANES], masks[IMAGES];

static void make_images(void)
{
    for (int i = 0; i < IMAGES; i++)
        for (int y = 0; y < HEIGHT; y++)
            for (int c = 0; c < COLUMNS; c++) {
                masks[i][y][c] = (unsigned char)(1 + (i * 37 + y * COLUMNS + c) % 255);
                images[i][0][y][c] = masks[i][y][c];
                images[i][1][y][c] = (unsigned char)(255 - masks[i][y][c]);
            }
}

static gpunn_status load_image(void *user, int64_t index, void *const *sample)
{
    (void)user;
    memcpy(sample[0], images[index], sizeof *images);
    memcpy(sample[1], masks[index], sizeof *masks);
    return GPUNN_OK;
}

typedef struct augmented {
    float   image[IMAGES][PLANES][HEIGHT][COLUMNS];
    int32_t mask[IMAGES][HEIGHT][COLUMNS];
} augmented;

static void read_images(fixture *f, gpunn_loader *loader, gpunn_tensor *image, gpunn_tensor *mask,
                        augmented *out)
{
    int64_t done = 0;
    memset(out, 0, sizeof *out);
    while (gpunn_next(loader)) {
        const size_t n = (size_t)gpunn_loader_batch_size(loader);
        OK(f->dev, gpunn_read(image, out->image[done], n * sizeof *out->image));
        OK(f->dev, gpunn_read(mask, out->mask[done], n * sizeof *out->mask));
        done += (int64_t)n;
    }
    OK(f->dev, gpunn_last_status(f->dev));
    assert_int_equal(done, IMAGES);
}

/* What torchvision's pad, crop at (top, left) and flips make of a plane. */
static int moved_pixel(const plane from, int top, int left, bool mirror_y, bool mirror_x, int y, int c)
{
    const int row = (mirror_y ? HEIGHT - 1 - y : y) + top - PADDING,
              column = (mirror_x ? COLUMNS - 1 - c : c) + left - PADDING;
    return row >= 0 && row < HEIGHT && column >= 0 && column < COLUMNS ? from[row][column] : 0;
}

static bool is_moved(const augmented *got, int i, int top, int left, bool mirror_y, bool mirror_x)
{
    for (int y = 0; y < HEIGHT; y++)
        for (int c = 0; c < COLUMNS; c++) {
            for (int p = 0; p < PLANES; p++)
                if (got->image[i][p][y][c] !=
                    (float)moved_pixel(images[i][p], top, left, mirror_y, mirror_x, y, c) / 255.0f)
                    return false;
            if (got->mask[i][y][c] != moved_pixel(masks[i], top, left, mirror_y, mirror_x, y, c))
                return false;
        }
    return true;
}

/* Counts how often each of the moves was taken. */
static void count_moves(const augmented *got, int counts[2][2][2 * PADDING + 1][2 * PADDING + 1])
{
    for (int i = 0; i < IMAGES; i++) {
        int found = 0;
        for (int move = 0; move < 4 * 25; move++) {
            const int  top = move / 4 / 5, left = move / 4 % 5;
            const bool mirror_y = move & 1, mirror_x = move & 2;
            if (!is_moved(got, i, top, left, mirror_y, mirror_x)) continue;
            counts[mirror_y][mirror_x][top][left]++;
            found++;
        }
        assert_int_equal(found, 1);
    }
}

#define AUGMENTED(padding, horizontal, vertical) \
    .crop_padding = (padding), .horizontal_flip = (horizontal), .vertical_flip = (vertical), .dtype = GPUNN_U8

static void test_augmentation(void **state)
{
    fixture         *f = *state;
    static augmented first, got, before;
    int              counts[2][2][5][5] = {{{{0}}}}, seen = 0, mirrored[2] = {0, 0};
    gpunn_tensor    *image = MADE(
           f->dev, gpunn_input(f->model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, PLANES, HEIGHT, COLUMNS)));
    gpunn_tensor *mask = MADE(
        f->dev, gpunn_input(f->model, "mask", GPUNN_I32, GPUNN_SHAPE(GPUNN_BATCH, HEIGHT, COLUMNS)));
    make_images();
    for (int run = 0; run < 6; run++) { /* with 0, 2 and 4 workers, from memory and from load */
        gpunn_loader_args args = {.count = IMAGES, .batch_size = 7 + run, .workers = run / 2 * 2, .seed = 5};
        args.fields[0] = (gpunn_field){.input = image, .samples = images, AUGMENTED(PADDING, 0.5f, 0.25f)};
        args.fields[1] = (gpunn_field){.input = mask, .samples = masks, AUGMENTED(PADDING, 0.5f, 0.25f)};
        if (run % 2) args.load = load_image;
        if (run % 2) args.fields[0].samples = args.fields[1].samples = NULL;
        gpunn_loader *loader = MADE(f->dev, gpunn_loader_create_(f->model, args));
        for (int pass = 0; pass < 8; pass++) {
            read_images(f, loader, image, mask, &got);
            if (run == 0) count_moves(&got, counts);
            if (pass == 0 && run == 0) first = got;
            if (pass == 0) assert_memory_equal(&got, &first, sizeof got);
            if (pass > 0) assert_true(memcmp(&got, &before, sizeof got) != 0);
            before = got;
        }
        gpunn_loader_destroy(loader);
    }
    for (int move = 0; move < 4 * 25; move++) {
        const int count = counts[move & 1][move >> 1 & 1][move / 4 / 5][move / 4 % 5];
        seen += count > 0;
        mirrored[0] += move & 1 ? count : 0;
        mirrored[1] += move & 2 ? count : 0;
    }
    /* of 100, 512 draws; within 6 standard deviations of what the probabilities say: */
    assert_true(seen > 85);
    assert_true(abs(mirrored[0] - 128) < 60 && abs(mirrored[1] - 256) < 68);
}

static void test_flips_for_certain(void **state)
{
    fixture         *f = *state;
    static augmented got;
    gpunn_tensor    *image = MADE(
           f->dev, gpunn_input(f->model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, PLANES, HEIGHT, COLUMNS)));
    gpunn_tensor *mask = MADE(
        f->dev, gpunn_input(f->model, "mask", GPUNN_I32, GPUNN_SHAPE(GPUNN_BATCH, HEIGHT, COLUMNS)));
    make_images();
    for (int flips = 0; flips < 4; flips++) {
        gpunn_loader *loader = MADE(
            f->dev, gpunn_loader_create(f->model, .count = IMAGES,
                                        .fields = {{.input = image,
                                                    .samples = images,
                                                    AUGMENTED(0, (float)(flips & 1), (float)(flips >> 1))},
                                                   {.input = mask,
                                                    .samples = masks,
                                                    AUGMENTED(0, (float)(flips & 1), (float)(flips >> 1))}}));
        read_images(f, loader, image, mask, &got);
        for (int i = 0; i < IMAGES; i++)
            assert_true(is_moved(&got, i, PADDING, PADDING, flips & 2, flips & 1));
        gpunn_loader_destroy(loader);
    }
}

/* Samples of the input's own dtype; a padding larger than the image leaves nothing of most. */
static void test_wide_pixels(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *image = MADE(f->dev,
                               gpunn_input(f->model, "row", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, 1, 3)));
    const int64_t row[3] = {(int64_t)1 << 40, -2, 3};
    int64_t       got[3];
    int           whole = 0;
    gpunn_loader *loader = MADE(
        f->dev, gpunn_loader_create(
                    f->model, .count = 1, .seed = 3,
                    .fields = {{.input = image, .samples = row, .crop_padding = 4, .horizontal_flip = 1}}));
    for (int pass = 0; pass < 400; pass++) {
        while (gpunn_next(loader)) OK(f->dev, gpunn_read(image, got, sizeof got));
        for (int i = 0; i < 3; i++)
            assert_true(got[i] == 0 || got[i] == row[0] || got[i] == row[1] || got[i] == row[2]);
        whole += got[0] == row[2] && got[1] == row[1] && got[2] == row[0];
    }
    assert_true(whole > 0 && whole < 30); /* 1 of 81 on average */
    gpunn_loader_destroy(loader);
}

/* Reads an epoch: of images, and of labels if there are some. Batches are of 4. */
static void read_epoch(fixture *f, gpunn_loader *loader, gpunn_tensor *image, float *images,
                       gpunn_tensor *label, float *labels)
{
    for (size_t at = 0; gpunn_next(loader); at += 4) {
        const size_t n = (size_t)gpunn_loader_batch_size(loader);
        OK(f->dev, gpunn_read(image, images + at * TURNED_PIXELS, n * TURNED_PIXELS * sizeof *images));
        if (label) OK(f->dev, gpunn_read(label, labels + at * 3, n * 3 * sizeof *labels));
    }
}

/* tests/golden/augment.py: torchvision's formulas with the loader's draws. */
static void test_torchvision(void **state)
{
    fixture             *f = *state;
    golden               g = golden_open("tests/golden/augment.safetensors");
    const golden_tensor *images = golden_find(&g, "images"), *labels = golden_find(&g, "labels");
    gpunn_tensor        *x = MADE(f->dev,
                                  gpunn_input(f->model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 7, 6)));
    gpunn_tensor *y = MADE(f->dev, gpunn_input(f->model, "label", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3)));
    const gpunn_field all[] = {{.crop_padding = 1, .degrees = 70, .horizontal_flip = 0.5f},
                               {.brightness = 0.4f,
                                .contrast = 0.5f,
                                .saturation = 1.5f,
                                .hue = 0.3f,
                                .mean = {0.5f, 0.5f, 0.5f},
                                .std = {0.25f, 0.25f, 0.25f}}};
    static float      got[6 * TURNED_PIXELS], first[6 * TURNED_PIXELS], soft[6 * 3];
    for (int i = 0; i < 4; i++) { /* turned, coloured; without workers and with 3 */
        gpunn_loader_args args = {
            .fields = {all[i / 2]}, .count = 6, .batch_size = 4, .seed = 11, .workers = i % 2 * 3};
        args.fields[0].input = x, args.fields[0].samples = images->data, args.fields[0].dtype = GPUNN_U8;
        const golden_tensor *want = golden_find(&g, i / 2 ? "coloured" : "turned");
        gpunn_loader        *loader = MADE(f->dev, gpunn_loader_create_(f->model, args));
        read_epoch(f, loader, x, got, NULL, NULL);
        for (int k = 0; k < 6 * TURNED_PIXELS; k++) {
            const float expected = i / 2 ? ((const float *)want->data)[k]
                                         : (float)((const uint8_t *)want->data)[k] / 255;
            assert_true(fabsf(got[k] - expected) <= (i / 2 ? 1e-5f : 0));
        }
        if (i % 2 == 0) memcpy(first, got, sizeof got);
        assert_memory_equal(got, first, sizeof got);
        read_epoch(f, loader, x, got, NULL, NULL); /* another epoch, other draws */
        assert_true(memcmp(got, first, sizeof got) != 0);
        gpunn_loader_destroy(loader);
    }
    for (int i = 0; i < 4; i++) { /* little and much mixed; from U8 and F32 */
        const golden_tensor *want[2] = {golden_find(&g, i / 2 ? "images_2" : "images_0.3"),
                                        golden_find(&g, i / 2 ? "labels_2" : "labels_0.3")};
        for (int k = 0; k < 6 * TURNED_PIXELS; k++) first[k] = ((const uint8_t *)images->data)[k];
        gpunn_loader_args args = {
            .fields = {{.input = x,
                        .samples = i % 2 ? (const void *)first : images->data,
                        .dtype = i % 2 ? GPUNN_F32 : GPUNN_U8,
                        .std = {i % 2 ? 0 : 1 / 255.0f, i % 2 ? 0 : 1 / 255.0f, i % 2 ? 0 : 1 / 255.0f}},
                       {.input = y, .samples = labels->data}},
            .count = 6,
            .batch_size = 4,
            .seed = 11,
            .mixup_alpha = i / 2 ? 2 : 0.3f,
            .workers = i};
        gpunn_loader *loader = MADE(f->dev, gpunn_loader_create_(f->model, args));
        read_epoch(f, loader, x, got, y, soft);
        check_close_at(got, (const float *)want[0]->data, want[0]->count, 1e-5, 1e-3, "images", __FILE__,
                       __LINE__);
        check_close_at(soft, (const float *)want[1]->data, want[1]->count, 1e-5, 1e-6, "labels", __FILE__,
                       __LINE__);
        gpunn_loader_destroy(loader);
    }
    golden_close(&g);
}

/* A grey image of one channel changes as one of three equal channels, but for their weights' sum of 0.9999. */
static void test_grey(void **state)
{
    enum { IMAGES_GREY = 5, CELLS = 12 };
    fixture      *f = *state;
    unsigned char grey[IMAGES_GREY][CELLS], colour[IMAGES_GREY][3][CELLS];
    float         one[IMAGES_GREY][CELLS], three[IMAGES_GREY][3][CELLS];
    bool          changes = false;
    gpunn_tensor *x = MADE(f->dev,
                           gpunn_input(f->model, "grey", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 3, 4)));
    gpunn_tensor *y = MADE(f->dev,
                           gpunn_input(f->model, "colour", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 3, 4)));
    for (int i = 0; i < IMAGES_GREY * CELLS; i++) {
        grey[i / CELLS][i % CELLS] = (unsigned char)(i * 37);
        for (int c = 0; c < 3; c++) colour[i / CELLS][c][i % CELLS] = (unsigned char)(i * 37);
    }
    gpunn_loader_args args = {.count = IMAGES_GREY, .batch_size = IMAGES_GREY, .seed = 5};
    args.fields[0] = (gpunn_field){
        .dtype = GPUNN_U8, .brightness = 0.4f, .contrast = 0.5f, .saturation = 1.5f};
    args.fields[0].hue = 0.3f;
    args.fields[0].input = x, args.fields[0].samples = grey;
    gpunn_loader *loader = MADE(f->dev, gpunn_loader_create_(f->model, args));
    assert_true(gpunn_next(loader));
    OK(f->dev, gpunn_read(x, one, sizeof one));
    gpunn_loader_destroy(loader);
    args.fields[0].input = y, args.fields[0].samples = colour;
    loader = MADE(f->dev, gpunn_loader_create_(f->model, args));
    assert_true(gpunn_next(loader));
    OK(f->dev, gpunn_read(y, three, sizeof three));
    gpunn_loader_destroy(loader);
    for (int i = 0; i < IMAGES_GREY; i++)
        for (int k = 0; k < CELLS; k++) {
            assert_true(fabsf(one[i][k] - three[i][1][k]) <= 1e-3f);
            changes = changes || fabsf(one[i][k] - (float)grey[i][k] / 255) > 0.1f;
        }
    assert_true(changes);
}

/* ---- callbacks ---- */
typedef struct source {
    int64_t fail_at; /* this sample cannot be read */
    long    calls;
} source;
static gpunn_status load(void *user, int64_t index, void *const *sample)
{
    source *s = user;
    __atomic_fetch_add(&s->calls, 1, __ATOMIC_RELAXED);
    if (index == s->fail_at) return GPUNN_ERR_IO;
    memcpy(sample[0], rows[index], sizeof rows[index]);
    memcpy(sample[1], &numbers[index], sizeof numbers[index]);
    return GPUNN_OK;
}

/* Samples of doubles, and an input of them: in memory of its own, then of the program. */
static void test_doubles(void **state)
{
    fixture      *f = *state;
    static double wide[SAMPLES][WIDTH], bound[8 * WIDTH + 8];
    double        values[8][WIDTH];
    make_inputs(f);
    gpunn_tensor *d = MADE(f->dev, gpunn_input(f->model, "d", GPUNN_F64, GPUNN_SHAPE(GPUNN_BATCH, WIDTH)));
    for (int i = 0; i < SAMPLES * WIDTH; i++)
        wide[i / WIDTH][i % WIDTH] = rows[i / WIDTH][i % WIDTH] * (1 + 1e-12);
    gpunn_loader *loader = MADE(
        f->dev,
        gpunn_loader_create(f->model, .batch_size = 8, .shuffle = true, .workers = 2, .count = SAMPLES,
                            .fields = {{.input = x, .samples = wide, .dtype = GPUNN_F64},
                                       {.input = t, .samples = numbers, .dtype = GPUNN_I32},
                                       {.input = d, .samples = wide}}));
    int64_t order[SAMPLES];
    check_permutation(order, epoch(f, loader, 8, order));
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !is_emulated(f->backend)) OK(f->dev, gpunn_bind(d, bound, 8 * WIDTH * sizeof *bound));
        assert_true(gpunn_next(loader));
        OK(f->dev, gpunn_read(d, values, sizeof values));
        float narrow[8][WIDTH];
        OK(f->dev, gpunn_read(x, narrow, sizeof narrow));
        for (int k = 0; k < 8 * WIDTH; k++)
            assert_true(values[k / WIDTH][k % WIDTH] == narrow[k / WIDTH][k % WIDTH]);
    }
    gpunn_loader_destroy(loader);
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .count = SAMPLES,
                                   .fields = {{.input = t, .samples = wide, .dtype = GPUNN_F64}}),
               GPUNN_ERR_DTYPE, "f64", "i64");
}

static void test_callback(void **state)
{
    fixture *f = *state;
    make_inputs(f);
    for (int workers = 0; workers < 4; workers++) {
        source        s = {-1, 0};
        int64_t       order[SAMPLES], reference[SAMPLES];
        gpunn_loader *loader = MADE(
            f->dev, gpunn_loader_create(f->model, .fields = {{.input = x}, {.input = t, .dtype = GPUNN_I32}},
                                        .count = SAMPLES, .batch_size = 4, .shuffle = true, .seed = 3,
                                        .load = load, .user = &s, .workers = workers));
        gpunn_loader *plain = MADE(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES,
                                                               .batch_size = 4, .shuffle = true, .seed = 3));
        check_permutation(order, epoch(f, loader, 4, order));
        check_permutation(reference, epoch(f, plain, 4, reference));
        assert_memory_equal(order, reference, sizeof order);
        assert_true(__atomic_load_n(&s.calls, __ATOMIC_RELAXED) >= SAMPLES);
        gpunn_loader_destroy(plain);
        gpunn_loader_destroy(loader);

        source broken = {13, 0};
        loader = MADE(f->dev, gpunn_loader_create(f->model,
                                                  .fields = {{.input = x}, {.input = t, .dtype = GPUNN_I32}},
                                                  .count = SAMPLES, .batch_size = 4, .load = load,
                                                  .user = &broken, .workers = workers));
        int batches = 0;
        while (gpunn_next(loader)) batches++;
        assert_int_equal(batches, 3); /* 0..3, 4..7, 8..11 */
        check_sentence(f->dev, GPUNN_ERR_IO, __FILE__, __LINE__, "13", (const char *)NULL);
        broken.fail_at = -1;
        gpunn_loader_rewind(loader);
        check_permutation(order, epoch(f, loader, 4, order));
        gpunn_loader_destroy(loader);
    }
}

/* Workers race to fill batches ahead; whatever the timing, batches come whole and in order. */
static void test_many_workers(void **state)
{
    fixture *f = *state;
    make_inputs(f);
    for (int round = 0; round < 20; round++) {
        source        s = {-1, 0};
        int64_t       order[SAMPLES];
        gpunn_loader *loader = MADE(
            f->dev, gpunn_loader_create(f->model, .fields = {{.input = x}, {.input = t, .dtype = GPUNN_I32}},
                                        .count = SAMPLES, .batch_size = 1 + round % 5, .load = load,
                                        .user = &s, .workers = 1 + round % 8));
        for (int pass = 0; pass < 2; pass++) {
            assert_int_equal(epoch(f, loader, 1 + round % 5, order), SAMPLES);
            for (int i = 0; i < SAMPLES; i++) assert_int_equal(order[i], i);
            /* destroyed, or rewound, while workers are busy */
            if (round % 3 == 0) assert_true(gpunn_next(loader));
            if (round % 3 == 0) gpunn_loader_rewind(loader);
        }
        gpunn_loader_destroy(loader);
    }
}

static void test_no_allocation(void **state)
{
    fixture *f = *state;
    int64_t  order[SAMPLES];
    make_inputs(f);
    for (int workers = 0; workers < 3; workers += 2) {
        gpunn_loader *loader = MADE(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES,
                                                                .batch_size = 4, .shuffle = true,
                                                                .workers = workers));
        (void)epoch(f, loader, 4, order);
        const long calls = f->memory.calls;
        for (int i = 0; i < 3; i++) (void)epoch(f, loader, 4, order);
        assert_int_equal(f->memory.calls, calls);
        gpunn_loader_destroy(loader);
    }
}

enum { LONGEST = 9 };
static int64_t lengths[SAMPLES];

/* Sample i: i in each place that it fills, -1 behind; and i in the only other field. */
static gpunn_status load_of_length(void *user, int64_t index, void *const *sample)
{
    (void)user;
    for (int k = 0; k < LONGEST; k++)
        for (int c = 0; c < 2; c++)
            ((float *)sample[0])[2 * k + c] = k < lengths[index] ? (float)index : -1.0f;
    *(uint8_t *)sample[1] = (uint8_t)index;
    return GPUNN_OK;
}

/* One epoch: places of padding. */
static int padded_places(fixture *f, gpunn_loader *loader, gpunn_tensor *sound, gpunn_tensor *number,
                         int multiple, int64_t *order)
{
    int padding = 0, count = 0;
    while (gpunn_next(loader)) {
        const int   n = gpunn_loader_batch_size(loader);
        gpunn_shape shape = gpunn_tensor_sizes(sound);
        float       values[4 * LONGEST * 2];
        int64_t     index[4], longest = 0;
        OK(f->dev, gpunn_read(number, index, (size_t)n * sizeof *index));
        for (int i = 0; i < n; i++) longest = lengths[index[i]] > longest ? lengths[index[i]] : longest;
        assert_int_equal(shape.dim[0], n);
        assert_int_equal(shape.dim[2], (longest + multiple - 1) / multiple * multiple);
        OK(f->dev, gpunn_read(sound, values, (size_t)(n * shape.dim[2] * 2) * sizeof *values));
        for (int i = 0; i < n; i++) {
            for (int64_t k = 0; k < 2 * shape.dim[2]; k++)
                assert_true(values[i * 2 * shape.dim[2] + k] ==
                            (k < 2 * lengths[index[i]] ? (float)index[i] : -1.0f));
            padding += (int)(shape.dim[2] - lengths[index[i]]);
            order[count++] = index[i];
        }
    }
    OK(f->dev, gpunn_last_status(f->dev));
    check_permutation(order, count);
    return padding;
}

static void test_lengths(void **state)
{
    fixture *f = *state;
    for (int multiple = 1; multiple <= 3; multiple += 2) {
        const char   *size = multiple == 1 ? "T" : "U";
        const int64_t T = gpunn_size(f->model, size, .max = LONGEST, .multiple = multiple);
        gpunn_tensor *sound = MADE(f->dev, gpunn_input(f->model, multiple == 1 ? "sound" : "sound3",
                                                       GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, T, 2)));
        gpunn_tensor *number = MADE(f->dev, gpunn_input(f->model, multiple == 1 ? "number" : "number3",
                                                        GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)));
        int64_t       order[4][SAMPLES];
        int           padding[4];
        bool          moves = false; /* the last of the whole batches */
        for (int i = 0; i < SAMPLES; i++) lengths[i] = 1 + i * 5 % LONGEST;
        for (int way = 0; way < 3; way++) { /* in order, shuffled, shuffled by workers */
            gpunn_loader *loader = MADE(
                f->dev, gpunn_loader_create(
                            f->model, .fields = {{.input = sound}, {.input = number, .dtype = GPUNN_U8}},
                            .count = SAMPLES, .batch_size = 4, .shuffle = way > 0, .workers = way / 2 * 3,
                            .load = load_of_length, .lengths = lengths));
            padding[way] = padded_places(f, loader, sound, number, multiple, order[way]);
            if (way == 1) {
                for (int epoch = 1; epoch < 6; epoch++) {
                    (void)padded_places(f, loader, sound, number, multiple, order[3]);
                    assert_memory_not_equal(order[1], order[3], sizeof order[1]);
                    moves = moves || lengths[order[1][16]] != lengths[order[3][16]];
                }
                assert_true(moves);
            }
            gpunn_loader_destroy(loader);
        }
        assert_memory_equal(order[1], order[2], sizeof order[1]);
        assert_true(padding[1] < padding[0]);
        assert_int_equal(padding[1], padding[2]);
    }
}

static void test_bad_lengths(void **state)
{
    fixture      *f = *state;
    const int64_t T = gpunn_size(f->model, "T", .max = LONGEST), open = gpunn_size(f->model, "open");
    int64_t       own[2] = {3, LONGEST + 1};
    gpunn_tensor *sound = MADE(f->dev,
                               gpunn_input(f->model, "sound", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, T)));
    gpunn_tensor *late = MADE(f->dev,
                              gpunn_input(f->model, "late", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2, T)));
    gpunn_tensor *endless = MADE(f->dev,
                                 gpunn_input(f->model, "endless", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, open)));
    gpunn_tensor *image = MADE(f->dev,
                               gpunn_input(f->model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, T, 3, 3)));
    static float  values[2][LONGEST * 9];
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = sound, .samples = values}}, .count = 2),
               GPUNN_ERR_ARGUMENT, "sound", "[batch, T]", ".lengths");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = sound, .samples = values}}, .count = 2,
                                   .lengths = own),
               GPUNN_ERR_ARGUMENT, "sample 1 is 10", "1 to 9, the .max of 'T'");
    own[1] = 0;
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = sound, .samples = values}}, .count = 2,
                                   .lengths = own),
               GPUNN_ERR_ARGUMENT, "sample 1 is 0");
    own[1] = 1;
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = late, .samples = values}}, .count = 2,
                                   .lengths = own),
               GPUNN_ERR_SHAPE, "late", "[batch, 2, T]");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = endless, .samples = values}}, .count = 2,
                                   .lengths = own),
               GPUNN_ERR_SHAPE, "endless", ".max");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model,
                                   .fields = {{.input = image, .samples = values, .crop_padding = 1}},
                                   .count = 2, .lengths = own),
               GPUNN_ERR_SHAPE, "image", "crop");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = sound, .samples = values}}, .count = 2,
                                   .lengths = own, .mixup_alpha = 0.4f),
               GPUNN_ERR_SHAPE, "sound", ".lengths excludes mixup");
    gpunn_tensor *words = MADE(
        f->dev, gpunn_input(f->model, "words", GPUNN_F32,
                            GPUNN_SHAPE(GPUNN_BATCH, gpunn_size(f->model, "W", .max = LONGEST))));
    FAILS_NULL(f->dev,
               gpunn_loader_create(
                   f->model,
                   .fields = {{.input = sound, .samples = values}, {.input = words, .samples = values}},
                   .count = 2, .lengths = own),
               GPUNN_ERR_SHAPE, "words", "as the fields before it do");
}

static void test_errors(void **state)
{
    fixture *f = *state;
    make_inputs(f);
    gpunn_tensor *fixed = MADE(f->dev, gpunn_input(f->model, "fixed", GPUNN_F32, GPUNN_SHAPE(4)));
    gpunn_tensor *y = MADE(f->dev, gpunn_relu(x));
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .count = 3), GPUNN_ERR_ARGUMENT, "fields");
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .fields = FIELDS), GPUNN_ERR_ARGUMENT, "count");
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = -4), GPUNN_ERR_ARGUMENT,
               "count");
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES, .batch_size = -1),
               GPUNN_ERR_ARGUMENT, "batch_size");
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = SAMPLES, .workers = -1),
               GPUNN_ERR_ARGUMENT, "workers");
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .fields = {{.input = x}}, .count = 4),
               GPUNN_ERR_ARGUMENT, "x", "samples");
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .fields = {{.input = y, .samples = rows}}, .count = 4),
               GPUNN_ERR_ARGUMENT, "input");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = fixed, .samples = rows}}, .count = 4),
               GPUNN_ERR_ARGUMENT, "fixed", "GPUNN_BATCH");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = t, .samples = rows, .dtype = GPUNN_F32}},
                                   .count = 4),
               GPUNN_ERR_DTYPE, "t", "f32", "i64");
    FAILS_NULL(
        f->dev,
        gpunn_loader_create(f->model, .fields = FIELDS, .count = 3, .batch_size = 4, .drop_last = true),
        GPUNN_ERR_ARGUMENT, "drop_last");
    gpunn_tensor *image = MADE(
        f->dev, gpunn_input(f->model, "image", GPUNN_U8, GPUNN_SHAPE(GPUNN_BATCH, HEIGHT, COLUMNS)));
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = x, .samples = rows, .crop_padding = 1}},
                                   .count = 4),
               GPUNN_ERR_SHAPE, "x", "height, width");
    FAILS_NULL(f->dev,
               gpunn_loader_create(
                   f->model, .fields = {{.input = image, .samples = masks, .crop_padding = -1}}, .count = 4),
               GPUNN_ERR_ARGUMENT, "image", "crop_padding -1");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model,
                                   .fields = {{.input = image, .samples = masks, .horizontal_flip = 1.5f}},
                                   .count = 4),
               GPUNN_ERR_ARGUMENT, "image", "1.5", "probabilities");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model,
                                   .fields = {{.input = image, .samples = masks, .vertical_flip = NAN}},
                                   .count = 4),
               GPUNN_ERR_ARGUMENT, "image", "probabilities");
    FAILS_NULL(f->dev,
               gpunn_loader_create(
                   f->model, .fields = {{.input = image, .samples = masks, .degrees = INFINITY}}, .count = 4),
               GPUNN_ERR_ARGUMENT, "image", "degrees inf");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = image, .samples = masks, .hue = 0.1f}},
                                   .count = 4),
               GPUNN_ERR_SHAPE, "image", "u8", "3 or 1");
    gpunn_tensor *colours = MADE(
        f->dev, gpunn_input(f->model, "colours", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 1, WIDTH)));
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = colours, .samples = rows, .hue = 0.6f}},
                                   .count = 4),
               GPUNN_ERR_ARGUMENT, "colours", "at most 0.5");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = colours, .samples = rows, .contrast = -1}},
                                   .count = 4),
               GPUNN_ERR_ARGUMENT, "colours", "contrast -1");
    gpunn_model  *other = MADE(f->dev, gpunn_model_create(f->dev));
    gpunn_tensor *foreign = MADE(f->dev, gpunn_input(other, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WIDTH)));
    gpunn_tensor *wide = MADE(
        f->dev, gpunn_input(f->model, "wide", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, (int64_t)1 << 50)));
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = foreign, .samples = rows}}, .count = 4),
               GPUNN_ERR_ARGUMENT, "field 0", "another model");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .count = 4,
                                   .fields = {{.input = x, .samples = rows}, {.input = x, .samples = rows}}),
               GPUNN_ERR_ARGUMENT, "fields 0 and 1", "'x'");
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = 4, .load = load),
               GPUNN_ERR_ARGUMENT, "field 0 ('x') has samples although there is load");
    FAILS_NULL(
        f->dev,
        gpunn_loader_create(f->model, .fields = {{.input = x, .samples = rows, .mean = {1}}}, .count = 4),
        GPUNN_ERR_ARGUMENT, "x", "mean or std", "U8");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model,
                                   .fields = {{.input = x, .samples = rows, .dtype = GPUNN_U8, .std = {-1}}},
                                   .count = 4),
               GPUNN_ERR_ARGUMENT, "x", "std[0] -1", "not negative");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = wide, .samples = rows}}, .count = 1 << 30),
               GPUNN_ERR_SHAPE, "wide", "address space");
    if (f->backend->type == GPUNN_DEVICE_CPU) /* where U8 become F32 before they are copied */
        FAILS_NULL(f->dev,
                   gpunn_loader_create(f->model, .count = 1 << 12,
                                       .fields = {{.input = wide, .samples = rows, .dtype = GPUNN_U8}}),
                   GPUNN_ERR_SHAPE, "wide", "address space");
    FAILS_NULL(f->dev,
               gpunn_loader_create(f->model, .fields = {{.input = wide}}, .load = load, .count = 1 << 8,
                                   .batch_size = 1 << 8, .workers = 63),
               GPUNN_ERR_MEMORY, "64 batches of 256 samples are more than the address space");
    gpunn_model_destroy(other);
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = 4, .mixup_alpha = 1),
               GPUNN_ERR_DTYPE, "t", "probabilities");
    FAILS_NULL(f->dev, gpunn_loader_create(f->model, .fields = FIELDS, .count = 4, .mixup_alpha = -1),
               GPUNN_ERR_ARGUMENT, "mixup_alpha is -1");
}

/* ---- samples on the device ---- */
enum { SMALL = 5, IMAGE = 12, KINDS = 7 };
static double        wide_samples[SAMPLES][WIDTH];
static unsigned char byte_samples[SAMPLES][IMAGE];
static bool          flag_samples[SAMPLES][SMALL];

/* Inputs of each dtype, and the samples of each: the same, and others that are converted. */
typedef struct samples {
    gpunn_field fields[KINDS];
    size_t      bytes[KINDS]; /* of all samples */
    void       *memory[KINDS];
} samples;
static samples samples_make(fixture *f)
{
    static const gpunn_dtype inputs[KINDS] = {GPUNN_F32, GPUNN_I64,  GPUNN_F32, GPUNN_F32,
                                              GPUNN_F64, GPUNN_BOOL, GPUNN_I32},
                             given[KINDS] = {GPUNN_F32, GPUNN_I32,  GPUNN_F64, GPUNN_U8,
                                             GPUNN_F64, GPUNN_BOOL, GPUNN_U8};
    static const gpunn_shape shapes[KINDS] = {
        {{GPUNN_BATCH, WIDTH}}, {{GPUNN_BATCH}},        {{GPUNN_BATCH, WIDTH}}, {{GPUNN_BATCH, 2, 2, 3}},
        {{GPUNN_BATCH, WIDTH}}, {{GPUNN_BATCH, SMALL}}, {{GPUNN_BATCH, IMAGE}}};
    const void *const host[KINDS] = {rows,         numbers,      wide_samples, byte_samples,
                                     wide_samples, flag_samples, byte_samples};
    const size_t      bytes[KINDS] = {sizeof rows,         sizeof numbers,      sizeof wide_samples,
                                      sizeof byte_samples, sizeof wide_samples, sizeof flag_samples,
                                      sizeof byte_samples};
    samples           s;
    make_inputs(f);
    memset(&s, 0, sizeof s);
    for (int i = 0; i < SAMPLES * IMAGE; i++) {
        byte_samples[i / IMAGE][i % IMAGE] = (unsigned char)(i * 37);
        flag_samples[i / IMAGE][i % SMALL] = i % 3 == 0;
        wide_samples[i / IMAGE][i % WIDTH] = 0.1 * i;
    }
    for (int k = 0; k < KINDS; k++) {
        char name[8];
        (void)snprintf(name, sizeof name, "x%d", k);
        s.fields[k].input = MADE(f->dev, gpunn_input(f->model, name, inputs[k], shapes[k]));
        s.fields[k].samples = host[k];
        s.fields[k].dtype = given[k];
        s.bytes[k] = bytes[k];
    }
    for (int c = 0; c < 2; c++) s.fields[3].mean[c] = 0.3f, s.fields[3].std[c] = 0.5f + (float)c;
    return s;
}
/* Moves the samples to memory of the device, or back. */
static void samples_move(fixture *f, samples *s, bool there)
{
    static const void *host[KINDS];
    if (there && is_emulated(f->backend)) stream = caller_stream();
    for (int k = 0; k < KINDS; k++) {
        char first;
        if (!there) give(s->memory[k]);
        if (there) host[k] = s->fields[k].samples, s->memory[k] = take(s->bytes[k], host[k]);
        if (there) look(&first, s->memory[k], 1); /* waits */
        s->fields[k].samples = there ? s->memory[k] : host[k];
    }
    if (!there && stream) caller_end(stream);
    if (!there) stream = NULL;
}
static gpunn_loader_args samples_args(const samples *s)
{
    gpunn_loader_args args = {.count = SAMPLES, .batch_size = 4, .seed = 9};
    memcpy(args.fields, s->fields, sizeof s->fields);
    return args;
}
/* The bytes of all inputs. */
static size_t samples_read(fixture *f, const samples *s, char *to)
{
    size_t bytes = 0;
    for (int k = 0; k < KINDS; k++) {
        OK(f->dev, gpunn_read(s->fields[k].input, to + bytes, gpunn_tensor_bytes(s->fields[k].input)));
        bytes += gpunn_tensor_bytes(s->fields[k].input);
    }
    return bytes;
}
/* Both loaders give the same batches, for three epochs. */
static void same_batches(fixture *f, const samples *s, gpunn_loader *host, gpunn_loader *device)
{
    char a[4096], b[4096];
    for (int pass = 0; pass < 3; pass++) {
        int batches = 0;
        for (; gpunn_next(host); batches++) {
            const size_t bytes = samples_read(f, s, a);
            assert_true(bytes <= sizeof a);
            assert_true(gpunn_next(device));
            assert_int_equal(gpunn_loader_batch_size(device), gpunn_loader_batch_size(host));
            assert_int_equal(samples_read(f, s, b), bytes);
            assert_memory_equal(a, b, bytes);
        }
        assert_false(gpunn_next(device));
        OK(f->dev, gpunn_last_status(f->dev));
        assert_int_equal(batches, gpunn_loader_batches(device));
    }
}

/* Ranks that all do the same, of which this one is number 1. */
enum { ALIKE = 3 };
static gpunn_status sum_alike(void *user, float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) values[i] *= ALIKE;
    return user ? GPUNN_ERR_STATE : GPUNN_OK;
}
static gpunn_status gather_alike(void *user, void *parts, size_t bytes)
{
    char *own = (char *)parts + bytes;
    memcpy(parts, own, bytes);
    memcpy(own + bytes, own, bytes);
    return user ? GPUNN_ERR_STATE : GPUNN_OK;
}
static gpunn_status broadcast_alike(void *user, void *memory, size_t bytes, int root)
{
    (void)memory, (void)bytes, (void)root;
    return user ? GPUNN_ERR_STATE : GPUNN_OK;
}

static void test_on_device(void **state)
{
    fixture      *f = *state;
    samples       s = samples_make(f), near = s;
    gpunn_loader *rest[2] = {NULL, NULL};
    gpunn_group  *group = MADE(f->dev,
                               gpunn_group_open(f->dev, .rank = 1, .size = ALIKE, .all_reduce = sum_alike,
                                                .all_gather = gather_alike, .broadcast = broadcast_alike,
                                                .type = GPUNN_GROUP_HOST, .share_gpu = true));
    samples_move(f, &near, true);
    for (int way = 0; way < 10; way++) {
        gpunn_loader *loader[2];
        for (int i = 0; i < 2; i++) {
            gpunn_loader_args args = samples_args(i ? &near : &s);
            args.on_device = i == 1;
            args.workers = way / 4;
            args.shuffle = way % 2;
            args.drop_last = way / 2 % 2;
            args.group = way > 7 ? group : NULL;
            args.validation_share = way > 5 ? 0.3f : 0;
            args.validation = way > 5 ? &rest[i] : NULL;
            loader[i] = MADE(f->dev, gpunn_loader_create_(f->model, args));
        }
        same_batches(f, &s, loader[0], loader[1]);
        if (way > 5) same_batches(f, &s, rest[0], rest[1]);
        for (int i = 0; i < 2; i++) gpunn_loader_destroy(loader[i]), gpunn_loader_destroy(rest[i]);
        rest[0] = rest[1] = NULL;
    }
    gpunn_group_close(group);
    samples_move(f, &near, false);
}

/* A batch holds what the samples are when gpunn_next is called. */
static void test_on_device_changes(void **state)
{
    fixture *f = *state;
    samples  s = samples_make(f);
    float    batch[4][WIDTH], first = -1;
    int64_t  label[4];
    samples_move(f, &s, true);
    gpunn_loader_args args = samples_args(&s);
    args.on_device = args.shuffle = true;
    args.workers = 2;
    gpunn_loader *loader = MADE(f->dev, gpunn_loader_create_(f->model, args));
    while (gpunn_next(loader)) {
        const size_t n = (size_t)gpunn_loader_batch_size(loader);
        OK(f->dev, gpunn_read(s.fields[0].input, batch, n * sizeof *batch));
        OK(f->dev, gpunn_read(s.fields[1].input, label, n * sizeof *label));
        for (size_t i = 0; i < n; i++)
            assert_true(batch[i][0] == (first < 0 ? rows[label[i]][0] : first + (float)label[i]));
        first++;
        for (int i = 0; i < SAMPLES; i++) rows[i][0] = first + (float)i;
        if (stream) caller_put(s.memory[0], rows, sizeof rows, stream);
        if (!stream) memcpy(s.memory[0], rows, sizeof rows);
        look(batch, s.memory[0], sizeof *batch); /* waits */
    }
    OK(f->dev, gpunn_last_status(f->dev));
    gpunn_loader_destroy(loader);
    samples_move(f, &s, false);
}

/* gpunn_fit from samples on the device: the same losses and weights as from the host's, with a checkpoint. */
static void test_on_device_fit(void **state)
{
    enum { TRAIN = 21 };
    fixture    *f = *state;
    float      *net_x, loss[2], weight[2][64 * 64];
    int64_t    *net_t, label[2][4];
    const char *path = test_path(f, "device.ckpt");
    net_data(TRAIN, 3, &net_x, &net_t);
    if (is_emulated(f->backend)) stream = caller_stream();
    void *near[] = {take(sizeof *net_x * TRAIN * NET_X, net_x), take(sizeof *net_t * TRAIN, net_t)};
    look(weight, near[1], 1); /* waits */
    for (int i = 0; i < 2; i++) {
        gpunn_model     *model = MADE(f->dev, gpunn_model_create(f->dev));
        net              n = net_make(model);
        gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(model, .lr = 0.01f));
        gpunn_tensor    *fc = MADE(f->dev, gpunn_find(model, "fc1.weight"));
        gpunn_loader    *loader = MADE(
               f->dev, gpunn_loader_create(model, .count = TRAIN, .batch_size = 4, .shuffle = true, .seed = 4,
                                           .on_device = i == 1,
                                           .fields = {{.input = n.x, .samples = i ? near[0] : net_x},
                                                      {.input = n.t, .samples = i ? near[1] : net_t}}));
        OK(f->dev, gpunn_fit(opt, .loss = n.loss, .train = loader, .epochs = 2));
        assert_true(gpunn_next(loader) && gpunn_next(loader));
        OK(f->dev, gpunn_checkpoint_save(opt, loader, path));
        assert_true(gpunn_next(loader) && gpunn_next(loader));
        OK(f->dev, gpunn_checkpoint_load(opt, loader, path));
        assert_true(gpunn_next(loader));
        OK(f->dev, gpunn_read(n.t, label[i], sizeof label[i]));
        gpunn_loader_rewind(loader);
        OK(f->dev, gpunn_evaluate(loader, n.loss, NULL, &loss[i], NULL));
        assert_true(gpunn_tensor_bytes(fc) <= sizeof weight[i]);
        OK(f->dev, gpunn_read(fc, weight[i], gpunn_tensor_bytes(fc)));
        if (i == 1) assert_memory_equal(weight[0], weight[1], gpunn_tensor_bytes(fc));
        gpunn_loader_destroy(loader);
        gpunn_optimizer_destroy(opt);
        gpunn_model_destroy(model);
    }
    assert_true(isfinite(loss[0]) && loss[0] == loss[1]);
    assert_memory_equal(label[0], label[1], sizeof label[0]);
    (void)remove(path);
    give(near[0]), give(near[1]);
    if (stream) caller_end(stream);
    stream = NULL;
    free(net_x), free(net_t);
}

/* A load callback that is never called. */
static gpunn_status no_load(void *user, int64_t index, void *const *sample)
{
    (void)user, (void)index, (void)sample;
    return GPUNN_ERR_STATE;
}

static void test_on_device_refused(void **state)
{
    fixture                 *f = *state;
    samples                  s = samples_make(f);
    gpunn_loader_args        args = samples_args(&s);
    static const char *const names[] = {"crop_padding", "degrees",  "horizontal_flip", "vertical_flip",
                                        "brightness",   "contrast", "saturation",      "hue",
                                        "mixup_alpha",  "load"};
    const gpunn_shape        shape = {{GPUNN_BATCH, 3, 2, 2}};
    gpunn_tensor            *image = MADE(f->dev, gpunn_input(f->model, "image", GPUNN_F32, shape));
    samples_move(f, &s, true);
    for (int i = 0; i < COUNT(names); i++) {
        gpunn_loader_args bad = {.count = SAMPLES, .on_device = true};
        gpunn_field      *field = &bad.fields[0];
        float *const      number[] = {&field->degrees,    &field->horizontal_flip, &field->vertical_flip,
                                      &field->brightness, &field->contrast,        &field->saturation,
                                      &field->hue,        &bad.mixup_alpha};
        field->input = image;
        if (i < 9) field->samples = s.memory[3];
        if (i < 9) field->dtype = GPUNN_U8;
        if (i == 0) field->crop_padding = 1;
        if (i > 0 && i < 9) *number[i - 1] = 0.5f;
        if (i == 9) bad.load = no_load;
        FAILS_NULL(f->dev, gpunn_loader_create_(f->model, bad), GPUNN_ERR_ARGUMENT, "on_device", names[i],
                   "'image'");
    }
    if (stream) {
        args.fields[0].samples = s.memory[0];
        args.shuffle = true;
        FAILS_NULL(f->dev, gpunn_loader_create_(f->model, args), GPUNN_ERR_ARGUMENT, "'x0'",
                   "memory of the GPU", "on_device");
        args.fields[0].samples = rows;
        args.on_device = true;
        FAILS_NULL(f->dev, gpunn_loader_create_(f->model, args), GPUNN_ERR_ARGUMENT, "'x0'", "on_device",
                   "host");
        memcpy(args.fields, s.fields, sizeof s.fields);
        args.count = SAMPLES + 1;
        FAILS_NULL(f->dev, gpunn_loader_create_(f->model, args), GPUNN_ERR_ARGUMENT, "'x0'", "bytes");
        args.count = SAMPLES;
        args.fields[4].dtype = GPUNN_U8;
        FAILS_NULL(f->dev, gpunn_loader_create_(f->model, args), GPUNN_ERR_DTYPE, "'x4'", "F64");
    }
    memcpy(args.fields, s.fields, sizeof s.fields);
    args.on_device = true;
    gpunn_loader *loader = MADE(f->dev, gpunn_loader_create_(f->model, args));
    gpunn_device *cpu = MADE(
        NULL, gpunn_device_open(.type = GPUNN_DEVICE_CPU, .realloc_fn = hook_realloc, .user = &f->memory));
    OK(cpu, gpunn_model_to(f->model, cpu));
    if (stream) {
        assert_false(gpunn_next(loader));
        assert_int_equal(gpunn_last_status(cpu), GPUNN_ERR_STATE);
        gpunn_clear_error(cpu);
    } else
        assert_true(gpunn_next(loader));
    gpunn_loader_destroy(loader);
    samples_move(f, &s, false);
    OK(f->dev, gpunn_model_to(f->model, f->dev));
    gpunn_device_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {test_with_device(test_order),
                                       test_with_device(test_shuffle),
                                       test_with_device(test_shuffle_is_fair),
                                       test_with_device(test_share),
                                       test_with_device(test_share_is_fair),
                                       test_with_device(test_images),
                                       test_with_device(test_augmentation),
                                       test_with_device(test_flips_for_certain),
                                       test_with_device(test_wide_pixels),
                                       test_with_device(test_callback),
                                       test_with_device(test_doubles),
                                       test_with_device(test_many_workers),
                                       test_with_device(test_no_allocation),
                                       test_with_device(test_torchvision),
                                       test_with_device(test_grey),
                                       test_with_device(test_errors),
                                       test_with_device(test_lengths),
                                       test_with_device(test_bad_lengths),
                                       test_with_device(test_on_device),
                                       test_with_device(test_on_device_changes),
                                       test_with_device(test_on_device_fit),
                                       test_with_device(test_on_device_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
