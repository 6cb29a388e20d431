/* kvblend-bench throughput: how much load each strategy sustains at one objective.
 *
 * Requests arrive as a Poisson process (or as a trace says), each asks a question over `chunks`
 * documents drawn by Zipf from a pool, in random order, streaming. Open loop: times count from when
 * a request was due. Every strategy first answers alone (its unloaded time), then at rates that are
 * shares of what that allows. Objective: p95 of the time to first token within --slo times the
 * unloaded full prefill's median, the same for all. The same worker process serves every strategy,
 * named in the request; --server drives any other OpenAI-compatible server with the same load. The
 * first SIGINT or SIGTERM ends it with the points that are done. */
#include "tools/bench/bench.h"
#include "tools/bench/openloop.h"
#include "tools/bench/proxy.h"
#include "tools/bench/svg.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    METHODS_MAX = 16,
    POINTS_MAX = 32,
    SEED = 1,
    UNLOADED_REPS = 5,
    REQUESTS = 60, /* of a point: enough for a p95 */
    START_S = 600,
    BUILD_S = 3600,
    ARGS_MAX = 40,
    TMP_BYTES_MAX = 64, /* the path of a socket is short */
    QUESTION_WORDS = 24
};

struct method {
    char name[24], mode[12], strategy[12];
    double ratio;
    double unloaded_ms;     /* median TTFT of a request alone */
    double unloaded_gap_ms; /* and of the longest time between two of its tokens; NAN */
    double rate[POINTS_MAX], p50[POINTS_MAX], p95[POINTS_MAX];
    size_t n_points;
    double at_slo; /* highest rate that keeps the objective; NAN: none of those measured */
};
struct pool { /* the documents */
    char **text;
    uint32_t *n_tok;
    double *popular; /* cumulative, [n] ends at 1 */
    size_t n;
    char **word; /* of the questions */
    size_t n_words;
};
struct thru {
    struct pool pool;
    struct method method[METHODS_MAX];
    size_t n_methods;
    char dir[PROXY_PATH_MAX], address[PROXY_PATH_MAX], model_name[128];
    pid_t pid;
    bool foreign; /* somebody else's server: no kvblend object in requests */
    unsigned chunks, answer_tokens, n_requests;
    double slo, slo_ms;
    uint64_t n_measured; /* points and lone requests so far: each has prompts of its own, or a
                            prefix cache would know them from the last time */
    json_t *meta, *rows;
};

/* ---- documents ---- */

static void pool_fini(struct pool *p)
{
    for (size_t i = 0; i < p->n; i++)
        mem_free(p->text[i]);
    mem_free(p->text);
    mem_free(p->n_tok);
    mem_free(p->popular);
    if (p->word) mem_free(p->word[0]);
    mem_free(p->word);
}

/* Sentences of the sample, drawn until a document is long enough: all different, all English. */
static int write_document(struct rng *r, char *const *sentence, const uint32_t *len, size_t n,
                          uint32_t want, size_t number, struct buf *out, uint32_t *ret_n)
{
    uint32_t have = 8; /* of the title */
    int rc = buf_addf(out, "Report %zu.", number + 1);
    while (rc == 0 && have < want) {
        size_t i = rng_next(r) % n;
        if (have + len[i] > want + want / 16 && have > want / 2) break;
        rc = buf_addf(out, " %s", sentence[i]);
        have += len[i];
    }
    *ret_n = have;
    return rc;
}

struct sample {
    char *all; /* the texts, cut into sentences and words in place */
    char **sentence;
    uint32_t *n_tok;
    size_t n;
};

static int read_sample(const struct tok *tok, const char *folder, struct sample *ret,
                       struct err *err)
{
    char *doc[BENCH_DOCS_MAX] = {0};
    struct buf all = BUF_INIT;
    size_t n_docs = 0, cap;
    int r = bench_documents(folder, doc, &n_docs, err);
    for (size_t i = 0; i < n_docs; i++) {
        if (r == 0) r = buf_addf(&all, "%s ", doc[i]);
        mem_free(doc[i]);
    }
    if (r < 0) return r;
    for (size_t i = 0; i < all.len; i++)
        if (all.data[i] == '\n' || all.data[i] == '\r') all.data[i] = ' ';
    cap = all.len / 8 + 1;
    ret->all = mem_strdup(buf_cstr(&all));
    buf_fini(&all);
    ret->sentence = mem_alloc(cap * sizeof *ret->sentence);
    ret->n_tok = mem_alloc(cap * sizeof *ret->n_tok);
    if (!ret->all || !ret->sentence || !ret->n_tok) return err_set(err, -ENOMEM, "out of memory");
    for (char *at = ret->all, *end; at && *at && ret->n < cap; at = end) {
        at += strspn(at, " ");
        end = strstr(at, ". ");
        if (!end) break;
        end[1] = '\0';
        struct tok_ids ids = {0};
        const struct tok_piece piece = {.text = at, .len = strlen(at)};
        r = tok_encode(tok, &piece, 1, 0, &ids);
        end += 2;
        if (r < 0) return err_set(err, r, "the sample cannot be tokenised");
        if (ids.n >= 6 && ids.n <= 80) {
            ret->n_tok[ret->n] = (uint32_t)ids.n;
            ret->sentence[ret->n++] = at;
        }
        tok_ids_fini(&ids);
    }
    return ret->n >= 20 ? 0 : err_set(err, -EINVAL, "%s: too little text", folder);
}

static void sample_fini(struct sample *s)
{
    mem_free(s->all);
    mem_free(s->sentence);
    mem_free(s->n_tok);
}

static int make_words(struct pool *p, const char *text)
{
    char *copy = mem_strdup(text);
    p->word = mem_alloc((strlen(text) / 2 + 1) * sizeof *p->word);
    if (!copy || !p->word) {
        mem_free(copy);
        return -ENOMEM;
    }
    for (char *save, *w = strtok_r(copy, " .,;:()\"", &save); w;
         w = strtok_r(NULL, " .,;:()\"", &save))
        p->word[p->n_words++] = w;
    p->word[0] = copy; /* owns all of them; as a word it ends at its first separator */
    return 0;
}

static int make_pool(struct thru *t, const struct opts *opts, const struct tok *tok,
                     struct err *err)
{
    struct pool *p = &t->pool;
    struct sample s = {0};
    struct rng rng = {SEED};
    const size_t n = (size_t)opt_int(opts, "pool");
    const uint32_t want = (uint32_t)opt_int(opts, "chunk-tokens");
    double sum = 0;
    int r = read_sample(tok, opt_str(opts, "documents"), &s, err);
    p->text = mem_zalloc(n * sizeof *p->text);
    p->n_tok = mem_zalloc(n * sizeof *p->n_tok);
    p->popular = mem_zalloc(n * sizeof *p->popular);
    if (r == 0 && (!p->text || !p->n_tok || !p->popular)) r = -ENOMEM;
    if (r == 0) r = make_words(p, s.sentence[0]);
    for (; r == 0 && p->n < n; p->n++) {
        struct buf text = BUF_INIT;
        r = write_document(&rng, s.sentence, s.n_tok, s.n, want, p->n, &text, &p->n_tok[p->n]);
        if (r == 0 && !(p->text[p->n] = buf_take(&text, NULL))) r = -ENOMEM;
        buf_fini(&text);
        if (r < 0) break;
        sum += pow((double)(p->n + 1), -opt_double(opts, "zipf"));
        p->popular[p->n] = sum;
    }
    for (size_t i = 0; i < p->n; i++)
        p->popular[i] /= sum;
    sample_fini(&s);
    return r < 0 && !err->code ? err_set(err, r, "out of memory") : r;
}

static size_t draw(const struct pool *p, struct rng *r)
{
    const double u = rng_unit(r);
    size_t lo = 0, hi = p->n - 1;
    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        if (p->popular[mid] > u)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* ---- requests ---- */

struct load { /* of one point */
    const struct thru *t;
    const struct method *m;
    uint64_t seed;
};

static int add_segments(json_t *kvblend, const size_t *begin, const size_t *end, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++)
        json_array_append_new(list, json_pack("{s:i, s:I, s:I}", "message", 0, "begin",
                                              (json_int_t)begin[i], "end", (json_int_t)end[i]));
    return list && json_object_set_new(kvblend, "segments", list) == 0 ? 0 : -ENOMEM;
}

static int prompt_of(const struct load *l, size_t i, struct buf *text, size_t *begin, size_t *end)
{
    const struct thru *t = l->t;
    struct rng rng = {(l->seed << 32) + i};
    size_t seen[BENCH_CHUNKS_MAX];
    int r = buf_adds(text, "Answer the question from these reports.\n\n");
    for (unsigned k = 0; r == 0 && k < t->chunks; k++) {
        size_t d = draw(&t->pool, &rng);
        for (unsigned j = 0; j < k; j++)
            if (seen[j] == d) { /* a prompt shows a document once: take the next one */
                d = (d + 1) % t->pool.n;
                j = (unsigned)-1;
            }
        seen[k] = d;
        begin[k] = text->len;
        r = buf_adds(text, t->pool.text[d]);
        end[k] = text->len;
        if (r == 0) r = buf_adds(text, "\n\n");
    }
    if (r == 0) r = buf_adds(text, "Question: what do they say of");
    for (int w = 0; r == 0 && w < QUESTION_WORDS; w++)
        r = buf_addf(text, " %s", t->pool.word[rng_next(&rng) % t->pool.n_words]);
    return r < 0 ? r : buf_adds(text, "?");
}

static int make_body(void *ctx, size_t i, struct buf *out)
{
    const struct load *l = ctx;
    const struct thru *t = l->t;
    size_t begin[BENCH_CHUNKS_MAX], end[BENCH_CHUNKS_MAX];
    struct buf text = BUF_INIT;
    int r = prompt_of(l, i, &text, begin, end);
    json_t *body =
        r < 0 ? NULL
              : json_pack("{s:s, s:b, s:i, s:i, s:b, s:f, s:{s:b}, s:[{s:s, s:s}]}", "model",
                          t->model_name, "stream", 1, "max_tokens", (int)t->answer_tokens,
                          "min_tokens", (int)t->answer_tokens, "ignore_eos", 1, "temperature", 0.0,
                          "stream_options", "include_usage", 1, "messages", "role", "user",
                          "content", buf_cstr(&text));
    if (body && !t->foreign) {
        json_t *k = json_pack("{s:s}", "mode", l->m->mode);
        if (k && l->m->strategy[0]) {
            json_object_set_new(k, "strategy", json_string(l->m->strategy));
            json_object_set_new(k, "ratio", json_real(l->m->ratio));
        }
        if (k) r = add_segments(k, begin, end, t->chunks);
        json_object_set_new(body, "kvblend", k);
    }
    char *s = body && r == 0 ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    buf_fini(&text);
    if (!s) return -ENOMEM;
    r = buf_adds(out, s);
    mem_free(s);
    return r;
}

/* ---- the server ---- */

static int wait_ready(struct thru *t, struct err *err)
{
    const uint64_t begin = clock_ns();
    while (clock_ms_since(begin) < START_S * 1e3) {
        int status;
        if (bench_stopped()) return -ECANCELED;
        if (openloop_call(t->address, "/health", NULL, NULL, 2000) == 200) return 0;
        if (t->pid > 0 && waitpid(t->pid, &status, WNOHANG) == t->pid) {
            t->pid = 0;
            return err_set(err, -EIO, "the worker did not start (its log: %s/log)", t->dir);
        }
        (void)poll(NULL, 0, 100);
    }
    return err_set(err, -ETIMEDOUT, "%s does not get ready", t->address);
}

static int start_worker(struct thru *t, const struct opts *opts, const char *model, struct err *err)
{
    char program[PROXY_PATH_MAX], listen[PROXY_PATH_MAX + 8], threads[16], ram[32],
        log[PROXY_PATH_MAX + 8];
    char ctx[16];
    char *argv[ARGS_MAX] = {program,
                            "--model",
                            (char *)model,
                            "--device",
                            (char *)opt_str(opts, "device"),
                            "--dtype",
                            (char *)opt_str(opts, "dtype"),
                            "--ctx",
                            ctx,
                            "--listen",
                            listen,
                            "--threads",
                            threads,
                            "--ram",
                            ram,
                            "--gemm",
                            (char *)opt_str(opts, "gemm"),
                            "--max-queue",
                            "4096",
                            "--exit-on-stdin-eof",
                            "--log-level",
                            "warn"};
    size_t n = 22;
    const pid_t parent = getpid();
    if (opt_given(opts, "nvme")) {
        argv[n++] = "--nvme";
        argv[n++] = (char *)opt_str(opts, "nvme");
    }
    const char *tmp = getenv("TMPDIR");
    if (!tmp || !*tmp || strlen(tmp) > TMP_BYTES_MAX) tmp = "/tmp";
    (void)snprintf(t->dir, sizeof t->dir, "%s/kvblend-throughput-XXXXXX", tmp);
    if (!mkdtemp(t->dir)) {
        t->dir[0] = '\0';
        return err_set(err, -errno, "%s: %s", tmp, strerror(errno));
    }
    proxy_program("kvblend-worker", "../../fusor/worker/kvblend-worker", program);
    (void)snprintf(t->address, sizeof t->address, "unix:%.200s/worker", t->dir);
    (void)snprintf(listen, sizeof listen, "%s", t->address);
    (void)snprintf(threads, sizeof threads, "%ld", (long)opt_int(opts, "threads"));
    (void)snprintf(ctx, sizeof ctx, "%ld", (long)opt_int(opts, "ctx"));
    (void)snprintf(ram, sizeof ram, "%llu", (unsigned long long)opt_size(opts, "ram"));
    (void)snprintf(log, sizeof log, "%s/log", t->dir);
    int keep[2]; /* its standard input ends when we do */
    if (pipe2(keep, O_CLOEXEC) < 0) return err_set(err, -errno, "no pipe");
    t->pid = fork();
    if (t->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || dup2(keep[0], 0) < 0) _exit(127);
        FILE *f = freopen(log, "w", stderr);
        (void)f;
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    (void)close(keep[0]);
    if (t->pid < 0) return err_set(err, -errno, "cannot fork");
    return wait_ready(t, err);
}

static void stop_worker(struct thru *t)
{
    char path[PROXY_PATH_MAX + 16];
    if (t->pid > 0) {
        (void)kill(t->pid, SIGTERM);
        (void)waitpid(t->pid, NULL, 0);
    }
    if (!t->dir[0]) return;
    static const char *const file[] = {"worker", "log"};
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", t->dir, file[i]);
        (void)unlink(path);
    }
    (void)rmdir(t->dir);
}

/* Every document's KV into the store, so that the first point is not the one that builds them. */
static int build_pool(struct thru *t, struct err *err)
{
    for (size_t i = 0; i < t->pool.n; i++) {
        if (bench_stopped()) return -ECANCELED;
        json_t *body = json_pack("{s:[s], s:b}", "texts", t->pool.text[i], "wait", 1);
        char *s = body ? json_dumps(body, JSON_COMPACT) : NULL;
        json_decref(body);
        if (!s) return err_set(err, -ENOMEM, "out of memory");
        int status = openloop_call(t->address, "/v1/segments", s, NULL, BUILD_S * 1000);
        mem_free(s);
        if (status != 200 && bench_stopped()) return -ECANCELED; /* the worker was told, too */
        if (status != 200) return err_set(err, -EIO, "a document was not built: HTTP %d", status);
        bench_progress("document", i + 1, t->pool.n);
    }
    return 0;
}

static int first_model(struct thru *t, struct err *err)
{
    struct buf body = BUF_INIT;
    int status = openloop_call(t->address, "/v1/models", NULL, &body, 10000);
    json_t *list = status == 200 ? json_loadb(body.data, body.len, 0, NULL) : NULL;
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(list, "data"), 0), "id"));
    if (id) (void)snprintf(t->model_name, sizeof t->model_name, "%s", id);
    json_decref(list);
    buf_fini(&body);
    return t->model_name[0] ? 0 : err_set(err, -EIO, "%s lists no model", t->address);
}

/* ---- methods ---- */

static int add_method(struct thru *t, const char *name, double ratio, struct err *err)
{
    static const char *const modes[] = {"full", "prefix", "reuse"};
    struct method *m = &t->method[t->n_methods];
    if (t->n_methods == METHODS_MAX) return err_set(err, -ERANGE, "--strategies: too many");
    *m = (struct method){.ratio = ratio, .at_slo = NAN};
    (void)snprintf(m->mode, sizeof m->mode, "blend");
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(name, modes[i]) == 0) {
            (void)snprintf(m->mode, sizeof m->mode, "%s", name);
            m->ratio = strcmp(name, "reuse") == 0 ? 0 : 1;
        }
    if (strcmp(m->mode, "blend") == 0)
        (void)snprintf(m->strategy, sizeof m->strategy, "%s",
                       strcmp(name, "blend") == 0 ? "qs" : name);
    (void)snprintf(m->name, sizeof m->name, "%s", name);
    t->n_methods++;
    return 0;
}

static int read_methods(struct thru *t, const struct opts *opts, struct err *err)
{
    const char *p =
        opt_given(opts, "strategies") ? opt_str(opts, "strategies") : "full,prefix,reuse,blend";
    const double ratio = opt_given(opts, "ratios") ? strtod(opt_str(opts, "ratios"), NULL) : 0.15;
    if (t->foreign) return add_method(t, "server", 1, err);
    int r = add_method(t, "full", 1, err); /* the objective is its time */
    while (r == 0 && *p) {
        char name[24];
        const size_t len = strcspn(p, ",");
        (void)snprintf(name, sizeof name, "%.*s", (int)len, p);
        p += len + (p[len] == ',');
        enum fus_strategy s;
        if (strcmp(name, "full") == 0) continue;
        if (strcmp(name, "blend") != 0 && fus_strategy_parse(name, &s) != 1)
            return err_set(err, -EINVAL, "--strategies: there is no \"%s\"", name);
        r = add_method(t, name, ratio, err);
    }
    return r;
}

/* ---- points ---- */

static int run_point(struct thru *t, const struct method *m, const double *at_s, size_t n,
                     struct openloop_shot *ret, struct err *err)
{
    struct load l = {t, m, SEED + ++t->n_measured};
    const struct openloop_opts o = {.address = t->address,
                                    .path = "/v1/chat/completions",
                                    .at_s = at_s,
                                    .n = n,
                                    .give_up_s = 20 * t->slo_ms / 1e3 + 600,
                                    .body = make_body,
                                    .ctx = &l,
                                    .stopped = bench_stopped};
    int r = openloop_run(&o, ret, err);
    return r == 0 && bench_stopped() ? -ECANCELED : r; /* the worker was told, too */
}

/* A request alone, a few times in a row. */
static int measure_unloaded(struct thru *t, struct method *m, struct err *err)
{
    double ms[UNLOADED_REPS], gap[UNLOADED_REPS];
    size_t n_gap = 0;
    for (unsigned i = 0; i <= UNLOADED_REPS; i++) { /* the first one warms up */
        const double now = 0;
        struct openloop_shot shot;
        int r = run_point(t, m, &now, 1, &shot, err);
        if (r < 0) return r;
        if (shot.err < 0 || shot.http_status != 200 || shot.ttft_ms < 0)
            return err_set(err, -EIO, "%s: HTTP %d, %s", m->name, shot.http_status,
                           shot.err < 0 ? err_name(shot.err) : "no text came");
        if (i > 0) ms[i - 1] = shot.ttft_ms;
        if (i > 0 && shot.n_pieces > 1) gap[n_gap++] = shot.gap_ms_max;
    }
    m->unloaded_gap_ms = n_gap ? bench_quantile(gap, n_gap, 0.5) : NAN;
    m->unloaded_ms = bench_quantile(ms, UNLOADED_REPS, 0.5);
    return 0;
}

struct tally {
    double *ttft, *gap;
    size_t n_ttft, n_gap, n_failed, n_cached, n_prompt, n_good;
};

static void count(struct tally *c, const struct openloop_shot *s, size_t n, double slo_ms)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i].err < 0 || s[i].http_status != 200 || s[i].ttft_ms < 0) {
            c->n_failed++;
            continue;
        }
        c->ttft[c->n_ttft++] = s[i].ttft_ms;
        c->n_good += s[i].ttft_ms <= slo_ms;
        if (s[i].n_pieces > 1) c->gap[c->n_gap++] = s[i].gap_ms_max;
        c->n_cached += s[i].n_cached;
        c->n_prompt += s[i].n_prompt;
    }
}

static void report_point(struct thru *t, struct method *m, double rate, double wall_s,
                         struct tally *c)
{
    const size_t k = m->n_points++;
    m->rate[k] = rate;
    m->p50[k] = bench_quantile(c->ttft, c->n_ttft, 0.5);
    m->p95[k] = bench_quantile(c->ttft, c->n_ttft, 0.95);
    if (c->n_failed) m->p95[k] = INFINITY; /* an answer that never came is not within any bound */
    const double p99 = bench_quantile(c->ttft, c->n_ttft, 0.99);
    const double gap = bench_quantile(c->gap, c->n_gap, 0.99);
    const double hit = c->n_prompt ? (double)c->n_cached / (double)c->n_prompt : NAN;
    json_array_append_new(
        t->rows,
        json_pack("{s:s, s:f, s:f, s:o, s:o, s:o, s:o, s:f, s:o, s:I, s:I, s:f}", "strategy",
                  m->name, "ratio", m->ratio, "rate", rate, "ttft_ms_p50", bench_number(m->p50[k]),
                  "ttft_ms_p95", bench_number(m->p95[k]), "ttft_ms_p99", bench_number(p99),
                  "itl_ms_p99", bench_number(gap), "goodput", (double)c->n_good / wall_s,
                  "cached_share", bench_number(hit), "n", (json_int_t)(c->n_ttft + c->n_failed),
                  "failed", (json_int_t)c->n_failed, "offered", rate * m->unloaded_ms / 1e3));
    (void)printf("%-8s %7.3f %9.0f %9.0f %9.0f %9.0f %8.3f %6.2f %4zu %4zu\n", m->name, rate,
                 m->p50[k], m->p95[k], p99, gap, (double)c->n_good / wall_s, hit,
                 c->n_ttft + c->n_failed, c->n_failed);
    (void)fflush(stdout);
}

static int measure_rate(struct thru *t, struct method *m, double rate, struct err *err)
{
    const size_t n = t->n_requests;
    double *at_s = mem_alloc(n * sizeof *at_s);
    struct openloop_shot *shot = mem_alloc(n * sizeof *shot);
    struct tally c = {.ttft = mem_alloc(n * sizeof *c.ttft), .gap = mem_alloc(n * sizeof *c.gap)};
    struct rng rng = {BENCH_ARRIVAL_SEED}; /* the same arrivals for all */
    double now = 0;
    int r = at_s && shot && c.ttft && c.gap ? 0 : err_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < n; i++)
        at_s[i] = now += rng_exp(&rng, 1 / rate);
    const uint64_t begin = clock_ns();
    if (r == 0) r = run_point(t, m, at_s, n, shot, err);
    if (r == 0) {
        count(&c, shot, n, t->slo_ms);
        report_point(t, m, rate, clock_ms_since(begin) / 1e3, &c);
    }
    mem_free(at_s);
    mem_free(shot);
    mem_free(c.ttft);
    mem_free(c.gap);
    return r;
}

/* Between the last rate that keeps the objective and the first that does not, on a line. */
static double rate_at(const struct method *m, double slo_ms)
{
    double best = NAN;
    for (size_t i = 0; i < m->n_points; i++) {
        if (m->p95[i] <= slo_ms) {
            best = m->rate[i];
            continue;
        }
        if (i == 0 || !isfinite(m->p95[i])) break;
        const double share = (slo_ms - m->p95[i - 1]) / (m->p95[i] - m->p95[i - 1]);
        return m->rate[i - 1] + share * (m->rate[i] - m->rate[i - 1]);
    }
    return best;
}

/* Rates go up until one misses the objective by far: what lies beyond only takes time. */
static int sweep(struct thru *t, struct method *m, const struct opts *opts, struct err *err)
{
    const bool given = opt_given(opts, "rates");
    const char *p = given ? opt_str(opts, "rates") : opt_str(opts, "load");
    while (*p && m->n_points < POINTS_MAX) {
        char *end;
        const double v = strtod(p, &end);
        if (end == p || !(v > 0) || (*end && *end != ','))
            return err_set(err, -EINVAL, "--%s: \"%.40s\"", given ? "rates" : "load", p);
        p = end + (*end == ',');
        int r = measure_rate(t, m, given ? v : v / (m->unloaded_ms / 1e3), err);
        if (r < 0) return r;
        if (m->p95[m->n_points - 1] > 2 * t->slo_ms) break;
    }
    m->at_slo = rate_at(m, t->slo_ms);
    return 0;
}

/* ---- report ---- */

static void summary(struct thru *t)
{
    json_t *at = json_object(), *alone = json_object(), *gap = json_object();
    const double full = t->method[0].at_slo;
    (void)printf("\n%-8s %12s %12s %16s %8s\n", "", "alone ms", "ITL alone", "rate at the SLO",
                 "of full");
    for (size_t i = 0; i < t->n_methods; i++) {
        const struct method *m = &t->method[i];
        json_object_set_new(at, m->name, bench_number(m->at_slo));
        json_object_set_new(alone, m->name, bench_number(m->unloaded_ms));
        json_object_set_new(gap, m->name, bench_number(m->unloaded_gap_ms));
        (void)printf("%-8s %12.0f %12.0f %16.3f %7.2fx\n", m->name, m->unloaded_ms,
                     m->unloaded_gap_ms, m->at_slo, m->at_slo / full);
        if (strcmp(m->name, "blend") == 0)
            json_object_set_new(t->meta, "throughput_ratio", bench_number(m->at_slo / full));
    }
    json_object_set_new(t->meta, "throughput_at_slo", at);
    json_object_set_new(t->meta, "ttft_ms_unloaded", alone);
    json_object_set_new(t->meta, "itl_ms_unloaded", gap);
    json_object_set_new(t->meta, "slo_ms", bench_number(t->slo_ms));
}

static int plot(const struct thru *t, const char *path, struct err *err)
{
    struct svg_series s[METHODS_MAX];
    for (size_t i = 0; i < t->n_methods; i++)
        s[i] = (struct svg_series){.name = t->method[i].name,
                                   .x = t->method[i].rate,
                                   .y = t->method[i].p95,
                                   .n = t->method[i].n_points,
                                   .markers = true};
    const struct svg_chart c = {.title = "Time to first token under load, p95",
                                .x_label = "requests per second",
                                .y_label = "ms",
                                .y_max = 3 * t->slo_ms,
                                .series = s,
                                .n_series = t->n_methods};
    return svg_write(&c, path, err);
}

static int run_all(struct thru *t, const struct opts *opts, struct err *err)
{
    int r = 0;
    for (size_t i = 0; i < t->n_methods && r == 0; i++) {
        r = measure_unloaded(t, &t->method[i], err);
        if (i == 0) t->slo_ms = t->slo * t->method[0].unloaded_ms;
    }
    if (opt_given(opts, "slo-ms")) t->slo_ms = opt_double(opts, "slo-ms");
    if (r < 0) return r;
    (void)printf("objective: p95 of the TTFT within %.0f ms\n%-8s %7s %9s %9s %9s %9s %8s %6s %4s "
                 "%4s\n",
                 t->slo_ms, "", "rate/s", "p50 ms", "p95 ms", "p99 ms", "ITL p99", "good/s",
                 "cached", "n", "fail");
    for (size_t i = 0; i < t->n_methods && r == 0; i++)
        r = sweep(t, &t->method[i], opts, err);
    if (r == -ECANCELED && json_array_size(t->rows) > 0) r = 0; /* what is done is told */
    if (r == 0) summary(t);
    return r;
}

int bench_throughput(const struct opts *opts, struct err *err)
{
    struct thru t = {.chunks = (unsigned)opt_int(opts, "chunks"),
                     .answer_tokens = (unsigned)opt_int(opts, "answer-tokens"),
                     .n_requests = opt_given(opts, "requests") ? (unsigned)opt_int(opts, "requests")
                                                               : REQUESTS,
                     .slo = opt_double(opts, "slo"),
                     .foreign = opt_given(opts, "server"),
                     .meta = bench_meta(),
                     .rows = json_array()};
    struct tok *tok = NULL;
    char model[PATH_MAX];
    bench_stop_watch();
    int r = bench_model_path(opts, model, sizeof model, err);
    if (r == 0 && t.chunks >= (unsigned)opt_int(opts, "pool"))
        r = err_set(err, -EINVAL, "--pool must be larger than --chunks");
    if (r == 0) r = tok_open_path(model, &tok, err);
    if (r == 0) r = make_pool(&t, opts, tok, err);
    if (r == 0) r = read_methods(&t, opts, err);
    if (r == 0 && t.foreign) {
        (void)snprintf(t.address, sizeof t.address, "%s", opt_str(opts, "server"));
        r = wait_ready(&t, err);
    } else if (r == 0) {
        r = start_worker(&t, opts, model, err);
    }
    if (r == 0) r = first_model(&t, err);
    if (r == 0 && !t.foreign) r = build_pool(&t, err);
    if (r == 0) r = run_all(&t, opts, err);
    if (r == 0) r = bench_write_json(opts, t.meta, t.rows, err);
    if (r == 0 && opt_given(opts, "plot")) r = plot(&t, opt_str(opts, "plot"), err);
    if (r == -ECANCELED) (void)err_set(err, r, "stopped before the first point");
    stop_worker(&t);
    tok_close(tok);
    pool_fini(&t.pool);
    json_decref(t.meta);
    json_decref(t.rows);
    return r;
}
