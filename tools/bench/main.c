/* kvblend-bench: options, loading, and the report's meta object. */
#include "tools/bench/bench.h"

#include "base/buf.h"
#include "base/clock.h"
#include "fusor/model/shape.h"
#include "kernels/gpu.h"
#include "version.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct opt_def defs[] = {
    {.name = "sub",
     .type = OPT_ENUM,
     .values = "ttft|quality|signals|calibrate|tiers|soak|replay|proxy|throughput|controller|"
               "fleet|day|overlap|ceil|kernels|attn",
     .positional = true,
     .help = "what to measure"},
    {.name = "model", .type = OPT_STR, .help = "GGUF file or Hugging Face folder"},
    {.name = "shape",
     .type = OPT_STR,
     .help =
         "random weights in the shape of a published model instead: smollm2, mistral-7b, yi-34b, "
         "llama-70b, qwen3-8b; NAME:layers=N for fewer"},
    {.name = "json", .type = OPT_STR, .help = "write {\"meta\", \"rows\"} to this file"},
    {.name = "threads",
     .type = OPT_INT,
     .dflt = "0",
     .min = 0,
     .max = 1024,
     .help = "compute threads, 0 = all cores"},
    {.name = "dtype",
     .type = OPT_ENUM,
     .dflt = "auto",
     .values = "auto|f32|bf16",
     .help = "arithmetic; auto never goes below the file's own precision"},
    {.name = "weights",
     .type = OPT_ENUM,
     .dflt = "auto",
     .values = "auto|bf16|fp8|int8",
     .help = "of the layers; auto: as the arithmetic; fp8, int8: on a GPU"},
    {.name = "kv-dtype",
     .type = OPT_ENUM,
     .dflt = "auto",
     .values = "auto|f32|f16|bf16|q8",
     .help = "stored KV; auto: f32 for F32 files, else f16"},
    {.name = "device", .type = OPT_STR, .dflt = "cpu", .help = "what computes: cpu, cuda, cuda:N"},
    {.name = "gemm", .type = OPT_STR, .dflt = "auto", .help = "force a GEMM candidate by name"},
    {.name = "isa", .type = OPT_STR, .dflt = "auto", .help = "auto, portable, avx2, avx512 or amx"},
    {.name = "ctx",
     .type = OPT_INT,
     .dflt = "0",
     .min = 0,
     .max = 1 << 24,
     .help = "context in tokens, 0 = the model's"},
    {.name = "ram",
     .type = OPT_SIZE,
     .dflt = "2GiB",
     .min = 1 << 20,
     .max = 1e15,
     .help = "budget of the record store; tiers: bytes of records moved in a round"},
    {.name = "nvme",
     .type = OPT_STR,
     .help = "tiers, ttft, soak: PATH:SIZE of an NVMe tier; \":SIZE\": a file of this run"},
    {.name = "redis",
     .type = OPT_STR,
     .repeatable = true,
     .help = "tiers, ttft, soak: URL of a server"},
    {.name = "geometry",
     .type = OPT_ENUM,
     .dflt = "smollm2",
     .values = "smollm2|7b",
     .help = "tiers: whose records: SmolLM2-135M (f16), or 32 layers of 8 x 128 bf16"},
    {.name = "secret",
     .type = OPT_STR,
     .help = "tiers: records carry tags under that secret, and are checked by them"},
    {.name = "record-mb",
     .type = OPT_INT,
     .dflt = "0",
     .min = 0,
     .max = 4096,
     .help = "tiers: size of a record in MB, 0 = that of --chunk-tokens"},
    {.name = "inflight",
     .type = OPT_INT,
     .dflt = "6",
     .min = 1,
     .max = 64,
     .help = "tiers: records under way at once, as the chunks of a request"},
    {.name = "seconds",
     .type = OPT_DOUBLE,
     .dflt = "3",
     .min = 0,
     .max = 3600,
     .help = "tiers: time per tier and direction, 5 rounds at the least; proxy: per figure, "
             "round and server"},
    {.name = "rounds",
     .type = OPT_INT,
     .dflt = "3",
     .min = 1,
     .max = 101,
     .help = "proxy: how often each figure is measured"},
    {.name = "loops",
     .type = OPT_INT,
     .dflt = "1",
     .min = 1,
     .max = 64,
     .help = "proxy: event loops of kvblend"},
    {.name = "only",
     .type = OPT_STR,
     .dflt = "",
     .help =
         "proxy: measure these only, such as 512,131072:32,sse (bytes of the body:connections)"},
    {.name = "servers",
     .type = OPT_STR,
     .dflt = "direct,kvblend,nginx,nginx-stream,haproxy",
     .help = "proxy: what to put in front of the origin; nginx-stream: without request buffering; "
             "nginx-default: with its default body buffer"},
    {.name = "tiers", .type = OPT_STR, .help = "tiers, ttft: which, such as ram,nvme,redis"},
    {.name = "throttle-gbps",
     .type = OPT_DOUBLE,
     .dflt = "0",
     .min = 0,
     .max = 1000,
     .help = "ttft: slow the slower tiers down to this, 0 = as they are"},
    {.name = "throttles",
     .type = OPT_STR,
     .dflt = "0.2,0.5,1,2,5,10,20",
     .help = "overlap: GB/s of the tier that the chunks come from"},
    {.name = "gate",
     .type = OPT_BOOL,
     .dflt = "true",
     .help = "ttft, soak: do not load what is predicted to be computed faster, as a worker"},
    {.name = "requests",
     .type = OPT_INT,
     .dflt = "10000",
     .min = 1,
     .max = 1e9,
     .help = "soak: how many; throughput: per point, 60 if not given"},
    {.name = "batch",
     .type = OPT_INT,
     .dflt = "500",
     .min = 1,
     .max = 1e6,
     .help = "soak: requests per row of the report"},
    {.name = "zipf",
     .type = OPT_DOUBLE,
     .dflt = "0",
     .min = 0,
     .max = 4,
     .help = "soak, throughput: skew of the documents' popularity, 0 = all alike"},
    {.name = "pool",
     .type = OPT_INT,
     .dflt = "100",
     .min = 2,
     .max = 1e6,
     .help = "throughput, fleet: documents that requests draw from"},
    {.name = "load",
     .type = OPT_STR,
     .dflt = "0.3,0.5,0.7,0.8,0.9,1,1.1",
     .help = "throughput: rates, as shares of what a strategy's unloaded time allows"},
    {.name = "rates", .type = OPT_STR, .help = "throughput: requests per second instead"},
    {.name = "slo",
     .type = OPT_DOUBLE,
     .dflt = "2",
     .min = 1,
     .max = 1000,
     .help = "throughput: objective, p95 of the TTFT as a multiple of the unloaded full prefill's"},
    {.name = "slo-ms",
     .type = OPT_DOUBLE,
     .dflt = "0",
     .min = 0,
     .max = 1e9,
     .help = "throughput: the objective in ms instead"},
    {.name = "answer-tokens",
     .type = OPT_INT,
     .dflt = "4",
     .min = 1,
     .max = 4096,
     .help = "throughput: tokens of an answer"},
    {.name = "streams",
     .type = OPT_INT,
     .dflt = "0",
     .min = 0,
     .max = 1024,
     .help = "throughput: long answers beside the requests; what is timed is between their tokens"},
    {.name = "stream-tokens",
     .type = OPT_INT,
     .dflt = "2048",
     .min = 2,
     .max = 1 << 20,
     .help = "throughput: tokens of such an answer, which is then asked for anew"},
    {.name = "alone-s",
     .type = OPT_DOUBLE,
     .dflt = "20",
     .min = 0,
     .max = 3600,
     .help = "throughput: seconds that streams run alone before each point"},
    {.name = "workers",
     .type = OPT_STR,
     .dflt = "1,2,5,10,30,100,300,1000",
     .help = "fleet: how many; load grows with them"},
    {.name = "cost",
     .type = OPT_STR,
     .help = "fleet: prices of compute as JSON, as a worker has measured them"},
    {.name = "verify",
     .type = OPT_STR,
     .help = "fleet: report of throughput whose curve is simulated and compared"},
    {.name = "cold",
     .type = OPT_BOOL,
     .dflt = "false",
     .help = "fleet: begin with empty tiers, not with those of a fleet that has run for long"},
    {.name = "nvme-bytes",
     .type = OPT_SIZE,
     .dflt = "64GiB",
     .min = 0,
     .max = 1e15,
     .help = "fleet: NVMe of each worker"},
    {.name = "nvme-gbps",
     .type = OPT_DOUBLE,
     .dflt = "2",
     .min = 0.001,
     .max = 1000,
     .help = "fleet: its bandwidth, GB/s"},
    {.name = "redis-bytes",
     .type = OPT_SIZE,
     .dflt = "256GiB",
     .min = 0,
     .max = 1e15,
     .help = "fleet: Redis, all shards together"},
    {.name = "redis-gbps",
     .type = OPT_DOUBLE,
     .dflt = "1",
     .min = 0.001,
     .max = 1000,
     .help = "fleet: bandwidth of a shard, GB/s"},
    {.name = "shards",
     .type = OPT_INT,
     .dflt = "4",
     .min = 0,
     .max = 10000,
     .help = "fleet: shards of Redis, 0 = none"},
    {.name = "token-ms",
     .type = OPT_DOUBLE,
     .dflt = "15",
     .min = 0,
     .max = 10000,
     .help = "fleet: a decode step"},
    {.name = "worker-price",
     .type = OPT_DOUBLE,
     .dflt = "1",
     .min = 0,
     .max = 1e6,
     .help = "fleet: of a worker, per hour, in any unit"},
    {.name = "redis-price",
     .type = OPT_DOUBLE,
     .dflt = "0.005",
     .min = 0,
     .max = 1e6,
     .help = "fleet: of a GB in Redis, per hour"},
    {.name = "server",
     .type = OPT_STR,
     .help = "throughput: HOST:PORT of any OpenAI-compatible server to drive instead"},
    {.name = "chunks",
     .type = OPT_INT,
     .dflt = "6",
     .min = 1,
     .max = BENCH_CHUNKS_MAX,
     .help = "ttft, soak, overlap: chunks in the prompt"},
    {.name = "chunk-tokens",
     .type = OPT_INT,
     .dflt = "512",
     .min = 1,
     .max = 1 << 20,
     .help = "ttft, soak, tiers: tokens of a chunk"},
    {.name = "query-tokens",
     .type = OPT_INT,
     .dflt = "32",
     .min = 1,
     .max = 1 << 16,
     .help = "ttft, soak: tokens of the question"},
    {.name = "reps",
     .type = OPT_INT,
     .dflt = "7",
     .min = 1,
     .max = 1000,
     .help = "ttft, overlap, ceil, kernels, attn: measured rounds"},
    {.name = "at-rows",
     .type = OPT_STR,
     .dflt = "1,16,32,128,256,512,1024,3104",
     .help = "ceil, kernels: how many rows"},
    {.name = "profile",
     .type = OPT_STR,
     .help = "what calibrate has written: layers, default strategy and ratio"},
    {.name = "sink",
     .type = OPT_BOOL,
     .dflt = "true",
     .help = "quality: build chunks behind the sink token (--no-sink: with nothing before them)"},
    {.name = "ratios", .type = OPT_STR, .dflt = "0.05,0.10,0.15", .help = "recompute ratios"},
    {.name = "data",
     .type = OPT_STR,
     .help = "quality: JSONL file or the MuSiQue sample; calibrate: one of these, or any text"},
    {.name = "strategies",
     .type = OPT_STR,
     .dflt = "full,prefix,reuse,hkvd,query,qs,sink",
     .help = "ttft, quality: methods to compare, each with settings behind it, such as "
             "hkvd:check=2 or query:layers=10-24; default: what a request without settings gets; "
             "quality, throughput: map_reduce, map_rerank"},
    {.name = "prompt-format",
     .type = OPT_STR,
     .help = "quality: text with {preamble}, {chunks}, {question}; \\n is a line break"},
    {.name = "chat",
     .type = OPT_BOOL,
     .dflt = "true",
     .help = "quality: put the text into the model's chat template"},
    {.name = "max-new",
     .type = OPT_INT,
     .dflt = "24",
     .min = 8,
     .max = 4096,
     .help = "quality: tokens of an answer"},
    {.name = "map-tokens",
     .type = OPT_INT,
     .dflt = "256",
     .min = 1,
     .max = 65536,
     .help = "quality, throughput: longest summary of a chunk in map_reduce"},
    {.name = "loss",
     .type = OPT_DOUBLE,
     .min = 0,
     .max = 1,
     .help =
         "calibrate: what the default ratio may lose, as a share of reuse's KL (default 0.222)"},
    {.name = "out",
     .type = OPT_STR,
     .help = "calibrate: file for the profile; default: where workers look for it, in the cache "
             "folder"},
    {.name = "report",
     .type = OPT_BOOL,
     .dflt = "false",
     .help = "quality: write docs/quality.md (or --out) and its charts from the runs of "
             "--report-from"},
    {.name = "report-from", .type = OPT_STR, .help = "quality: files that --json has written"},
    {.name = "notes", .type = OPT_STR, .help = "quality: Markdown for the end of the report"},
    {.name = "max-loss",
     .type = OPT_DOUBLE,
     .min = 0,
     .max = 1,
     .help = "quality: name the fastest method that loses no more, as a share of reuse's KL"},
    {.name = "neighbours",
     .type = OPT_INT,
     .dflt = "4",
     .min = 1,
     .max = FUS_NEIGHBOURS_MAX,
     .help =
         "quality: chunks of other lines that a chunk is measured with; default: the profile's"},
    {.name = "limit",
     .type = OPT_INT,
     .dflt = "0",
     .min = 0,
     .max = 1e9,
     .help = "quality, calibrate: lines to use, 0 = all"},
    {.name = "floor-loss",
     .type = OPT_DOUBLE,
     .min = 0,
     .max = 1,
     .help = "controller: quality floor, as a share of reuse's loss; default: the profile's"},
    {.name = "bandwidths",
     .type = OPT_STR,
     .dflt = "ram,7,3.5,1,0.2",
     .help = "controller: GB/s of the tier, or ram"},
    {.name = "counts",
     .type = OPT_STR,
     .dflt = "2,6",
     .help = "controller: chunks in the prompt, up to --chunks"},
    {.name = "cells",
     .type = OPT_INT,
     .dflt = "0",
     .min = 0,
     .max = 256,
     .help = "controller: at most so many of bandwidth x chunks x residence, 0 = all"},
    {.name = "emulate",
     .type = OPT_BOOL,
     .dflt = "false",
     .help = "controller: CPU time and emulated loads, for a busy machine (with --threads 1)"},
    {.name = "hours",
     .type = OPT_DOUBLE,
     .dflt = "24",
     .min = 0.001,
     .max = 168,
     .help = "day: of simulated time"},
    {.name = "gpus",
     .type = OPT_INT,
     .dflt = "2",
     .min = 1,
     .max = 64,
     .help = "day: how many, each serves one prompt at a time"},
    {.name = "keys",
     .type = OPT_INT,
     .dflt = "3104",
     .min = 128,
     .max = 1 << 20,
     .help = "attn: tokens that rows may see"},
    {.name = "order-seed",
     .type = OPT_INT,
     .dflt = "1",
     .min = 0,
     .max = 1e9,
     .help = "day: of the order of chunks in prompts"},
    {.name = "documents",
     .type = OPT_STR,
     .dflt = "etc/demo",
     .help = "ttft: folder of .txt files; soak: how many documents"},
    {.name = "decisions",
     .type = OPT_STR,
     .help = "replay: log of a worker's --decision-log: decide all again and compare"},
    {.name = "trace",
     .type = OPT_STR,
     .help = "replay, day, fleet: block trace or access log of a worker; throughput: when requests "
             "come, in its rhythm"},
    {.name = "policy",
     .type = OPT_STR,
     .dflt = "lru,arc",
     .help = "replay: eviction policies to compare"},
    {.name = "capacity",
     .type = OPT_STR,
     .dflt = "inf",
     .help = "replay: records (10000), bytes (10GiB) or inf, with commas between"},
    {.name = "block-bytes",
     .type = OPT_SIZE,
     .min = 0,
     .max = 1e15,
     .help = "replay: size of a block of a block trace, to plot by bytes"},
    {.name = "plot",
     .type = OPT_STR,
     .help = "replay, throughput, fleet: curves as SVG to this file"},
    {0}};

/* ---- meta ---- */

static void machine_name(char *ret, size_t cap)
{
    (void)snprintf(ret, cap, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (value && strncmp(line, "model name", 10) == 0) {
            (void)snprintf(ret, cap, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
            break;
        }
    }
    if (f) (void)fclose(f);
}

/* As it was typed, less the folders of paths: they are this machine's. */
static char command[1024];

static void note_command(int argc, char **argv)
{
    size_t at = (size_t)snprintf(command, sizeof command, "kvblend-bench");
    for (int i = 1; i < argc && at < sizeof command; i++) {
        const char *base = strrchr(argv[i], '/'), *eq = strchr(argv[i], '=');
        const int key = base && eq && eq < base ? (int)(eq - argv[i]) + 1 : 0;
        const int n = snprintf(command + at, sizeof command - at, " %.*s%s", key, argv[i],
                               base && base[1] ? base + 1 : argv[i] + key);
        at += n > 0 ? (size_t)n : 0;
    }
}

json_t *bench_meta(void)
{
    char machine[160], date[32];
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    gmtime_r(&now, &tm);
    (void)strftime(date, sizeof date, "%Y-%m-%d", &tm);
    machine_name(machine, sizeof machine);
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "machine", machine, "commit", BENCH_COMMIT,
                     "version", KV_VERSION, "date", date, "command", command);
}

static json_t *make_meta(const struct bench *b)
{
    struct kn_dev *dev = fus_core_dev(b->core);
    json_t *meta = bench_meta();
    json_t *own = json_pack("{s:s, s:s, s:i, s:s, s:s, s:i, s:s}", "device", kn_dev_device(dev),
                            "isa", kn_dev_isa(dev), "threads", (int)kn_dev_threads(dev), "model",
                            b->cfg->name, "gemm", kn_dev_gemm(dev), "layers", (int)b->cfg->L,
                            "kv_dtype", kn_dtype_name(b->kv_dtype));
    json_object_update(meta, own);
    json_decref(own);
    const struct model_cfg *c = b->cfg;
    json_object_set_new(meta, "dims",
                        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "L", (int)c->L, "D",
                                  (int)c->D, "H", (int)c->H, "G", (int)c->G, "K", (int)c->K, "F",
                                  (int)c->F, "V", (int)c->V));
    size_t n;
    const struct kn_gemm_rate *rate = fus_core_gemm_rates(b->core, &n);
    json_t *rates = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(rates, json_pack("{s:s, s:f, s:b}", "name", rate[i].name, "gflops",
                                               rate[i].gflops, "chosen", rate[i].chosen));
    json_object_set_new(meta, "gemm_candidates", rates);
    return meta;
}

json_t *bench_number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

enum { DIGITS = 8 }; /* of a number in a report: more than any measurement has */

int bench_write_json(const struct opts *opts, json_t *meta, json_t *rows, struct err *err)
{
    if (!opt_given(opts, "json")) return 0;
    const char *path = opt_str(opts, "json");
    if (bench_stopped()) json_object_set_new(meta, "interrupted", json_true());
    FILE *f = fopen(path, "w");
    bool good = f && fputs("{\n\"meta\": ", f) >= 0 &&
                json_dumpf(meta, f, JSON_INDENT(1) | JSON_REAL_PRECISION(DIGITS)) == 0 &&
                fputs(",\n\"rows\": [", f) >= 0;
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) /* a line each: runs that are kept can be compared */
        good = good && fputs(i > 0 ? ",\n" : "\n", f) >= 0 &&
               json_dumpf(row, f, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) == 0;
    good = good && fputs("\n]\n}\n", f) >= 0;
    if (f) good = fclose(f) == 0 && good;
    return good ? 0 : err_set(err, -EIO, "%s: cannot be written", path);
}

/* ---- loading ---- */

static void progress(void *ctx, double share)
{
    (void)ctx;
    if (isatty(STDERR_FILENO))
        (void)fprintf(stderr, "\rloading %3.0f %%%s", share * 100, share >= 1 ? "\n" : "");
}

void bench_progress(const char *what, size_t done, size_t of)
{
    if (isatty(STDERR_FILENO))
        (void)fprintf(stderr, "\r%s %zu of %zu%s", what, done, of, done >= of ? "\n" : "");
}

static enum kn_arith arith_of(const char *dtype)
{
    if (strcmp(dtype, "f32") == 0) return KN_ARITH_F32;
    return strcmp(dtype, "bf16") == 0 ? KN_ARITH_BF16 : KN_ARITH_AUTO;
}

static int open_profile(struct bench *b, const struct opts *opts, struct err *err)
{
    char fingerprint[FUS_FINGERPRINT_BYTES];
    int r = 0;
    fus_profile_fingerprint(b->cfg, fingerprint);
    fus_profile_default(b->cfg, &b->profile);
    if (opt_given(opts, "profile"))
        r = fus_profile_read(opt_str(opts, "profile"), b->cfg, fingerprint, &b->profile, err);
    b->build_sink = b->profile.sink_tokens && opt_bool(opts, "sink") ? b->sink : -1;
    return r;
}

int bench_model_path(const struct opts *opts, char *ret, size_t cap, struct err *err)
{
    const bool shape = opt_given(opts, "shape"); /* a model may be in the environment as well */
    if (!shape && !opt_given(opts, "model"))
        return err_set(err, -EINVAL, "--model PATH or --shape NAME is needed");
    const int n = snprintf(ret, cap, "%s%s", shape ? SHAPE_PREFIX : "",
                           opt_str(opts, shape ? "shape" : "model"));
    return n < 0 || (size_t)n >= cap ? err_set(err, -EINVAL, "--model is too long") : 0;
}

int bench_open(struct bench *b, const struct opts *opts, struct err *err)
{
    struct err no_chat = {0};
    char path[PATH_MAX];
    int r = bench_model_path(opts, path, sizeof path, err);
    if (r == 0) r = model_open(path, &b->model, err);
    if (r < 0) return r;
    b->cfg = model_config(b->model);
    r = tok_open(b->model, &b->tok, err);
    if (r < 0) return r;
    if (chat_open(tok_chat_template(b->tok), NULL, &b->chat, &no_chat) < 0) b->chat = NULL;
    struct fus_core_opts o = {.dev = {.n_threads = (unsigned)opt_int(opts, "threads"),
                                      .isa = opt_str(opts, "isa"),
                                      .device = opt_str(opts, "device"),
                                      .gemm = opt_str(opts, "gemm"),
                                      .arith = arith_of(opt_str(opts, "dtype")),
                                      .weights = (enum kn_weights)kn_weights_parse(
                                          opt_str(opts, "weights"), KN_WEIGHTS_AUTO),
                                      .allow_bf16 = b->cfg->file_bf16_or_less},
                              .ctx_max = (unsigned)opt_int(opts, "ctx"),
                              .progress = progress};
    r = fus_core_create(b->model, &o, &b->core, err);
    if (r < 0) return r;
    b->sink = chat_sink(b->chat, b->tok);
    b->kv_dtype = kn_dtype_parse(opt_str(opts, "kv-dtype"), b->cfg->file_f32 ? KN_F32 : KN_F16);
    r = open_profile(b, opts, err);
    if (r < 0) return r;
    if (!kn_dev_is_host(fus_core_dev(b->core))) r = kn_dev_gpu(fus_core_dev(b->core), &b->gpu, err);
    if (r == 0) r = bench_store_create(b, opt_size(opts, "ram"), NULL, 0, &b->store, err);
    if (r < 0) return r;
    b->meta = make_meta(b);
    b->rows = json_array();
    return b->meta && b->rows ? 0 : err_set(err, -ENOMEM, "out of memory");
}

void bench_close(struct bench *b)
{
    json_decref(b->meta);
    json_decref(b->rows);
    store_destroy(b->store);
    gpu_close(b->gpu);
    fus_core_destroy(b->core);
    chat_close(b->chat);
    tok_close(b->tok);
    model_close(b->model);
}

static int run_loaded(const struct opts *opts,
                      int (*sub)(struct bench *, const struct opts *, struct err *),
                      struct err *err)
{
    struct bench b = {0};
    int r = bench_open(&b, opts, err);
    if (r == 0) r = sub(&b, opts, err);
    if (r == 0) r = bench_write_json(opts, b.meta, b.rows, err);
    bench_close(&b);
    return r;
}

/* A subcommand works on a loaded model, or on none. */
static const struct sub {
    const char *name;
    int (*loaded)(struct bench *b, const struct opts *opts, struct err *err);
    int (*bare)(const struct opts *opts, struct err *err);
} subs[] = {
    {"ttft", bench_ttft, NULL},
    {"quality", bench_quality, NULL},
    {"signals", bench_signals, NULL},
    {"replay", NULL, bench_replay},
    {"tiers", NULL, bench_tiers},
    {"soak", bench_soak, NULL},
    {"proxy", NULL, bench_proxy},
    {"calibrate", bench_calibrate, NULL},
    {"throughput", NULL, bench_throughput},
    {"fleet", NULL, bench_fleet},
    {"day", NULL, bench_day},
    {"controller", bench_controller, NULL},
    {"overlap", bench_overlap, NULL},
    {"ceil", NULL, bench_ceil},
    {"kernels", NULL, bench_kernels},
    {"attn", NULL, bench_attn},
};

static int run_sub(const struct opts *o, struct err *err)
{
    if (strcmp(opt_str(o, "sub"), "quality") == 0 && opt_bool(o, "report"))
        return bench_report(o, err);
    for (size_t i = 0; i < sizeof subs / sizeof *subs; i++) {
        if (strcmp(opt_str(o, "sub"), subs[i].name) != 0) continue;
        return subs[i].bare ? subs[i].bare(o, err) : run_loaded(o, subs[i].loaded, err);
    }
    return err_set(err, -EINVAL, "name what to measure, or see --help");
}

static int print_help(const struct opts *o)
{
    struct buf text = BUF_INIT;
    int r = opts_help(o, "kvblend-bench SUB",
                      "Measure what kvblend claims; a table on stdout, JSON with --json.", &text);
    if (r == 0) (void)fputs(buf_cstr(&text), stdout);
    buf_fini(&text);
    return r;
}

int main(int argc, char **argv)
{
    struct opts *o;
    struct err err = {0};
    int r = opts_create(defs, &o);
    if (r < 0) return 1;
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* long runs are watched through files too */
    note_command(argc, argv);
    r = opts_parse_argv(o, argc, argv, &err);
    if (r == 0) r = opts_parse_env(o, "KVBLEND", &err);
    if (r == 1) {
        r = print_help(o);
    } else if (r == 0) {
        r = run_sub(o, &err);
    }
    if (r < 0) (void)fprintf(stderr, "kvblend-bench: %s\n", err.code ? err.msg : err_name(r));
    opts_destroy(o);
    return r < 0 ? 1 : 0;
}
