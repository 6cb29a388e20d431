/* Design: values are kept as the text they came as, checked when they are set and converted again
 * when they are read; options are read at start-up, so clarity wins over the second conversion. */
#include "base/opt.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/opt_int.h"
#include "base/opt_removed.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct opt_val {
    char **texts;
    size_t n;
    enum opt_source source;
};
struct opts {
    const struct opt_def *defs;
    size_t n_defs;
    struct opt_val *vals;
    size_t n_positionals; /* arguments taken so far */
};

/* ---- single values ---- */

int opt_parse_int(const char *text, int64_t *ret)
{
    char *end;
    if (!*text || isspace((unsigned char)*text)) return -EINVAL;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (*end || end == text) return -EINVAL;
    if (errno == ERANGE) return -ERANGE;
    *ret = v;
    return 0;
}

/* The number at the start of text; not hexadecimal, not "inf", no leading space. */
static int number_prefix(const char *text, double *ret, const char **ret_end)
{
    size_t n = strspn(text, "+-");
    char *end;
    if (n > 1 || (!isdigit((unsigned char)text[n]) && text[n] != '.')) return -EINVAL;
    if (text[n] == '0' && (text[n + 1] == 'x' || text[n + 1] == 'X')) return -EINVAL;
    double v = strtod(text, &end);
    if (end == text) return -EINVAL;
    if (!isfinite(v)) return -ERANGE;
    *ret = v;
    *ret_end = end;
    return 0;
}

int opt_parse_double(const char *text, double *ret)
{
    const char *end;
    double v;
    int r = number_prefix(text, &v, &end);
    if (r < 0) return r;
    if (*end) return -EINVAL;
    *ret = v;
    return 0;
}

int opt_parse_size(const char *text, uint64_t *ret_bytes)
{
    const char *end;
    double v;
    int r = number_prefix(text, &v, &end);
    if (r < 0) return r;
    while (*end == ' ')
        end++;
    static const char units[] = "kmgt";
    const char *u = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;
    if (u) {
        v *= (double)(1ull << (10 * (u - units + 1)));
        end++;
        if (*end == 'i' || *end == 'I') end++;
    }
    if (*end == 'b' || *end == 'B') end++;
    if (*end || v < 0 || v != floor(v)) return -EINVAL;
    if (v > 9007199254740992.0) return -ERANGE; /* 2^53: exact in a double */
    *ret_bytes = (uint64_t)v;
    return 0;
}

int opt_parse_duration_ms(const char *text, uint64_t *ret_ms)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
    const char *end;
    double v;
    int r = number_prefix(text, &v, &end);
    if (r < 0) return r;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        v *= units[i].ms;
        if (v < 0) return -EINVAL;
        if (v > 1e15) return -ERANGE;
        *ret_ms = (uint64_t)(v + 0.5);
        return 0;
    }
    return -EINVAL;
}

int opt_parse_bool(const char *text, bool *ret)
{
    static const char *const words[] = {"true", "yes", "on", "1", "false", "no", "off", "0"};
    for (size_t i = 0; i < 8; i++)
        if (strcasecmp(text, words[i]) == 0) {
            *ret = i < 4;
            return 0;
        }
    return -EINVAL;
}

/* Whether `word` is one of "a|b|c". */
static bool in_values(const char *values, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = values; n > 0;) {
        size_t len = strcspn(p, "|");
        if (len == n && strncmp(p, word, n) == 0) return true;
        if (!p[len]) return false;
        p += len + 1;
    }
    return false;
}

/* ---- names ---- */

static char fold(char c)
{
    if (c == '_' || c == '.') return '-';
    return (char)tolower((unsigned char)c);
}

bool opt_same_name(const char *a, const char *b, size_t n)
{
    for (; n > 0 && *a && fold(*a) == fold(*b); n--) {
        a++;
        b++;
    }
    return n == 0 || *a == *b;
}

static bool same_name(const char *a, const char *b)
{
    return opt_same_name(a, b, SIZE_MAX);
}

static const struct opt_def *find_option(const struct opts *o, const char *name)
{
    for (size_t i = 0; i < o->n_defs; i++)
        if (same_name(o->defs[i].name, name)) return &o->defs[i];
    return NULL;
}

enum { NAME_MAX_LEN = 63, VARIABLE_BYTES = 160 };

/* Levenshtein's distance. */
size_t opt_distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_LEN + 1], n = strlen(a), m = strlen(b);
    if (n > NAME_MAX_LEN || m > NAME_MAX_LEN) return SIZE_MAX;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t up = row[j], best = diagonal + (fold(a[i - 1]) != fold(b[j - 1]));
            if (up + 1 < best) best = up + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
            diagonal = up;
        }
    }
    return row[m];
}

static int unknown(const struct opts *o, const char *where, const char *name, const char *dashes,
                   struct err *err)
{
    const char *best = NULL, *instead = opt_removed(name, NULL);
    size_t best_d = strlen(name) / 3 + 2;
    if (instead) return err_set(err, -EINVAL, "%s: was removed; %s", where, instead);
    for (size_t i = 0; i < o->n_defs; i++) {
        size_t d = opt_distance(name, o->defs[i].name);
        if (d < best_d) {
            best_d = d;
            best = o->defs[i].name;
        }
    }
    if (best)
        return err_set(err, -EINVAL, "%s: unknown option, did you mean %s%s?", where, dashes, best);
    return err_set(err, -EINVAL, "%s: unknown option", where);
}

/* ---- setting ---- */

static int check_range(const struct opt_def *d, double v, const char *where, struct err *err)
{
    if (d->min == 0 && d->max == 0) return 0;
    if (v >= d->min && v <= d->max) return 0;
    return err_set(err, -ERANGE, "%s: must be between %.15g and %.15g%s", where, d->min, d->max,
                   d->type == OPT_SIZE       ? " bytes"
                   : d->type == OPT_DURATION ? " ms"
                   : d->type == OPT_STR      ? " bytes long"
                                             : "");
}

static int check_value(const struct opt_def *d, const char *text, const char *where,
                       struct err *err)
{
    static const char *const wanted[] = {
        [OPT_STR] = "text",
        [OPT_BOOL] = "true or false",
        [OPT_INT] = "a whole number",
        [OPT_DOUBLE] = "a number",
        [OPT_SIZE] = "a size such as 512MiB",
        [OPT_DURATION] = "a duration such as 250ms or 10s",
    };
    int64_t i;
    uint64_t u;
    bool b;
    double v = 0;
    const char *instead;
    int r = 0;
    switch (d->type) {
    case OPT_STR:
        v = (double)strlen(text);
        break;
    case OPT_BOOL:
        r = opt_parse_bool(text, &b);
        break;
    case OPT_INT:
        r = opt_parse_int(text, &i);
        if (r == 0) v = (double)i;
        break;
    case OPT_DOUBLE:
        r = opt_parse_double(text, &v);
        break;
    case OPT_SIZE:
        r = opt_parse_size(text, &u);
        if (r == 0) v = (double)u;
        break;
    case OPT_DURATION:
        r = opt_parse_duration_ms(text, &u);
        if (r == 0) v = (double)u;
        break;
    case OPT_ENUM:
        if (in_values(d->values, text)) return 0;
        instead = opt_removed(d->name, text);
        if (instead) return err_set(err, -EINVAL, "%s: %s was removed; %s", where, text, instead);
        return err_set(err, -EINVAL, "%s: \"%.40s\" is none of %s", where, text, d->values);
    }
    if (r < 0) return err_set(err, r, "%s: \"%.40s\" is not %s", where, text, wanted[d->type]);
    return d->type == OPT_BOOL ? 0 : check_range(d, v, where, err);
}

static void val_clear(struct opt_val *v)
{
    for (size_t i = 0; i < v->n; i++)
        mem_free(v->texts[i]);
    v->n = 0;
}

static int set_value(struct opts *o, const struct opt_def *d, enum opt_source source,
                     const char *text, const char *where, struct err *err)
{
    struct opt_val *v = &o->vals[d - o->defs];
    int r = check_value(d, text, where, err);
    if (r < 0) return r;
    if (source < v->source) return 0; /* a stronger source has spoken */
    char *copy = mem_strdup(text);
    char **texts = copy ? mem_realloc(v->texts, (v->n + 1) * sizeof *texts) : NULL;
    if (!texts) {
        mem_free(copy);
        return err_set(err, -ENOMEM, "out of memory");
    }
    v->texts = texts;
    if (source > v->source || !d->repeatable) val_clear(v);
    v->texts[v->n++] = copy;
    v->source = source;
    return 0;
}

/* As set_value(), with lists split at commas. */
static int set_split(struct opts *o, const struct opt_def *d, enum opt_source source,
                     const char *text, const char *where, struct err *err)
{
    int r = 0;
    if (!d->repeatable) return set_value(o, d, source, text, where, err);
    for (const char *p = text; r == 0; p++) {
        size_t len = strcspn(p, ",");
        char *one = mem_strndup(p, len);
        r = one ? set_value(o, d, source, one, where, err) : err_set(err, -ENOMEM, "out of memory");
        mem_free(one);
        p += len;
        if (!*p) break;
    }
    return r;
}

int opts_set(struct opts *o, enum opt_source source, const char *name, const char *value,
             struct err *err)
{
    char where[128];
    (void)snprintf(where, sizeof where, "option %.100s", name);
    const struct opt_def *d = find_option(o, name);
    return d ? set_value(o, d, source, value, where, err) : unknown(o, where, name, "", err);
}

/* ---- life ---- */

int opts_create(const struct opt_def *defs, struct opts **ret)
{
    struct opts *o = mem_zalloc(sizeof *o);
    if (!o) return -ENOMEM;
    o->defs = defs;
    while (defs[o->n_defs].name)
        o->n_defs++;
    o->vals = mem_zalloc((o->n_defs + 1) * sizeof *o->vals);
    int r = o->vals ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < o->n_defs; i++) {
        ASSERT(defs[i].type != OPT_ENUM || defs[i].values);
        if (!defs[i].dflt) continue;
        struct err err = {0};
        r = set_split(o, &defs[i], OPT_DEFAULT, defs[i].dflt, defs[i].name, &err);
        ASSERT(r == 0 || r == -ENOMEM);
    }
    if (r < 0) {
        opts_destroy(o);
        return r;
    }
    *ret = o;
    return 0;
}

void opts_destroy(struct opts *o)
{
    if (!o) return;
    for (size_t i = 0; o->vals && i < o->n_defs; i++) {
        val_clear(&o->vals[i]);
        mem_free(o->vals[i].texts);
    }
    mem_free(o->vals);
    mem_free(o);
}

/* ---- flags ---- */

static int set_positional(struct opts *o, const char *text, struct err *err)
{
    size_t i = o->n_positionals;
    for (size_t k = 0; k < o->n_defs; k++) {
        const struct opt_def *d = &o->defs[k];
        if (!d->positional) continue;
        if (i > 0 && !d->repeatable) {
            i--;
            continue;
        }
        o->n_positionals++;
        return set_value(o, d, OPT_FLAG, text, d->name, err);
    }
    return err_set(err, -EINVAL, "unexpected argument \"%.80s\"", text);
}

/* One "--…" argument; *ret_used gets how many arguments it took. */
static int set_flag(struct opts *o, const char *arg, const char *next, int *ret_used,
                    struct err *err)
{
    char name[NAME_MAX_LEN + 1], where[128];
    size_t len = strcspn(arg + 2, "=");
    const char *value = arg[2 + len] ? arg + 2 + len + 1 : NULL;
    (void)snprintf(where, sizeof where, "flag --%.*s", (int)(len < 100 ? len : 100), arg + 2);
    if (len == 0 || len > NAME_MAX_LEN) return err_set(err, -EINVAL, "%s: unknown option", where);
    memcpy(name, arg + 2, len);
    name[len] = '\0';
    *ret_used = 1;
    const struct opt_def *d = find_option(o, name);
    if (!d && strncmp(name, "no-", 3) == 0 && !value) {
        d = find_option(o, name + 3);
        if (d && d->type == OPT_BOOL) return set_value(o, d, OPT_FLAG, "false", where, err);
        d = NULL;
    }
    if (!d) return unknown(o, where, name, "--", err);
    if (!value && d->type == OPT_BOOL) value = "true";
    if (!value) {
        if (!next) return err_set(err, -EINVAL, "%s: needs a value", where);
        value = next;
        *ret_used = 2;
    }
    return set_value(o, d, OPT_FLAG, value, where, err);
}

int opts_parse_argv(struct opts *o, int argc, char **argv, struct err *err)
{
    bool flags = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) break;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    }
    for (int i = 1; i < argc;) {
        const char *arg = argv[i];
        int used = 1, r = 0;
        if (flags && strcmp(arg, "--") == 0)
            flags = false;
        else if (flags && strncmp(arg, "--", 2) == 0)
            r = set_flag(o, arg, i + 1 < argc ? argv[i + 1] : NULL, &used, err);
        else if (flags && arg[0] == '-' && arg[1])
            r = err_set(err, -EINVAL, "flag %.80s: unknown option, flags begin with two dashes",
                        arg);
        else
            r = set_positional(o, arg, err);
        if (r < 0) return r;
        i += used;
    }
    return 0;
}

/* ---- environment ---- */

/* The variable of an option; false: its name is too long for one. */
static bool variable_of(const struct opt_def *d, const char *prefix, char ret[VARIABLE_BYTES])
{
    int n = snprintf(ret, VARIABLE_BYTES, "%s_%s", prefix, d->name);
    if (n < 0 || n >= VARIABLE_BYTES) return false;
    for (char *p = ret; *p; p++)
        *p = *p == '-' || *p == '.' ? '_' : (char)toupper((unsigned char)*p);
    return true;
}

int opts_unknown_env(const struct opts *o, const char *prefix, char *const *envp, struct buf *out)
{
    size_t n_prefix = strlen(prefix);
    int r = 0;
    for (; r == 0 && *envp; envp++) {
        char name[VARIABLE_BYTES], known[VARIABLE_BYTES], near[VARIABLE_BYTES] = "";
        size_t n = strcspn(*envp, "="), best = n > n_prefix ? (n - n_prefix) / 3 + 2 : 0;
        if (n >= sizeof name || strncmp(*envp, prefix, n_prefix) != 0 || (*envp)[n_prefix] != '_')
            continue;
        (void)snprintf(name, sizeof name, "%.*s", (int)n, *envp);
        for (size_t i = 0; i < o->n_defs; i++) {
            size_t d = variable_of(&o->defs[i], prefix, known) ? opt_distance(name, known) : best;
            if (d >= best) continue;
            best = d;
            memcpy(near, known, sizeof known);
        }
        const char *instead = opt_removed(name + n_prefix + 1, NULL);
        if (strcmp(name, near) == 0) continue;
        if (instead)
            r = buf_addf(out, "%s; it was removed; %s\n", name, instead);
        else
            r = buf_addf(out, "%s%s%s\n", name, *near ? "; expected one like " : "", near);
    }
    return r;
}

int opts_parse_env(struct opts *o, const char *prefix, struct err *err)
{
    for (size_t i = 0; i < o->n_defs; i++) {
        char name[VARIABLE_BYTES], where[VARIABLE_BYTES + 40];
        if (!variable_of(&o->defs[i], prefix, name)) continue;
        const char *value = getenv(name);
        if (!value) continue;
        (void)snprintf(where, sizeof where, "environment %s", name);
        int r = set_split(o, &o->defs[i], OPT_ENV, value, where, err);
        if (r < 0) return r;
    }
    return 0;
}

/* ---- for opt_yaml.c ---- */

int opts_set_file_value(struct opts *o, const char *key, const char *text, bool in_list,
                        const char *where, struct err *err)
{
    const struct opt_def *d = find_option(o, key);
    if (!d) return unknown(o, where, key, "", err);
    if (in_list && !d->repeatable) return err_set(err, -EINVAL, "%s: takes one value", where);
    return set_value(o, d, OPT_FILE, text, where, err);
}

/* ---- text ---- */

int opts_help(const struct opts *o, const char *program, const char *about, struct buf *out)
{
    static const char *const kinds[] = {
        [OPT_STR] = " TEXT",  [OPT_BOOL] = "",          [OPT_INT] = " N", [OPT_DOUBLE] = " NUMBER",
        [OPT_SIZE] = " SIZE", [OPT_DURATION] = " TIME", [OPT_ENUM] = " ",
    };
    int r = buf_addf(out, "Usage: %s [options]", program);
    for (size_t i = 0; r == 0 && i < o->n_defs; i++)
        if (o->defs[i].positional)
            r = buf_addf(out, " [%s%s]", o->defs[i].name, o->defs[i].repeatable ? "…" : "");
    if (r == 0) r = buf_addf(out, "\n%s\n\nOptions:\n", about);
    for (size_t i = 0; r == 0 && i < o->n_defs; i++) {
        const struct opt_def *d = &o->defs[i];
        if (!d->help) continue;
        size_t start = out->len;
        r = buf_addf(out, "  --%s%s%s", d->name, kinds[d->type], d->values ? d->values : "");
        size_t width = out->len - start;
        if (r == 0)
            r = width < 28 ? buf_addf(out, "%*s", (int)(28 - width), "")
                           : buf_addf(out, "\n%28s", "");
        if (r == 0) r = buf_adds(out, d->help);
        if (r == 0 && d->repeatable) r = buf_adds(out, " (may be repeated)");
        if (r == 0 && d->dflt) r = buf_addf(out, " [%s]", d->dflt);
        if (r == 0) r = buf_addc(out, '\n');
    }
    if (r == 0)
        r = buf_adds(out, "  --help                    Print this text.\n\nDefaults are in "
                          "brackets. A switch is turned off by --no-NAME.\n");
    return r;
}

int opts_dump(const struct opts *o, struct buf *out)
{
    static const char *const sources[] = {"unset", "default", "file", "environment", "flag"};
    int r = 0;
    for (size_t i = 0; r == 0 && i < o->n_defs; i++) {
        const struct opt_def *d = &o->defs[i];
        const struct opt_val *v = &o->vals[i];
        r = buf_addf(out, "%s:%s", d->name, d->repeatable ? " [" : v->n ? " " : "");
        for (size_t k = 0; r == 0 && k < v->n; k++) {
            bool quote = d->type == OPT_STR;
            r = k ? buf_adds(out, ", ") : 0;
            if (r == 0)
                r = quote ? buf_add_json_str(out, v->texts[k], strlen(v->texts[k]))
                          : buf_adds(out, v->texts[k]);
        }
        if (r == 0) r = buf_addf(out, "%s # %s\n", d->repeatable ? "]" : "", sources[v->source]);
    }
    return r;
}

/* ---- reading ---- */

static const char *read_text(const struct opts *o, const char *name, enum opt_type a,
                             enum opt_type b)
{
    const struct opt_def *d = find_option(o, name);
    ASSERT(d);
    ASSERT(d->type == a || d->type == b);
    const struct opt_val *v = &o->vals[d - o->defs];
    return v->n ? v->texts[v->n - 1] : NULL;
}

const char *opt_str(const struct opts *o, const char *name)
{
    const char *text = read_text(o, name, OPT_STR, OPT_ENUM);
    return text ? text : "";
}

bool opt_bool(const struct opts *o, const char *name)
{
    const char *text = read_text(o, name, OPT_BOOL, OPT_BOOL);
    bool v = false;
    if (text) (void)opt_parse_bool(text, &v); /* checked when it was set; so are those below */
    return v;
}

int64_t opt_int(const struct opts *o, const char *name)
{
    const char *text = read_text(o, name, OPT_INT, OPT_INT);
    int64_t v = 0;
    if (text) (void)opt_parse_int(text, &v);
    return v;
}

double opt_double(const struct opts *o, const char *name)
{
    const char *text = read_text(o, name, OPT_DOUBLE, OPT_INT);
    double v = 0;
    if (text) (void)opt_parse_double(text, &v);
    return v;
}

uint64_t opt_size(const struct opts *o, const char *name)
{
    const char *text = read_text(o, name, OPT_SIZE, OPT_SIZE);
    uint64_t v = 0;
    if (text) (void)opt_parse_size(text, &v);
    return v;
}

uint64_t opt_duration_ms(const struct opts *o, const char *name)
{
    const char *text = read_text(o, name, OPT_DURATION, OPT_DURATION);
    uint64_t v = 0;
    if (text) (void)opt_parse_duration_ms(text, &v);
    return v;
}

static const struct opt_val *value_of(const struct opts *o, const char *name)
{
    const struct opt_def *d = find_option(o, name);
    ASSERT(d);
    return &o->vals[d - o->defs];
}

enum opt_source opt_source(const struct opts *o, const char *name)
{
    return value_of(o, name)->source;
}

bool opt_given(const struct opts *o, const char *name)
{
    return opt_source(o, name) > OPT_DEFAULT;
}

size_t opt_n(const struct opts *o, const char *name)
{
    return value_of(o, name)->n;
}

const char *opt_str_at(const struct opts *o, const char *name, size_t i)
{
    const struct opt_val *v = value_of(o, name);
    ASSERT(i < v->n);
    return v->texts[i];
}
