/* The options that several subcommands have; a subcommand names which of them it takes. */
#include "tools/bench/bench.h"

#include "base/assert.h"

#include <string.h>

static const struct opt_def shared[] = {
    {"json", OPT_STR, NULL, 0, 0, NULL, "write {\"meta\", \"rows\"} to this file"},
    {"model", OPT_STR, NULL, 0, 0, NULL, "GGUF file or Hugging Face folder, or a name on the hub"},
    {"shape", OPT_STR, NULL, 0, 0, NULL,
     "random weights in the shape of a published model instead: smollm2, llama-3.2-3b, mistral-7b, "
     "yi-34b, llama-70b, qwen3-8b, mixtral-8x7b, qwen3-30b-a3b; NAME:layers=N for fewer"},
    {"threads", OPT_INT, "0", 0, 1024, NULL, "compute threads, 0 = all cores"},
    {"dtype", OPT_ENUM, "auto", 0, 0, "auto|f32|bf16",
     "arithmetic; auto never goes below the file's own precision"},
    {"weights", OPT_ENUM, "auto", 0, 0, "auto|bf16|fp8|int8|file",
     "of the layers; auto: as the arithmetic; fp8: on a GPU; file: a GPU keeps the file's codes"},
    {"kv-pages-dtype", OPT_ENUM, "auto", 0, 0, "auto|q8",
     "KV of running sequences; auto: as the arithmetic"},
    {"kv-dtype", OPT_ENUM, "auto", 0, 0, "auto|f32|f16|bf16|q8",
     "stored KV; auto: f32 for F32 files, else f16"},
    {"device", OPT_STR, "cpu", 0, 0, NULL, "what computes: cpu, cuda, cuda:N"},
    {"gemm", OPT_STR, "auto", 0, 0, NULL, "force a GEMM candidate by name"},
    {"isa", OPT_STR, "auto", 0, 0, NULL, "auto, portable, avx2, avx512 or amx"},
    {"ctx", OPT_INT, "0", 0, 1 << 24, NULL, "context in tokens, 0 = the model's"},
    {"ram", OPT_SIZE, "2GiB", 1 << 20, 1e15, NULL, "budget of the record store"},
    {"profile", OPT_STR, NULL, 0, 0, NULL,
     "what quality calibrate has written: layers, default strategy and ratio"},
    {"sink", OPT_BOOL, "true", 0, 0, NULL,
     "build chunks behind the sink token (--no-sink: with nothing before them)"},
    {"tiers", OPT_STR, NULL, 0, 0, NULL, "which, such as ram,nvme,redis"},
    {"nvme", OPT_STR, NULL, 0, 0, NULL, "PATH:SIZE of an NVMe tier"},
    {"redis", OPT_STR, NULL, 0, 0, NULL, "URL of a Redis server"},
    {"geometry", OPT_ENUM, "smollm2", 0, 0, "smollm2|7b",
     "whose records: SmolLM2-135M (f16), or 32 layers of 8 x 128 bf16"},
    {"chunks", OPT_INT, "6", 1, BENCH_CHUNKS_MAX, NULL, "chunks in the prompt"},
    {"chunk-tokens", OPT_INT, "512", 1, 1 << 20, NULL, "tokens of a chunk"},
    {"query-tokens", OPT_INT, "32", 1, 1 << 16, NULL, "tokens of the question"},
    {"documents", OPT_STR, "etc/demo", 0, 0, NULL, "folder of .txt files that prompts are made of"},
    {"reps", OPT_INT, "7", 1, 1000, NULL, "measured rounds"},
    {"at-rows", OPT_STR, "1,16,32,128,256,512,1024,3104", 0, 0, NULL, "how many rows"},
    {"strategies", OPT_STR, "full,prefix,reuse,hkvd,query,qs,sink", 0, 0, NULL,
     "methods to compare, each with settings behind it, such as hkvd:check=2 or "
     "query:layers=10-24; default: what a request without settings gets; of the papers: hkvd is "
     "CacheBlend, sink EPIC, then prophetkv and qcfuse"},
    {"ratios", OPT_STR, "0.05,0.10,0.15", 0, 0, NULL, "recompute ratios"},
    {"map-tokens", OPT_INT, "256", 1, 65536, NULL,
     "longest summary of a chunk in the strategy map_reduce"},
    {"data", OPT_STR, NULL, 0, 0, NULL, "lines of JSON, or any text, which is cut into some"},
    {"limit", OPT_INT, "0", 0, 1e9, NULL, "lines to use, 0 = all"},
    {"contexts", OPT_INT, NULL, 1, FUS_CONTEXTS_MAX, NULL,
     "records are merged with so many encodings behind chunks of other lines; default: the "
     "profile's"},
    {"context-tokens", OPT_INT, NULL, 1, FUS_CONTEXT_TOKENS_MAX, NULL, "of each, at most"},
    {"isolated", OPT_BOOL, "false", 0, 0, NULL, "records stay as they are built behind the sink"},
    {"requests", OPT_INT, "60", 1, 1e9, NULL, "per point; of fleet per worker, 2000 if not given"},
    {"pool", OPT_INT, "100", 2, 1e6, NULL, "documents that requests draw from"},
    {"zipf", OPT_DOUBLE, "0", 0, 4, NULL, "skew of the documents' popularity, 0 = all alike"},
    {"load", OPT_STR, "0.3,0.5,0.7,0.8,0.9,1,1.1", 0, 0, NULL,
     "rates, as shares of what a strategy's unloaded time allows"},
    {"answer-tokens", OPT_INT, "4", 1, 4096, NULL, "tokens of an answer"},
    {"seconds", OPT_DOUBLE, "3", 0, 3600, NULL, "time per figure and round"},
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
