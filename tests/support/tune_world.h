/* tune_world: the buffers of a small network, steps over them, and a tuner that decides among planted candidates. For
 * tests of the tuner; what goes wrong here is a failed test. */
#ifndef MM3_TESTS_TUNE_WORLD_H
#define MM3_TESTS_TUNE_WORLD_H

#include "tune/search.h"

enum { M = 4, N = 64, K = 64, LAYERS = 5, SLOTS = 4, HEADS = 4, KV_HEADS = 2 };
enum { LD = (HEADS + 2 * KV_HEADS) * MM3_HEAD_DIM };

typedef struct world {
    mm3_device *device;
    float x[M * K], delta[M * K], w[K], y[M * K], out[M * N], gate_up[M * 2 * N], act[M * N];
    uint8_t codes[M * K], scales[M * K / 32], act_codes[M * N], act_scales[M * N / 32];
    uint8_t weight[LAYERS][N * K], weight_scales[LAYERS][N * K / 32];
    float qkv[M * LD], q_norm[MM3_HEAD_DIM], cos[M * 32], sin[M * 32], q[M * HEADS * MM3_HEAD_DIM];
    int32_t slot[M], position[M], table[SLOTS];
    unsigned char pool[SLOTS * 2 * KV_HEADS * MM3_PAGE_TOKENS * MM3_HEAD_DIM * 4];
} world;

/* Random content, the same each time; slot 2 is padding. Plain memory: two worlds can be compared byte by byte. */
world *world_open(int n_threads);
void world_close(world **w);
/* out = x times a layer's weights; m rows. */
mm3_linear world_linear(world *w, int layer, int m);

/* A step: the operation in every layer, to a recorder. */
typedef void issue_fn(world *w, mm3_recorder *r);
issue_fn issue_linears_of_m; /* M rows; its key is LINEAR_KEY */
issue_fn issue_two_sizes;    /* the linears of M rows and of 1 */
issue_fn issue_chains;       /* swiglu_quantize */
issue_fn issue_norms;
issue_fn issue_ropes; /* writes KV pages */
void issue_linears(world *w, mm3_recorder *r, int m);
#define LINEAR_KEY "linear m=4 n=64 k=64 w=mx act=w8a8"

/* Options for a tuner among planted candidates, timed by the processor time of their thread, with as much time as they
 * want.
 *   dir  borrowed: of the cache; NULL: none */
mm3_tune_options tune_options(const char *dir);
/* Open a tuner and decide every stage of a step. */
mm3_tuner *tune(world *w, const mm3_tune_options *o, issue_fn *issue);
/* The same where n_lists lists share the budget (mm3_tuner_share). */
mm3_tuner *tune_in_share(world *w, const mm3_tune_options *o, issue_fn *issue, int n_lists);
/* Decide what a tuner has not decided yet of the stages of a step. */
void tune_again(world *w, mm3_tuner *t, issue_fn *issue, int n_lists);
/* What was decided for a key; what is said of another candidate. They are there. */
const mm3_decision *tune_decision(const mm3_tuner *t, const char *key);
const mm3_tried *tune_tried(const mm3_decision *d, const char *choice);
/* The cache file of tune_options(dir), for mm3_free(). */
char *tune_cache_file(world *w, const char *dir);

#endif
