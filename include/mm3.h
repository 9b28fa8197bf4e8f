/* mm3: run the MiniMax-M3 language model from its released MXFP8 checkpoint.
 *
 * This is the only installed header. Four opaque things: an engine (one loaded model on one device), a
 * session (one sequence: its tokens and its KV pages), a tokenizer, and a parser of what the model says.
 * Structured data (tools, messages, summaries) crosses this header as JSON text.
 *
 * Every function that can fail returns an mm3_status, 0 for success; mm3_last_error() then says what went
 * wrong and what to do, in one line. No function exits, aborts or prints. open/close own; strings that a
 * function returns by char ** belong to the caller and go back through mm3_free().
 */
#ifndef MM3_H
#define MM3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MM3_VERSION "0.1.0"

#if defined(__GNUC__)
#define MM3_API __attribute__((visibility("default")))
#define MM3_MUST_USE __attribute__((warn_unused_result))
#else
#define MM3_API
#define MM3_MUST_USE
#endif

typedef enum mm3_status {
    MM3_OK = 0,
    MM3_ERR_ARG,         /* the caller's argument: out of range, contradictory, too long */
    MM3_ERR_FORMAT,      /* a file is damaged or says something impossible */
    MM3_ERR_UNSUPPORTED, /* well-formed, but mm3 cannot run it; the text says why */
    MM3_ERR_NOMEM,       /* memory or KV pages ran out; state is as before the call */
    MM3_ERR_IO,          /* the operating system refused a file operation */
    MM3_ERR_DEVICE,      /* the device failed, or produced NaN logits */
    MM3_ERR_CANCELLED    /* a callback asked to stop */
} mm3_status;

/* The last error of this thread: one line, never NULL, valid until the thread's next failing call. */
MM3_API const char *mm3_last_error(void);
/* "MM3_ERR_FORMAT" and so on. */
MM3_API const char *mm3_status_name(mm3_status status);
/* The library's version, "0.1.0". */
MM3_API const char *mm3_version(void);
/* Give back a string or array that mm3 returned. NULL-safe. */
MM3_API void mm3_free(void *p);

/* ---- engine ------------------------------------------------------------------------------------------------------ */

/* One loaded model on one device. Share it between threads: all but closing it may happen at the same time. */
typedef struct mm3_engine mm3_engine;

typedef enum mm3_numerics {
    MM3_NUMERICS_W8A8 = 0, /* rows are quantized to MXFP8 before every MXFP8 linear (the checkpoint's meaning) */
    MM3_NUMERICS_W8A16     /* rows stay FP32 */
} mm3_numerics;

/* Called while stages are tuned: before (`best` NULL) and after each, and before a whole step is compared (`key` is
 * "step m=8"). Nothing is called for what is known already. Return false to cancel the opening: what was decided so far
 * is kept. */
typedef bool mm3_on_tune(void *user, int i_stage, int n_stages, const char *key, const char *best);

typedef struct mm3_options {
    const char *model_dir; /* folder with config.json and the shards; required, unless `synthetic` is given */
    mm3_numerics numerics; /* default W8A8 */
    int n_threads;         /* 0: one per core; more than 4 a core (and more than 8) are refused */
    int max_batch;         /* sessions that may decode together; default 1 */
    int context;           /* tokens per session; 0: the model's max_position_embeddings, at most 8192 */
    int chunk;             /* tokens per prefill step; 0: 256 */
    double kv_gb;          /* KV memory in 10^9 bytes; 0: room for max_batch sessions of `context` tokens */
    const char *kv_dtype;  /* "f32" (default) or "bf16" */
    const char *backend;   /* pins, 'OP[,FIELD=V|V..W]...=CANDIDATE[/TACTIC]', apart by ';'; NULL: none */
    int n_token;           /* ids from here on have no text and are never sampled: mm3_tokenizer_size(); 0: none such */

    const char *tune;         /* "auto" (default), "force" (forget earlier decisions), "off" (natives and pins only) */
    const char *graphs;       /* "on" (default), or "off": every step eager, natives and pins, no tuner */
    const char *graph_shapes; /* rows of the recorded steps, "1,2,4,8"; NULL: 1 2 4 8 16 24 32 48 64 96 ... max_batch */
    const char *plan;         /* a plan file that must hold every decision; nothing is timed or written. NULL: none */
    const char *plan_cache;   /* folder that keeps decisions between processes; NULL: none */
    double tune_budget_s;     /* what is not decided after this many seconds stays native; 0: 60 */
    bool deterministic;       /* only kernels whose rows do not depend on each other: equal bits alone and in a batch */
    mm3_on_tune *on_tune;     /* progress, or NULL */
    void *on_tune_user;
    /* "m3,layers=2,experts=16,routing=zipf": random weights of M3's width instead of model_dir, for benchmarks. What is
     * not named (layers, dense, experts, vocab, hidden, heads, kv_heads, intermediate, expert_intermediate, top_k,
     * routing=uniform|zipf, seed) is as in M3, but experts and vocab shrink to what memory holds. NULL: none */
    const char *synthetic;
} mm3_options;

#define MM3_OPTIONS_INIT                                                                                               \
    {                                                                                                                  \
        NULL, MM3_NUMERICS_W8A8, 0, 1, 0, 0, 0.0, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 0.0, false, NULL, NULL, \
            NULL                                                                                                       \
    }

/* Map the checkpoint, check every tensor against config.json, make the buffers. The shards stay mapped: replace a file
 * by renaming another over it, never by writing into it, as long as the engine is open.
 * errors  MM3_ERR_IO, MM3_ERR_FORMAT, MM3_ERR_UNSUPPORTED name the file and the tensor; MM3_ERR_NOMEM */
MM3_API MM3_MUST_USE mm3_status mm3_engine_open(mm3_engine **out, const mm3_options *options);
/* NULL-safe. Every session must be closed before, and no call on the engine may be under way in another thread: a
 * generation that is to end early ends when its on_token returns false. Sets *engine to NULL. */
MM3_API void mm3_engine_close(mm3_engine **engine);
/* What was loaded, as JSON: model summary, numerics, device, memory, start-up ledger ("startup"), what the tuner did
 * ("tuning": "gate" is why it did nothing, or null), which graph each shape kept ("graphs"), and what was run since
 * ("counters"). */
MM3_API MM3_MUST_USE mm3_status mm3_engine_info(mm3_engine *engine, char **json);
/* The decisions as text, one a line, with what else was tried under each
 * (docs/tuning.md). "" where nothing is tuned. */
MM3_API MM3_MUST_USE mm3_status mm3_engine_plan(mm3_engine *engine, char **text);
/* For benches: how long one recorded decode step takes, and what it consists of. Runs on the engine's thread once no
 * sequence is being evaluated, on free KV pages; allocates before it times, and tunes nothing.
 *   spec    JSON {"m": rows of the batch, "context": tokens that each sequence holds (absent: 1024, or less),
 *           "seconds": how long to time (absent: 1), "rounds": 0 (absent): what fits into that time, at least 3}
 *   result  JSON {"m", "graph": the rows that the batch is padded to, "context", "kept": "winners" or "natives", which
 *           graph serves, "bytes": what a step must move, "experts_hit": on the average of layers, "rounds",
 *           "allocations": made while the clock ran (0),
 *           "pairs": [{"a", "b", "a_s": [..], "b_s": [..]}]: seconds of a step, one of each round, timed A B B A:
 *             graph beside eager, the same kernels issued one by one; winners beside natives, both recorded (absent
 *             where nothing was tuned); graph beside exact, a graph of m rows (absent where the graph has as many)
 *           "ops": [{"op", "key", "choice", "calls", "bytes", "s": [..]}]: each stage, all its calls, by a replay that
 *             stops after every one: the sums over the stages are a little more than a step}
 * errors  MM3_ERR_ARG a bad spec, no graph of so many rows; MM3_ERR_NOMEM, also where KV pages are too few */
MM3_API MM3_MUST_USE mm3_status mm3_engine_measure(mm3_engine *engine, const char *spec, char **result);
/* Sizes that callers need: rows of logits, and the longest sequence. */
MM3_API int mm3_engine_vocab_size(const mm3_engine *engine);
MM3_API int mm3_engine_context(const mm3_engine *engine);
/* Ids of config.json and generation_config.json (joined) that end a message. Borrowed; *n may be 0. */
MM3_API const int32_t *mm3_engine_stop_ids(const mm3_engine *engine, int *n);

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

typedef struct mm3_sampling {
    float temperature;        /* 0: greedy */
    int top_k;                /* 0: all */
    float top_p;              /* 1: all; in (0, 1] */
    float min_p;              /* 0: all; in [0, 1): drops tokens below min_p times the best probability */
    float repetition_penalty; /* 1: none; divides positive and multiplies negative logits of seen tokens */
    float presence_penalty;   /* 0: none; subtracted once from tokens already generated */
    float frequency_penalty;  /* 0: none; subtracted per occurrence in the generated text */
    uint64_t seed;            /* same seed, same position, same logits: same token */
} mm3_sampling;

#define MM3_SAMPLING_GREEDY                      \
    {                                            \
        0.0f, 0, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0 \
    }

/* The checkpoint's own defaults (generation_config.json; M3's where the file is absent), with seed 0. */
MM3_API mm3_sampling mm3_engine_sampling(const mm3_engine *engine);

/* ---- session ----------------------------------------------------------------------------------------------------- */

/* One sequence: its tokens and KV pages. One thread at a time, closing included; sessions of one engine do not disturb
 * each other. Keep its engine open. */
typedef struct mm3_session mm3_session;

MM3_API MM3_MUST_USE mm3_status mm3_session_open(mm3_session **out, mm3_engine *engine);
/* NULL-safe; gives the KV pages back. Sets *session to NULL. */
MM3_API void mm3_session_close(mm3_session **session);

/* Make the sequence hold exactly tokens[0..n). Evaluates only what the cache lacks.
 * errors  MM3_ERR_ARG n > context or an id outside the vocabulary; MM3_ERR_NOMEM no free KV pages.
 *         After these the sequence is as before. A failure of the evaluation itself (out of scratch memory, say)
 *         leaves it holding the new tokens, partly evaluated: the next sync goes on from there. */
MM3_API MM3_MUST_USE mm3_status mm3_session_sync(mm3_session *session, const int32_t *tokens, int n);
/* The number of tokens the sequence holds. */
MM3_API int mm3_session_length(const mm3_session *session);
/* Raw logits after the last token: vocab_size floats into `logits`.
 * errors  MM3_ERR_ARG the sequence is empty */
MM3_API MM3_MUST_USE mm3_status mm3_session_logits(mm3_session *session, float *logits);

/* Called for each generated token, in order, on the engine's thread. Return false to stop there. */
typedef bool mm3_on_token(void *user, int32_t token, float logprob);

/* Generate up to max_new tokens after what the sequence holds, appending them to it. Stops after one of the
 * stop ids (which is passed to on_token and appended). Sessions of one engine that generate at the same time,
 * from several threads, are decoded together.
 *   n_new    tokens generated (may be NULL)
 *   stopped  whether a stop id ended it (may be NULL)
 * errors  MM3_ERR_ARG empty sequence, bad sampling value; MM3_ERR_NOMEM no free KV pages; MM3_ERR_DEVICE NaN
 *         logits; MM3_ERR_CANCELLED on_token returned false. Tokens already passed on stay in the sequence. */
MM3_API MM3_MUST_USE mm3_status mm3_session_generate(mm3_session *session, const mm3_sampling *sampling, int max_new,
                                                     const int32_t *stop_ids, int n_stop, mm3_on_token *on_token,
                                                     void *user, int *n_new, bool *stopped);

/* Called with the logits of position `position` (0-based), vocab_size floats, on the engine's thread. */
typedef void mm3_on_logits(void *user, int position, const float *logits);

/* Like sync from an empty sequence, with the logits of every position.
 * errors  as mm3_session_sync */
MM3_API MM3_MUST_USE mm3_status mm3_session_score(mm3_session *session, const int32_t *tokens, int n,
                                                  mm3_on_logits *on_logits, void *user);
/* Seconds spent in this session's prefill and decode so far, waiting included. */
MM3_API void mm3_session_times(const mm3_session *session, double *prefill_s, double *decode_s);

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* tokenizer.json: byte-level BPE. Read-only after open; share it between threads. */
typedef struct mm3_tokenizer mm3_tokenizer;

/* errors  MM3_ERR_IO; MM3_ERR_FORMAT a damaged file; MM3_ERR_UNSUPPORTED a component that is not followed exactly;
 *         each names the file and the entry; MM3_ERR_NOMEM */
MM3_API MM3_MUST_USE mm3_status mm3_tokenizer_open(mm3_tokenizer **out, const char *model_dir);
MM3_API void mm3_tokenizer_close(mm3_tokenizer **tokenizer);
/* One more than the largest id; ids of the model's vocabulary beyond it have no text. */
MM3_API int mm3_tokenizer_size(const mm3_tokenizer *tokenizer);
/* Bytes to ids. Added tokens ("[e~[" ...) are matched only with `special`; else they are plain text. Bytes that are
 * no UTF-8 are kept: each run of them is encoded by itself. Ids decode to the text's NFC (where the file says NFC).
 *   ids, n_ids  an array for mm3_free()
 * errors  MM3_ERR_ARG more than 2^31 - 1 bytes, or a text on which the file's pattern takes too many steps;
 *         MM3_ERR_NOMEM */
MM3_API MM3_MUST_USE mm3_status mm3_tokenizer_encode(const mm3_tokenizer *tokenizer, const char *text, size_t n_bytes,
                                                     bool special, int32_t **ids, int *n_ids);
/* Ids to bytes (NUL-terminated; n_bytes, if not NULL, without the NUL). With `special` added tokens that are
 * marked special appear as text; without it they vanish.
 * errors  MM3_ERR_ARG an id that has no text */
MM3_API MM3_MUST_USE mm3_status mm3_tokenizer_decode(const mm3_tokenizer *tokenizer, const int32_t *ids, int n_ids,
                                                     bool special, char **text, size_t *n_bytes);

/* Incremental decoding: push ids, get text that never ends within a UTF-8 sequence. Bytes that are no UTF-8 come out
 * as U+FFFD as soon as that is certain (one for each longest beginning of a sequence), and so does NUL. Keep the
 * tokenizer open. */
typedef struct mm3_decoder mm3_decoder;
MM3_API MM3_MUST_USE mm3_status mm3_decoder_open(mm3_decoder **out, const mm3_tokenizer *tokenizer, bool special);
MM3_API void mm3_decoder_close(mm3_decoder **decoder);
/* Text that became complete with `id`; borrowed, NUL-terminated, valid until the next call. May be empty.
 * errors  MM3_ERR_ARG an id that has no text, MM3_ERR_NOMEM; the decoder is as before */
MM3_API MM3_MUST_USE mm3_status mm3_decoder_push(mm3_decoder *decoder, int32_t id, const char **text);
/* What is left; the decoder is then as new. */
MM3_API MM3_MUST_USE mm3_status mm3_decoder_flush(mm3_decoder *decoder, const char **text);

/* Render messages in M3's chat form and encode them; text of messages can never become control tokens.
 *   messages  JSON array of {"role", "content", "reasoning_content", "tool_calls"} as in OpenAI's API
 *   tools     JSON array of {"type": "function", "function": {...}} as in OpenAI's API, or NULL
 *   thinking  "enabled", "disabled", "adaptive", or NULL (adaptive)
 *   generate  whether to open the assistant's turn at the end
 * errors  MM3_ERR_ARG says which message or tool is wrong and why */
MM3_API MM3_MUST_USE mm3_status mm3_chat_encode(const mm3_tokenizer *tokenizer, const char *messages, const char *tools,
                                                const char *thinking, bool generate, int32_t **ids, int *n_ids);

/* Splits what the model writes into reasoning, content and tool calls, whole or in pieces of any size. */
typedef struct mm3_parser mm3_parser;
/*   tools     as in mm3_chat_encode: argument types come from their schemas; NULL: all arguments are strings
 *   thinking  the mode the prompt was made with: "enabled" starts inside the reasoning */
MM3_API MM3_MUST_USE mm3_status mm3_parser_open(mm3_parser **out, const char *tools, const char *thinking);
MM3_API void mm3_parser_close(mm3_parser **parser);
/* Feed text; `finish` says that it was the last piece. *delta becomes a JSON object with only what is new:
 * {"reasoning_content": "...", "content": "...", "tool_calls": [{"index", "id", "type", "function":
 * {"name", "arguments"}}]}, members absent where nothing is new; for mm3_free(). A call comes whole, once, when its
 * block closes; ids are the same for the same text and differ within one parser; src/text/tool_call.c has the rules
 * for arguments.
 * errors  MM3_ERR_ARG text after the last piece; MM3_ERR_NOMEM: the parser can then only be closed */
MM3_API MM3_MUST_USE mm3_status mm3_parser_push(mm3_parser *parser, const char *text, size_t n_bytes, bool finish,
                                                char **delta);

#ifdef __cplusplus
}
#endif
#endif
