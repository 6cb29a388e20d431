/* kvblend-bench: the list of its subcommands, and which of them the arguments name. */
#include "tools/bench/device.h"

#include "base/buf.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What to measure: a subcommand, and behind it its modes. */
static const struct bench_sub *const subs[] = {
    &bench_ttft,    &bench_quality, &bench_calibrate, &bench_throughput, &bench_fleet,
    &bench_rag,     &bench_mrc,     &bench_rerank,    &bench_decode,     &bench_tiers,
    &bench_proxy,   &bench_start,   &bench_kernels,   &bench_ceil,       &bench_attn,
    &bench_scaling, &bench_overlap, &bench_account,
};
enum { N_SUBS = sizeof subs / sizeof *subs };

/* clang-format off */
static const struct {
    const char *name;
    const char *instead;
} gone[] = {
    {"calibrate",  "is now kvblend-bench quality calibrate"},
    {"fleet",      "is now kvblend-bench throughput fleet"},
    {"ceil",       "is now kvblend-bench kernels ceil"},
    {"attn",       "is now kvblend-bench kernels attn"},
    {"overlap",    "is now kvblend-bench kernels overlap"},
    {"replay",     "is now tools/hit-rates; decisions are not replayed any more"},
    {"controller", "was removed; kvblend-bench ttft --strategies default is near to it"},
    {"soak",       "was removed; kvblend-bench throughput --requests N runs as long"},
    {"day",        "was removed; kvblend-bench throughput fleet is near to it"},
    {"signals",    "was removed; docs/guard.md has its figures"},
    {"demo",       "was removed; tools/demo.py needs no build"},
};
/* clang-format on */

/* A mode goes before the subcommand that it is of; *ret_used: how many arguments name it. */
static const struct bench_sub *find_sub(int argc, char **argv, int *ret_used)
{
    const struct bench_sub *best = NULL;
    char mode[64];
    (void)snprintf(mode, sizeof mode, "%s %s", argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
    *ret_used = 0;
    for (size_t i = 0; i < N_SUBS && *ret_used < 2; i++) {
        const bool is_mode = strcmp(subs[i]->name, mode) == 0;
        if (!is_mode && (argc < 2 || strcmp(subs[i]->name, argv[1]) != 0)) continue;
        *ret_used = is_mode ? 2 : 1;
        best = subs[i];
    }
    return best;
}

static void print_subs(FILE *f)
{
    (void)fputs("Usage: kvblend-bench SUB [MODE] [options]\n"
                "Measure what kvblend claims; a table on stdout, JSON with --json FILE.\n\n",
                f);
    for (size_t i = 0; i < N_SUBS; i++)
        (void)fprintf(f, "  %-20s %s\n", subs[i]->name, subs[i]->about);
    (void)fputs("\nkvblend-bench SUB [MODE] --help lists its options.\n", f);
}

/* 2: no such subcommand. */
static int refuse_sub(const char *name)
{
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        if (strcmp(name, gone[i].name) != 0) continue;
        (void)fprintf(stderr, "kvblend-bench: %s %s\n", name, gone[i].instead);
        return 2;
    }
    (void)fprintf(stderr, "kvblend-bench: there is no subcommand \"%s\"; see --help\n", name);
    return 2;
}

static int print_options(const struct bench_sub *sub, const struct opts *o)
{
    struct buf text = BUF_INIT;
    char program[64];
    (void)snprintf(program, sizeof program, "kvblend-bench %s", sub->name);
    int r = opts_help(o, program, sub->about, &text);
    if (r == 0) (void)fputs(buf_cstr(&text), stdout);
    buf_fini(&text);
    return r;
}

static int run_sub(const struct bench_sub *sub, int argc, char **argv)
{
    struct opt_def defs[BENCH_OPTIONS_MAX];
    struct opts *o;
    struct err err = {0};
    (void)bench_options_of(sub, defs);
    int r = opts_create(defs, &o);
    if (r < 0) return r;
    const struct opt_args from = {argc, argv, environ, "KVBLEND"};
    struct buf problems = BUF_INIT;
    r = opts_read(o, &from, &problems);
    if (r == -EINVAL) (void)err_set(&err, r, "%.*s", (int)problems.len - 1, problems.data);
    buf_fini(&problems);
    if (r == 1)
        r = print_options(sub, o);
    else if (r == 0)
        r = sub->run          ? sub->run(o, &err)
            : sub->run_device ? bench_on_device(o, sub, &err)
                              : bench_run_on_model(o, sub->run_model, &err);
    if (r < 0) (void)fprintf(stderr, "kvblend-bench: %s\n", err.code ? err.msg : err_name(r));
    opts_destroy(o);
    return r;
}

/* All of them, for tools/describe.py. */
static int dump_subs(char **argv)
{
    (void)printf(
        "{\"program\":\"kvblend-bench\",\"about\":\"Measures what kvblend claims: a table on "
        "stdout, JSON with --json FILE.\",\"subs\":[\n");
    for (size_t i = 0; i < N_SUBS; i++) {
        if (i > 0) (void)putchar(',');
        if (run_sub(subs[i], 2, argv) < 0) return 1;
    }
    (void)printf("]}\n");
    return 0;
}

int main(int argc, char **argv)
{
    int used;
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* long runs are watched through files too */
    bench_note_command(argc, argv);
    const struct bench_sub *sub = find_sub(argc, argv, &used);
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_subs(stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--dump-options") == 0) return dump_subs(argv);
    if (argc < 2) {
        print_subs(stderr);
        return 2;
    }
    if (!sub) return refuse_sub(argv[1]);
    return run_sub(sub, argc - used, argv + used) < 0 ? 1 : 0;
}
