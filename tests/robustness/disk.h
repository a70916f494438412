/* A disk that fails, for LD_PRELOAD (disk.c): what tests ask of it. Calls are open, read, write, fsync,
 * rename, unlink, close, flock, chmod and chown, of this process. Those from within the C library are not
 * among them, but for those of a stream of fopen. */
#ifndef DISK_H
#define DISK_H
#include <stdbool.h>

enum { DISK_SHORT = -1, DISK_KILL = -2, DISK_KILL_BEHIND = -3, DISK_LOSE_DATA = -4, DISK_LOSE_NAMES = -5 };
typedef struct disk {
    /* The call-th call from now on fails with errno `how`; SHORT: it reads or writes the half; KILL,
     * KILL_BEHIND: the process dies of SIGKILL before or behind it, of a write in its middle; LOSE_DATA,
     * LOSE_NAMES: before it, and lose() first. 0: none. */
    void (*break_call)(long call, int how);
    /* What a loss of power takes back. LOSE_DATA: what was written and not synced. LOSE_NAMES: also files
     * created and renamed in a folder that was not synced since. */
    void (*lose)(int how);
    /* Each call fails with a chance of 1 in `chance`, in one of the ways that do not kill; 0: none. */
    void (*chance)(unsigned chance, unsigned seed);
    const char *(*failed)(
        /* the last call that did, since the last of either; "": none; "create" is an open that makes a
         * file */
        void);
    /* whether a file was renamed since then while what was written to it was not synced */
    bool (*unsynced)(void);
} disk;
#endif
