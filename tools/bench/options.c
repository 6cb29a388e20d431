/* The options that several subcommands have; a subcommand names which of them it takes. */
#include "tools/bench/bench.h"

#include "base/assert.h"

#include <string.h>

static const struct opt_def shared[] = {
    {.name = "json", .type = OPT_STR, .help = "write {\"meta\", \"rows\"} to this file"},
    {.name = "model", .type = OPT_STR, .help = "GGUF file or Hugging Face folder"},
    {.name = "shape",
     .type = OPT_STR,
     .help = "random weights in the shape of a published model instead: smollm2, mistral-7b, "
             "yi-34b, llama-70b, qwen3-8b; NAME:layers=N for fewer"},
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
     .help = "budget of the record store"},
    {.name = "profile",
     .type = OPT_STR,
     .help = "what quality calibrate has written: layers, default strategy and ratio"},
    {.name = "sink",
     .type = OPT_BOOL,
     .dflt = "true",
     .help = "build chunks behind the sink token (--no-sink: with nothing before them)"},
    {.name = "tiers", .type = OPT_STR, .help = "which, such as ram,nvme,redis"},
    {.name = "nvme",
     .type = OPT_STR,
     .help = "PATH:SIZE of an NVMe tier; \":SIZE\": a file of this run"},
    {.name = "redis", .type = OPT_STR, .repeatable = true, .help = "URL of a server"},
    {.name = "geometry",
     .type = OPT_ENUM,
     .dflt = "smollm2",
     .values = "smollm2|7b",
     .help = "whose records: SmolLM2-135M (f16), or 32 layers of 8 x 128 bf16"},
    {.name = "chunks",
     .type = OPT_INT,
     .dflt = "6",
     .min = 1,
     .max = BENCH_CHUNKS_MAX,
     .help = "chunks in the prompt"},
    {.name = "chunk-tokens",
     .type = OPT_INT,
     .dflt = "512",
     .min = 1,
     .max = 1 << 20,
     .help = "tokens of a chunk"},
    {.name = "query-tokens",
     .type = OPT_INT,
     .dflt = "32",
     .min = 1,
     .max = 1 << 16,
     .help = "tokens of the question"},
    {.name = "documents",
     .type = OPT_STR,
     .dflt = "etc/demo",
     .help = "folder of .txt files that prompts are made of"},
    {.name = "reps",
     .type = OPT_INT,
     .dflt = "7",
     .min = 1,
     .max = 1000,
     .help = "measured rounds"},
    {.name = "at-rows",
     .type = OPT_STR,
     .dflt = "1,16,32,128,256,512,1024,3104",
     .help = "how many rows"},
    {.name = "strategies",
     .type = OPT_STR,
     .dflt = "full,prefix,reuse,hkvd,query,qs,sink",
     .help = "methods to compare, each with settings behind it, such as hkvd:check=2 or "
             "query:layers=10-24; default: what a request without settings gets"},
    {.name = "ratios", .type = OPT_STR, .dflt = "0.05,0.10,0.15", .help = "recompute ratios"},
    {.name = "map-tokens",
     .type = OPT_INT,
     .dflt = "256",
     .min = 1,
     .max = 65536,
     .help = "longest summary of a chunk in the strategy map_reduce"},
    {.name = "data", .type = OPT_STR, .help = "lines of JSON, or any text, which is cut into some"},
    {.name = "limit",
     .type = OPT_INT,
     .dflt = "0",
     .min = 0,
     .max = 1e9,
     .help = "lines to use, 0 = all"},
    {.name = "prompt-format",
     .type = OPT_STR,
     .help = "text with {preamble}, {chunks}, {question}; \\n is a line break"},
    {.name = "chat",
     .type = OPT_BOOL,
     .dflt = "true",
     .help = "put the text into the model's chat template"},
    {.name = "requests",
     .type = OPT_INT,
     .dflt = "60",
     .min = 1,
     .max = 1e9,
     .help = "per point; of fleet per worker, 2000 if not given"},
    {.name = "pool",
     .type = OPT_INT,
     .dflt = "100",
     .min = 2,
     .max = 1e6,
     .help = "documents that requests draw from"},
    {.name = "zipf",
     .type = OPT_DOUBLE,
     .dflt = "0",
     .min = 0,
     .max = 4,
     .help = "skew of the documents' popularity, 0 = all alike"},
    {.name = "load",
     .type = OPT_STR,
     .dflt = "0.3,0.5,0.7,0.8,0.9,1,1.1",
     .help = "rates, as shares of what a strategy's unloaded time allows"},
    {.name = "answer-tokens",
     .type = OPT_INT,
     .dflt = "4",
     .min = 1,
     .max = 4096,
     .help = "tokens of an answer"},
    {.name = "seconds",
     .type = OPT_DOUBLE,
     .dflt = "3",
     .min = 0,
     .max = 3600,
     .help = "time per figure and round"},
};
enum { N_SHARED = sizeof shared / sizeof *shared };

static bool is_named(const char *names, const char *name)
{
    const size_t len = strlen(name);
    for (const char *p = names; *p; p += strcspn(p, " ")) {
        p += strspn(p, " ");
        if (strcspn(p, " ") == len && strncmp(p, name, len) == 0) return true;
    }
    return false;
}

size_t bench_options_of(const struct bench_sub *sub, struct opt_def ret[BENCH_OPTIONS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < N_SHARED; i++) {
        if (strcmp(shared[i].name, "json") != 0 && !is_named(sub->shared, shared[i].name)) continue;
        ASSERT(n < BENCH_OPTIONS_MAX - 1);
        ret[n++] = shared[i];
    }
    for (const struct opt_def *own = sub->options; own && own->name; own++) {
        ASSERT(n < BENCH_OPTIONS_MAX - 1);
        ret[n++] = *own;
    }
    ret[n] = (struct opt_def){0};
    return n;
}
