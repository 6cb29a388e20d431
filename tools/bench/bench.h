/* bench: what kvblend-bench's subcommands share: a loaded model with a record store, prompts made
 * of chunks, greedy decoding, and the JSON report `{"meta": {…}, "rows": [ … ]}`.
 *
 * For measurement only; runs the core in this process, without the engine thread or HTTP, so that
 * what is timed is the work of one request. Thread: main. */
#ifndef TOOLS_BENCH_BENCH_H
#define TOOLS_BENCH_BENCH_H

#include "base/err.h"
#include "base/opt.h"
#include "fusor/core/profile.h"
#include "fusor/text/chat.h"
#include "fusor/text/tok.h"
#include "tiers/store.h"
#include "tools/bench/figures.h"

#include <jansson.h>

enum {
    BENCH_CHUNKS_MAX = 256,
    BENCH_ARRIVAL_SEED = 1, /* of throughput; fleet --verify makes the same arrivals */
};

struct bench {
    struct model *model;
    struct tok *tok;
    struct chat *chat; /* NULL: the model has no known chat template */
    struct fus_core *core;
    struct store *store;
    enum kn_dtype kv_dtype; /* of its records */
    struct gpu *gpu;        /* the core's device, which reads them; NULL: the CPU */
    double ms_per_token;    /* of a full prefill, as measured; 0: load whatever it takes */
    const struct model_cfg *cfg;
    int32_t sink;       /* token every prompt starts with, -1 = none */
    int32_t build_sink; /* token every chunk is built behind: the same unless it is left out */
    struct fus_profile profile; /* --profile, else the default */
    json_t *meta, *rows;
};

/* A prompt and where its chunks stand. */
struct bench_prompt {
    int32_t *tok;
    uint32_t n_tok;
    struct {
        uint32_t tok0, n;
    } chunk[BENCH_CHUNKS_MAX];
    size_t n_chunks;
    uint32_t suffix0; /* first token after the last chunk */
    uint8_t *anchor;  /* [n_tok], made when a run first asks for them (qcfuse) */
};
void bench_prompt_fini(struct bench_prompt *p);

/* load.c: runs it on the model that the options name, and writes the report. */
int bench_run_on_model(const struct opts *opts,
                       int (*run)(struct bench *b, const struct opts *opts, struct err *err),
                       struct err *err);
/* What --model or --shape names, for model_open(), tok_open_path() and a worker's --model. */
int bench_model_path(const struct opts *opts, char *ret, size_t cap, struct err *err);

/* output.c */
void bench_note_command(int argc, char **argv); /* for the report */
json_t *bench_meta(void); /* what any report says: machine, commit, version, date, command */
/* {"meta", "rows"} to the file that --json names, if any; meta says so if it was cut short. */
int bench_write_json(const struct opts *opts, json_t *meta, json_t *rows, struct err *err);

/* Hours of measuring can be cut short. From now on the first SIGINT or SIGTERM is only
 * noted, for the subcommand to look for between its measurements: it reports those that are done.
 * One that comes a second later or more ends the process. */
void bench_stop_watch(void);
bool bench_stopped(void);

/* A record store for the model: RAM budget in bytes, and a slower tier (NULL: none), which is the
 * store's, or destroyed. */
int bench_store_create(const struct bench *b, uint64_t ram_bytes, struct tier *behind,
                       struct store **ret, struct err *err);
struct tier_ident bench_ident(const struct bench *b);
/* "round 2 of 7" on a terminal's last line; nothing elsewhere. */
void bench_progress(const char *what, size_t done, size_t of);

/* Appends a file. */
int bench_read_text(const char *path, struct buf *ret, struct err *err);
/* Appends a folder's .txt files, by name, each ended by a NUL. */
int bench_documents(const char *folder, struct buf *ret, struct err *err);

/* Their tokens, end to end; of a model with random weights: random ones. */
int bench_sample_tokens(const struct bench *b, const char *folder, struct tok_ids *ret,
                        struct err *err);

/* The sink token, --chunks chunks of --chunk-tokens and a question of --query-tokens, taken from
 * the sample one after another, which starts over at its end. */
int bench_make_prompt(const struct bench *b, const struct tok_ids *sample, const struct opts *opts,
                      struct bench_prompt *ret, struct err *err);

struct bench_text { /* borrowed */
    const int32_t *tok;
    uint32_t n;
};
struct bench_text bench_chunk(const struct bench_prompt *p, size_t i);
struct tier_key bench_key(const struct bench *b, enum tier_kind kind, struct bench_text text);
/* The text's KV, as a full prefill computes it, to the sink: behind the sink token and `before`;
 * NULL: as it stands. */
int bench_encode(struct bench *b, const struct bench_text *before, struct bench_text text,
                 const struct kv_sink *sink);
/* Texts are encoded behind it from now on without computing it anew, as long as the store has room.
 */
int bench_keep_context(struct bench *b, struct bench_text context);
/* Build every chunk of the prompt, and its prefix, into the store, unless it is there. */
int bench_build_chunks(struct bench *b, const struct bench_prompt *p);
/* Methods that ask about each chunk by itself (mapreduce.h). */
enum map_kind { MAP_NONE, MAP_REDUCE, MAP_RERANK };

struct bench_run {     /* how to run a prompt */
    enum map_kind map; /* MAP_NONE: by the strategy */
    enum pol_strategy strategy;
    float ratio;
    uint32_t logits_from; /* as in struct fus_plan; 0 = last row */
    struct fus_plan with; /* layers and the like; what is 0 is the profile's */
    bool anchors;         /* the blind pass sees the prompt's */
    uint8_t *mark;        /* NULL, or [n_tok]: becomes 1 where a token is recomputed; a chunk that
                             stands where it was built is as any other then */
    char name[64];        /* as it was asked for: "hkvd:check=2" */
};
/* The methods that --strategies and --ratios ask for; full always comes first, since the others are
 * compared with it. `default` comes at its own ratio and, where it varies (ratios were asked for),
 * at those. */
enum { BENCH_METHODS_MAX = 64 };
struct bench_methods {
    struct bench_run run[BENCH_METHODS_MAX + 1]; /* room for one of the caller's */
    size_t n;
};
int bench_methods(const struct bench *b, const char *strategies, const char *ratios,
                  bool default_varies, struct bench_methods *ret, struct err *err);
struct bench_result {
    struct fus_report report;
    double ttft_ms;
    struct fus_session *session; /* the caller destroys it */
    float *logits;               /* [n_rows, V], mem_free */
    size_t n_rows;
    const char *tier[BENCH_CHUNKS_MAX]; /* where chunk i came from; NULL: it was computed */
};
int bench_prefill(struct bench *b, struct bench_prompt *p, const struct bench_run *run,
                  uint32_t extra_tokens, struct bench_result *ret);
void bench_result_fini(struct bench_result *r);
int32_t bench_argmax(const float *logits, size_t n);

/* ---- subcommands ---- */

/* One thing to measure: a subcommand, or a mode of one. Each is defined in the file that measures
 * it, and main.c lists it. */
enum { BENCH_OPTIONS_MAX = 64 };
struct bench_device;
typedef int (*bench_device_fn)(struct bench_device *b, const struct opts *opts, struct err *err);
struct bench_sub {
    const char *name;              /* "kernels", or of a mode "kernels attn" */
    const char *about;             /* one sentence */
    const char *shared;            /* names of options.c that it takes, with blanks between */
    const struct opt_def *options; /* its own, ended by {0}; may be NULL */
    /* One of them: */
    int (*run)(const struct opts *opts, struct err *err);
    int (*run_model)(struct bench *b, const struct opts *opts,
                     struct err *err); /* on a loaded one */
    bench_device_fn run_device;        /* on a device, without a model */
    unsigned gpu_tune_ms;              /* of run_device: what a GPU's tuning may take, about */
    bool tunes_attn;                   /* of run_device: attention as well, to --keys */
};
#define BENCH_DEVICE_OPTIONS "threads dtype weights kv-pages-dtype device gemm isa "
#define BENCH_MODEL_OPTIONS BENCH_DEVICE_OPTIONS "model shape kv-dtype ctx ram profile sink "
#define BENCH_PROMPT_OPTIONS "chunks chunk-tokens query-tokens documents "
extern const struct bench_sub bench_ttft, bench_quality, bench_calibrate, bench_throughput,
    bench_fleet, bench_rag, bench_mrc, bench_rerank, bench_decode, bench_tiers, bench_proxy,
    bench_start, bench_kernels, bench_ceil, bench_attn, bench_scaling, bench_overlap, bench_account;

/* options.c: the table of a subcommand, ended by {0}; how many there are. */
size_t bench_options_of(const struct bench_sub *sub, struct opt_def ret[BENCH_OPTIONS_MAX]);

#endif
