/* generation: generation_config.json, the checkpoint's own sampling defaults. Knows no tensors and no config.json. */
#include <math.h>

#include "model/internal.h"

/* A number in [low, high], or above low where open_low; the fallback where the key is absent or null. */
static mm3_status get_number(const json_t *o, const char *key, const char *what, double low, bool open_low, double high,
                             double *value)
{
    double v;
    MM3_TRY(mm3_json_double(o, key, what, true, *value, &v));
    /* Sampling takes it as a float, in which it must be in range as well. */
    MM3_CHECK(v >= low && v <= high && !(open_low && (float)v <= low), MM3_ERR_FORMAT,
              "%s: \"%s\" is %g; expected a number %s %g, at most %g", what, key, v, open_low ? "above" : "from", low,
              high);
    *value = v;
    return MM3_OK;
}

static mm3_status read_keys(mm3_generation_config *c, const json_t *o, const char *what)
{
    int64_t top_k;
    bool sample;
    MM3_CHECK(json_is_object(o), MM3_ERR_FORMAT, "%s: must be a JSON object", what);
    MM3_TRY(get_number(o, "temperature", what, 0, false, 1e6, &c->temperature));
    MM3_TRY(get_number(o, "top_p", what, 0, true, 1, &c->top_p));
    MM3_TRY(get_number(o, "min_p", what, 0, false, 1, &c->min_p));
    MM3_CHECK((float)c->min_p < 1, MM3_ERR_FORMAT, "%s: \"min_p\" is %.17g; expected a number from 0, below 1", what,
              c->min_p);
    MM3_TRY(get_number(o, "repetition_penalty", what, 0, true, 1e6, &c->repetition_penalty));
    MM3_TRY(mm3_json_int(o, "top_k", what, 0, INT32_MAX, true, c->top_k, &top_k));
    c->top_k = (int)top_k;
    MM3_TRY(mm3_json_bool(o, "do_sample", what, true, true, &sample));
    if (!sample) c->temperature = 0;
    return mm3__stop_ids(o, what, INT32_MAX, c->stop_ids, &c->n_stop_ids, MM3_COUNT(c->stop_ids));
}

/* source: M3's model card and generation_config.json */
static const mm3_generation_config m3_defaults = {
    .temperature = 1.0, .top_p = 0.95, .top_k = 40, .repetition_penalty = 1
};

mm3_status mm3_generation_config_parse(mm3_generation_config *out, const char *text, size_t n_bytes, const char *what)
{
    mm3_status st;
    json_t *root = NULL;
    *out = m3_defaults;
    MM3_GOTO(mm3_json_parse(&root, text, n_bytes, what));
    MM3_GOTO(read_keys(out, root, what));
    out->found = true;
done:
    json_decref(root);
    if (st != MM3_OK) *out = m3_defaults;
    return st;
}

mm3_status mm3_generation_config_load(mm3_generation_config *out, const char *dir)
{
    mm3_status st = MM3_OK;
    mm3_file *f = NULL;
    char *path;
    *out = m3_defaults;
    if (!dir) return MM3_OK;
    path = mm3_path_join(dir, "generation_config.json");
    MM3_CHECK(path, MM3_ERR_NOMEM, "%s: out of memory", dir);
    if (!mm3_path_exists(path)) goto done;
    MM3_GOTO(mm3_file_open(&f, path));
    st = mm3_generation_config_parse(out, (const char *)f->data, f->n_bytes, path);
done:
    mm3_file_close(&f);
    mm3_free(path);
    return st;
}
