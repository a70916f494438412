/* nms.h - of a detector's overlapping boxes the best (non-maximum suppression), as torchvision.ops.nms.
 *
 *     int64_t kept = nms(boxes, scores, count, 0.5f, keep);
 *                                    keep[0 .. kept): which boxes, the best score first
 *
 * boxes is [count, 4]: x1, y1, x2, y2, with x1 <= x2 and y1 <= y2, scores [count], keep has room for `count`.
 * A box goes where the area that it shares with a better one is more than iou_threshold of what the two
 * cover. Equal scores stand in the order of their boxes; a score of NaN is above all, and a box with a NaN
 * overlaps none. To keep classes apart, call it for each. Nothing is allocated. */
#ifndef NMS_H
#define NMS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether box a comes before box b. */
static inline bool nms_before(const float *scores, int64_t a, int64_t b)
{
    const float x = scores[a], y = scores[b];
    if (x != x || y != y) return x != x && (y == y || a < b);
    return x > y || (x == y && a < b);
}

/* Lets the item at `at` of a heap, whose first is the last in order, sink to its place. */
static inline void nms_sink(const float *scores, int64_t *heap, int64_t at, int64_t count)
{
    for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && nms_before(scores, heap[child], heap[child + 1])) child++;
        if (!nms_before(scores, heap[at], heap[child])) return;
        const int64_t moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
        at = child;
    }
}

/* What two boxes share, by what they cover. */
static inline float nms_iou(const float *a, const float *b)
{
    const float left = a[0] > b[0] ? a[0] : b[0], right = a[2] < b[2] ? a[2] : b[2];
    const float top = a[1] > b[1] ? a[1] : b[1], bottom = a[3] < b[3] ? a[3] : b[3];
    const float both = right > left && bottom > top ? (right - left) * (bottom - top) : 0;
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both);
}

static inline int64_t nms(const float *boxes, const float *scores, int64_t count, float iou_threshold,
                          int64_t *keep)
{
    for (int64_t i = 0; i < count; i++) keep[i] = i;
    for (int64_t i = count / 2; i-- > 0;) nms_sink(scores, keep, i, count);
    for (int64_t last = count - 1; last > 0; last--) {
        const int64_t worst = keep[0];
        keep[0] = keep[last];
        keep[last] = worst;
        nms_sink(scores, keep, 0, last);
    }
    for (int64_t i = 0; i < count; i++) { /* of those behind it, the ones that stay close up */
        int64_t left = i + 1;
        for (int64_t j = i + 1; j < count; j++)
            if (!(nms_iou(boxes + 4 * keep[i], boxes + 4 * keep[j]) > iou_threshold)) keep[left++] = keep[j];
        count = left;
    }
    return count;
}

#endif
