/* kvblend-bench replay --decisions: every decision of a worker's log, decided again.
 *
 * The log has the snapshot that each decision was made from, so the same controller must decide the
 * same, bit for bit; a changed one shows what it would have done otherwise. */
#include "tools/bench/bench.h"

#include "base/mem.h"
#include "worker/reuse/control_io.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_MAX = 10, LINE_BYTES_MAX = 1 << 20 };

struct tally {
    size_t n_lines, n_bad, n_decided, n_same;
    double *error; /* |predicted - measured| / measured */
    size_t n_errors, cap;
};

static int note_error(struct tally *t, const struct ctl_decision *d)
{
    double was = d->measured.prefill_s, foreseen = d->out.predicted.ttft_s;
    if (!d->measured.whole || was <= 0 || foreseen <= 0) return 0;
    if (t->n_errors == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 1024;
        double *more = mem_realloc(t->error, cap * sizeof *more);
        if (!more) return -ENOMEM;
        t->error = more;
        t->cap = cap;
    }
    t->error[t->n_errors++] = fabs(foreseen - was) / was;
    return 0;
}

static int again(struct tally *t, const struct ctl_decision *d, json_t *rows)
{
    char why[160];
    int r = note_error(t, d);
    if (r < 0 || d->by != CTL_BY_CONTROLLER) return r;
    t->n_decided++;
    if (ctl_decision_replay(d, why) == 1) {
        t->n_same++;
        return 0;
    }
    if (json_array_size(rows) < SHOWN_MAX) (void)printf("%s: %s\n", d->id, why);
    json_array_append_new(
        rows, json_pack("{s:s, s:i, s:s}", "id", d->id, "prompt", (int)d->prompt, "differs", why));
    return 0;
}

static int read_line(struct tally *t, const char *line, json_t *rows)
{
    struct ctl_decision *d = NULL;
    struct err e = {0};
    json_t *o = json_loads(line, 0, NULL);
    int r = 0;
    t->n_lines++;
    if (o && ctl_decision_parse(o, &d, &e) == 0)
        r = again(t, d, rows);
    else if (t->n_bad++ == 0)
        (void)fprintf(stderr, "line %zu: %s\n", t->n_lines, o ? e.msg : "not JSON");
    ctl_decision_free(d);
    json_decref(o);
    return r;
}

static int read_log(struct tally *t, const char *path, json_t *rows, struct err *err)
{
    FILE *f = fopen(path, "re");
    char *line = mem_alloc(LINE_BYTES_MAX);
    int r = line ? 0 : -ENOMEM;
    if (!f) r = err_set(err, -errno, "--decisions: \"%s\": %s", path, strerror(errno));
    while (r == 0 && fgets(line, LINE_BYTES_MAX, f))
        r = read_line(t, line, rows);
    mem_free(line);
    if (f) (void)fclose(f);
    return r;
}

int bench_decisions(const struct opts *opts, struct err *err)
{
    struct tally t = {0};
    json_t *meta = bench_meta(), *rows = json_array();
    int r = read_log(&t, opt_str(opts, "decisions"), rows, err);
    if (r == 0 && t.n_lines == t.n_bad) r = err_set(err, -EINVAL, "no decision could be read");
    if (r == 0) {
        double error = bench_quantile(t.error, t.n_errors, 0.5);
        json_t *own = json_pack("{s:i, s:i, s:i, s:i, s:o}", "lines", (int)t.n_lines, "unreadable",
                                (int)t.n_bad, "decided", (int)t.n_decided, "same", (int)t.n_same,
                                "prediction_error_median", bench_number(error));
        json_object_update(meta, own);
        json_decref(own);
        (void)printf("%zu lines, %zu decided by the controller, %zu of them the same again\n",
                     t.n_lines, t.n_decided, t.n_same);
        if (t.n_errors)
            (void)printf("median error of the predicted prefill: %.1f %% of %zu measured\n",
                         100 * error, t.n_errors);
        r = bench_write_json(opts, meta, rows, err);
    }
    if (r == 0 && (t.n_same < t.n_decided || t.n_bad > 0))
        r = err_set(err, -EBADMSG, "%zu decisions differ, %zu lines were unreadable",
                    t.n_decided - t.n_same, t.n_bad);
    mem_free(t.error);
    json_decref(meta);
    json_decref(rows);
    return r;
}
