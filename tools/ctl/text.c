/* warm and segment: files in, what the worker makes of them out. */
#include "tools/ctl/ctl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    FILE_BYTES_MAX = 1 << 30,
    BATCH_TEXTS = 64,      /* a batch is one request, so that progress can be shown */
    BATCH_BYTES = 4 << 20, /* well below the gateway's body limit */
    PREVIEW_CHARS = 44,
};

/* The whole operand ("-": standard input); 0 or CTL_REFUSED with a sentence. */
static int read_operand(const struct ctl_args *a, struct buf *out)
{
    const char *path = a->operand;
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    size_t n = 0;
    if (!f) return ctl_fail(a, CTL_REFUSED, "%s: %s", path, strerror(errno));
    do {
        if (buf_reserve(out, 65536) < 0 || out->len > FILE_BYTES_MAX) break;
        n = fread(out->data + out->len, 1, 65536, f);
        out->len += n;
    } while (n > 0);
    bool ok = feof(f) && !ferror(f);
    if (f != stdin) (void)fclose(f);
    return ok ? 0 : ctl_fail(a, CTL_REFUSED, "%s cannot be read to its end", path);
}

static json_t *text_of(json_t *v)
{
    json_t *t = json_is_object(v) ? json_object_get(v, "text") : v;
    return json_is_string(t) ? t : NULL;
}

static json_t *bad_text(const struct ctl_args *a, size_t at, json_t *list)
{
    (void)ctl_fail(a, CTL_REFUSED, "%s: entry %zu is neither a text nor an object with \"text\"",
                   a->operand, at);
    json_decref(list);
    return NULL;
}

static json_t *texts_of_lines(const struct ctl_args *a, const struct buf *c)
{
    json_t *out = json_array();
    const char *p = c->data, *end = c->data + c->len;
    for (size_t line = 1; p < end; line++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);
        if (strspn(p, " \t\r") < n) {
            json_t *v = json_loadb(p, n, JSON_DECODE_ANY, NULL);
            json_t *t = text_of(v);
            if (t) (void)json_array_append(out, t);
            json_decref(v);
            if (!t) return bad_text(a, line, out);
        }
        p += n + 1;
    }
    return out;
}

/* A JSON array of strings: of a JSON list, JSON lines with "text", or one text. NULL with a
 * sentence. */
static json_t *texts_of_file(const struct ctl_args *a, const struct buf *c)
{
    const char *path = a->operand;
    size_t n = strlen(path), i;
    json_t *v, *out;
    if (n > 6 && strcmp(path + n - 6, ".jsonl") == 0) return texts_of_lines(a, c);
    json_t *list = json_loadb(c->data ? c->data : "", c->len, 0, NULL);
    if (!json_is_array(list)) { /* one chunk: the text itself */
        json_decref(list);
        out = json_array();
        v = json_stringn(c->data ? c->data : "", c->len);
        if (!v || json_array_append_new(out, v) < 0) {
            (void)ctl_fail(a, CTL_REFUSED, "%s is not text in UTF-8", path);
            json_decref(out);
            return NULL;
        }
        return out;
    }
    out = json_array();
    json_array_foreach(list, i, v)
    {
        json_t *t = text_of(v);
        if (!t) {
            json_decref(list);
            return bad_text(a, i, out);
        }
        (void)json_array_append(out, t);
    }
    json_decref(list);
    return out;
}

static int to_buf(const char *data, size_t len, void *ctx)
{
    return buf_add(ctx, data, len);
}

/* Send texts [from, …) of the list that fit one batch; *ret_n: how many. */
static int warm_batch(const struct ctl_args *a, const json_t *texts, size_t from, size_t *ret_n,
                      struct ctl_reply *ret)
{
    json_t *batch = json_array(), *body = json_object();
    struct buf b = BUF_INIT;
    size_t n = 0, bytes = 0;
    while (from + n < json_array_size(texts) && n < BATCH_TEXTS &&
           (n == 0 || bytes < BATCH_BYTES)) {
        json_t *t = json_array_get(texts, from + n++);
        bytes += json_string_length(t);
        (void)json_array_append(batch, t);
    }
    (void)json_object_set_new(body, "texts", batch);
    if (a->no_wait) (void)json_object_set_new(body, "wait", json_false());
    const char *inner = a->name_space ? strchr(a->name_space, '/') : NULL; /* of KEY/BODY */
    if (inner) (void)json_object_set_new(body, "namespace", json_string(inner + 1));
    int rc = json_dump_callback(body, to_buf, &b, JSON_COMPACT) < 0 ? CTL_REFUSED : 0;
    if (rc == 0) rc = ctl_expect(a, "POST", "/v1/segments", b.data, b.len, ret);
    json_decref(body);
    buf_fini(&b);
    *ret_n = n;
    return rc;
}

static int print_warmed(const json_t *all)
{
    static const char *const names[] = {"ID", "TOKENS", "STATUS"};
    struct ctl_table t = {0};
    size_t i;
    int rc = CTL_OK;
    const json_t *e;
    ctl_table_head(&t, names, 3, "lrl");
    json_array_foreach(all, i, e)
    {
        const char *s = ctl_str(e, "status");
        ctl_cell(&t, "%.12s", ctl_str(e, "id"));
        ctl_cell(&t, "%.0f", ctl_num(e, "tokens"));
        ctl_cell(&t, "%s", s);
        if (strcmp(s, "failed") == 0 || strcmp(s, "queue_full") == 0) rc = CTL_REFUSED;
    }
    ctl_table_print(&t);
    ctl_table_fini(&t);
    return rc;
}

static int run_warm(const struct ctl_args *a)
{
    struct buf content = BUF_INIT;
    json_t *texts = NULL, *all = json_array();
    int rc = read_operand(a, &content);
    if (rc == 0 && !(texts = texts_of_file(a, &content))) rc = CTL_REFUSED;
    size_t total = json_array_size(texts);
    if (rc == 0 && total == 0) {
        rc = ctl_fail(a, CTL_REFUSED, "%s holds no text", a->operand);
    }
    for (size_t done = 0, n; rc == 0 && done < total; done += n) {
        struct ctl_reply r;
        rc = warm_batch(a, texts, done, &n, &r);
        if (rc != 0) break;
        (void)json_array_extend(all, json_object_get(r.json, "data"));
        if (total > BATCH_TEXTS) (void)fprintf(stderr, "%zu of %zu\n", done + n, total);
        ctl_reply_fini(&r);
    }
    if (rc == 0 && a->json) {
        json_t *out = json_pack("{s:s,s:O}", "object", "list", "data", all);
        (void)json_dumpf(out, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(out);
    } else if (rc == 0) {
        rc = print_warmed(all);
    }
    json_decref(texts);
    json_decref(all);
    buf_fini(&content);
    return rc;
}

const struct ctl_command ctl_warm = {
    .name = "warm",
    .operands = "FILE",
    .options = CTL_NAMESPACE | CTL_NO_WAIT,
    .help = "build chunks: .jsonl with \"text\", a JSON list, or one text",
    .run = run_warm};

/* ---- segment ---- */

/* The text a cut refers to: a message's content (parts joined as the worker joins them) or the
 * prompt. */
static int text_of_cut(const json_t *request, const json_t *cut, struct buf *out)
{
    const json_t *m =
        json_array_get(json_object_get(request, "messages"), (size_t)ctl_num(cut, "message"));
    const json_t *c = json_object_get(m, "content"), *part;
    size_t i, n = 0;
    if (!c) c = json_object_get(request, "prompt");
    if (json_is_string(c)) return buf_add(out, json_string_value(c), json_string_length(c));
    json_array_foreach(c, i, part)
    {
        const json_t *t = json_object_get(part, "text");
        if (!json_is_string(t)) continue;
        if (n++ > 0 && buf_addc(out, '\n') < 0) return -ENOMEM;
        if (buf_add(out, json_string_value(t), json_string_length(t)) < 0) return -ENOMEM;
    }
    return 0;
}

/* Its start, on one line. */
static void preview(const json_t *request, const json_t *cut, struct buf *out)
{
    struct buf text = BUF_INIT;
    size_t begin = (size_t)ctl_num(cut, "begin"), end = (size_t)ctl_num(cut, "end"), chars = 0;
    if (text_of_cut(request, cut, &text) < 0 || end > text.len) end = begin;
    for (size_t i = begin; i < end; i++) {
        unsigned char x = (unsigned char)text.data[i];
        bool starts = (x & 0xC0) != 0x80;
        if (starts && chars++ == PREVIEW_CHARS) {
            (void)buf_adds(out, "…");
            break;
        }
        (void)buf_addc(out, x < 0x20 || x == 0x7f ? ' ' : (char)x);
    }
    buf_fini(&text);
}

static void print_cuts(const json_t *r, const json_t *request)
{
    static const char *const names[] = {"MESSAGE", "BYTES", "TOKENS", "DETECTOR",
                                        "CACHED",  "ID",    "TEXT"};
    struct ctl_table t = {0};
    size_t i;
    const json_t *e;
    ctl_table_head(&t, names, 7, "rlrllll");
    json_array_foreach(json_object_get(r, "segments"), i, e)
    {
        struct buf text = BUF_INIT;
        preview(request, e, &text);
        ctl_cell(&t, "%.0f", ctl_num(e, "message"));
        ctl_cell(&t, "%.0f-%.0f", ctl_num(e, "begin"), ctl_num(e, "end"));
        ctl_cell(&t, "%.0f", ctl_num(e, "tokens"));
        ctl_cell(&t, "%s", ctl_str(e, "detector"));
        ctl_cell(&t, "%s%s", ctl_flag(e, "cached") ? "" : "no: ",
                 ctl_flag(e, "cached") ? ctl_str(e, "tier") : ctl_str(e, "miss"));
        ctl_cell(&t, "%.12s", ctl_str(e, "id"));
        ctl_cell(&t, "%s", buf_cstr(&text));
        buf_fini(&text);
    }
    ctl_table_print(&t);
    ctl_table_fini(&t);
}

static void print_outcome(const json_t *r)
{
    const json_t *k = json_object_get(r, "tokens");
    size_t n = json_array_size(json_object_get(r, "segments"));
    double all = ctl_num(r, "prompt_tokens"), again = ctl_num(k, "recomputed");
    double fresh = ctl_num(k, "computed") + again;
    (void)printf(
        "\nprompt      %.0f tokens: %.0f before the first chunk, %zu chunks, %.0f after the "
        "last\n",
        all, ctl_num(r, "preamble_tokens"), n, ctl_num(r, "suffix_tokens"));
    (void)printf("would run   mode %s, strategy %s, ratio %g\n", ctl_str(r, "mode"),
                 ctl_str(r, "strategy"), ctl_num(r, "ratio"));
    (void)printf("reused      %.0f tokens (%.0f as exact prefix, %.0f blended)\n",
                 ctl_num(k, "prefix") + ctl_num(k, "reused"), ctl_num(k, "prefix"),
                 ctl_num(k, "reused"));
    (void)printf("recomputed  %.0f tokens of reused chunks, %.0f tokens that nothing holds\n",
                 again, ctl_num(k, "computed"));
    if (all > 0) (void)printf("to compute  %.0f %% of the prompt\n", 100 * fresh / all);
}

/* A few bytes on either side of a gap, on one line. */
static void around(const json_t *request, const json_t *why, struct buf *out)
{
    enum { AROUND_BYTES = 24 };
    struct buf text = BUF_INIT;
    size_t begin = (size_t)ctl_num(why, "begin"), end = (size_t)ctl_num(why, "end");
    if (text_of_cut(request, why, &text) < 0 || end > text.len || begin > end) begin = end = 0;
    size_t from = begin > AROUND_BYTES ? begin - AROUND_BYTES : 0;
    size_t to = text.len - end > AROUND_BYTES ? end + AROUND_BYTES : text.len;
    while (from < begin && ((unsigned char)text.data[from] & 0xC0) == 0x80)
        from++;
    while (to > end && to < text.len && ((unsigned char)text.data[to] & 0xC0) == 0x80)
        to--;
    for (size_t i = from; i < to; i++) {
        if (i == begin) (void)buf_adds(out, " | ");
        unsigned char x = (unsigned char)text.data[i];
        if (i < begin || i >= end) (void)buf_addc(out, x < 0x20 || x == 0x7f ? ' ' : (char)x);
    }
    buf_fini(&text);
}

/* The reasons that occur in the list, in words (the table of segment/README.md). */
static void print_reasons(const json_t *list)
{
    static const char *const words[][2] = {
        {"both_sides_vary", "cut: either text was seen with other neighbours"},
        {"next_varies", "cut: another text was seen behind this one"},
        {"previous_varies", "cut: another text was seen before this one"},
        {"one_side_constant", "whole: one side varies, the other never did"},
        {"moves_together", "whole: both sides came together in other company"},
        {"usual_boundary", "cut: gaps of this form mostly are boundaries here"},
        {"usual_inside", "whole: gaps of this form mostly lie inside a document here"},
        {"first_sight", "cut: nothing is known yet, so paragraphs are blocks"},
        {"short_pieces_joined", "whole: nothing is known yet, and short paragraphs are joined"},
        {"kept_text", "cut: a text that was cut before stands here"},
        {"inside_kept_text", "whole: inside a text that was cut before"},
        {"near_a_better_cut", "whole: too close to a better boundary"},
        {"question", "cut: the question begins here"},
        {"edge", "cut: the text's beginning or end"},
        {"marker", "cut: a framework's marker or a part, document or range of the request"},
        {"separator", "cut: the separator stands here"},
        {"not_a_chunk", "a boundary between two texts that are no chunks"},
        {"short_text", "whole: a short typed text, for the first time"},
    };
    (void)printf("\n");
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        size_t i;
        const json_t *e;
        json_array_foreach(list, i, e)
        {
            if (strcmp(ctl_str(e, "reason"), words[k][0]) != 0) continue;
            (void)printf("  %-20s %s\n", words[k][0], words[k][1]);
            break;
        }
    }
}

/* Every gap: is it cut, and why or why not. */
static void print_boundaries(const json_t *list, const json_t *request)
{
    static const char *const names[] = {"MESSAGE", "AT",     "GAP",        "CUT", "WHY",
                                        "BEFORE",  "BEHIND", "CONFIDENCE", "TEXT"};
    struct ctl_table t = {0};
    size_t i;
    const json_t *e;
    if (json_array_size(list) == 0) return;
    (void)printf("\nboundaries (BEFORE, BEHIND: different neighbours seen of the text there)\n");
    ctl_table_head(&t, names, 9, "rrlllrrrl");
    json_array_foreach(list, i, e)
    {
        struct buf text = BUF_INIT;
        around(request, e, &text);
        ctl_cell(&t, "%.0f", ctl_num(e, "message"));
        ctl_cell(&t, "%.0f", ctl_num(e, "end"));
        ctl_cell(&t, "%s", ctl_str(e, "form"));
        ctl_cell(&t, "%s", ctl_flag(e, "cut") ? "yes" : "no");
        ctl_cell(&t, "%s", ctl_str(e, "reason"));
        ctl_cell(&t, "%.0f", ctl_num(e, "neighbours_before"));
        ctl_cell(&t, "%.0f", ctl_num(e, "neighbours_behind"));
        ctl_cell(&t, "%.2f", ctl_num(e, "confidence"));
        ctl_cell(&t, "%s", buf_cstr(&text));
        buf_fini(&text);
    }
    ctl_table_print(&t);
    ctl_table_fini(&t);
    print_reasons(list);
}

/* What the gateway alone sees: no worker was there to count tokens and look records up. */
static void print_places(const json_t *r, const json_t *request)
{
    static const char *const names[] = {"MESSAGE", "BYTES", "TEXT"};
    struct ctl_table t = {0};
    size_t i;
    const json_t *e;
    (void)printf("no worker answered; the gateway would cut (%s):\n", ctl_str(r, "detector"));
    ctl_table_head(&t, names, 3, "rrl");
    json_array_foreach(json_object_get(r, "segments"), i, e)
    {
        struct buf text = BUF_INIT;
        bool document = json_is_null(json_object_get(e, "message"));
        if (!document) preview(request, e, &text);
        ctl_cell(&t, document ? "document" : "%.0f", ctl_num(e, "message"));
        ctl_cell(&t, "%.0f-%.0f", ctl_num(e, "begin"), ctl_num(e, "end"));
        ctl_cell(&t, "%s", buf_cstr(&text));
        buf_fini(&text);
    }
    ctl_table_print(&t);
    ctl_table_fini(&t);
}

/* The worker's view of the request; where there is none, the gateway's. */
static int ask_cuts(const struct ctl_args *a, const char *query, const struct buf *content,
                    struct ctl_reply *ret)
{
    struct buf path = BUF_INIT, instead = BUF_INIT;
    int rc = CTL_REFUSED;
    if (buf_addf(&path, "/admin/segment%s", query) < 0 ||
        buf_addf(&instead, "/admin/boundaries%s", query) < 0)
        goto out;
    rc = ctl_ask(a, "POST", buf_cstr(&path), content->data, content->len, ret);
    if (rc == 0 && ret->status != 200) {
        bool nobody = ret->status == 404 || ret->status >= 500;
        const struct buf *target = nobody ? &instead : &path; /* again, to say what is wrong */
        ctl_reply_fini(ret);
        rc = ctl_expect(a, "POST", target->data, content->data, content->len, ret);
    }
out:
    buf_fini(&path);
    buf_fini(&instead);
    return rc;
}

/* A worker that cut by itself has said why; otherwise the gateway can tell, if there is one. */
static void add_boundaries(const struct ctl_args *a, const struct buf *content, const char *query,
                           json_t *reply)
{
    struct buf path = BUF_INIT;
    struct ctl_reply r;
    if (json_object_get(reply, "boundaries") || buf_addf(&path, "/admin/boundaries%s", query) < 0 ||
        ctl_ask(a, "POST", buf_cstr(&path), content->data, content->len, &r) != 0) {
        buf_fini(&path);
        return;
    }
    json_t *list = r.status == 200 ? json_object_get(r.json, "boundaries") : NULL;
    if (list) (void)json_object_set(reply, "boundaries", list);
    ctl_reply_fini(&r);
    buf_fini(&path);
}

static int run_segment(const struct ctl_args *a)
{
    struct buf content = BUF_INIT, query = BUF_INIT;
    struct ctl_reply r;
    int rc = read_operand(a, &content);
    if (rc == 0 && a->name_space && buf_addf(&query, "?space=%s", a->name_space) < 0)
        rc = CTL_REFUSED;
    if (rc == 0) rc = ask_cuts(a, buf_cstr(&query), &content, &r);
    if (rc == 0) {
        json_t *request = json_loadb(content.data, content.len, 0, NULL);
        add_boundaries(a, &content, buf_cstr(&query), r.json);
        if (a->json) {
            (void)json_dumpf(r.json, stdout, JSON_COMPACT);
            (void)putchar('\n');
        } else {
            bool whole = json_object_get(r.json, "prompt_tokens") != NULL;
            if (json_array_size(json_object_get(r.json, "segments")) == 0)
                (void)printf("no chunk was found in this request\n");
            else if (whole)
                print_cuts(r.json, request);
            else
                print_places(r.json, request);
            print_boundaries(json_object_get(r.json, "boundaries"), request);
            if (whole) print_outcome(r.json);
        }
        json_decref(request);
        ctl_reply_fini(&r);
    }
    buf_fini(&content);
    buf_fini(&query);
    return rc;
}

const struct ctl_command ctl_segment = {
    .name = "segment",
    .operands = "FILE",
    .options = CTL_NAMESPACE,
    .help = "explain how a captured request would be cut and served",
    .run = run_segment};
