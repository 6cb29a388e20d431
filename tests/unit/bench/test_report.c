#include "tools/bench/report.h"

#include "tests/test.h"

#include <unistd.h>

static char *slurp(const char *path)
{
    static char text[1 << 20];
    FILE *f = fopen(path, "re");
    ASSERT_TRUE(f != NULL);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    (void)fclose(f);
    return text;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part)) test_fail(__FILE__, __LINE__, "\"%s\" is not in\n%s", part, text);
}

/* A row whose lines have these divergences; full's, reuse's and hkvd's come from the same lines. */
static json_t *row(const char *strategy, double ratio, const char *kind, double a, double b)
{
    const double mean = (a + b) / 2;
    json_t *r = json_pack(
        "{s:s, s:f, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:[f,f]}", "strategy", strategy,
        "ratio", ratio, "kind", kind, "n", 2, "kl_forced", mean, "kl_forced_vs_reuse", mean / 0.4,
        "kl_forced_vs_baseline", mean / 0.2, "kl_forced_vs_baseline_lo", mean / 0.25,
        "kl_forced_vs_baseline_hi", mean / 0.15, "cost", 0.25, "speedup", 2.5, "kl_lines", a, b);
    return r;
}

static json_t *run_of(bool sink, json_t *rows)
{
    return json_pack("{s:{s:s, s:s, s:s, s:s, s:b, s:[{s:s, s:s, s:f, s:f}]}, s:o}", "meta", "data",
                     "/somewhere/texts.jsonl", "model", "Tiny", "command", "kvblend-bench quality",
                     "date", "2026-01-02", "sink", sink, "within_loss", "kind", "all", "strategy",
                     "qs", "max_loss", 0.3, "ratio", 0.1, "rows", rows);
}

static json_t *plain_run(void)
{
    json_t *rows = json_array();
    static const double ratio[] = {0.05, 0.15};
    for (size_t k = 0; k < 2; k++) {
        const char *kind = k ? "all" : "coref";
        json_array_append_new(rows, row("full", 1, kind, 0, 0));
        json_array_append_new(rows, row("reuse", 0, kind, 0.3, 0.5));
        for (size_t i = 0; i < 2; i++) {
            json_array_append_new(rows, row("hkvd", ratio[i], kind, 0.2, 0.2));
            json_array_append_new(rows, row("hkvd:check=2", ratio[i], kind, 0.1, 0.1));
            json_array_append_new(rows, row("hkvd:tensor=V", ratio[i], kind, 0.4, 0.3));
            json_array_append_new(rows, row("hkvd:tensor=KV", ratio[i], kind, 0.1, 0.4));
            json_array_append_new(rows, row("default", ratio[i], kind, 0.05, 0.05));
        }
    }
    return run_of(true, rows);
}

TEST(a_page_from_runs)
{
    char dir[] = "/tmp/kvb-report-XXXXXX", path[64], chart[80];
    struct err err = {0};
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    (void)snprintf(path, sizeof path, "%s/q.md", dir);
    (void)snprintf(chart, sizeof chart, "%s/q-first.svg", dir);
    json_t *bare = json_array();
    json_array_append_new(bare, row("reuse", 0, "all", 0.6, 1.0));
    const json_t *run[] = {plain_run(), run_of(false, bare)};
    const char *const name[] = {"first", "second"};
    ASSERT_OK(report_write(run, name, 2, "## Said by hand\n", path, &err));
    const char *text = slurp(path);
    has(text, "| texts.jsonl | 2 | 0.05 | 0.250 [0.200, 0.333] | **better** |"); /* the claim */
    has(text, "```\nkvblend-bench quality\n```");
    has(text, "**all**, n = 2");
    has(text, "<details>");
    has(text, "| reuse | 0.00 | 0.40000 | 1.000 | 2.000 [1.600, 2.667] | – | – | 0.250 | 2.50 |");
    /* Settings against the same without them, line by line. */
    has(text, "| `hkvd:check=2` | all | 0.05 | 0.250 | 0.500 | 0.250 | **better** |");
    has(text, "| `hkvd:tensor=V` | all | 0.05 | 0.875 | 1.750 [1.500, 2.000] | 0.250 | worse |");
    has(text, "| `hkvd:tensor=KV` | all | 0.05 | 0.625 | 1.250 [0.500, 2.000] | 0.250 | level |");
    has(text, "## texts.jsonl, without the sink");
    has(text, "| reuse | all | 0.00 | 0.80000 | 2.000 | worse |");
    has(text, "- all: the fastest that keeps a loss of 0.3 is qs at 0.10");
    has(text, "![loss by ratio](q-first.svg)");
    has(text, "\n## Said by hand\n");
    ASSERT_TRUE(!strstr(text, "/somewhere"));
    text = slurp(chart);
    has(text, "default");
    ASSERT_TRUE(!strstr(text, "check=2"));
    (void)unlink(chart);
    (void)unlink(path);
    ASSERT_OK(rmdir(dir)); /* and no other file */
    json_decref((json_t *)(size_t)run[0]);
    json_decref((json_t *)(size_t)run[1]);
}

TEST(a_calibration_says_what_was_looked_at)
{
    char path[] = "/tmp/kvb-report-XXXXXX";
    struct err err = {0};
    json_t *run =
        json_pack("{s:{s:s, s:f, s:{s:s, s:s, s:f, s:f}}, s:[{s:s, s:s, s:s, s:b, s:f, s:f, s:f},"
                  "{s:s, s:s, s:s, s:b, s:f, s:f, s:f}, {s:s, s:f, s:f, s:f, s:f}]}",
                  "meta", "model", "Tiny", "seconds", 12.0, "profile", "measured", "today",
                  "strategy", "qs", "ratio", 0.12, "loss", 0.25, "rows", "knob", "check layer",
                  "strategy", "hkvd", "value", "1", "chosen", 0, "vs_default", 1.0, "vs_default_lo",
                  1.0, "vs_default_hi", 1.0, "knob", "check layer", "strategy", "hkvd", "value",
                  "2", "chosen", 1, "vs_default", 0.8, "vs_default_lo", 0.7, "vs_default_hi", 0.9,
                  "strategy", "qs", "ratio", 0.1, "loss", 0.3, "loss_lo", 0.2, "loss_hi", 0.4);
    ASSERT_TRUE(run != NULL);
    const json_t *runs[] = {run};
    const char *const name[] = {"cal"};
    (void)close(mkstemp(path));
    ASSERT_OK(report_write(runs, name, 1, NULL, path, &err));
    const char *text = slurp(path);
    has(text, "## Calibration: Tiny");
    has(text, "| check layer | hkvd | 2 | 1 | 2 | 0.800 [0.700, 0.900] |");
    has(text, "- `qs`: 0.10: 0.300 [0.200, 0.400];");
    has(text, "Chosen: `qs` at 0.120 for a loss of 0.25.");
    (void)unlink(path);
    json_decref(run);
}

TEST(a_page_that_cannot_be_written)
{
    struct err err = {0};
    ASSERT_ERR(report_write(NULL, NULL, 0, NULL, "/nonexistent/q.md", &err), -EIO);
    has(err.msg, "/nonexistent/q.md");
}
