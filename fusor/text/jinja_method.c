/* Methods of strings, dictionaries and lists. None of them changes its object: the sandbox that
 * transformers runs templates in allows no such method either. Indices and lengths are bytes here
 * and characters where a template sees them. */
#include "fusor/text/jinja_word.h"
#include "fusor/text/unicode.h"

#include <string.h>

static struct jinja_val wrong(struct jinja_run *x, const char *what, struct jinja_val got)
{
    return jj_fail(x, -EINVAL, "%s, not %s (line %u)", what, jj_type_name(got), x->line);
}

/* A string argument; NULL: failed. */
static const struct jinja_str *str_arg(struct jinja_run *x, struct jinja_val v)
{
    if (v.type == JINJA_STR) return v.s;
    (void)wrong(x, "a string is expected", v);
    return NULL;
}

/* ---- strip ---- */
static bool in_set(const char *set, size_t n, const char *c, size_t len)
{
    for (size_t i = 0, k; i < n; i += k) {
        for (k = 1; i + k < n && ((unsigned char)set[i + k] & 0xC0) == 0x80;)
            k++;
        if (k == len && memcmp(set + i, c, len) == 0) return true;
    }
    return false;
}

const struct jinja_str *jj_strip(struct jinja_run *x, const struct jinja_str *s,
                                 struct jinja_val chars, unsigned sides)
{
    const bool space = chars.type != JINJA_STR;
    const char *p = jj_flat(x, s), *set = space ? NULL : jj_flat(x, chars.s);
    size_t begin = 0, end = s->len;
    if (x->status) return NULL;
    if (space) {
        if (sides & JJ_LEFT) begin = uni_space_head(p, end, true);
        if (sides & JJ_RIGHT) end -= uni_space_tail(p + begin, end - begin, true);
        return jj_sub(x, s, begin, end);
    }
    while ((sides & JJ_LEFT) && begin < end && x->status == 0) {
        size_t len = 1;
        while (begin + len < end && ((unsigned char)p[begin + len] & 0xC0) == 0x80)
            len++;
        jj_cost(x, chars.s->len);
        if (!in_set(set, chars.s->len, p + begin, len)) break;
        begin += len;
    }
    while ((sides & JJ_RIGHT) && begin < end && x->status == 0) {
        size_t at = end - 1;
        while (at > begin && ((unsigned char)p[at] & 0xC0) == 0x80)
            at--;
        jj_cost(x, chars.s->len);
        if (!in_set(set, chars.s->len, p + at, end - at)) break;
        end = at;
    }
    return jj_sub(x, s, begin, end);
}

static struct jinja_val m_strip(struct jinja_run *x, struct jinja_val self,
                                const struct jinja_val *arg)
{
    return jj_of_str(jj_strip(x, self.s, arg[0], JJ_LEFT | JJ_RIGHT));
}

static struct jinja_val m_lstrip(struct jinja_run *x, struct jinja_val self,
                                 const struct jinja_val *arg)
{
    return jj_of_str(jj_strip(x, self.s, arg[0], JJ_LEFT));
}

static struct jinja_val m_rstrip(struct jinja_run *x, struct jinja_val self,
                                 const struct jinja_val *arg)
{
    return jj_of_str(jj_strip(x, self.s, arg[0], JJ_RIGHT));
}

/* ---- case ---- */
const struct jinja_str *jj_case(struct jinja_run *x, const struct jinja_str *s, enum jj_case to)
{
    struct jj_sb sb = {.x = x};
    bool start = true; /* of the string, or of a word */
    jj_cost(x, s->len);
    for (size_t k = 0; k < s->n && x->status == 0; k++) {
        const uint8_t *p = (const uint8_t *)s->seg[k].p;
        unsigned len;
        for (size_t i = 0; i < s->seg[k].len && x->status == 0; i += len) {
            uint8_t c[4];
            const uint32_t cp = uni_decode(p + i, s->seg[k].len - i, &len);
            const bool up = to == JJ_UPPER || (start && to != JJ_LOWER);
            const unsigned n = uni_case(cp,
                                        !up              ? UNI_LOWER
                                        : to == JJ_UPPER ? UNI_UPPER
                                                         : UNI_TITLE,
                                        c);
            jj_sb_add(&sb, (const char *)c, n, s->seg[k].mark);
            start = (to == JJ_TITLE && cp < 0x80 && !((cp | 32) >= 'a' && (cp | 32) <= 'z')) ||
                    (to == JJ_WORDS && cp < 0x80 && cp && strchr("- \t\n\v\f\r({[<", (int)cp));
        }
    }
    return jj_sb_done(&sb);
}

static struct jinja_val m_upper(struct jinja_run *x, struct jinja_val self,
                                const struct jinja_val *arg)
{
    (void)arg;
    return jj_of_str(jj_case(x, self.s, JJ_UPPER));
}

static struct jinja_val m_lower(struct jinja_run *x, struct jinja_val self,
                                const struct jinja_val *arg)
{
    (void)arg;
    return jj_of_str(jj_case(x, self.s, JJ_LOWER));
}

static struct jinja_val m_capitalize(struct jinja_run *x, struct jinja_val self,
                                     const struct jinja_val *arg)
{
    (void)arg;
    return jj_of_str(jj_case(x, self.s, JJ_CAPITALIZE));
}

static struct jinja_val m_title(struct jinja_run *x, struct jinja_val self,
                                const struct jinja_val *arg)
{
    (void)arg;
    return jj_of_str(jj_case(x, self.s, JJ_TITLE));
}

/* ---- parts ---- */
const struct jinja_str *jj_replace(struct jinja_run *x, const struct jinja_str *s,
                                   const struct jinja_str *from, const struct jinja_str *to,
                                   int64_t count)
{
    const char *p = jj_flat(x, s), *f = jj_flat(x, from);
    struct jj_sb sb = {.x = x};
    size_t at = 0;
    if (x->status) return NULL;
    if (from->len == 0) {
        (void)jj_fail(x, -EINVAL, "nothing cannot be replaced (line %u)", x->line);
        return NULL;
    }
    while (count != 0 && x->status == 0) {
        const char *hit = memmem(p + at, s->len - at, f, from->len);
        if (!hit) break;
        jj_sb_str(&sb, jj_sub(x, s, at, (size_t)(hit - p)));
        jj_sb_str(&sb, to);
        at = (size_t)(hit - p) + from->len;
        if (count > 0) count--;
    }
    if (at == 0) return s;
    jj_sb_str(&sb, jj_sub(x, s, at, s->len));
    return jj_sb_done(&sb);
}

static int64_t int_arg(struct jinja_val v, int64_t otherwise)
{
    return v.type == JINJA_INT ? v.i : otherwise;
}

static struct jinja_val m_replace(struct jinja_run *x, struct jinja_val self,
                                  const struct jinja_val *arg)
{
    const struct jinja_str *from = str_arg(x, arg[0]), *to = str_arg(x, arg[1]);
    return from && to ? jj_of_str(jj_replace(x, self.s, from, to, int_arg(arg[2], -1)))
                      : jj_undefined;
}

/* The next cut of p[from, to): where it begins; its length in *len. NULL: none. */
static const char *next_cut(const char *p, size_t from, size_t to, const char *sep, size_t *len)
{
    if (sep) return memmem(p + from, to - from, sep, *len);
    for (size_t i = from; i < to; i++) {
        *len = uni_space_head(p + i, to - i, true);
        if (*len) return p + i;
    }
    return NULL;
}

struct cuts {
    const char *p, *sep; /* sep NULL: runs of white space */
    size_t len, sep_len;
};

/* The parts between cuts from the left: counted, and put into v where that is not NULL. */
static size_t cut(struct jinja_run *x, const struct jinja_str *s, const struct cuts *c,
                  int64_t most, struct jinja_val *v)
{
    size_t n = 0, at = 0, len = c->sep_len;
    if (!c->sep) at = uni_space_head(c->p, s->len, true);
    while ((most < 0 || (int64_t)n < most) && x->status == 0) {
        const char *hit = next_cut(c->p, at, c->len, c->sep, &len);
        if (!hit) break;
        if (v) v[n] = jj_of_str(jj_sub(x, s, at, (size_t)(hit - c->p)));
        n++;
        at = (size_t)(hit - c->p) + len;
    }
    if (!c->sep && at >= c->len) return n;
    if (v) v[n] = jj_of_str(jj_sub(x, s, at, s->len));
    return n + 1;
}

static const char *last_cut(const char *p, size_t to, const char *sep, size_t len)
{
    for (size_t i = to < len ? 0 : to - len + 1; i-- > 0;)
        if (memcmp(p + i, sep, len) == 0) return p + i;
    return NULL;
}

static struct jinja_val split(struct jinja_run *x, struct jinja_val self,
                              const struct jinja_val *arg)
{
    const bool space = arg[0].type == JINJA_UNDEFINED || arg[0].type == JINJA_NONE;
    const struct jinja_str *sep = space ? NULL : str_arg(x, arg[0]);
    struct cuts c = {.p = jj_flat(x, self.s), .len = self.s->len};
    if (sep) c.sep = jj_flat(x, sep), c.sep_len = sep->len;
    if (x->status) return jj_undefined;
    if (sep && sep->len == 0)
        return jj_fail(x, -EINVAL, "the separator is empty (line %u)", x->line);
    const int64_t most = int_arg(arg[1], -1);
    jj_cost(x, self.s->len);
    struct jinja_list *l = jj_new_list(x, cut(x, self.s, &c, most, NULL));
    if (l) (void)cut(x, self.s, &c, most, l->v);
    return jj_of_list(l);
}

/* As split() where every cut is made; else the last `most` of them. */
static struct jinja_val rsplit(struct jinja_run *x, struct jinja_val self,
                               const struct jinja_val *arg)
{
    const int64_t most = int_arg(arg[1], -1);
    if (most < 0) return split(x, self, arg);
    const struct jinja_str *sep = str_arg(x, arg[0]);
    const char *p = jj_flat(x, self.s), *s = sep ? jj_flat(x, sep) : NULL, *hit;
    if (x->status) return jj_undefined;
    if (sep->len == 0) return jj_fail(x, -EINVAL, "the separator is empty (line %u)", x->line);
    size_t n = 0, end = self.s->len;
    for (; (int64_t)n < most && (hit = last_cut(p, end, s, sep->len)); n++)
        end = (size_t)(hit - p);
    struct jinja_list *l = jj_new_list(x, n + 1);
    jj_cost(x, self.s->len * sep->len);
    end = self.s->len;
    for (; l && n > 0 && x->status == 0; n--) {
        hit = last_cut(p, end, s, sep->len);
        l->v[n] = jj_of_str(jj_sub(x, self.s, (size_t)(hit - p) + sep->len, end));
        end = (size_t)(hit - p);
    }
    if (l) l->v[0] = jj_of_str(jj_sub(x, self.s, 0, end));
    return jj_of_list(l);
}

static struct jinja_val splitlines(struct jinja_run *x, struct jinja_val self,
                                   const struct jinja_val *arg)
{
    const char *p = jj_flat(x, self.s);
    const size_t len = self.s->len;
    size_t n = 0;
    (void)arg;
    for (size_t i = 0; p && i < len; i++)
        n += p[i] == '\n' || i + 1 == len;
    struct jinja_list *l = jj_new_list(x, p ? n : 0);
    for (size_t i = 0, k = 0, from = 0; l && k < l->n && x->status == 0; i++) {
        if (p[i] != '\n' && i + 1 < len) continue;
        size_t end = p[i] == '\n' ? i : i + 1;
        if (end > from && p[i] == '\n' && p[end - 1] == '\r') end--;
        l->v[k++] = jj_of_str(jj_sub(x, self.s, from, end));
        from = i + 1;
    }
    return jj_of_list(l);
}

/* ---- looking ---- */
static bool at_side(struct jinja_run *x, const struct jinja_str *s, struct jinja_val what, bool end)
{
    const struct jinja_str *w = str_arg(x, what);
    if (!w || w->len > s->len) return false;
    const size_t at = end ? s->len - w->len : 0;
    const struct jinja_str *part = jj_sub(x, s, at, at + w->len);
    return part && jj_str_compare(x, part, w) == 0;
}

/* One string, or any of a tuple. */
static struct jinja_val has_side(struct jinja_run *x, const struct jinja_str *s,
                                 struct jinja_val what, bool end)
{
    if (what.type != JINJA_LIST) return jinja_bool(at_side(x, s, what, end));
    bool any = false;
    for (size_t i = 0; !any && i < what.list->n && x->status == 0; i++)
        any = at_side(x, s, what.list->v[i], end);
    return jinja_bool(any);
}

static struct jinja_val startswith(struct jinja_run *x, struct jinja_val self,
                                   const struct jinja_val *arg)
{
    return has_side(x, self.s, arg[0], false);
}

static struct jinja_val endswith(struct jinja_run *x, struct jinja_val self,
                                 const struct jinja_val *arg)
{
    return has_side(x, self.s, arg[0], true);
}

static struct jinja_val find(struct jinja_run *x, struct jinja_val self,
                             const struct jinja_val *arg)
{
    const struct jinja_str *w = str_arg(x, arg[0]);
    const char *p = jj_flat(x, self.s), *s = w ? jj_flat(x, w) : NULL;
    if (x->status) return jj_undefined;
    const char *hit = memmem(p, self.s->len, s, w->len);
    const struct jinja_str *before = hit ? jj_sub(x, self.s, 0, (size_t)(hit - p)) : NULL;
    return jj_int(before ? (int64_t)jj_chars(x, before) : -1);
}

static struct jinja_val count_of(struct jinja_run *x, struct jinja_val self,
                                 const struct jinja_val *arg)
{
    int64_t n = 0;
    if (self.type == JINJA_LIST) {
        for (size_t i = 0; i < self.list->n && x->status == 0; i++)
            n += jj_equal(x, self.list->v[i], arg[0]);
        return jj_int(n);
    }
    const struct jinja_str *w = str_arg(x, arg[0]);
    const char *p = jj_flat(x, self.s), *s = w ? jj_flat(x, w) : NULL, *hit;
    if (x->status) return jj_undefined;
    if (w->len == 0) return jj_int((int64_t)jj_chars(x, self.s) + 1);
    for (const char *from = p; (hit = memmem(from, self.s->len - (size_t)(from - p), s, w->len));
         n++)
        from = hit + w->len;
    return jj_int(n);
}

static struct jinja_val isdigit_(struct jinja_run *x, struct jinja_val self,
                                 const struct jinja_val *arg)
{
    const char *p = jj_flat(x, self.s);
    bool all = self.s->len > 0;
    (void)arg;
    for (size_t i = 0; p && all && i < self.s->len; i++)
        all = p[i] >= '0' && p[i] <= '9';
    return jinja_bool(all);
}

struct jinja_val jj_join_list(struct jinja_run *x, struct jinja_val list,
                              const struct jinja_str *between)
{
    const struct jinja_list *l = jj_items(x, list);
    struct jj_sb sb = {.x = x};
    for (size_t i = 0; l && i < l->n && x->status == 0; i++) {
        if (i) jj_sb_str(&sb, between);
        jj_sb_str(&sb, jj_show(x, l->v[i]));
    }
    return jj_of_str(jj_sb_done(&sb));
}

static struct jinja_val m_join(struct jinja_run *x, struct jinja_val self,
                               const struct jinja_val *arg)
{
    return jj_join_list(x, arg[0], self.s);
}

/* ---- dictionaries ---- */
struct jinja_val jj_pairs(struct jinja_run *x, const struct jinja_dict *d)
{
    struct jinja_list *l = jj_new_list(x, d->n);
    for (size_t i = 0; l && i < d->n && x->status == 0; i++)
        l->v[i] = jj_pair(x, d->key[i], d->val[i]);
    return jj_of_list(l);
}

static struct jinja_val m_items(struct jinja_run *x, struct jinja_val self,
                                const struct jinja_val *arg)
{
    (void)arg;
    return jj_pairs(x, self.dict);
}

static struct jinja_val keys(struct jinja_run *x, struct jinja_val self,
                             const struct jinja_val *arg)
{
    (void)arg;
    return jj_of_list(jj_items(x, self));
}

static struct jinja_val values(struct jinja_run *x, struct jinja_val self,
                               const struct jinja_val *arg)
{
    struct jinja_list *l = jj_new_list(x, self.dict->n);
    (void)arg;
    for (size_t i = 0; l && i < l->n; i++)
        l->v[i] = self.dict->val[i];
    return jj_of_list(l);
}

static struct jinja_val get(struct jinja_run *x, struct jinja_val self, const struct jinja_val *arg)
{
    struct jinja_val v = arg[1].type == JINJA_UNDEFINED ? jj_none : arg[1];
    (void)jj_get(x, self.dict, arg[0], &v);
    return v;
}

/* ---- lists ---- */
static struct jinja_val list_index(struct jinja_run *x, struct jinja_val self,
                                   const struct jinja_val *arg)
{
    for (size_t i = 0; i < self.list->n && x->status == 0; i++)
        if (jj_equal(x, self.list->v[i], arg[0])) return jj_int((int64_t)i);
    return jj_fail(x, -EINVAL, "the list does not have it (line %u)", x->line);
}

static struct jinja_val cycle(struct jinja_run *x, struct jinja_val self,
                              const struct jinja_val *arg)
{
    size_t n = 0;
    while (n < JJ_PARAMS_MAX && arg[n].type != JINJA_UNDEFINED)
        n++;
    (void)x;
    return arg[self.loop->i % n];
}

static const struct jj_word of_str[] = {{"capitalize", m_capitalize, 0, 0, {0}},
                                        {"count", count_of, 1, 1, {0}},
                                        {"endswith", endswith, 1, 1, {0}},
                                        {"find", find, 1, 1, {0}},
                                        {"isdigit", isdigit_, 0, 0, {0}},
                                        {"join", m_join, 1, 1, {0}},
                                        {"lower", m_lower, 0, 0, {0}},
                                        {"lstrip", m_lstrip, 0, 1, {0}},
                                        {"replace", m_replace, 2, 3, {NULL, NULL, "count"}},
                                        {"rsplit", rsplit, 0, 2, {"sep", "maxsplit"}},
                                        {"rstrip", m_rstrip, 0, 1, {0}},
                                        {"split", split, 0, 2, {"sep", "maxsplit"}},
                                        {"splitlines", splitlines, 0, 0, {0}},
                                        {"startswith", startswith, 1, 1, {0}},
                                        {"strip", m_strip, 0, 1, {0}},
                                        {"title", m_title, 0, 0, {0}},
                                        {"upper", m_upper, 0, 0, {0}},
                                        {0}},
                            of_dict[] = {{"get", get, 1, 2, {0}},
                                         {"items", m_items, 0, 0, {0}},
                                         {"keys", keys, 0, 0, {0}},
                                         {"values", values, 0, 0, {0}},
                                         {0}},
                            of_list[] = {{"count", count_of, 1, 1, {0}},
                                         {"index", list_index, 1, 1, {0}},
                                         {0}},
                            of_loop[] = {{"cycle", cycle, 1, JJ_PARAMS_MAX, {0}}, {0}};

const struct jj_word *jj_find_word(const struct jj_word *table, const char *name, size_t len)
{
    for (; table->name; table++)
        if (strlen(table->name) == len && memcmp(table->name, name, len) == 0) return table;
    return NULL;
}

const struct jj_word *jj_method(enum jinja_type type, const char *name, size_t len)
{
    if (type == JINJA_STR) return jj_find_word(of_str, name, len);
    if (type == JINJA_DICT) return jj_find_word(of_dict, name, len);
    if (type == JINJA_LIST) return jj_find_word(of_list, name, len);
    return type == JINJA_LOOP ? jj_find_word(of_loop, name, len) : NULL;
}
