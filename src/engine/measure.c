/* What a decode step costs, for benches: the recorded graphs beside each other, and each stage within them.
 * On the scheduler thread, with no job running. Decides nothing; statistics are the caller's business. */
#include <string.h>

#include "engine/state.h"

enum { MIN_ROUNDS = 3, MAX_ROUNDS = 1000, MAX_PAIRS = 3 };

/* What is asked for. */
typedef struct request {
    int m, context, rounds;
    double seconds;
} request;

/* Something that runs a whole step. */
typedef struct arm {
    const char *name;
    mm3_graph *graph;       /* NULL: eager */
    mm3_recorder *recorder; /* owned by the arm, or NULL where the engine owns the graph */
    mm3_step_shape shape;   /* eager */
} arm;

/* Two arms, timed A B B A. */
typedef struct pair {
    const arm *a, *b;
    double *a_s, *b_s; /* owned: [rounds], the mean of a round's two */
} pair;

/* One operation of the step, with its calls in the stamped graph. */
typedef struct part {
    mm3_op_id op;
    const void *contract; /* in the arena */
    int first, n_calls;   /* in the stamped graph, without the stamp */
    int stage;
} part;

/* All operations with one key. */
typedef struct stage {
    mm3_op_id op;
    char key[MM3_MAX_KEY_TEXT], choice[MM3_MAX_CHOICE_TEXT];
    int calls;
    double bytes;
    double *s; /* owned: [rounds] */
} stage;

/* A recorder like the recording one, but with a stamp behind every operation: a call that waits for all threads and
 * notes the time. */
typedef struct stamped {
    mm3_recorder base;
    mm3_engine *e;
    mm3_choose *choose;
    void *user;
    mm3_graph *graph; /* owned, as the following */
    mm3_arena arena;  /* contracts */
    part *part;       /* [max] */
    stage *stage;     /* [max] */
    double *stamp;    /* [max + 1] the start, and the end of each part */
    int n, max, n_stages;
    size_t need; /* scratch */
} stamped;

typedef struct measuring {
    mm3_engine *e;
    request r;
    const mm3_decode_graph *kept;
    mm3_binding planned;
    arm graph, eager, winners, natives, exact;
    pair pair[MAX_PAIRS];
    int n_pairs;
    stamped stamped;
    void *scratch; /* owned */
    int32_t *page; /* owned: [n_pages] borrowed from the free ones */
    int n_pages, n_filled;
    int n_rounds;
    long n_allocations;   /* while the clock ran: none */
    int n_routers, n_hit; /* layers with experts, and experts that they hit in all */
    double bytes;
} measuring;

/* ---- the request ------------------------------------------------------------------------------------------------- */

static mm3_status read_request(measuring *m, const char *text)
{
    const mm3_engine *e = m->e;
    static const char what[] = "measure";
    json_t *o = NULL;
    mm3_status st = MM3_OK;
    int64_t rows = 0, context = 0, rounds = 0;
    MM3_TRY(mm3_json_parse(&o, text, strlen(text), what));
    MM3_GOTO(mm3_json_int(o, "m", what, 1, INT32_MAX, false, 0, &rows));
    MM3_GOTO(mm3_json_int(o, "context", what, 1, e->context, true, MM3_MIN(1024, e->context), &context));
    MM3_GOTO(mm3_json_int(o, "rounds", what, 0, MAX_ROUNDS, true, 0, &rounds));
    MM3_GOTO(mm3_json_double(o, "seconds", what, true, 1, &m->r.seconds));
    m->r.m = (int)rows;
    m->r.context = (int)context;
    m->r.rounds = (int)rounds;
    m->kept = mm3__decode_graph_for(m->e, (int)rows);
done:
    json_decref(o);
    if (st == MM3_OK && !m->kept)
        return mm3_fail(MM3_ERR_ARG, MM3_HERE,
                        "measure: no step of %lld rows is recorded: leave graphs on, and max_batch large enough",
                        (long long)rows);
    return st;
}

/* ---- a step's inputs --------------------------------------------------------------------------------------------- */

/* Free pages for every sequence, with numbers of an ordinary size in them. */
static mm3_status borrow_pages(measuring *m)
{
    mm3_engine *e = m->e;
    int per_row = (m->r.context + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS;
    int max_pages = (e->context + MM3_PAGE_TOKENS - 1) / MM3_PAGE_TOKENS;
    int32_t *table = mm3_forward_step(e->forward)->table;
    size_t need = (size_t)per_row * (size_t)m->r.m;
    MM3_CHECK(need <= (size_t)e->n_free_pages, MM3_ERR_NOMEM,
              "measure: %d sequences of %d tokens need %zu KV pages, %d of %d are free: lower context, or raise kv_gb",
              m->r.m, m->r.context, need, e->n_free_pages, e->n_pages);
    m->page = mm3_malloc(need * sizeof *m->page);
    MM3_CHECK(m->page, MM3_ERR_NOMEM, "measure: out of memory for a list of %zu pages", need);
    m->n_pages = (int)need;
    for (int i = 0; i < m->n_pages; i++) {
        m->page[i] = e->free_page[e->n_free_pages - 1 - i];
        table[i / per_row * max_pages + i % per_row] = m->page[i];
        mm3_forward_fill_pages(e->forward, m->page[i], 1);
        m->n_filled++;
    }
    return MM3_OK;
}

static void give_pages_back(measuring *m)
{
    for (int i = 0; i < m->n_filled; i++) mm3_forward_clear_pages(m->e->forward, m->page[i], 1);
    mm3_free(m->page);
}

/* Every sequence is about to take its last token; tokens are random. */
static void fill_rows(measuring *m)
{
    mm3_step_block *b = mm3_forward_step(m->e->forward);
    uint32_t r = 1;
    for (int i = 0; i < m->kept->m; i++) {
        r = r * 1664525u + 1013904223u;
        b->token[i] = (int32_t)((r >> 8) % (uint32_t)m->e->model->config.vocab_size);
        b->slot[i] = i < m->r.m ? i : -1;
        b->position[i] = m->r.context - 1;
        b->sample[i] = mm3__ordinary_sampling(i);
    }
}

/* ---- the stamped graph ------------------------------------------------------------------------------------------- */

static void run_stamp(const mm3_call *call, int i_thread, int n_threads)
{
    (void)n_threads;
    if (i_thread == 0) *(double *)(uintptr_t)call->op = mm3_now_s();
}

static mm3_status append_stamp(stamped *s, double *at)
{
    mm3_call call = { .run = run_stamp, .op = at, .waits = true };
    return mm3_graph_append(s->graph, &call);
}

static int find_stage(const stamped *s, const char *key)
{
    int i = 0;
    while (i < s->n_stages && strcmp(s->stage[i].key, key) != 0) i++;
    return i;
}

static mm3_status issue_stamped(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    stamped *s = (stamped *)self;
    const mm3_op_info *info = mm3_op_info_of(op);
    const mm3_device_info *device = mm3_device_info_of(s->e->device);
    void *copy = mm3_arena_alloc(&s->arena, info->n_bytes);
    mm3_part *parts = info->split ? mm3_arena_alloc(&s->arena, MM3_MAX_PARTS * sizeof *parts) : NULL;
    part *p = &s->part[s->n];
    mm3_bound bound[MM3_MAX_BOUND];
    mm3_choice choice = { 0 };
    char key[MM3_MAX_KEY_TEXT];
    size_t need;
    int n;
    MM3_CHECK(copy && (parts || !info->split), MM3_ERR_NOMEM, "measure: out of memory for a recording");
    memcpy(copy, contract, info->n_bytes);
    MM3_TRY(s->choose(s->user, op, copy, &choice));
    MM3_TRY(mm3_bind(device, op, copy, s->choose, s->user, parts, &need, bound, &n));
    s->need = MM3_MAX(s->need, need);
    *p = (part){ .op = op, .contract = copy, .first = mm3_graph_length(s->graph), .n_calls = n };
    for (int i = 0; i < n; i++) {
        bound[i].call.waits = i > 0; /* the first follows a stamp, where all have waited */
        MM3_TRY(mm3_graph_append(s->graph, &bound[i].call));
    }
    MM3_TRY(append_stamp(s, &s->stamp[s->n + 1]));
    mm3_plan_key(op, copy, false, key, sizeof key);
    p->stage = find_stage(s, key);
    if (p->stage == s->n_stages) {
        stage *g = &s->stage[s->n_stages++];
        g->op = op;
        memcpy(g->key, key, sizeof key);
        mm3_choice_text(choice.kernel, choice.tactic, g->choice, sizeof g->choice);
    }
    s->stage[p->stage].calls++;
    s->n++;
    return MM3_OK;
}

/* How many operations a step has: what the arrays must hold. */
typedef struct counting {
    mm3_recorder base;
    int n;
} counting;

static mm3_status issue_counting(mm3_recorder *self, mm3_op_id op, const void *contract)
{
    (void)op;
    (void)contract;
    ((counting *)self)->n++;
    return MM3_OK;
}

static mm3_status record_stamped(measuring *m, mm3_choose *choose, void *user, const mm3_step_shape *shape)
{
    stamped *s = &m->stamped;
    counting count = { .base = { issue_counting } };
    MM3_TRY(mm3_forward_issue(m->e->forward, &count.base, shape));
    *s = (stamped){ .base = { issue_stamped }, .e = m->e, .choose = choose, .user = user, .max = count.n };
    s->part = mm3_calloc((size_t)s->max, sizeof *s->part);
    s->stage = mm3_calloc((size_t)s->max, sizeof *s->stage);
    s->stamp = mm3_calloc((size_t)s->max + 1, sizeof *s->stamp);
    MM3_CHECK(s->part && s->stage && s->stamp, MM3_ERR_NOMEM, "measure: out of memory for %d operations", s->max);
    MM3_TRY(mm3_graph_open(&s->graph, m->e->device));
    MM3_TRY(append_stamp(s, &s->stamp[0]));
    return mm3_forward_issue(m->e->forward, &s->base, shape);
}

static void close_stamped(stamped *s)
{
    mm3_graph_close(&s->graph);
    mm3_arena_free(&s->arena);
    for (int i = 0; i < s->n_stages; i++) mm3_free(s->stage[i].s);
    mm3_free(s->stage);
    mm3_free(s->part);
    mm3_free(s->stamp);
}

/* Run the step operation by operation, and ask each what it has to move: what that depends on (the experts that were
 * hit, the blocks that were chosen) is overwritten by later layers. */
static void count_bytes(measuring *m)
{
    stamped *s = &m->stamped;
    for (int i = 0; i < s->n; i++) {
        const part *p = &s->part[i];
        double bytes;
        mm3_device_run(m->e->device, mm3_graph_call(s->graph, p->first), p->n_calls);
        bytes = mm3_op_info_of(p->op)->bytes(p->contract);
        s->stage[p->stage].bytes += bytes;
        m->bytes += bytes;
        if (p->op == MM3_OP_ROUTER) {
            const mm3_router *r = p->contract;
            m->n_routers++;
            for (int x = 0; x < r->n_expert; x++) m->n_hit += r->begin[x] < r->begin[x + 1];
        }
    }
}

/* ---- arms -------------------------------------------------------------------------------------------------------- */

static mm3_status open_graph(measuring *m, arm *a, const char *name, const mm3_step_shape *shape, mm3_choose *choose,
                             void *user)
{
    a->name = name;
    MM3_TRY(mm3_record_open(&a->recorder, m->e->device, choose, user));
    MM3_TRY(mm3_forward_issue(m->e->forward, a->recorder, shape));
    a->graph = mm3_record_graph(a->recorder);
    return MM3_OK;
}

static void use_kept(measuring *m, arm *a, const char *name)
{
    *a = (arm){ .name = name, .graph = mm3_record_graph(m->kept->recorder) };
}

static mm3_status add_pair(measuring *m, const arm *a, const arm *b)
{
    pair *p = &m->pair[m->n_pairs++];
    size_t n = (size_t)(m->r.rounds ? m->r.rounds : MAX_ROUNDS);
    p->a = a;
    p->b = b;
    p->a_s = mm3_malloc(n * sizeof *p->a_s);
    p->b_s = mm3_malloc(n * sizeof *p->b_s);
    MM3_CHECK(p->a_s && p->b_s, MM3_ERR_NOMEM, "measure: out of memory for times");
    return MM3_OK;
}

static mm3_status give_scratch(measuring *m)
{
    arm *const own[] = { &m->winners, &m->natives, &m->exact };
    size_t need = m->stamped.need;
    for (int i = 0; i < MM3_COUNT(own); i++)
        if (own[i]->recorder) need = MM3_MAX(need, mm3_record_scratch(own[i]->recorder));
    m->scratch = mm3_alloc_aligned(need);
    MM3_CHECK(m->scratch, MM3_ERR_NOMEM, "measure: out of memory: %zu bytes of scratch", need);
    for (int i = 0; i < MM3_COUNT(own); i++)
        if (own[i]->recorder) mm3_record_set_scratch(own[i]->recorder, m->scratch);
    mm3_graph_set_scratch(m->stamped.graph, m->scratch);
    return MM3_OK;
}

static mm3_status open_arms(measuring *m)
{
    mm3_engine *e = m->e;
    bool tuned = e->tuner || e->plan, winners = m->kept->winners;
    mm3_step_shape shape = { .m = m->kept->m, .n_logits = m->kept->m, .sample = true, .context = e->context };
    mm3_step_shape exact = { .m = m->r.m, .n_logits = m->r.m, .sample = true, .context = e->context };
    mm3_choose *choose = winners ? mm3_choose_planned : mm3_choose_native;
    void *user = winners ? (void *)&m->planned : (void *)(uintptr_t)e->pins;
    m->planned = e->binding;
    m->planned.round_up = true; /* for the exact graph, whose rows nothing was decided for */
    use_kept(m, &m->graph, "graph");
    m->eager = (arm){ .name = "eager", .shape = shape };
    MM3_TRY(mm3_eager_open(&m->eager.recorder, e->device, choose, user));
    MM3_TRY(add_pair(m, &m->graph, &m->eager));
    if (tuned) {
        if (winners) {
            use_kept(m, &m->winners, "winners");
            MM3_TRY(open_graph(m, &m->natives, "natives", &shape, mm3_choose_native, e->pins));
        } else {
            use_kept(m, &m->natives, "natives");
            MM3_TRY(open_graph(m, &m->winners, "winners", &shape, mm3_choose_planned, &m->planned));
        }
        MM3_TRY(add_pair(m, &m->winners, &m->natives));
    }
    if (m->r.m < m->kept->m) {
        MM3_TRY(open_graph(m, &m->exact, "exact", &exact, choose, user));
        MM3_TRY(add_pair(m, &m->graph, &m->exact));
    }
    MM3_TRY(record_stamped(m, choose, user, &shape));
    for (int i = 0; i < m->stamped.n_stages; i++) {
        size_t n = (size_t)(m->r.rounds ? m->r.rounds : MAX_ROUNDS);
        m->stamped.stage[i].s = mm3_calloc(n, sizeof(double));
        MM3_CHECK(m->stamped.stage[i].s, MM3_ERR_NOMEM, "measure: out of memory for times");
    }
    return give_scratch(m);
}

static void close_arms(measuring *m)
{
    mm3_eager_close(&m->eager.recorder);
    mm3_record_close(&m->winners.recorder);
    mm3_record_close(&m->natives.recorder);
    mm3_record_close(&m->exact.recorder);
    for (int i = 0; i < m->n_pairs; i++) {
        mm3_free(m->pair[i].a_s);
        mm3_free(m->pair[i].b_s);
    }
    close_stamped(&m->stamped);
    mm3_free(m->scratch);
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Add the seconds of one step. */
static mm3_status run_arm(measuring *m, const arm *a, double *sum)
{
    double start = mm3_now_s();
    if (a->graph)
        mm3_graph_replay(a->graph);
    else
        MM3_TRY(mm3_forward_issue(m->e->forward, a->recorder, &a->shape));
    *sum += mm3_now_s() - start;
    return MM3_OK;
}

/* A B B A, and B A A B in every other round: what drifts hits both alike. */
static mm3_status run_pair(measuring *m, const pair *p)
{
    double a = 0, b = 0;
    for (int i = 0; i < 4; i++) {
        bool is_a = ((i == 0 || i == 3) ^ (m->n_rounds & 1)) != 0;
        MM3_TRY(run_arm(m, is_a ? p->a : p->b, is_a ? &a : &b));
    }
    p->a_s[m->n_rounds] = a / 2;
    p->b_s[m->n_rounds] = b / 2;
    return MM3_OK;
}

static void run_stamped(measuring *m)
{
    stamped *s = &m->stamped;
    mm3_graph_replay(s->graph);
    for (int i = 0; i < s->n; i++) s->stage[s->part[i].stage].s[m->n_rounds] += s->stamp[i + 1] - s->stamp[i];
}

static mm3_status run_rounds(measuring *m)
{
    int max = m->r.rounds ? m->r.rounds : MAX_ROUNDS;
    double start, unused = 0;
    for (int i = 0; i < m->n_pairs; i++) { /* code, scratch and the eager recorder's own memory */
        MM3_TRY(run_arm(m, m->pair[i].a, &unused));
        MM3_TRY(run_arm(m, m->pair[i].b, &unused));
    }
    m->n_allocations = mm3_memory_count();
    start = mm3_now_s();
    for (m->n_rounds = 0; m->n_rounds < max; m->n_rounds++) {
        if (!m->r.rounds && m->n_rounds >= MIN_ROUNDS && mm3_now_s() - start > m->r.seconds) break;
        for (int i = 0; i < m->n_pairs; i++) MM3_TRY(run_pair(m, &m->pair[i]));
        run_stamped(m);
    }
    m->n_allocations = mm3_memory_count() - m->n_allocations;
    return MM3_OK;
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static json_t *times_json(const double *s, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(a, json_real(s[i]));
    return a;
}

static mm3_status print_result(const measuring *m, char **result)
{
    json_t *pairs, *ops, *root;
    mm3_json_begin();
    pairs = json_array();
    ops = json_array();
    for (int i = 0; i < m->n_pairs; i++) {
        const pair *p = &m->pair[i];
        json_array_append_new(pairs,
                              json_pack("{ss ss so so}", "a", p->a->name, "b", p->b->name, "a_s",
                                        times_json(p->a_s, m->n_rounds), "b_s", times_json(p->b_s, m->n_rounds)));
    }
    for (int i = 0; i < m->stamped.n_stages; i++) {
        const stage *g = &m->stamped.stage[i];
        json_array_append_new(ops, json_pack("{ss ss ss si sf so}", "op", mm3_op_info_of(g->op)->name, "key", g->key,
                                             "choice", g->choice, "calls", g->calls, "bytes", g->bytes, "s",
                                             times_json(g->s, m->n_rounds)));
    }
    root = json_pack("{si si si ss sf sf si sI so so}", "m", m->r.m, "graph", m->kept->m, "context", m->r.context,
                     "kept", m->kept->winners ? "winners" : "natives", "bytes", m->bytes, "experts_hit",
                     m->n_routers ? (double)m->n_hit / m->n_routers : 0.0, "rounds", m->n_rounds, "allocations",
                     (json_int_t)m->n_allocations, "pairs", pairs, "ops", ops);
    if (root) *result = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return mm3__json_whole(result, "what was measured");
}

mm3_status mm3__measure(mm3_engine *engine, const char *spec, char **result)
{
    mm3_status st = MM3_OK;
    measuring m = { .e = engine };
    MM3_TRY(read_request(&m, spec));
    MM3_GOTO(borrow_pages(&m));
    fill_rows(&m);
    MM3_GOTO(open_arms(&m));
    count_bytes(&m);
    MM3_GOTO(run_rounds(&m));
    MM3_GOTO(print_result(&m, result));
done:
    close_arms(&m);
    give_pages_back(&m);
    return st;
}

mm3_status mm3_engine_measure(mm3_engine *engine, const char *spec, char **result)
{
    mm3_job job = { .kind = MM3_JOB_MEASURE, .spec = spec, .result = result };
    *result = NULL;
    return mm3__scheduler_run(engine, &job);
}
