/* pool: the threads of the CPU device. Internal to device/. */
#ifndef MM3_DEVICE_POOL_H
#define MM3_DEVICE_POOL_H

#include "device/device.h"

/* Threads that wait for lists of calls: they spin for a while, then sleep (docs/decisions/0005). */
typedef struct mm3__pool mm3__pool;
/* n_threads - 1 threads; the one that calls mm3__pool_run is the first. */
MM3_MUST_USE mm3_status mm3__pool_open(mm3__pool **out, int n_threads);
void mm3__pool_close(mm3__pool **pool);
/* Every thread walks the list of calls; returns when all have. One caller at a time. */
void mm3__pool_run(mm3__pool *pool, const mm3_call *calls, int n_calls);

#endif
