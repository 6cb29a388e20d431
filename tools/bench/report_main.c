/* kvblend-bench quality --report: reads runs and writes the page. */
#include "tools/bench/bench.h"
#include "tools/bench/report.h"

#include "base/buf.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

struct runs {
    json_t *run[REPORT_RUNS_MAX];
    char *name[REPORT_RUNS_MAX]; /* of the file, without folder and ending */
    size_t n;
};

static int read_run(struct runs *all, const char *path, size_t len, struct err *err)
{
    char file[4096];
    json_error_t e;
    if (len >= sizeof file) return err_set(err, -ERANGE, "--report-from: a path is too long");
    if (all->n == REPORT_RUNS_MAX)
        return err_set(err, -ERANGE, "--report-from: more than %d files", REPORT_RUNS_MAX);
    (void)snprintf(file, sizeof file, "%.*s", (int)len, path);
    json_t *run = json_load_file(file, 0, &e);
    if (!json_is_object(json_object_get(run, "meta")) ||
        !json_is_array(json_object_get(run, "rows"))) {
        json_decref(run);
        return err_set(err, -EBADMSG, "%s: it is not what --json has written%s%s", file,
                       run ? "" : ": ", run ? "" : e.text);
    }
    const char *base = strrchr(file, '/');
    base = base ? base + 1 : file;
    const size_t n = strlen(base);
    all->name[all->n] = mem_strndup(base, n > 5 && strcmp(base + n - 5, ".json") == 0 ? n - 5 : n);
    all->run[all->n] = run;
    return all->name[all->n++] ? 0 : err_set(err, -ENOMEM, "out of memory");
}

static int read_notes(const char *path, struct buf *ret, struct err *err)
{
    char piece[4096];
    size_t n;
    int r = 0;
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
    while (r == 0 && (n = fread(piece, 1, sizeof piece, f)) > 0)
        r = buf_add(ret, piece, n);
    (void)fclose(f);
    return r;
}

static int write_report(const struct opts *opts, struct err *err)
{
    struct runs all = {.n = 0};
    struct buf notes = BUF_INIT;
    const char *list = opt_str(opts, "report-from");
    int r = *list ? 0
                  : err_set(err, -EINVAL,
                            "--report needs --report-from FILE,FILE…, written by "
                            "--json");
    while (r == 0 && *list) {
        const size_t n = strcspn(list, ",");
        r = read_run(&all, list, n, err);
        list += n + (list[n] == ',');
    }
    if (r == 0 && opt_given(opts, "notes")) r = read_notes(opt_str(opts, "notes"), &notes, err);
    if (r == 0)
        r = report_write((const json_t *const *)all.run, (const char *const *)all.name, all.n,
                         notes.len ? buf_cstr(&notes) : NULL,
                         opt_given(opts, "out") ? opt_str(opts, "out") : "docs/quality.md", err);
    for (size_t i = 0; i < all.n; i++) {
        json_decref(all.run[i]);
        mem_free(all.name[i]);
    }
    buf_fini(&notes);
    return r;
}

static const struct opt_def write_report_options[] = {
    {.name = "report-from", .type = OPT_STR, .help = "files that --json has written"},
    {.name = "notes", .type = OPT_STR, .help = "Markdown for the end of the report"},
    {.name = "out", .type = OPT_STR, .help = "page to write; default: docs/quality.md"},
    {0}};

const struct bench_sub bench_report = {.name = "quality report",
                                       .about = "docs/quality.md from measured runs",
                                       .shared = "",
                                       .options = write_report_options,
                                       .run = write_report};
