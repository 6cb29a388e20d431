#include "tools/bench/report.h"

#include "base/buf.h"
#include "tools/bench/boot.h"
#include "tools/bench/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEED = 1, LINES_MAX = 4096, SERIES_MAX = 8, POINTS_MAX = 16, KINDS_MAX = 33 };

struct report {
    const json_t *const *run;
    const char *const *name;
    size_t n;
    struct buf md;
    char base[512]; /* path without ".md" */
    double a[LINES_MAX], b[LINES_MAX];
};

/* ---- reading rows ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* The data set, by the name of its file. */
static const char *data_of(const json_t *meta)
{
    const char *path = text_of(meta, "data"), *name = strrchr(path, '/');
    return name ? name + 1 : path;
}

static double number_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static bool same_ratio(const json_t *a, const json_t *b)
{
    return fabs(number_of(a, "ratio") - number_of(b, "ratio")) < 1e-6;
}

static size_t lines_of(const json_t *row, double *ret)
{
    const json_t *all = json_object_get(row, "kl_lines"), *v;
    size_t i, n = json_array_size(all) < LINES_MAX ? json_array_size(all) : LINES_MAX;
    json_array_foreach(all, i, v)
    {
        if (i < n) ret[i] = json_number_value(v);
    }
    return n;
}

/* Of one row to another, line by line; NAN when they did not judge the same number of lines. */
static struct boot compare(struct report *r, const json_t *row, const json_t *with)
{
    const size_t n = lines_of(row, r->a), m = lines_of(with, r->b);
    return boot_ratio(r->a, r->b, n == m ? n : 0, SEED);
}

static const json_t *find_row(const json_t *run, const char *strategy, const json_t *like)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(run, "rows"), i, row)
    {
        if (strcmp(text_of(row, "strategy"), strategy) == 0 && same_ratio(row, like) &&
            strcmp(text_of(row, "kind"), text_of(like, "kind")) == 0)
            return row;
    }
    return NULL;
}

/* The kinds of a run in their order; the last one is "all" where there are several. */
static size_t kinds_of(const json_t *run, const char *ret[KINDS_MAX])
{
    const json_t *row;
    size_t i, n = 0, at;
    json_array_foreach(json_object_get(run, "rows"), i, row)
    {
        for (at = 0; at < n && strcmp(ret[at], text_of(row, "kind")) != 0;)
            at++;
        if (at == n && n < KINDS_MAX) ret[n++] = text_of(row, "kind");
    }
    return n;
}

/* ---- writing ---- */

static void put_text(struct report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put_text(struct report *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)buf_vaddf(&r->md, fmt, ap);
    va_end(ap);
}

/* " 0.247 |", an en dash for what was not measured. */
static void put_number(struct report *r, double v, int digits)
{
    if (isfinite(v))
        put_text(r, " %.*f |", digits, v);
    else
        put_text(r, " – |");
}

static void put_interval(struct report *r, const struct boot *b)
{
    if (!isfinite(b->value))
        put_text(r, " – |");
    else if (!isfinite(b->lo) || b->lo == b->hi)
        put_text(r, " %.3f |", b->value);
    else
        put_text(r, " %.3f [%.3f, %.3f] |", b->value, b->lo, b->hi);
}

static struct boot interval_of(const json_t *row, const char *name)
{
    char lo[64], hi[64];
    (void)snprintf(lo, sizeof lo, "%s_lo", name);
    (void)snprintf(hi, sizeof hi, "%s_hi", name);
    return (struct boot){number_of(row, name), number_of(row, lo), number_of(row, hi)};
}

static const char *verdict(const struct boot *b)
{
    if (!isfinite(b->value)) return "–";
    return b->hi < 1 ? "**better**" : b->lo > 1 ? "worse" : "level";
}

static bool has_settings(const json_t *row)
{
    return strchr(text_of(row, "strategy"), ':') != NULL;
}

static void put_row(struct report *r, const json_t *row, bool answers)
{
    const struct boot loss = interval_of(row, "kl_forced_vs_reuse"),
                      base = interval_of(row, "kl_forced_vs_baseline"),
                      match = interval_of(row, "exact_match");
    put_text(r, "| %s | %.2f |", text_of(row, "strategy"), number_of(row, "ratio"));
    put_number(r, number_of(row, "kl_forced"), 5);
    put_interval(r, &loss);
    put_interval(r, &base);
    put_number(r, number_of(row, "top1_agreement"), 2);
    if (answers) {
        put_interval(r, &match);
        put_number(r, number_of(row, "f1"), 3);
        put_number(r, number_of(row, "rouge_l"), 3);
    }
    put_number(r, number_of(row, "tokens_recomputed"), 0);
    put_number(r, number_of(row, "cost"), 3);
    put_number(r, number_of(row, "speedup"), 2);
    put_text(r, "\n");
}

static void put_table(struct report *r, const json_t *run, const char *kind)
{
    const json_t *row;
    size_t i;
    bool answers = false, any = false;
    json_array_foreach(json_object_get(run, "rows"), i, row)
    {
        if (strcmp(text_of(row, "kind"), kind) != 0 || has_settings(row)) continue;
        if (!any) {
            answers = isfinite(number_of(row, "exact_match"));
            put_text(r, "\n**%s**, n = %.0f\n\n", kind, number_of(row, "n"));
            put_text(
                r,
                "| strategy | r | KL | / reuse's [95 %%] | / hkvd's at 0.15 [95 %%] | top-1 |%s "
                "recomputed | cost | speed-up |\n|---|---|---|---|---|---|%s---|---|---|\n",
                answers ? " exact match [95 %] | F1 | Rouge-L |" : "",
                answers ? "---|---|---|" : "");
        }
        any = true;
        put_row(r, row, answers);
    }
}

/* ---- settings against the strategy without them ---- */

static void put_settings(struct report *r, const json_t *run)
{
    const json_t *row;
    size_t i;
    bool any = false;
    json_array_foreach(json_object_get(run, "rows"), i, row)
    {
        if (!has_settings(row)) continue;
        if (!any)
            put_text(r,
                     "\nSettings, each against the same strategy without it on the same lines:\n\n"
                     "| setting | kind | r | / reuse's | / without it [95 %%] | cost | |\n"
                     "|---|---|---|---|---|---|---|\n");
        any = true;
        char base[64];
        (void)snprintf(base, sizeof base, "%.*s", (int)strcspn(text_of(row, "strategy"), ":"),
                       text_of(row, "strategy"));
        const json_t *plain = find_row(run, base, row);
        const struct boot b = compare(r, row, plain);
        put_text(r, "| `%s` | %s | %.2f |", text_of(row, "strategy"), text_of(row, "kind"),
                 number_of(row, "ratio"));
        put_number(r, number_of(row, "kl_forced_vs_reuse"), 3);
        put_interval(r, &b);
        put_number(r, number_of(row, "cost"), 3);
        put_text(r, " %s |\n", verdict(&b));
    }
}

static bool has_sink(const json_t *run)
{
    return !json_is_false(json_object_get(json_object_get(run, "meta"), "sink"));
}

/* The run of the same data and model that built its chunks behind the sink. */
static const json_t *with_sink(const struct report *r, const json_t *run)
{
    const json_t *meta = json_object_get(run, "meta");
    for (size_t i = 0; i < r->n; i++) {
        const json_t *other = json_object_get(r->run[i], "meta");
        if (r->run[i] != run && has_sink(r->run[i]) && strcmp(data_of(meta), data_of(other)) == 0 &&
            strcmp(text_of(meta, "model"), text_of(other, "model")) == 0)
            return r->run[i];
    }
    return NULL;
}

static void put_sinkless(struct report *r, const json_t *run)
{
    const json_t *other = with_sink(r, run), *row;
    size_t i;
    put_text(
        r,
        "\nChunks built with nothing before them, against the same behind the sink token:\n\n"
        "| strategy | kind | r | KL | / behind the sink [95 %%] | |\n|---|---|---|---|---|---|\n");
    json_array_foreach(json_object_get(run, "rows"), i, row)
    {
        if (strcmp(text_of(row, "strategy"), "full") == 0) continue;
        const json_t *same = other ? find_row(other, text_of(row, "strategy"), row) : NULL;
        const struct boot b = compare(r, row, same);
        put_text(r, "| %s | %s | %.2f |", text_of(row, "strategy"), text_of(row, "kind"),
                 number_of(row, "ratio"));
        put_number(r, number_of(row, "kl_forced"), 5);
        put_interval(r, &b);
        put_text(r, " %s |\n", verdict(&b));
    }
}

static void put_fastest(struct report *r, const json_t *meta)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(meta, "within_loss"), i, row)
    {
        put_text(
            r,
            "%s- %s: the fastest that keeps a loss of %g is %s at %.2f, loss %.3f [%.3f, %.3f]: "
            "first token %.2f times as fast [%.2f, %.2f].\n",
            i == 0 ? "\n" : "", text_of(row, "kind"), number_of(row, "max_loss"),
            text_of(row, "strategy"), number_of(row, "ratio"), number_of(row, "loss"),
            number_of(row, "loss_lo"), number_of(row, "loss_hi"), number_of(row, "speedup"),
            number_of(row, "speedup_lo"), number_of(row, "speedup_hi"));
    }
}

/* ---- charts ---- */

struct curves {
    struct svg_series series[SERIES_MAX];
    double x[SERIES_MAX][POINTS_MAX], y[SERIES_MAX][POINTS_MAX];
    size_t n;
};

static void collect_curves(const json_t *run, const char *kind, struct curves *c)
{
    const json_t *row;
    size_t i, s;
    json_array_foreach(json_object_get(run, "rows"), i, row)
    {
        const char *name = text_of(row, "strategy");
        const double ratio = number_of(row, "ratio");
        if (strcmp(text_of(row, "kind"), kind) != 0 || has_settings(row)) continue;
        if (!(ratio > 0 && ratio < 1) || !isfinite(number_of(row, "kl_forced_vs_reuse"))) continue;
        for (s = 0; s < c->n && strcmp(c->series[s].name, name) != 0;)
            s++;
        if (s == SERIES_MAX) continue;
        if (s == c->n) c->series[c->n++] = (struct svg_series){name, c->x[s], c->y[s], 0, true};
        if (c->series[s].n == POINTS_MAX) continue;
        c->x[s][c->series[s].n] = ratio;
        c->y[s][c->series[s].n++] = number_of(row, "kl_forced_vs_reuse");
    }
}

static int put_chart(struct report *r, size_t at, const char *kind, struct err *err)
{
    struct curves c = {.n = 0};
    char path[600], note[256];
    const json_t *meta = json_object_get(r->run[at], "meta");
    size_t most = 0;
    collect_curves(r->run[at], kind, &c);
    for (size_t s = 0; s < c.n; s++)
        most = c.series[s].n > most ? c.series[s].n : most;
    if (most < 2) return 0; /* points are no curve */
    (void)snprintf(path, sizeof path, "%s-%s.svg", r->base, r->name[at]);
    (void)snprintf(note, sizeof note, "%s, %s (%s); 0: a full prefill, 1: plain reuse",
                   text_of(meta, "model"), data_of(meta), kind);
    const struct svg_chart chart = {.title = "What is lost by share of tokens recomputed",
                                    .note = note,
                                    .x_label = "share of reused tokens recomputed",
                                    .y_label = "KL to the full prefill / reuse's",
                                    .series = c.series,
                                    .n_series = c.n};
    const int rc = svg_write(&chart, path, err);
    const char *file = strrchr(path, '/');
    if (rc == 0) put_text(r, "\n![loss by ratio](%s)\n", file ? file + 1 : path);
    return rc;
}

/* ---- sections ---- */

static void put_origin(struct report *r, const json_t *meta)
{
    if (*text_of(meta, "command")) put_text(r, "```\n%s\n```\n\n", text_of(meta, "command"));
    put_text(r, "%s; %s, %.0f threads, GEMM %s; commit %s, %s.\n", text_of(meta, "model"),
             text_of(meta, "machine"), number_of(meta, "threads"), text_of(meta, "gemm"),
             text_of(meta, "commit"), text_of(meta, "date"));
}

/* The settings that calibrate looked at: default and choice, and how many there were. */
static void put_knobs(struct report *r, const json_t *rows)
{
    const json_t *row, *next;
    size_t i, n = 0, first = 0;
    const json_t *chosen = NULL;
    put_text(r, "\n| setting | by | looked at | default | chosen | KL, chosen / default [95 %%] |\n"
                "|---|---|---|---|---|---|\n");
    json_array_foreach(rows, i, row)
    {
        if (!*text_of(row, "knob")) break;
        if (n++ == 0) first = i;
        if (json_is_true(json_object_get(row, "chosen"))) chosen = row;
        next = json_array_get(rows, i + 1);
        if (strcmp(text_of(next, "knob"), text_of(row, "knob")) == 0) continue;
        const struct boot b = interval_of(chosen, "vs_default");
        put_text(r, "| %s | %s | %zu | %s | %s |", text_of(row, "knob"), text_of(row, "strategy"),
                 n, text_of(json_array_get(rows, first), "value"), text_of(chosen, "value"));
        put_interval(r, &b);
        put_text(r, "\n");
        n = 0;
    }
}

static void put_losses(struct report *r, const json_t *rows)
{
    const json_t *row;
    const char *now = "";
    size_t i;
    put_text(
        r,
        "\nLoss on the texts that were not searched, by ratio (KL to full / reuse's [95 %%]):\n\n");
    json_array_foreach(rows, i, row)
    {
        if (*text_of(row, "knob")) continue;
        if (strcmp(now, text_of(row, "strategy")) != 0)
            put_text(r, "%s- `%s`:", *now ? "\n" : "", text_of(row, "strategy"));
        now = text_of(row, "strategy");
        put_text(r, " %.2f: %.3f [%.3f, %.3f];", number_of(row, "ratio"), number_of(row, "loss"),
                 number_of(row, "loss_lo"), number_of(row, "loss_hi"));
    }
    put_text(r, "\n");
}

static void put_calibration(struct report *r, const json_t *run)
{
    const json_t *meta = json_object_get(run, "meta"), *p = json_object_get(meta, "profile"),
                 *rows = json_object_get(run, "rows");
    put_text(r, "\n## Calibration: %s\n\n", text_of(meta, "model"));
    put_origin(r, meta);
    put_text(r, "%s. %.0f s on that machine as it was.\n", text_of(p, "measured"),
             number_of(meta, "seconds"));
    put_knobs(r, rows);
    put_losses(r, rows);
    put_text(r, "\nChosen: `%s` at %.3f for a loss of %g.\n", text_of(p, "strategy"),
             number_of(p, "ratio"), number_of(p, "loss"));
}

static int put_run(struct report *r, size_t at, struct err *err)
{
    const json_t *run = r->run[at], *meta = json_object_get(run, "meta");
    const char *kind[KINDS_MAX];
    const size_t n = kinds_of(run, kind);
    int rc = 0;
    put_text(r, "\n## %s%s\n\n", data_of(meta), has_sink(run) ? "" : ", without the sink");
    put_origin(r, meta);
    if (!has_sink(run)) {
        put_sinkless(r, run);
        return 0;
    }
    if (n > 0) put_table(r, run, kind[n - 1]);
    if (n > 1) put_text(r, "\n<details><summary>By kind of line</summary>\n");
    for (size_t i = 0; i + 1 < n; i++)
        put_table(r, run, kind[i]);
    if (n > 1) put_text(r, "\n</details>\n");
    put_settings(r, run);
    put_fastest(r, meta);
    if (n > 0) rc = put_chart(r, at, kind[n - 1], err);
    return rc;
}

/* default against hkvd at 0.15, over all runs: what the project claims in a line each. */
static void put_claims(struct report *r)
{
    bool any = false;
    for (size_t i = 0; i < r->n; i++) {
        const char *kind[KINDS_MAX];
        const size_t n = kinds_of(r->run[i], kind);
        const json_t *row;
        size_t k;
        if (n == 0 || !has_sink(r->run[i])) continue;
        json_array_foreach(json_object_get(r->run[i], "rows"), k, row)
        {
            const struct boot b = interval_of(row, "kl_forced_vs_baseline");
            if (strcmp(text_of(row, "strategy"), "default") != 0 || !isfinite(b.value)) continue;
            if (strcmp(text_of(row, "kind"), kind[n - 1]) != 0) continue;
            if (!any)
                put_text(r, "\nThe default against `hkvd` at 0.15, line by line:\n\n"
                            "| data | n | default at | KL / hkvd's at 0.15 [95 %%] | |\n"
                            "|---|---|---|---|---|\n");
            any = true;
            put_text(r, "| %s | %.0f | %.2f |", data_of(json_object_get(r->run[i], "meta")),
                     number_of(row, "n"), number_of(row, "ratio"));
            put_interval(r, &b);
            put_text(r, " %s |\n", verdict(&b));
        }
    }
}

static int write_file(const struct buf *b, const char *path, struct err *err)
{
    FILE *f = fopen(path, "we");
    const bool ok = f && fwrite(b->data, 1, b->len, f) == b->len;
    if (f && fclose(f) == 0 && ok) return 0;
    return err_set(err, -EIO, "%s: cannot be written", path);
}

static const char head[] =
    "# Quality\n\n"
    "<!-- Generated by kvblend-bench quality --report from measured runs: do not edit. -->\n\n"
    "How much of a full prefill's behaviour each strategy keeps. KL: mean KL(full ‖ method) in "
    "nats, "
    "teacher-forced over the\nfirst tokens of full's own answer, or over the suffix where the data "
    "is a text that goes on. `/ reuse's`: as a share of plain\nreuse's on the same lines (the "
    "loss: "
    "0 a full prefill, 1 no blending). Intervals: paired bootstrap over lines. `cost`: "
    "token-layers\ncomputed, as a share of full's. `speed-up`: full's time to first token by the "
    "method's in the same run, all chunks in RAM. `default`: what\na request without settings "
    "gets. Methods and options: `tools/bench/README.md`.\n";

int report_write(const json_t *const *run, const char *const *name, size_t n, const char *notes,
                 const char *path, struct err *err)
{
    static struct report r; /* two columns of figures: too much for a stack */
    const size_t len = strlen(path), base = len > 3 && strcmp(path + len - 3, ".md") == 0 ? 3 : 0;
    int rc = 0;
    r = (struct report){.run = run, .name = name, .n = n, .md = BUF_INIT};
    (void)snprintf(r.base, sizeof r.base, "%.*s", (int)(len - base), path);
    put_text(&r, "%s", head);
    put_claims(&r);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (json_object_get(json_object_get(run[i], "meta"), "profile"))
            put_calibration(&r, run[i]);
        else
            rc = put_run(&r, i, err);
    }
    if (notes) put_text(&r, "\n%s", notes);
    if (rc == 0) rc = write_file(&r.md, path, err);
    buf_fini(&r.md);
    return rc;
}
