/* ctc.h - labels of what a network says step by step, where a class stands for no label (connectionist
 * temporal classification).
 *
 *     int labels[STEPS];
 *     int count = ctc_greedy(log_probabilities, steps, classes, 0, labels);    the best class of each step
 *     count = ctc_beam_search(log_probabilities, steps, classes, 0, 16, labels, &score);
 *                                                                              the best text; -1: out of memory
 *
 * log_probabilities is [steps, classes], as gpunn_log_softmax and gpunn_ctc_loss have it for one sample;
 * labels has room for `steps`. The search (Graves, 2012; Hannun and others, 2014) adds up all ways to a text
 * and keeps the likeliest `width` beginnings at each step; score is the logarithm of the probability of those
 * ways to the text that were kept. */
#ifndef CTC_H
#define CTC_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* Equal classes side by side are one label, and blanks none. */
static inline int ctc_greedy(const float *log_probabilities, int steps, int classes, int blank, int *labels)
{
    int count = 0, before = blank;
    for (int step = 0; step < steps; step++) {
        const float *at = log_probabilities + (size_t)step * (size_t)classes;
        int          best = 0;
        for (int c = 1; c < classes; c++)
            if (at[c] > at[best]) best = c;
        if (best != before && best != blank) labels[count++] = best;
        before = best;
    }
    return count;
}

/* A text, as its last label and the text before that. */
typedef struct ctc__node {
    int parent, label, child, sibling; /* -1: none */
} ctc__node;

/* A text that is kept: the logarithms of the probabilities of all ways to it that end with a blank, and with
 * its last label. */
typedef struct ctc__beam {
    int    node, from; /* node -1: that of label behind beam `from`, which is not made yet */
    int    label;
    double blank, last, all;
} ctc__beam;

typedef struct ctc__search {
    ctc__node *nodes;
    ctc__beam *beams, *next; /* the best first */
    int        node_count, node_capacity, count, next_count, width;
} ctc__search;

static inline double ctc__sum(double a, double b)
{
    const double most = a > b ? a : b;
    return most == -HUGE_VAL ? most : most + log(exp(a - most) + exp(b - most));
}

/* Keeps a text of the next step, if it is among the likeliest; the earlier among equals. */
static inline void ctc__keep(ctc__search *s, ctc__beam beam)
{
    int at = s->next_count;
    beam.all = ctc__sum(beam.blank, beam.last);
    if (!(beam.all > -HUGE_VAL) || (at == s->width && !(beam.all > s->next[at - 1].all))) return;
    if (at == s->width)
        at--;
    else
        s->next_count++;
    for (; at > 0 && beam.all > s->next[at - 1].all; at--) s->next[at] = s->next[at - 1];
    s->next[at] = beam;
}

static inline int ctc__child(const ctc__search *s, int node, int label)
{
    int child = s->nodes[node].child;
    while (child >= 0 && s->nodes[child].label != label) child = s->nodes[child].sibling;
    return child;
}

/* Which beam is of this node; -1: none. */
static inline int ctc__beam_of(const ctc__search *s, int node)
{
    for (int i = 0; node >= 0 && i < s->count; i++)
        if (s->beams[i].node == node) return i;
    return -1;
}

/* The ways to the text behind beam i by one more label: after the same one there must be a blank. */
static inline double ctc__longer(const ctc__search *s, int i, int label, const float *at)
{
    const ctc__beam *beam = &s->beams[i];
    return (beam->label == label ? beam->blank : beam->all) + (double)at[label];
}

static inline void ctc__step(ctc__search *s, const float *at, int classes, int blank)
{
    s->next_count = 0;
    for (int i = 0; i < s->count; i++) {
        ctc__beam beam = s->beams[i];
        const int parent = ctc__beam_of(s, s->nodes[beam.node].parent);
        beam.blank = beam.all + (double)at[blank];
        if (beam.label >= 0) beam.last += (double)at[beam.label];
        if (parent >= 0) beam.last = ctc__sum(beam.last, ctc__longer(s, parent, beam.label, at));
        ctc__keep(s, beam);
    }
    for (int i = 0; i < s->count; i++)
        for (int c = 0; c < classes; c++)
            if (c != blank && ctc__beam_of(s, ctc__child(s, s->beams[i].node, c)) < 0)
                ctc__keep(s, (ctc__beam){-1, s->beams[i].node, c, -HUGE_VAL, ctc__longer(s, i, c, at), 0});
}

/* Gives the texts that are new their nodes, or those that they had earlier. */
static inline bool ctc__grow(ctc__search *s)
{
    ctc__beam *beams = s->beams;
    for (int i = 0; i < s->next_count; i++) {
        ctc__beam *beam = &s->next[i];
        if (beam->node < 0) beam->node = ctc__child(s, beam->from, beam->label);
        if (beam->node >= 0) continue;
        if (s->node_count == s->node_capacity) {
            const int  capacity = s->node_capacity * 2;
            ctc__node *nodes = (ctc__node *)realloc(s->nodes, (size_t)capacity * sizeof *nodes);
            if (nodes == NULL) return false;
            s->nodes = nodes;
            s->node_capacity = capacity;
        }
        s->nodes[s->node_count] = (ctc__node){beam->from, beam->label, -1, s->nodes[beam->from].child};
        s->nodes[beam->from].child = beam->node = s->node_count++;
    }
    s->beams = s->next;
    s->count = s->next_count;
    s->next = beams;
    return true;
}

/* score may be NULL. A step of NaN, or where nothing is possible, leaves no text: 0 labels and -infinity. */
static inline int ctc_beam_search(const float *log_probabilities, int steps, int classes, int blank,
                                  int width, int *labels, double *score)
{
    ctc__search s = {.width = width, .node_count = 1, .node_capacity = 256, .count = 1};
    int         count = 0;
    s.nodes = (ctc__node *)malloc((size_t)s.node_capacity * sizeof *s.nodes);
    s.beams = (ctc__beam *)malloc((size_t)width * sizeof *s.beams);
    s.next = (ctc__beam *)malloc((size_t)width * sizeof *s.next);
    bool good = s.nodes && s.beams && s.next;
    if (good) {
        s.nodes[0] = (ctc__node){-1, -1, -1, -1};
        s.beams[0] = (ctc__beam){0, -1, -1, 0, -HUGE_VAL, 0};
    }
    for (int step = 0; good && step < steps; step++) {
        ctc__step(&s, log_probabilities + (size_t)step * (size_t)classes, classes, blank);
        good = ctc__grow(&s);
    }
    if (good && score) *score = s.count ? s.beams[0].all : -HUGE_VAL;
    const int end = good && s.count ? s.beams[0].node : 0;
    for (int node = end; good && node > 0; node = s.nodes[node].parent) count++;
    for (int node = end, i = count; good && node > 0; node = s.nodes[node].parent)
        labels[--i] = s.nodes[node].label;
    free(s.nodes);
    free(s.beams);
    free(s.next);
    return good ? count : -1;
}

#endif
