/* fuzz: generation_config.json. Input: its text.
 * Properties: what is accepted is what the file says and can be sampled with, and is read the same when it is written
 * anew; after an error the defaults are there. */
#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "model/model.h"

static const char what[] = "generation_config.json";

static bool is_same(const mm3_generation_config *a, const mm3_generation_config *b)
{
    return a->temperature == b->temperature && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->repetition_penalty == b->repetition_penalty && a->top_k == b->top_k && a->n_stop_ids == b->n_stop_ids &&
           memcmp(a->stop_ids, b->stop_ids, sizeof a->stop_ids) == 0;
}

static void check_written_anew(const mm3_generation_config *g)
{
    json_t *ids = json_array(), *root;
    mm3_generation_config again;
    char *text;
    for (int i = 0; i < g->n_stop_ids; i++) json_array_append_new(ids, json_integer(g->stop_ids[i]));
    root = json_pack("{s:f,s:f,s:f,s:f,s:i,s:o}", "temperature", g->temperature, "top_p", g->top_p, "min_p", g->min_p,
                     "repetition_penalty", g->repetition_penalty, "top_k", g->top_k, "eos_token_id", ids);
    text = json_dumps(root, JSON_INDENT(1));
    FUZZ_CHECK(text, "cannot be written");
    FUZZ_CHECK(mm3_generation_config_parse(&again, text, strlen(text), what) == MM3_OK, "%s", mm3_last_error());
    FUZZ_CHECK(is_same(g, &again), "written anew it says something else: %s", text);
    free(text);
    json_decref(root);
}

static double number_of(const json_t *root, const char *key, double fallback)
{
    const json_t *v = json_object_get(root, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

/* What the file says, and M3's values where it says nothing. */
static void check_values(const mm3_generation_config *g, const char *text, size_t n)
{
    json_error_t e;
    json_t *root = json_loadb(text, n, 0, &e);
    const json_t *ids = json_object_get(root, "eos_token_id");
    double temperature = json_is_false(json_object_get(root, "do_sample")) ? 0 : number_of(root, "temperature", 1);
    FUZZ_CHECK(root, "%s", e.text);
    FUZZ_CHECK(g->temperature == temperature && g->top_p == number_of(root, "top_p", 0.95) &&
                   g->min_p == number_of(root, "min_p", 0) && g->top_k == number_of(root, "top_k", 40) &&
                   g->repetition_penalty == number_of(root, "repetition_penalty", 1),
               "another value than the file's");
    FUZZ_CHECK(!json_is_integer(ids) || (g->n_stop_ids == 1 && g->stop_ids[0] == json_integer_value(ids)),
               "another stop id than the file's");
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mm3_generation_config g, defaults;
    mm3_status st;
    FUZZ_CHECK(mm3_generation_config_load(&defaults, NULL) == MM3_OK, "%s", mm3_last_error());
    fuzz_forget_error();
    st = mm3_generation_config_parse(&g, n ? (const char *)data : NULL, n, what);
    if (st != MM3_OK) {
        fuzz_error(st, what);
        FUZZ_CHECK(st == MM3_ERR_FORMAT || st == MM3_ERR_UNSUPPORTED, "%s", mm3_status_name(st));
        FUZZ_CHECK(is_same(&g, &defaults) && !g.found, "no defaults after an error");
        return 0;
    }
    FUZZ_CHECK(g.found && g.temperature >= 0 && g.temperature <= 1e6, "temperature %g", g.temperature);
    FUZZ_CHECK((float)g.top_p > 0 && g.top_p <= 1, "top_p %g", g.top_p);
    FUZZ_CHECK(g.min_p >= 0 && (float)g.min_p < 1, "min_p %g", g.min_p);
    FUZZ_CHECK((float)g.repetition_penalty > 0 && g.repetition_penalty <= 1e6, "penalty %g", g.repetition_penalty);
    FUZZ_CHECK(g.top_k >= 0, "top_k %d", g.top_k);
    for (int i = 0; i < g.n_stop_ids; i++) FUZZ_CHECK(g.stop_ids[i] >= 0, "stop id %d", (int)g.stop_ids[i]);
    check_values(&g, (const char *)data, n);
    check_written_anew(&g);
    return 0;
}
