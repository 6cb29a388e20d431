#include "gateway/process/pull.h"

#include "base/clock.h"
#include "base/hub/pull.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: kvblend pull NAME\n\n"
    "Downloads a model from the Hugging Face hub and prints its path; kvblend --model NAME serves "
    "it.\n\n"
    "  NAME  ORG/MODEL[@REVISION][:FILE or QUANT], as in Qwen/Qwen3-0.6B or\n"
    "        bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n\n"
    "A download that was cut goes on where it stood. Variables: HF_TOKEN (for private and gated "
    "models),\nHF_ENDPOINT (https://huggingface.co), HF_HUB_CACHE and HF_HOME (the folder of "
    "models).\n";

struct bar {
    bool drawn, terminal;
    uint64_t began_ns, shown_ns;
    size_t i; /* the file of the latest line */
};

/* A terminal has one line that moves, everything else a line for each file that is begun. */
static void show(void *ctx, const struct hub_progress *p)
{
    enum { EVERY_NS = 100000000 };
    struct bar *b = ctx;
    const uint64_t now = clock_ns();
    const bool whole = p->done == p->total;
    const double mib = 1 << 20, share = p->total ? (double)p->done / (double)p->total : 1;
    if (!b->terminal) {
        if (p->i != b->i) (void)fprintf(stderr, "%zu of %zu: %.200s\n", p->i, p->n, p->file);
        b->i = p->i;
        return;
    }
    if (!whole && p->i == b->i && now - b->shown_ns < EVERY_NS) return;
    b->i = p->i, b->shown_ns = now, b->drawn = true;
    char line[31];
    memset(line, '.', sizeof line - 1);
    memset(line, '#', (size_t)(share * (sizeof line - 1)));
    line[sizeof line - 1] = '\0';
    (void)fprintf(stderr, "\r[%s] %3.0f %%  %.0f of %.0f MiB  %.1f MiB/s  %-40.40s", line,
                  share * 100, (double)p->done / mib, (double)p->total / mib,
                  (double)p->fetched / mib / ((double)(now - b->began_ns + 1) / 1e9), p->file);
    (void)fflush(stderr);
}

static const char *set(const char *variable, const char *otherwise)
{
    const char *v = getenv(variable);
    return v && *v ? v : otherwise;
}

int gw_pull(int argc, char **argv)
{
    const bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    struct bar bar = {.terminal = isatty(STDERR_FILENO), .began_ns = clock_ns()};
    struct buf path = BUF_INIT;
    struct err err = {0};
    if (argc != 2 || help || argv[1][0] == '-') {
        (void)fputs(usage, help ? stdout : stderr);
        return help ? 0 : 2;
    }
    const struct hub_pull p = {.name = argv[1],
                               .endpoint = set("HF_ENDPOINT", "https://huggingface.co"),
                               .token = set("HF_TOKEN", NULL),
                               .progress = show,
                               .ctx = &bar};
    int r = hub_pull(&p, &path, &err);
    if (bar.drawn) (void)fputc('\n', stderr);
    if (r < 0)
        (void)fprintf(stderr, "kvblend pull: %s\n", err.msg);
    else
        (void)printf("%s\n", buf_cstr(&path));
    buf_fini(&path);
    return r < 0 ? 1 : 0;
}
