/* warm, segment, export and import: files in, what the worker makes of them out. */
#include "tools/ctl/ctl.h"

#include <errno.h>
#include <stdio.h>

enum {
    FILE_BYTES_MAX = 1 << 30,
    BATCH_TEXTS = 64,      /* a batch is one request, so that progress can be shown */
    BATCH_BYTES = 4 << 20, /* well below the gateway's body limit */
    BATCH_RECORDS = 1000,
    PREVIEW_CHARS = 44,
    AROUND_BYTES = 24,
};

/* The whole operand ("-": standard input); 0 or CTL_REFUSED with a sentence. */
static int read_operand(const struct ctl_args *a, struct buf *out)
{
    const char *path = strcmp(a->operand, "-") == 0 ? "/dev/stdin" : a->operand;
    FILE *f = fopen(path, "rb");
    if (!f) return ctl_fail(a, CTL_REFUSED, "%s: %s", path, strerror(errno));
    while (!feof(f) && !ferror(f) && out->len < FILE_BYTES_MAX && buf_reserve(out, 65536) == 0)
        out->len += fread(out->data + out->len, 1, 65536, f);
    bool ok = feof(f);
    (void)fclose(f);
    return ok ? CTL_OK : ctl_fail(a, CTL_REFUSED, "%s cannot be read to its end", path);
}

/* ---- warm ---- */

/* Of a JSON list, JSON lines, or one text; NULL: it is not UTF-8. */
static json_t *read_entries(bool lines, struct buf *content)
{
    const char *text = buf_cstr(content);
    json_t *list = lines ? json_array() : json_loadb(text, content->len, 0, NULL);
    for (char *rest = content->data, *line; lines && (line = strsep(&rest, "\n"));) {
        if (!line[strspn(line, " \t\r")]) continue;
        json_t *entry = json_loads(line, JSON_DECODE_ANY, NULL);
        (void)json_array_append_new(list, entry ? entry : json_null());
    }
    if (json_is_array(list)) return list;
    json_decref(list);
    return json_pack("[s%]", text, content->len);
}

/* A list of strings: entries that are objects are replaced by their "text". */
static int read_texts(const struct ctl_args *a, struct buf *content, json_t **ret)
{
    const size_t len = strlen(a->operand);
    const bool lines = len > 6 && strcmp(a->operand + len - 6, ".jsonl") == 0;
    json_t *list = read_entries(lines, content), *entry;
    size_t i;
    *ret = list;
    if (!list) return ctl_fail(a, CTL_REFUSED, "%s is not text in UTF-8", a->operand);
    json_array_foreach(list, i, entry) {
        json_t *text = json_is_object(entry) ? json_object_get(entry, "text") : entry;
        if (!json_is_string(text))
            return ctl_fail(a, CTL_REFUSED,
                            "%s: entry %zu is neither a text nor an object with \"text\"",
                            a->operand, i + 1);
        (void)json_array_set(list, i, text);
    }
    return i > 0 ? CTL_OK : ctl_fail(a, CTL_REFUSED, "%s holds no text", a->operand);
}

/* Sends texts [from, …) of the list that fit one batch; *ret_n: how many. */
static int warm_batch(const struct ctl_args *a, const json_t *texts, size_t from, size_t *ret_n,
                      struct ctl_reply *ret)
{
    const char *inner = a->name_space ? strchr(a->name_space, '/') : NULL; /* of KEY/BODY */
    json_t *batch = json_array(), *t;
    size_t n = 0, bytes = 0;
    while (n < BATCH_TEXTS && bytes < BATCH_BYTES && (t = json_array_get(texts, from + n))) {
        bytes += json_string_length(t);
        (void)json_array_append(batch, t);
        n++;
    }
    *ret_n = n;
    return ctl_order(a, "POST /v1/segments",
                     json_pack("{s:o,s:b,s:s*}", "texts", batch, "wait", !a->no_wait, "namespace",
                               inner ? inner + 1 : NULL),
                     ret);
}

static bool is_built(const json_t *record)
{
    const char *status = ctl_str(record, "status");
    return strcmp(status, "failed") != 0 && strcmp(status, "queue_full") != 0;
}

static int warm(const struct ctl_args *a)
{
    struct buf content = BUF_INIT;
    json_t *texts = NULL, *all = json_array(), *e;
    json_t *answer = json_pack("{s:s,s:o}", "object", "list", "data", all);
    size_t i;
    int rc = read_operand(a, &content);
    if (rc == CTL_OK) rc = read_texts(a, &content, &texts);
    size_t total = json_array_size(texts);
    for (size_t done = 0, n; rc == CTL_OK && done < total; done += n) {
        struct ctl_reply r;
        rc = warm_batch(a, texts, done, &n, &r);
        if (rc != CTL_OK) break;
        (void)json_array_extend(all, json_object_get(r.json, "data"));
        if (total > BATCH_TEXTS) (void)fprintf(stderr, "%zu of %zu\n", done + n, total);
        ctl_reply_fini(&r);
    }
    if (rc == CTL_OK) {
        ctl_print(a, answer, "ID\t^TOKENS\tSTATUS\n<data:{id:.12}\t{tokens}\t{status}\n>");
        json_array_foreach(all, i, e) {
            if (!a->json && !is_built(e)) rc = CTL_REFUSED;
        }
    }
    json_decref(texts);
    json_decref(answer);
    buf_fini(&content);
    return rc;
}

/* ---- export and import ---- */

/* A line each, the last used first, which import brings first: what another worker needs to find
 * them by. No text is among it. */
static int export(const struct ctl_args *a)
{
    struct ctl_reply r;
    const json_t *e;
    size_t i;
    int rc = ctl_request(a, "GET /admin/chunks?sort=idle_s&order=asc", "", &r);
    if (rc != CTL_OK) return rc;
    json_array_foreach(json_object_get(r.json, "data"), i, e) {
        if (json_is_true(json_object_get(e, "building"))) continue;
        (void)printf("{\"id\": \"%s\", \"tokens\": %.0f, \"bytes\": %.0f}\n", ctl_str(e, "id"),
                     ctl_num(e, "tokens"), ctl_num(e, "bytes"));
    }
    ctl_reply_fini(&r);
    return CTL_OK;
}

static int import_records(const struct ctl_args *a, const json_t *all, double *loaded)
{
    const size_t n = json_array_size(all);
    int rc = CTL_OK;
    for (size_t i = 0; i < n && rc == CTL_OK;) {
        struct ctl_reply r;
        json_t *batch = json_array();
        for (const size_t end = i + BATCH_RECORDS; i < n && i < end; i++)
            (void)json_array_append(batch, json_array_get(all, i));
        rc = ctl_order(a, "POST /admin/tiers/preload", json_pack("{s:o}", "records", batch), &r);
        if (rc != CTL_OK) break;
        *loaded += ctl_num(r.json, "loaded");
        if (n > BATCH_RECORDS) (void)fprintf(stderr, "%zu of %zu\n", i, n);
        ctl_reply_fini(&r);
    }
    return rc;
}

static int import(const struct ctl_args *a)
{
    struct buf content = BUF_INIT;
    double loaded = 0;
    int rc = read_operand(a, &content);
    json_t *all = rc == CTL_OK ? read_entries(true, &content) : NULL;
    if (rc == CTL_OK) rc = import_records(a, all, &loaded);
    json_t *answer = json_pack("{s:f,s:i}", "loaded", loaded, "records", (int)json_array_size(all));
    if (rc == CTL_OK) ctl_print(a, answer, "{loaded} of {records} records loaded\n");
    json_decref(answer);
    json_decref(all);
    buf_fini(&content);
    return rc;
}

/* ---- segment ---- */

/* The text a cut refers to: a message's content (parts joined as the worker joins them) or the
 * prompt. */
static void text_of_cut(const json_t *request, const json_t *cut, struct buf *out)
{
    const json_t *m =
        json_array_get(json_object_get(request, "messages"), (size_t)ctl_num(cut, "message"));
    const json_t *c = json_object_get(m, "content"), *part;
    const char *sep = "";
    size_t i;
    if (!c) c = json_object_get(request, "prompt");
    if (json_is_string(c)) (void)buf_add(out, json_string_value(c), json_string_length(c));
    json_array_foreach(c, i, part) {
        const json_t *t = json_object_get(part, "text");
        if (!json_is_string(t)) continue;
        (void)buf_adds(out, sep);
        (void)buf_add(out, json_string_value(t), json_string_length(t));
        sep = "\n";
    }
}

/* Moves i to where a character begins: forth, or back. */
static size_t char_at(const struct buf *text, size_t i, int step)
{
    while (i > 0 && i < text->len && ((unsigned char)text->data[i] & 0xC0) == 0x80)
        i += (size_t)step;
    return i;
}

/* Gives each its "text": a cut's start, or a few bytes on either side of a gap. */
static void add_shown(json_t *list, const json_t *request, bool gaps)
{
    size_t i;
    json_t *e;
    json_array_foreach(list, i, e) {
        struct buf text = BUF_INIT, shown = BUF_INIT;
        size_t begin = (size_t)ctl_num(e, "begin"), end = (size_t)ctl_num(e, "end"), from = begin;
        text_of_cut(request, e, &text);
        if (begin <= end && end <= text.len && gaps) {
            from = begin > AROUND_BYTES ? char_at(&text, begin - AROUND_BYTES, 1) : 0;
            (void)buf_add(&shown, text.data + from, begin - from);
            if (from < begin) (void)buf_adds(&shown, " | ");
            size_t rest = text.len - end > AROUND_BYTES ? AROUND_BYTES : text.len - end;
            (void)buf_add(&shown, text.data + end, char_at(&text, end + rest, -1) - end);
        } else if (begin <= end && end <= text.len) {
            for (size_t n = 0; n < PREVIEW_CHARS && from < end; n++)
                from = char_at(&text, from + 1, 1);
            (void)buf_add(&shown, text.data + begin, from - begin);
            if (from < end) (void)buf_adds(&shown, "…");
        }
        (void)json_object_set_new(e, "text", json_stringn(buf_cstr(&shown), shown.len));
        buf_fini(&text);
        buf_fini(&shown);
    }
}

/* Without a worker that counts tokens and looks records up there is only what the gateway sees. */
static const char segment_view[] =
    "[{?segments.0}"
    "[{?prompt_tokens}^MESSAGE\tBYTES\t^TOKENS\tDETECTOR\tCACHED\tID\tTEXT\n"
    "<segments:{message}\t{begin}-{end}\t{tokens}\t{detector}\t[{?cached}{tier}|no: {miss}]\t"
    "{id:.12}\t{text}\n>"
    "|no worker answered; the gateway would cut ({detector}):\n^MESSAGE\t^BYTES\tTEXT\n"
    "<segments:[{?message}{message}|document]\t{begin}-{end}\t[{?message}{text}]\n>]"
    "|no chunk was found in this request\n]"
    "[{?boundaries.0}"
    "\nboundaries (BEFORE, BEHIND: different neighbours seen of the text there)\n"
    "^MESSAGE\t^AT\tGAP\tCUT\tWHY\t^BEFORE\t^BEHIND\t^CONFIDENCE\tTEXT\n"
    "<boundaries:{message}\t{end}\t{form}\t[{?cut}yes|no]\t{reason}\t{neighbours_before}\t"
    "{neighbours_behind}\t{confidence:.2}\t{text}\n>\n"
    /* in words, as the table of segment/README.md has them */
    "[{?reasons.both_sides_vary}  both_sides_vary      cut: either text was seen with other "
    "neighbours\n]"
    "[{?reasons.next_varies}  next_varies          cut: another text was seen behind this one\n]"
    "[{?reasons.previous_varies}  previous_varies      cut: another text was seen before this "
    "one\n]"
    "[{?reasons.one_side_constant}  one_side_constant    whole: one side varies, the other never "
    "did\n]"
    "[{?reasons.moves_together}  moves_together       whole: both sides came together in other "
    "company\n]"
    "[{?reasons.usual_boundary}  usual_boundary       cut: gaps of this form mostly are "
    "boundaries here\n]"
    "[{?reasons.usual_inside}  usual_inside         whole: gaps of this form mostly lie inside a "
    "document here\n]"
    "[{?reasons.first_sight}  first_sight          cut: nothing is known yet, so paragraphs are "
    "blocks\n]"
    "[{?reasons.short_pieces_joined}  short_pieces_joined  whole: nothing is known yet, and "
    "short paragraphs are joined\n]"
    "[{?reasons.kept_text}  kept_text            cut: a text that was cut before stands here\n]"
    "[{?reasons.inside_kept_text}  inside_kept_text     whole: inside a text that was cut before\n]"
    "[{?reasons.near_a_better_cut}  near_a_better_cut    whole: too close to a better boundary\n]"
    "[{?reasons.prefix}  prefix               whole: other system texts begin like this, too\n]"
    "[{?reasons.question}  question             cut: the question begins here\n]"
    "[{?reasons.edge}  edge                 cut: the text's beginning or end\n]"
    "[{?reasons.marker}  marker               cut: a framework's marker or a part, document or "
    "range of the request\n]"
    "[{?reasons.separator}  separator            cut: the separator stands here\n]"
    "[{?reasons.not_a_chunk}  not_a_chunk          a boundary between two texts that are no "
    "chunks\n]"
    "[{?reasons.short_text}  short_text           whole: a short typed text, for the first time\n]"
    "]"
    "[{?prompt_tokens}"
    "\nprompt      {prompt_tokens} tokens: {preamble_tokens} before the first chunk, {chunks} "
    "chunks, {suffix_tokens} after the last\n"
    "would run   mode {mode}, strategy {strategy}, ratio {ratio:g}\n"
    "<tokens:reused      {prefix+reused} tokens ({prefix} as exact prefix, {reused} blended)\n"
    "recomputed  {recomputed} tokens of reused chunks, {computed} tokens that nothing holds\n>"
    "[{?prompt_tokens>0}to compute  {100*share} % of the prompt\n]]";

static void prepare_segments(json_t *r, const json_t *request)
{
    json_t *segments = json_object_get(r, "segments"), *gaps = json_object_get(r, "boundaries"), *e;
    const json_t *tokens = json_object_get(r, "tokens");
    double fresh = ctl_num(tokens, "computed") + ctl_num(tokens, "recomputed");
    json_t *reasons = json_object();
    size_t i;
    json_array_foreach(gaps, i, e)
        (void)json_object_set(reasons, ctl_str(e, "reason"), e);
    (void)json_object_set_new(r, "reasons", reasons);
    (void)json_object_set_new(r, "chunks", json_integer((json_int_t)json_array_size(segments)));
    (void)json_object_set_new(r, "share", json_real(fresh / ctl_num(r, "prompt_tokens")));
    add_shown(segments, request, false);
    add_shown(gaps, request, true);
}

static int ask_about(const struct ctl_args *a, const char *request, const struct buf *content,
                     struct ctl_reply *ret)
{
    struct buf b = BUF_INIT;
    (void)buf_adds(&b, request);
    ctl_parameter(&b, "space", a->name_space);
    int rc = ctl_ask(a, &b, content, ret);
    buf_fini(&b);
    return rc;
}

/* A worker that cut by itself has said why; otherwise the gateway can tell, if there is one. */
static void add_boundaries(const struct ctl_args *a, const struct buf *content, json_t *reply)
{
    struct ctl_reply r;
    if (json_object_get(reply, "boundaries") ||
        ask_about(a, "POST /admin/boundaries", content, &r) != CTL_OK)
        return;
    json_t *list = r.status == 200 ? json_object_get(r.json, "boundaries") : NULL;
    if (list) (void)json_object_set(reply, "boundaries", list);
    ctl_reply_fini(&r);
}

static int segment(const struct ctl_args *a)
{
    struct buf content = BUF_INIT;
    struct ctl_reply r;
    int rc = read_operand(a, &content);
    if (rc == CTL_OK) rc = ask_about(a, "POST /admin/segment", &content, &r);
    if (rc == CTL_OK && (r.status == 404 || r.status >= 500)) { /* no worker; the gateway's view */
        ctl_reply_fini(&r);
        rc = ask_about(a, "POST /admin/boundaries", &content, &r);
    }
    if (rc == CTL_OK) rc = ctl_check(a, &r);
    if (rc == CTL_OK) {
        json_t *request = json_loadb(content.data, content.len, 0, NULL);
        add_boundaries(a, &content, r.json);
        if (!a->json) prepare_segments(r.json, request);
        ctl_print(a, r.json, segment_view);
        json_decref(request);
        ctl_reply_fini(&r);
    }
    buf_fini(&content);
    return rc;
}

const struct ctl_command ctl_texts[] = {
    {"warm", "FILE", CTL_NAMESPACE | CTL_NO_WAIT,
     "build chunks: .jsonl with \"text\", a JSON list, or one text", .run = warm},
    {"segment", "FILE", CTL_NAMESPACE, "explain how a captured request would be cut and served",
     .run = segment},
    {"export", NULL, 0, "a list of the records, for import elsewhere; it has no texts",
     .run = export},
    {"import", "FILE", 0, "into RAM what of such a list a tier or a shared Redis has",
     .run = import},
    {0}};
