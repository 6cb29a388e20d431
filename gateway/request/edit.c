/* LMCache's separators: each JSON string that has chunks is unescaped once, chunk by chunk, so that
 * the places of all boundaries are known in both forms: in the body for the edits, in the text for
 * seeing what the application has put there, however it was escaped. Chunks are enclosed rather
 * than divided by one separator, because white space between them differs at the ends of a list,
 * and would become part of a neighbour. */
#include "gateway/request/edit.h"

#include "base/jsonscan.h"
#include "base/mem.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

static bool in_order(size_t len, const struct gw_edit *edit, size_t n)
{
    size_t end = 0; /* of what the edit before took */
    for (size_t i = 0; i < n; i++) {
        if (edit[i].at < end || edit[i].at > len || edit[i].cut > len - edit[i].at) return false;
        end = edit[i].at + edit[i].cut;
    }
    return true;
}

static void add_piece(struct gw_pieces *ret, const char *p, size_t len)
{
    if (len > 0)
        ret->v[ret->n++] = (struct iovec){(void *)p, len}; /* only read: the type is the system's */
}

int gw_splice(const char *body, size_t len, const struct gw_edit *edit, size_t n,
              struct gw_pieces *ret)
{
    size_t at = 0;
    if (!in_order(len, edit, n)) return -EINVAL;
    ret->n = 0;
    for (size_t i = 0; i < n; i++) {
        add_piece(ret, body + at, edit[i].at - at);
        add_piece(ret, edit[i].text, edit[i].len);
        at = edit[i].at + edit[i].cut;
    }
    add_piece(ret, body + at, len - at);
    return 0;
}

/* ---- LMCache ---- */

enum { NEAR_BYTES = 4 }; /* blanks that may lie between a boundary and the separator */

struct boundary {
    size_t body_at, text_at;
};
struct job {
    const struct gw_scan *s;
    const char *separator;
    size_t separator_len;
    struct buf plain; /* the separator unescaped */
    struct buf text;  /* of the string in hand */
    struct gw_edit *edit;
    size_t n;
};

static int read_slice(struct job *j, size_t from, size_t to)
{
    struct json_val v = {j->s->body + from - 1, to - from + 2, JSON_T_STRING};
    return json_str_read(&v, &j->text); /* both ends lie between characters */
}

static bool all_blank(const struct job *j, size_t from, size_t to)
{
    for (; from < to; from++)
        if (!memchr(" \n\r\t", j->text.data[from], 4)) return false;
    return true;
}

/* Does the separator stand here, next to the boundary or around it, apart from blanks? */
static bool is_there(const struct job *j, size_t at)
{
    size_t n = j->plain.len, first = at > n + NEAR_BYTES ? at - n - NEAR_BYTES : 0;
    for (size_t i = first; i <= at + NEAR_BYTES && i + n <= j->text.len; i++)
        if (memcmp(j->text.data + i, j->plain.data, n) == 0 && all_blank(j, i + n, at) &&
            all_blank(j, at, i))
            return true;
    return false;
}

static void insert(struct job *j, size_t body_at)
{
    if (j->n > 0 && j->edit[j->n - 1].at == body_at) return; /* two chunks touch */
    j->edit[j->n++] = (struct gw_edit){body_at, 0, j->separator, j->separator_len};
}

/* The chunks [from, to) of one string; b has room for two boundaries each. */
static int edit_string(struct job *j, size_t from, size_t to, struct boundary *b)
{
    const struct gw_scan_chunk *c = j->s->chunk;
    size_t at = c[from].string_begin, n = 2 * (to - from);
    int r = 0;
    buf_clear(&j->text);
    for (size_t i = 0; i < n && r == 0; i++) {
        b[i].body_at = i % 2 ? c[from + i / 2].body_end : c[from + i / 2].body_begin;
        r = read_slice(j, at, b[i].body_at);
        b[i].text_at = j->text.len;
        at = b[i].body_at;
    }
    if (r == 0) r = read_slice(j, at, c[from].string_end);
    for (size_t i = 0; i < n && r == 0; i++) {
        size_t other = i % 2 ? i + 1 : i - 1; /* the other end of the glue; wraps at the first */
        size_t low = i % 2 ? i : other, high = i % 2 ? other : i;
        const char *text = j->text.data;
        bool between = other < n && memmem(text + b[low].text_at, b[high].text_at - b[low].text_at,
                                           j->plain.data, j->plain.len);
        if (!between && !is_there(j, b[i].text_at)) insert(j, b[i].body_at);
    }
    return r;
}

static int edit_all(struct job *j, struct boundary *b)
{
    const struct gw_scan *s = j->s;
    struct json_val v = {0};
    struct buf quoted = BUF_INIT;
    int r = buf_addf(&quoted, "\"%s\"", j->separator);
    v = (struct json_val){quoted.data, quoted.len, JSON_T_STRING};
    if (r == 0) r = json_str_read(&v, &j->plain);
    for (size_t i = 0, k; i < s->n_chunks && r == 0; i = k) {
        for (k = i + 1; k < s->n_chunks; k++)
            if (s->chunk[k].string_begin != s->chunk[i].string_begin) break;
        if (s->chunk[i].msg != GW_SCAN_DOCUMENT) r = edit_string(j, i, k, b);
    }
    buf_fini(&quoted);
    return r;
}

int gw_lmcache_edits(const struct gw_scan *s, const char *separator, struct gw_edit **ret,
                     size_t *ret_n)
{
    struct job j = {.s = s, .separator = separator, .separator_len = strlen(separator)};
    *ret = NULL;
    *ret_n = 0;
    if (s->n_chunks == 0 || j.separator_len == 0) return 0;
    struct boundary *b = mem_alloc(2 * s->n_chunks * sizeof *b);
    j.edit = mem_alloc(2 * s->n_chunks * sizeof *j.edit);
    int r = b && j.edit ? edit_all(&j, b) : -ENOMEM;
    mem_free(b);
    buf_fini(&j.plain);
    buf_fini(&j.text);
    if (r < 0 || j.n == 0) {
        mem_free(j.edit);
        return r;
    }
    *ret = j.edit;
    *ret_n = j.n;
    return 0;
}
