#ifndef GPUNN__TRAIN_LOADER_H
#define GPUNN__TRAIN_LOADER_H
#include "cpu/threads.h"

/* ==== >>train/loader ==================================================================================== */
/* A loader delivers batches of samples to a model's inputs. It shuffles, converts, augments and mixes
 * samples, in worker threads if requested. Samples come from the program's arrays or from its load
 * callback. */

enum { GPUNN__MAX_WORKERS = 64 };

typedef struct gpunn__loader_field {
    gpunn_tensor *input;
    const char   *samples;  /* NULL if there is a load callback */
    gpunn_dtype   from, to; /* dtype of the samples, and of a batch on its way to the device */
    /* the device converts pixels to floats; otherwise the host converts and `to` is the input's dtype */
    bool    widens;
    bool    direct;               /* a batch is a contiguous range of samples, so nothing is copied */
    int64_t count;                /* elements per sample */
    size_t  from_bytes, to_bytes; /* bytes per sample, before and after conversion */
    size_t  rows, loaded,
        /* offsets in a batch's memory: of its samples, of what load writes, of what a crop writes */
        moved;
    bool         moves, jitters; /* it is cropped, turned or flipped; its colours change */
    int          axis;           /* axis with the length of the batch's longest sample; 0: none */
    int64_t      most;           /* length of that axis in the batch's memory */
    gpunn_pixels pixels;         /* U8 to F32: mean and std */
    float        table[4][256];  /* U8 or BOOL to F32: value of each byte, by channel */
    /* the batch's samples, as words [GPUNN_BATCH, words] in the loader's gather model; NULL: without it */
    gpunn_tensor *gathered;
} gpunn__loader_field;

typedef struct gpunn__batch {
    char        *memory;
    int64_t      number; /* number in the epoch; -1: none */
    bool         ready;
    gpunn_status status;  /* result of load */
    int64_t      sample;  /* the sample that load was last called for */
    int64_t      longest; /* the greatest of its samples' lengths */
} gpunn__batch;

/* Batch n is made in ring[n % ring_count]. A worker makes it as soon as batch n - ring_count has been
 * delivered; without workers gpunn_next makes it. Workers run only while `running`, from the first gpunn_next
 * of an epoch to its end. Between epochs the program may change its samples. The order of an epoch depends
 * only on the seed and the epoch, so (epoch, position) is the whole state. */
struct gpunn_loader {
    gpunn_model        *model;
    gpunn_loader_args   args;                   /* with defaults filled in */
    int64_t             batches;                /* per epoch */
    int                 field_count, delivered; /* delivered: samples in the last batch */
    gpunn__loader_field fields[GPUNN_MAX_FIELDS];
    int64_t             least, multiple; /* minimum and unit of a batch's length */
    bool                held;            /* it delivers the share that another loader leaves out */
    int64_t            *subset;          /* its args.count samples, ascending; NULL: all */
    int64_t            *order;           /* order of the samples in epoch ordered_epoch; NULL: not shuffled */
    int64_t             epoch, ordered_epoch;
    /* .on_device on a GPU: the model that copies the samples whose I64 numbers are in index. A batch's memory
     * then holds these numbers. NULL: the host reads the samples */
    gpunn_model  *gather;
    gpunn_tensor *index;
    char         *memory;             /* memory of the batches in the ring */
    void (*memory_free)(void *ptr);   /* frees memory that the backend allocated; NULL: gpunn__free */
    size_t        batch_bytes, mixed; /* mixed: offset of a sample's buffer, used for mixing */
    int           worker_count, ring_count;
    int           process; /* process that started the workers and allocated memory */
    gpunn__thread workers[GPUNN__MAX_WORKERS];
    /* guards what follows; only the program's thread changes position and running */
    gpunn__monitor monitor;
    int64_t        position, claimed; /* batches of the epoch that were delivered; that workers have begun */
    int            busy;              /* workers that are making a batch */
    bool           running, stop;
    gpunn__batch   ring[GPUNN__MAX_WORKERS + 1];
};

#ifndef GPUNN_NO_LOADERS
/* The whole state, for checkpoints. position: number of batches delivered, 0 to gpunn_loader_batches. */
GPUNN__INTERNAL void gpunn__loader_state(const gpunn_loader *loader, int64_t *epoch, int64_t *position);

/* Number of samples in a batch, over all ranks. */
GPUNN__INTERNAL int64_t gpunn__loader_batch(const gpunn_loader *loader);

/* Moves to a saved state. batch: gpunn__loader_batch of the saved loader, or 0 if it is the same. Fails if no
 * batch begins at that position. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__loader_set_state(gpunn_loader *loader, int64_t epoch, int64_t position,
                                                      int64_t batch);
#endif

#endif /* GPUNN__TRAIN_LOADER_H */
