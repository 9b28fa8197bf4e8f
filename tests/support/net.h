/* net: the network without an engine, for tests that look inside: any rows in any step,
 * and what each operation left. */
#ifndef MM3_TESTS_NET_H
#define MM3_TESTS_NET_H

#include "forward/forward.h"

/* A recorder in front of the eager one that keeps copies of what it saw. */
typedef struct net_watch {
    mm3_recorder base;
    mm3_recorder *eager; /* owned */
    int i_norm;          /* input norms seen in this step: layer index, n_layers for the final one */
    int n_norms;
    int hidden_row; /* row whose residual stream is kept, or -1 */
    float *hidden;  /* [n_layers + 1, hidden_size] */
    int hidden_size;
    bool keep_selected; /* append each step's selections: [layer][row] lists, in issue order */
    mm3_buf selected;
    const unsigned char *kv_pool; /* seen in the last attention */
} net_watch;

typedef struct net {
    mm3_model *model;
    mm3_device *device;
    mm3_pins *pins;
    mm3_forward *forward;
    mm3_forward_options options;
    net_watch watch;
    const char *candidate; /* forced, or NULL */
    long n_forced;
} net;

/*   pins  NULL: natives */
mm3_status net_open(net *n, const char *dir, mm3_numerics numerics, int max_rows, int n_slots, int max_pages,
                    const char *pins);
/* From now on, wherever the candidate of this name accepts a stage with any of its tactics, it runs it; natives do the
 * rest. Counts the stages it ran in n->n_forced. */
mm3_status net_force(net *n, const char *candidate);
void net_close(net *n);
/* Slot i gets pages i, i + stride, i + 2 stride ... (mod n_pages): scattered when stride > 1. */
void net_lay_pages(net *n, int stride);
/* Evaluate m tokens of a sequence in a slot, the first at position `first`; logits of every row. */
mm3_status net_run(net *n, int slot, const int32_t *tokens, int first, int m);
/* All KV pages, once a step was run. */
const unsigned char *net_kv_pool(const net *n);
/* norm(a - b) / norm(b) */
double net_error(const float *a, const float *b, size_t n);
/* -log softmax(logits)[token] in double */
double net_nll(const float *logits, int n_vocab, int32_t token);

#endif
