#ifndef GPUNN__TRAIN_LOADER_H
#define GPUNN__TRAIN_LOADER_H
#include "cpu/threads.h"

/* ==== >>train/loader =============================================================================================== */
enum { GPUNN__MAX_WORKERS = 64 };

typedef struct gpunn__loader_field {
    gpunn_tensor *input;
    const char   *samples;              /* NULL with load */
    gpunn_dtype   from, to;             /* of samples, and of a batch on its way to the device */
    bool          widens;               /* there pixels become numbers; otherwise on their way: `to` is the input's */
    bool          direct;               /* a batch is a stretch of samples as it lies there: nothing is copied */
    int64_t       count;                /* elements of a sample */
    size_t        from_bytes, to_bytes; /* of a sample, before and after its conversion */
    size_t        rows, loaded, moved;  /* places in a batch's memory: its samples; what load and a crop make on the way there */
    bool          moves, jitters;       /* there are crops, turns or flips; changes of colour */
    int           axis;                 /* the one that is as long as a batch's longest sample; 0: none */
    int64_t       most;                 /* of it, as a sample has it on its way */
    gpunn_pixels  pixels;               /* U8 to F32 ... */
    float         table[4][256];        /* ... and BOOL to F32: what each byte becomes, per channel */
} gpunn__loader_field;

typedef struct gpunn__batch {
    char        *memory;
    int64_t      number; /* in the epoch; -1: none */
    bool         ready;
    gpunn_status status;  /* of load ... */
    int64_t      sample;  /* ... for this sample */
    int64_t      longest; /* of its samples' lengths */
} gpunn__batch;

/* Batch n is made in ring[n % ring_count], by a worker as soon as batch n - ring_count has been delivered, or by gpunn_next when
 * there are no workers. They work only while `running`, from the first gpunn_next of an epoch to its end: between epochs the
 * program may change its samples. An epoch's order follows from seed and epoch alone: (epoch, position) is the whole state. */
struct gpunn_loader {
    gpunn_model        *model;
    gpunn_loader_args   args;                   /* with defaults in place */
    int64_t             batches;                /* per epoch */
    int                 field_count, delivered; /* delivered: samples in the last batch */
    gpunn__loader_field fields[GPUNN_MAX_FIELDS];
    int64_t             least, multiple; /* of a batch's length */
    int64_t            *order;           /* of the samples in epoch ordered_epoch; NULL: as they come */
    int64_t             epoch, ordered_epoch;
    char               *memory;        /* of the ring's batches */
    void (*memory_free)(void *ptr);    /* the backend's; NULL: gpunn__free */
    size_t         batch_bytes, mixed; /* mixed: where a batch has room for a sample, to mix with */
    int            worker_count, ring_count;
    int            process; /* that has the workers, and made the memory */
    gpunn__thread  workers[GPUNN__MAX_WORKERS];
    gpunn__monitor monitor;           /* guards what follows; position and running change in the program's thread only */
    int64_t        position, claimed; /* batches of the epoch that have been delivered; that workers have begun */
    int            busy;              /* workers that are making a batch */
    bool           running, stop;
    gpunn__batch   ring[GPUNN__MAX_WORKERS + 1];
};

/* For checkpoints: the whole state. position counts the batches delivered, 0 to gpunn_loader_batches. */
GPUNN__INTERNAL void gpunn__loader_state(const gpunn_loader *loader, int64_t *epoch, int64_t *position);

/* The samples of all ranks in a batch. */
GPUNN__INTERNAL int64_t gpunn__loader_batch(const gpunn_loader *loader);

/* batch: gpunn__loader_batch of the loader that stood at `position`; 0: the same. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__loader_set_state(gpunn_loader *loader, int64_t epoch, int64_t position, int64_t batch);

#endif /* GPUNN__TRAIN_LOADER_H */
