/* Times grammars: bench_grammar VOCABULARY CASES. The vocabulary is a file with the bytes of a
 * token in hexadecimal a line, the last one ends texts; cases are {"name", "schema", "tokens":
 * [ids]} a line. Each case is compiled and its text gone through ROUNDS times, always from nothing;
 * prints a JSON object a line, of times in the processor's microseconds.
 * tests/e2e/grammar_speed.py makes both files. */
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "fusor/grammar/grammar.h"
#include "fusor/grammar/run.h"
#include "fusor/grammar/schema.h"
#include "fusor/grammar/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5 };
struct vocabulary {
    struct buf bytes, at; /* at: of size_t, and the end */
    size_t n;
};

static void token(const void *ctx, size_t id, struct vocab_token *ret)
{
    const struct vocabulary *v = ctx;
    const size_t *at = (const size_t *)(const void *)v->at.data;

    *ret = (struct vocab_token){
        .bytes = v->bytes.data + at[id], .len = at[id + 1] - at[id], .ends = id + 1 == v->n};
}

static void read_vocabulary(const char *path, struct vocabulary *v)
{
    char *line = NULL;
    size_t cap = 0;
    FILE *f = fopen(path, "r");

    ASSERT(f);
    buf_add(&v->at, &v->bytes.len, sizeof(size_t));
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0; v->n++) {
        for (ssize_t i = 0; i + 1 < n; i += 2) {
            const char two[] = {line[i], line[i + 1], 0};
            buf_addc(&v->bytes, (char)strtoul(two, NULL, 16));
        }
        buf_add(&v->at, &v->bytes.len, sizeof(size_t));
    }
    free(line);
    (void)fclose(f);
}

static int time_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void print_times(const char *name, struct buf *times)
{
    double *t = (double *)(void *)times->data, sum = 0;
    const size_t n = times->len / sizeof *t;

    qsort(t, n, sizeof *t, time_order);
    for (size_t i = 0; i < n; i++)
        sum += t[i];
    (void)printf(
        ", \"%s\": {\"p50\": %.2f, \"p90\": %.2f, \"p99\": %.2f, \"max\": %.2f, \"mean\": %.2f}",
        name, t[n / 2], t[n * 9 / 10], t[n * 99 / 100], t[n - 1], sum / (double)n);
    times->len = 0;
}

static struct gram *compile(const json_t *schema, const struct gram_vocab *v)
{
    struct gram_builder *b = NULL;
    struct gram *g = NULL;
    gram_node n;
    struct err err = {0};
    int rc = gram_builder_create(&b);

    if (rc == 0) rc = gram_schema(b, schema, &n, &err);
    if (rc == 0) rc = gram_compile(b, n, v, &g, &err);
    if (rc < 0) (void)fprintf(stderr, "%s\n", err.msg);
    ASSERT(rc == 0);
    gram_builder_destroy(b);
    return g;
}

static void follow(const struct gram *g, const json_t *tokens, struct buf *times)
{
    struct gram_run *r = NULL;
    const uint64_t *set;

    ASSERT(gram_run_create(g, 1, &r) == 0);
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const int32_t id = (int32_t)json_integer_value(json_array_get(tokens, i));
        const uint64_t t0 = clock_thread_ns();
        ASSERT(gram_run_allowed(r, 0, &set) == 0);
        ASSERT(set[id / 64] >> (id % 64) & 1);
        ASSERT(gram_run_take(r, 0, id) >= 0);
        const double us = (double)(clock_thread_ns() - t0) / 1e3;
        buf_add(times, &us, sizeof us);
    }
    gram_run_destroy(r);
}

static void run_case(const json_t *c, const struct gram_vocab *v)
{
    struct buf compiles = BUF_INIT, tokens = BUF_INIT;
    size_t size = 0;

    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t t0 = clock_thread_ns();
        struct gram *g = compile(json_object_get(c, "schema"), v);
        const double us = (double)(clock_thread_ns() - t0) / 1e3;
        buf_add(&compiles, &us, sizeof us);
        follow(g, json_object_get(c, "tokens"), &tokens);
        size = gram_size(g);
        gram_destroy(g);
    }
    (void)printf("{\"name\": \"%s\", \"size\": %zu", json_string_value(json_object_get(c, "name")),
                 size);
    print_times("compile_us", &compiles);
    print_times("token_us", &tokens);
    (void)printf("}\n");
    buf_fini(&compiles);
    buf_fini(&tokens);
}

int main(int argc, char **argv)
{
    struct vocabulary text = {0};
    struct gram_vocab *v = NULL;
    char *line = NULL;
    size_t cap = 0;

    ASSERT(argc == 3);
    read_vocabulary(argv[1], &text);
    const uint64_t t0 = clock_thread_ns();
    ASSERT(gram_vocab_create(&(struct vocab_source){.n = text.n, .token = token, .ctx = &text},
                             &v) == 0);
    (void)printf("{\"tokens\": %zu, \"vocabulary_ms\": %.1f}\n", text.n,
                 (double)(clock_thread_ns() - t0) / 1e6);
    FILE *f = fopen(argv[2], "r");
    ASSERT(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *c = json_loads(line, 0, NULL);
        run_case(c, v);
        json_decref(c);
    }
    (void)fclose(f);
    free(line);
    gram_vocab_destroy(v);
    buf_fini(&text.bytes);
    buf_fini(&text.at);
    return 0;
}
