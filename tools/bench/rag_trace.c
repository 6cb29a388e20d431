#include "tools/bench/bench.h"
#include "tools/bench/rag.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *file, *id, *list; /* of lengths; an id in it; a list of ids in a request */
} kinds[RAG_KINDS] = {{"1_sys_prompt.jsonl", "sys_prompt_id", "sys_prompt"},
                      {"2_passages.jsonl", "passage_id", "passages_ids"},
                      {"3_history.jsonl", "history_id", "history"},
                      {"5_web_search.jsonl", "web_search_id", "web_search"},
                      {"4_user_input.jsonl", "user_input_id", "user_input"}};
static const double week_s = 7 * 24 * 3600;

struct reading {
    struct rag_trace *trace;
    struct buf n_tok[RAG_KINDS]; /* uint32_t by id, 0: there is none */
    double begun_s, last_s;      /* of the week that it is in */
};

static int take_length(struct reading *in, enum rag_kind kind, json_t *line)
{
    static const uint32_t none[1024];
    struct buf *table = &in->n_tok[kind];
    json_int_t id, n;
    if (json_unpack(line, "{s:I, s:I}", kinds[kind].id, &id, "token_length", &n) < 0 || id < 0 ||
        id > RAG_ID_MAX || n < 1 || n > RAG_TOKENS_MAX)
        return -EINVAL;
    while (table->len <= (size_t)id * sizeof *none)
        if (buf_add(table, none, sizeof none) < 0) return -ENOMEM;
    ((uint32_t *)(void *)table->data)[id] = (uint32_t)n;
    return 0;
}

/* A trace of several weeks counts the seconds of each anew. */
static int take_request(struct reading *in, json_t *line)
{
    const char *stamp = "";
    char *end;
    json_t *of = json_object_get(line, "hash_ids"), *id;
    struct rag_request q = {0};
    size_t i;
    (void)json_unpack(line, "{s:s}", "timestamp", &stamp);
    const double at_s = strtod(stamp, &end);
    if (end == stamp || *end || !(at_s >= 0)) return -EINVAL;
    for (enum rag_kind k = 0; k < RAG_KINDS; k++) {
        const uint32_t *n_tok = (const void *)in->n_tok[k].data;
        json_t *list = json_object_get(of, kinds[k].list);
        if (!json_is_array(list)) return -EINVAL;
        json_array_foreach(list, i, id) {
            const size_t at = (size_t)json_integer_value(id);
            if (!json_is_integer(id) || at >= in->n_tok[k].len / sizeof *n_tok || !n_tok[at] ||
                q.n_parts++ == RAG_PARTS_MAX)
                return -EINVAL;
            const struct rag_part p = {k, (uint32_t)at, n_tok[at]};
            (void)buf_add(&in->trace->parts, &p, sizeof p);
        }
    }
    if (at_s < in->last_s) in->begun_s += week_s;
    in->last_s = at_s;
    q.at_s = in->begun_s + at_s;
    return buf_add(&in->trace->requests, &q, sizeof q);
}

static int each_line(struct reading *in, const char *folder, const char *file, enum rag_kind kind,
                     struct err *err)
{
    char path[4096];
    struct buf text = BUF_INIT;
    unsigned n = 0;
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    int r = bench_read_text(path, &text, err);
    for (char *next, *line = r == 0 ? (char *)buf_cstr(&text) : NULL; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        n++;
        if (line[strspn(line, " \t\r")] == '\0') continue;
        json_t *o = json_loads(line, 0, NULL);
        r = !o ? -EINVAL : kind < RAG_KINDS ? take_length(in, kind, o) : take_request(in, o);
        json_decref(o);
        if (r == 0) continue;
        r = err_set(err, r, "%.100s:%u: no line of a RAGPulse trace", path, n);
        break;
    }
    buf_fini(&text);
    return r;
}

int rag_trace_read(const char *folder, struct rag_trace *ret, struct err *err)
{
    struct reading in = {.trace = ret};
    int r = 0;
    *ret = (struct rag_trace){0};
    for (enum rag_kind k = 0; r == 0 && k <= RAG_KINDS; k++)
        r = each_line(&in, folder, k < RAG_KINDS ? kinds[k].file : "0_trace.jsonl", k, err);
    for (enum rag_kind k = 0; k < RAG_KINDS; k++)
        buf_fini(&in.n_tok[k]);
    ret->request = (void *)ret->requests.data;
    ret->n = ret->requests.len / sizeof *ret->request;
    const struct rag_part *next = (const void *)ret->parts.data;
    for (size_t i = 0; i < ret->n; next += ret->request[i++].n_parts)
        ret->request[i].part = next;
    if (r == 0 && buf_status(&ret->parts) < 0) r = -ENOMEM;
    return r == 0 && ret->n == 0 ? err_set(err, -EINVAL, "%s: no requests", folder) : r;
}

void rag_trace_fini(struct rag_trace *t)
{
    buf_fini(&t->requests);
    buf_fini(&t->parts);
}
