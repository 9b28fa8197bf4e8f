/* checkpoint: writes an M3 checkpoint folder with random weights, in the released form, of any size, and damaged in
 * any way a test asks for. Knows the format from its description, not through the code that it helps to test. */
#ifndef TEST_CHECKPOINT_H
#define TEST_CHECKPOINT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One tensor that is about to be written. */
typedef struct test_tensor {
    char name[200];
    char dtype[12]; /* "F8_E4M3", "U8", "BF16", "F32", or anything; sizes are known for safetensors' own */
    int n_dims;
    int64_t shape[4];
    bool drop; /* set by a hook: leave it out */
} test_tensor;

typedef struct test_checkpoint {
    int hidden, layers, heads, kv_heads; /* head_dim is 128; one index head per KV head */
    int dense_intermediate, expert_intermediate, shared_intermediate;
    int experts, experts_per_token, shared_experts;
    int vocab, max_position, index_dim, block_size, topk_blocks;
    const char *moe, *sparse; /* "00111", a digit per layer; NULL: 0 for the first two, then 1 */
    int shards;               /* 0: model.safetensors alone; else so many shards and an index */
    uint64_t seed;
    /* Words, apart by spaces: weights (names with .weight) that contain one are written in that type. A released
     * MXFP8 weight has the same values in all three types. */
    const char *as_bf16, *as_f32, *as_mx;
    bool odd_header; /* one byte more, so that the data starts at an odd address */
    bool holes;      /* all weights zero and never written: sparse files of any size */
    void *user;
    void (*on_values)(void *user, const char *name, float *x, size_t n); /* change a tensor's values before rounding */
    void (*on_tensor)(void *user, test_tensor *t);                       /* rename, retype, reshape or drop it */
    void (*on_config)(void *user, json_t *config);                       /* change config.json */
    const test_tensor *extra;                                            /* [n_extra] further tensors, all zero */
    int n_extra;
} test_checkpoint;

/* 4 layers, 2 of them sparse with experts; nothing has a round size. */
extern const test_checkpoint test_checkpoint_small;
/* The released model's sizes and 31 shards, as holes: 45 315 tensors, 412 GiB that take no room. */
extern const test_checkpoint test_checkpoint_released;

/* Write config.json, the shards and the index into an existing folder. Ends the program when it cannot. */
void test_checkpoint_write(const char *dir, const test_checkpoint *c);

#endif
