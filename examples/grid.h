/* grid.h - many small pictures in one PNG file. Writes with stb_image_write (Debian: libstb-dev). */
#ifndef GRID_H
#define GRID_H
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>

#include <stdbool.h>
#include <stdlib.h>

/* count pictures of height x width, so many in a row, where low is black and high is white; false: the file
 * cannot be written. */
static inline bool grid_write(const char *path, const float *pictures, int count, int height, int width,
                              int columns, float low, float high)
{
    const int      rows = (count + columns - 1) / columns, wide = columns * width;
    unsigned char *pixels = (unsigned char *)calloc((size_t)wide * (size_t)(rows * height), 1);
    if (pixels == NULL) return false;
    for (int i = 0; i < count * height * width; i++) {
        const int   picture = i / (height * width), y = i / width % height, x = i % width;
        const float share = (pictures[i] - low) / (high - low);
        pixels[(picture / columns * height + y) * wide + picture % columns * width + x] =
            (unsigned char)(255 * (share > 0 ? share < 1 ? share : 1 : 0) + 0.5f);
    }
    const bool good = stbi_write_png(path, wide, rows * height, 1, pixels, wide) != 0;
    free(pixels);
    return good;
}
#endif
