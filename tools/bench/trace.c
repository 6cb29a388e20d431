#include "tools/bench/trace.h"

#include "base/mem.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES_MAX = 64 << 20, RECORDS_MAX = 1 << 30 };
static const uint64_t record_bytes_max = 1ull << 50; /* so that no sum overflows */

/* ---- growing ---- */

static int grow(void *array, size_t n, size_t *cap, size_t each_bytes)
{
    if (n < *cap) return 0;
    size_t more = *cap ? *cap * 2 : 1024, bytes;
    if (!size_mul(more, each_bytes, &bytes)) return -ENOMEM;
    void *p;
    memcpy(&p, array, sizeof p);
    p = mem_realloc(p, bytes);
    if (!p) return -ENOMEM;
    memcpy(array, &p, sizeof p);
    *cap = more;
    return 0;
}

static size_t slot_of(const struct trace *t, const struct tier_key *k)
{
    size_t i = (size_t)((k->lo ^ k->hi) * 0x9E3779B97F4A7C15u >> 20) & (t->n_slots - 1);
    while (t->slot[i] && !tier_key_same(&t->record[t->slot[i] - 1].key, k))
        i = (i + 1) & (t->n_slots - 1);
    return i;
}

/* Slots for at least twice the records. */
static int grow_slots(struct trace *t)
{
    if (2 * (t->n_records + 1) <= t->n_slots) return 0;
    size_t n = t->n_slots ? 2 * t->n_slots : 4096;
    uint32_t *slot = mem_zalloc(n * sizeof *slot);
    if (!slot) return -ENOMEM;
    mem_free(t->slot);
    t->slot = slot;
    t->n_slots = n;
    for (size_t i = 0; i < t->n_records; i++)
        t->slot[slot_of(t, &t->record[i].key)] = (uint32_t)i + 1;
    return 0;
}

static int add_access(struct trace *t, const struct trace_record *rec)
{
    int r = grow_slots(t);
    if (r == 0) r = grow(&t->record, t->n_records, &t->cap_records, sizeof *t->record);
    if (r == 0) r = grow(&t->access, t->n_accesses, &t->cap_accesses, sizeof *t->access);
    if (r < 0) return r;
    size_t i = slot_of(t, &rec->key);
    if (!t->slot[i]) {
        if (t->n_records == RECORDS_MAX) return -ERANGE;
        t->record[t->n_records++] = *rec;
        t->slot[i] = (uint32_t)t->n_records;
    }
    t->access[t->n_accesses++] = t->slot[i] - 1;
    return 0;
}

/* ---- lines ---- */

static int block_of(const json_t *v, struct trace_record *ret, struct err *err)
{
    if (!json_is_integer(v)) return err_set(err, -EBADMSG, "an item of hash_ids is no integer");
    *ret = (struct trace_record){.key = {0, (uint64_t)json_integer_value(v)}, .size_bytes = 1};
    return 0;
}

static int member_of(const json_t *v, const char *name, uint64_t min, uint64_t *ret,
                     struct err *err)
{
    const json_t *m = json_object_get(v, name);
    json_int_t n = json_integer_value(m);
    if (!json_is_integer(m) || n < (json_int_t)min || n > (json_int_t)record_bytes_max)
        return err_set(err, -EBADMSG, "a record's \"%s\" is no integer in %llu…2^50", name,
                       (unsigned long long)min);
    *ret = (uint64_t)n;
    return 0;
}

static int record_of(const json_t *v, struct trace_record *ret, struct err *err)
{
    const char *id = json_string_value(json_object_get(v, "id"));
    struct trace_record rec = {0};
    if (!id || tier_key_parse(id, &rec.key) < 0)
        return err_set(err, -EBADMSG, "a record's \"id\" is not 32 hex digits");
    int r = member_of(v, "bytes", 1, &rec.size_bytes, err);
    if (r == 0) r = member_of(v, "tokens", 0, &rec.n_tokens, err);
    if (r == 0) *ret = rec;
    return r;
}

static int add_line(struct trace *t, const json_t *line, struct err *err)
{
    const json_t *items = json_object_get(line, t->own_log ? "records" : "hash_ids"), *item;
    if (!json_is_array(items))
        return err_set(err, -EBADMSG, "no array \"%s\"", t->own_log ? "records" : "hash_ids");
    int r = grow(&t->request, t->n_requests + 1, &t->cap_requests, sizeof *t->request);
    size_t i;
    json_array_foreach(items, i, item)
    {
        struct trace_record rec;
        if (r == 0) r = t->own_log ? record_of(item, &rec, err) : block_of(item, &rec, err);
        if (r == 0) r = add_access(t, &rec);
    }
    if (r == 0) r = grow(&t->when, t->n_requests, &t->cap_when, sizeof *t->when);
    if (r == 0) {
        const double ms = json_number_value(json_object_get(line, "timestamp"));
        const json_int_t n = json_integer_value(json_object_get(line, "input_length"));
        t->when[t->n_requests] = (struct trace_when){ms / 1e3, n > 0 ? (uint64_t)n : 0};
        t->request[++t->n_requests] = t->n_accesses;
    }
    return r;
}

static int add_text(struct trace *t, const char *text, size_t len, struct err *err)
{
    json_error_t e;
    json_t *line = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    int r = 0;
    if (!json_is_object(line))
        r = err_set(err, -EBADMSG, "%s", line ? "not a JSON object" : e.text);
    if (r == 0 && t->n_requests == 0) {
        t->own_log = json_object_get(line, "records") != NULL;
        if (!t->own_log && !json_object_get(line, "hash_ids"))
            r = err_set(err, -EBADMSG,
                        "neither \"hash_ids\" (a block trace) nor \"records\" (the "
                        "worker's access log)");
    }
    if (r == 0) r = add_line(t, line, err);
    json_decref(line);
    return r;
}

static int read_lines(struct trace *t, FILE *f, const char *path, struct err *err)
{
    char *text = NULL; /* getline's own memory */
    size_t cap = 0;
    ssize_t len;
    int r = grow(&t->request, 0, &t->cap_requests, sizeof *t->request);
    if (r == 0) t->request[0] = 0;
    for (unsigned long long n = 1; r == 0 && (len = getline(&text, &cap, f)) >= 0; n++) {
        struct err why = {0};
        if (strspn(text, " \t\r\n") == (size_t)len) continue;
        r = len > LINE_BYTES_MAX ? err_set(&why, -ERANGE, "longer than 64 MiB")
                                 : add_text(t, text, (size_t)len, &why);
        if (r < 0) (void)err_set(err, r, "%s:%llu: %s", path, n, why.code ? why.msg : err_name(r));
    }
    mem_free(text);
    if (r == 0 && ferror(f))
        r = err_set(err, -EIO, "%s: cannot be read: %s", path, strerror(errno));
    return r;
}

int trace_open(const char *path, struct trace *ret, struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
    struct trace t = {.same_size = true};
    int r = read_lines(&t, f, path, err);
    (void)fclose(f);
    if (r == 0 && t.n_accesses == 0) r = err_set(err, -EINVAL, "%s: no records in it", path);
    mem_free(t.slot);
    t.slot = NULL;
    t.n_slots = 0;
    if (r < 0) {
        trace_close(&t);
        return r;
    }
    for (size_t i = 1; i < t.n_records; i++)
        t.same_size &= t.record[i].size_bytes == t.record[0].size_bytes;
    *ret = t;
    return 0;
}

void trace_close(struct trace *t)
{
    mem_free(t->record);
    mem_free(t->access);
    mem_free(t->request);
    mem_free(t->when);
    mem_free(t->slot);
    *t = (struct trace){0};
}

int trace_arrivals(const struct trace *t, size_t n, double rate, double *ret_s)
{
    if (n < 2 || n > t->n_requests) return -EINVAL;
    const double begin = t->when[0].t_s, span = t->when[n - 1].t_s - begin;
    if (!(span > 0)) return -EINVAL;
    for (size_t i = 1; i < n; i++)
        if (t->when[i].t_s < t->when[i - 1].t_s) return -EINVAL;
    for (size_t i = 0; i < n; i++)
        ret_s[i] = (t->when[i].t_s - begin) / span * (double)(n - 1) / rate;
    return 0;
}
