/* Prints which boxes nms.h keeps: nms THRESHOLD FILE, where each line of the file has x1 y1 x2 y2 score. */
#include "../../examples/nms.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 2000 };

int main(int argc, char **argv)
{
    static float   boxes[MOST * 4], scores[MOST];
    static int64_t keep[MOST];
    int64_t        count = 0;
    FILE          *file = argc == 3 ? fopen(argv[2], "r") : NULL;
    if (!file) return 2;
    for (float *box = boxes; count < MOST; box += 4, count++)
        if (fscanf(file, "%f %f %f %f %f", box, box + 1, box + 2, box + 3, scores + count) != 5) break;
    (void)fclose(file);
    const int64_t kept = nms(boxes, scores, count, strtof(argv[1], NULL), keep);
    for (int64_t i = 0; i < kept; i++) printf("%" PRId64 "\n", keep[i]);
    return 0;
}
