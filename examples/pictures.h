/* pictures.h - a folder of JPEG and PNG files, one folder for each class, as samples of a gpunn_loader.
 * tiny_imagenet.c says how the folder may be laid out. Include it after gpunn.h. Decodes with stb_image
 * (Debian: libstb-dev). Of 16-bit values it takes the high byte; PIL, which torchvision reads with, clips
 * those of 16-bit gray at 255 instead. */
#ifndef PICTURES_H
#define PICTURES_H
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_MAX_DIMENSIONS 16384
#include <stb/stb_image.h>

#include <dirent.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BROKEN_SHOWN = 20 };

/* ---- lists of texts ---- */
typedef struct list {
    char **at;
    int    count, room;
} list;

/* A line on stderr; what folders are called may hold anything, also what terminals obey. */
static void complain(const char *format, ...)
{
    char    line[8192];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    for (unsigned char *c = (unsigned char *)line; *c; c++) {
        bool high = c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f;
        if (high || (*c < 0x20 && (*c != '\n' || c[1] != 0)) || *c == 0x7f) *c = '?';
        if (high) *++c = '?';
    }
    fputs(line, stderr);
}

static void *needed(void *memory)
{
    if (memory) return memory;
    complain("out of memory\n");
    exit(1);
}

/* The list frees the text. */
static void list_add(list *l, char *text)
{
    if (l->count == l->room) {
        l->room = l->room ? 2 * l->room : 64;
        l->at = needed(realloc(l->at, (size_t)l->room * sizeof *l->at));
    }
    l->at[l->count++] = text;
}

static void list_free(list *l)
{
    for (int i = 0; i < l->count; i++) free(l->at[i]);
    free(l->at);
    *l = (list){NULL, 0, 0};
}

/* "folder/name", to be freed. */
static char *joined(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char  *path = needed(malloc(size));
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ---- the folder ---- */
typedef struct pictures {
    list paths;
    int *label;
} pictures;

typedef struct dataset {
    list     classes;
    pictures part[2]; /* training, validation */
} dataset;

static bool is_picture(const char *name)
{
    const char *dot = strrchr(name, '.');
    char        ending[6] = "";
    for (int i = 0; dot && dot[i] && i < 5; i++)
        ending[i] = (char)(dot[i] >= 'A' && dot[i] <= 'Z' ? dot[i] + 32 : dot[i]);
    return name[0] != '.' &&
           (strcmp(ending, ".jpg") == 0 || strcmp(ending, ".jpeg") == 0 || strcmp(ending, ".png") == 0);
}

static bool is_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* The folders in a folder, or the pictures, sorted: their names without it. False: there is no such
 * folder. */
static bool names_in(const char *folder, bool folders, list *names)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) return false;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        const char *name = entry->d_name;
        char       *path = joined(folder, name);
        if (folders ? name[0] != '.' && is_folder(path) : is_picture(name)) list_add(names, joined("", name));
        free(path);
    }
    closedir(dir);
    /* the / */
    for (int i = 0; i < names->count; i++) memmove(names->at[i], names->at[i] + 1, strlen(names->at[i]));
    if (names->count) qsort(names->at, (size_t)names->count, sizeof *names->at, by_text);
    return true;
}

/* path is the list's from then on. */
static void add_picture(pictures *p, char *path, int label)
{
    list_add(&p->paths, path);
    p->label = needed(realloc(p->label, (size_t)p->paths.room * sizeof *p->label));
    p->label[p->paths.count - 1] = label;
}

/* The pictures of a class: folder/FILE and folder/images/FILE. share: every tenth goes to validation. */
static void add_class(dataset *d, int part, const char *folder, int label, bool share)
{
    char *inner = joined(folder, "images");
    int   count = 0;
    for (int i = 0; i < 2; i++) {
        const char *from = i ? inner : folder;
        list        names = {NULL, 0, 0};
        (void)names_in(from, false, &names); /* most have no images/ */
        for (int k = 0; k < names.count; k++, count++)
            add_picture(&d->part[share && count % 10 == 9 ? 1 : part], joined(from, names.at[k]), label);
        list_free(&names);
    }
    free(inner);
}

static int class_of(const dataset *d, const char *name)
{
    char **found = bsearch(&name, d->classes.at, (size_t)d->classes.count, sizeof *d->classes.at, by_text);
    return found ? (int)(found - d->classes.at) : -1;
}

/* Tiny ImageNet's list: a line for each file in folder/images, its name and its class before further
 * columns. */
static bool add_annotated(dataset *d, const char *folder, FILE *file)
{
    char line[1024], *images = joined(folder, "images");
    bool good = true;
    while (good && fgets(line, sizeof line, file)) {
        char *name = strtok(line, "\t\r\n"), *class = strtok(NULL, "\t\r\n");
        if (name == NULL) continue;
        int label = class ? class_of(d, class) : -1;
        good = label >= 0;
        if (good)
            add_picture(&d->part[1], joined(images, name), label);
        else
            complain("%s/val_annotations.txt: '%s' is of class '%s', which has no folder in train\n", folder,
                     name, class ? class : "");
    }
    free(images);
    return good;
}

static bool add_validation(dataset *d, const char *folder)
{
    list  names = {NULL, 0, 0};
    char *path = joined(folder, "val_annotations.txt");
    FILE *file = fopen(path, "r");
    bool  good = file ? add_annotated(d, folder, file) : names_in(folder, true, &names);
    free(path);
    if (file) fclose(file);
    if (file == NULL && !good)
        complain("there is no folder %s; put pictures for validation there, in one folder for each class\n",
                 folder);
    for (int i = 0; good && i < names.count; i++) {
        int label = class_of(d, names.at[i]);
        path = joined(folder, names.at[i]);
        good = label >= 0;
        if (good)
            add_class(d, 1, path, label, false);
        else
            complain("%s: there is no class '%s' in train\n", path, names.at[i]);
        free(path);
    }
    list_free(&names);
    return good;
}

/* False after a sentence on stderr, as the next. */
static bool dataset_find(dataset *d, const char *folder)
{
    char       *train = joined(folder, "train"), *validation = joined(folder, "val");
    bool        plain = !is_folder(train); /* the classes stand in the folder itself */
    const char *classes = plain ? folder : train;
    bool        good = names_in(classes, true, &d->classes);
    if (!good) {
        complain("there is no folder %s; name one with --data, or try --synthetic\n", folder);
    } else if (d->classes.count < 2) {
        complain("%s holds %d folder%s; at least two classes are needed, a folder each\n", classes,
                 d->classes.count, d->classes.count == 1 ? "" : "s");
        good = false;
    }
    for (int i = 0; good && i < d->classes.count; i++) {
        char *path = joined(classes, d->classes.at[i]);
        add_class(d, 0, path, i, plain);
        free(path);
    }
    if (good && !plain) good = add_validation(d, validation);
    free(train);
    free(validation);
    return good;
}

static void dataset_free(dataset *d)
{
    for (int part = 0; part < 2; part++) {
        list_free(&d->part[part].paths);
        free(d->part[part].label);
    }
    list_free(&d->classes);
}

/* Decodes every picture once, and leaves those out that cannot be, if skip says so. False: some cannot and it
 * does not; or a class has no pictures for training, or there are none for validation. */
static bool dataset_check(dataset *d, bool skip)
{
    int broken = 0, *left = needed(calloc((size_t)d->classes.count, sizeof *left));
    for (int part = 0; part < 2; part++) {
        pictures    *p = &d->part[part];
        const char **fault = needed(calloc((size_t)p->paths.count + 1, sizeof *fault));
        int          kept = 0;
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic, 16)
#endif
        for (int i = 0; i < p->paths.count; i++) {
            int      width, height, channels;
            stbi_uc *pixels = stbi_load(p->paths.at[i], &width, &height, &channels, 3);
            if (pixels == NULL) fault[i] = stbi_failure_reason();
            stbi_image_free(pixels);
        }
        for (int i = 0; i < p->paths.count; i++) {
            if (fault[i]) {
                if (broken++ < BROKEN_SHOWN) complain("%s is broken: %s\n", p->paths.at[i], fault[i]);
                free(p->paths.at[i]);
                continue;
            }
            if (part == 0) left[p->label[i]]++;
            p->label[kept] = p->label[i];
            p->paths.at[kept++] = p->paths.at[i];
        }
        p->paths.count = kept;
        free(fault);
    }
    if (broken > BROKEN_SHOWN) complain("... and %d more\n", broken - BROKEN_SHOWN);
    int  empty = 0;
    bool good = broken == 0 || skip;
    if (broken)
        complain("%d broken picture%s %s\n", broken, broken == 1 ? "" : "s",
                 skip ? "left out" : "found; repair or remove them, or skip them with --skip-broken");
    while (empty < d->classes.count && left[empty]) empty++;
    if (good && empty < d->classes.count)
        complain("class '%s' has no pictures for training; add some or remove its folder\n",
                 d->classes.at[empty]);
    else if (good && d->part[1].paths.count == 0)
        complain("there are no pictures for validation\n");
    good = good && empty == d->classes.count && d->part[1].paths.count > 0;
    free(left);
    return good;
}

/* ---- samples ---- */
typedef struct source {
    const pictures *pictures;
    int             size;
    /* how often each picture was taken: its random numbers go by that; NULL: no augmentation */
    atomic_uint *draws;
} source;

static uint64_t mixed(uint64_t x) /* splitmix64 */
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* A square of the picture, the middle one or one of 3/4 to all of its size anywhere, mirrored every other
 * time, made size x size by bilinear interpolation. Into [3, size, size]. */
static void cut(const stbi_uc *pixels, int width, int height, int size, bool augment, uint64_t random,
                uint8_t *to)
{
    int  whole = width < height ? width : height, side = whole;
    bool mirror = false;
    if (augment) {
        side -= (int)(random % (uint64_t)(whole / 4 + 1));
        mirror = random >> 16 & 1;
    }
    int left = (width - side) / 2, top = (height - side) / 2;
    if (augment) {
        left = (int)((random >> 17 & 0xffff) % (uint64_t)(width - side + 1));
        top = (int)((random >> 33 & 0xffff) % (uint64_t)(height - side + 1));
    }
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++) {
            float v = ((float)y + 0.5f) * (float)side / (float)size - 0.5f,
                  u = ((float)x + 0.5f) * (float)side / (float)size - 0.5f;
            if (v < 0) v = 0;
            if (u < 0) u = 0;
            int row = (int)v, column = (int)u, down = row + 1 < side ? width : 0,
                right = column + 1 < side ? 1 : 0;
            float          fy = v - (float)row, fx = u - (float)column;
            const stbi_uc *at = pixels + 3 * ((int64_t)(top + row) * width + left + column);
            for (int c = 0; c < 3; c++, at++) {
                float upper = (float)at[0] + fx * (float)(at[3 * right] - at[0]);
                float lower = (float)at[3 * (int64_t)down] +
                              fx * (float)(at[3 * ((int64_t)down + right)] - at[3 * (int64_t)down]);
                to[(c * size + y) * size + (mirror ? size - 1 - x : x)] = (uint8_t)(upper +
                                                                                    fy * (lower - upper) +
                                                                                    0.5f);
            }
        }
}

static gpunn_status load_picture(void *user, int64_t index, void *const *sample)
{
    const source *s = user;
    int           width, height, channels;
    stbi_uc      *pixels = stbi_load(s->pictures->paths.at[index], &width, &height, &channels, 3);
    if (pixels == NULL) {
        complain("%s can no longer be read: %s\n", s->pictures->paths.at[index], stbi_failure_reason());
        return GPUNN_ERR_IO;
    }
    uint64_t draw = s->draws ? atomic_fetch_add(&s->draws[index], 1) : 0;
    cut(pixels, width, height, s->size, s->draws != NULL, mixed((uint64_t)index << 20 ^ draw), sample[0]);
    memcpy(sample[1], &s->pictures->label[index], sizeof(int32_t));
    stbi_image_free(pixels);
    return GPUNN_OK;
}

#endif
