/* Design: values are kept as the text they came as, checked when they are set and converted again
 * when they are read; options are read at start-up, so clarity wins over the second conversion. */
#include "base/assert.h"
#include "base/mem.h"
#include "base/opt_int.h"
#include "base/opt_removed.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECRET_BYTES_MAX = 4096 }; /* of a file */

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

struct opt_row *opt_of_flag(const struct opts *o, const char *name)
{
    for (size_t i = 0; i < o->n_rows; i++)
        if (opt_same_name(o->rows[i].flag, name, SIZE_MAX)) return &o->rows[i];
    return NULL;
}

struct opt_row *opt_of_key(const struct opts *o, const char *key)
{
    for (size_t i = 0; i < o->n_rows; i++)
        if (o->rows[i].key && opt_same_name(o->rows[i].key, key, SIZE_MAX)) return &o->rows[i];
    return NULL;
}

/* Levenshtein's; SIZE_MAX: a name is too long to compare. */
static size_t distance(const char *a, const char *b)
{
    enum { LEN_MAX = 63 };
    size_t row[LEN_MAX + 1], n = strlen(a), m = strlen(b);
    if (n > LEN_MAX || m > LEN_MAX) return SIZE_MAX;
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

bool opt_is_nearer(const char *name, const char *known, size_t *best)
{
    const size_t d = distance(name, known);
    if (d >= *best) return false;
    *best = d;
    return true;
}

/* ---- problems ---- */

void opt_problem(struct opts *o, const struct opt_place *at, const char *fmt, ...)
{
    struct buf *b = o->problems;
    o->n_problems++;
    if (at->source == OPT_FLAG)
        (void)buf_adds(b, "command line: ");
    else if (at->source == OPT_ENV)
        (void)buf_addf(b, "environment variable %s: ", at->name);
    else
        (void)buf_addf(b, "%s:%zu: ", at->name, at->line);
    va_list ap;
    va_start(ap, fmt);
    (void)buf_vaddf(b, fmt, ap);
    va_end(ap);
    (void)buf_addc(b, '\n');
}

void opt_unknown(struct opts *o, const struct opt_place *at, const char *name, const char *text)
{
    const bool flag = at->source == OPT_FLAG;
    const char *bare = flag ? name + strlen("--") : name, *near = NULL;
    const char *instead = opt_removed(bare, NULL);
    size_t best = strlen(bare) / 3 + 2;
    if (instead) {
        char line[256] = "";
        const bool shown = text && opt_removed_line(bare, text, line, sizeof line);
        opt_problem(o, at, "%s: was removed; %s%s%s", name, instead,
                    shown ? "; the new line: " : "", line);
        return;
    }
    for (size_t i = 0; i < o->n_rows; i++) {
        const char *known = flag ? o->rows[i].flag : o->rows[i].key;
        if (known && opt_is_nearer(bare, known, &best)) near = known;
    }
    if (near)
        opt_problem(o, at, "%s: unknown %s; expected one like \"%s%s\"", name,
                    flag ? "flag" : "key", flag ? "--" : "", near);
    else
        opt_problem(o, at, "%s: unknown %s; --help lists the known ones", name,
                    flag ? "flag" : "key");
}

/* ---- setting ---- */

bool opt_in_values(const char *values, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = values; p; p = strchr(p, '|')) {
        p += *p == '|';
        if (strcspn(p, "|") == n && strncmp(p, word, n) == 0) return true;
    }
    return false;
}

/* *ret: what the option's bounds are about. */
static int value_of(const struct opt_def *d, const char *text, double *ret)
{
    int64_t i = 0;
    uint64_t u = 0;
    bool b;
    int r = 0;
    switch (d->type) {
    case OPT_STR:
        if (d->check && !d->check(text)) return -EINVAL;
        u = strlen(text);
        break;
    case OPT_BOOL:
        return opt_parse_bool(text, &b);
    case OPT_ENUM:
        return opt_in_values(d->values, text) ? 0 : -EINVAL;
    case OPT_DOUBLE:
        return opt_parse_double(text, ret);
    case OPT_INT:
        r = opt_parse_int(text, &i);
        *ret = (double)i;
        return r;
    case OPT_SIZE:
    case OPT_DURATION:
        r = d->type == OPT_SIZE ? opt_parse_size(text, &u) : opt_parse_duration_ms(text, &u);
    }
    *ret = (double)u;
    return r;
}

/* By type: what is wanted of a text, the unit of its bounds, how --help shows it. */
static const struct {
    const char *wanted, *unit, *shown;
} kinds[] = {
    [OPT_STR] = {"text", " bytes", " TEXT"},
    [OPT_BOOL] = {"true or false", "", ""},
    [OPT_INT] = {"a whole number", "", " N"},
    [OPT_DOUBLE] = {"a number", "", " NUMBER"},
    [OPT_SIZE] = {"a size such as 512MiB", " bytes", " SIZE"},
    [OPT_DURATION] = {"a duration such as 30s, 500ms or 12h", " ms", " TIME"},
    [OPT_ENUM] = {"", "", " "},
};

static bool check_value(struct opts *o, const struct opt_row *row, const char *text,
                        const struct opt_place *at)
{
    const struct opt_def *d = row->def;
    double v = 0;
    int r = value_of(d, text, &v);
    const bool bounded = d->min != 0 || d->max != 0;
    if (r == 0 && (!bounded || (v >= d->min && v <= d->max))) return true;
    const char *dashes = at->source == OPT_FILE ? "" : "--";
    const char *name = at->source == OPT_FILE ? row->key : row->flag;
    const bool words = d->type == OPT_ENUM || d->check;
    const char *instead = words ? opt_removed(d->name, text) : NULL;
    if (instead)
        opt_problem(o, at, "%s%s: %s was removed; %s", dashes, name, text, instead);
    else if (r < 0)
        opt_problem(o, at, "%s%s: expected %s, found \"%.60s\"", dashes, name,
                    d->values ? d->values : kinds[d->type].wanted, text);
    else
        opt_problem(o, at, "%s%s: expected a value from %.15g to %.15g%s, found \"%.60s\"", dashes,
                    name, d->min, d->max, kinds[d->type].unit, text);
    return false;
}

static void clear_values(struct opt_row *row)
{
    for (size_t i = 0; i < row->n; i++)
        mem_free(row->texts[i]);
    row->n = 0;
}

static void set_text(struct opts *o, struct opt_row *row, const char *text,
                     const struct opt_place *at)
{
    if (!check_value(o, row, text, at) || at->source < row->source) return;
    if (at->source > row->source || !row->def->repeatable) clear_values(row);
    row->source = at->source;
    char **texts = mem_realloc(row->texts, (row->n + 1) * sizeof *texts);
    if (texts) row->texts = texts;
    char *copy = texts ? mem_strdup(text) : NULL;
    if (copy)
        row->texts[row->n++] = copy;
    else
        o->no_memory = true;
}

bool opt_file_exposed(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & (S_IRWXG | S_IRWXO));
}

/* The line that a file holds; NULL: a problem was named. */
static const char *read_secret(struct opts *o, const char *name, const char *path,
                               const struct opt_place *at, char line[SECRET_BYTES_MAX])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, line, SECRET_BYTES_MAX) : -1;
    const char *why = n < 0 ? strerror(errno) : "it should hold one line of text";
    if (fd >= 0) (void)close(fd);
    const bool whole = n < SECRET_BYTES_MAX;
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        n--;
    if (n <= 0 || !whole || memchr(line, '\0', (size_t)n) || memchr(line, '\n', (size_t)n)) {
        opt_problem(o, at, "%s: \"%s\" cannot be read: %s", name, path, why);
        return NULL;
    }
    line[n] = '\0';
    if (opt_file_exposed(path))
        (void)buf_addf(&o->exposed,
                       "%s: others than its owner may read or write %s; chmod 600 it\n", name,
                       path);
    return line;
}

static void set_one(struct opts *o, struct opt_row *row, const char *text,
                    const struct opt_place *at)
{
    const char *name = at->source == OPT_FILE ? row->key : row->flag;
    char line[SECRET_BYTES_MAX];
    if ((row->def->props & OPT_SECRET) && strncmp(text, "file:", 5) == 0)
        text = read_secret(o, name, text + 5, at, line);
    if (text) set_text(o, row, text, at);
    explicit_bzero(line, sizeof line);
}

/* The first item of a list in a variable; quotes protect a ';'. */
static size_t item_len(const char *text, const char *separators)
{
    const bool quotes = strchr(separators, ';') != NULL;
    bool quoted = false;
    size_t n = 0;
    for (; text[n] && (quoted || !strchr(separators, text[n])); n++) {
        if (quotes && text[n] == '"') quoted = !quoted;
        if (quotes && text[n] == '\\' && text[n + 1]) n++;
    }
    return n;
}

void opt_set(struct opts *o, struct opt_row *row, const char *text, const struct opt_place *at)
{
    const struct opt_def *d = row->def;
    if (!d->repeatable || (at->source != OPT_ENV && at->source != OPT_DEFAULT)) {
        set_one(o, row, text, at);
        return;
    }
    while (*text && !o->no_memory) {
        size_t n = item_len(text, d->split ? d->split : ",");
        char *one = mem_strndup(text, n);
        if (!one) o->no_memory = true;
        if (one && n > 0) set_one(o, row, one, at);
        mem_free(one);
        text += n + (text[n] != '\0');
    }
}

/* ---- life ---- */

static char *joined(const char *a, char between, const char *b)
{
    struct buf name = BUF_INIT;
    (void)buf_addf(&name, "%s%c%s", a, between, b);
    char *text = buf_status(&name) == 0 ? buf_take(&name, NULL) : NULL;
    for (char *p = text; between == '.' && p && *p; p++)
        if (*p == '-') *p = '_';
    buf_fini(&name);
    return text;
}

int opts_add_section(struct opts *o, const char *section, const struct opt_def *defs)
{
    size_t n = 0;
    while (defs[n].name)
        n++;
    struct opt_row *rows = mem_realloc(o->rows, (o->n_rows + n + 1) * sizeof *rows);
    if (!rows) return -ENOMEM;
    o->rows = rows;
    for (const struct opt_def *d = defs; d->name && !o->no_memory; d++) {
        const bool taken = section && opt_of_flag(o, d->name);
        const struct opt_place nowhere = {OPT_DEFAULT, d->name, 0};
        struct opt_row *row = &o->rows[o->n_rows];
        ASSERT(d->type != OPT_ENUM || d->values);
        *row = (struct opt_row){.def = d};
        row->flag = taken ? joined(section, '-', d->name) : mem_strdup(d->name);
        if (!(d->props & OPT_NO_KEY))
            row->key =
                section ? joined(section, '.', d->name) : mem_strdup(d->key ? d->key : d->name);
        o->n_rows++;
        o->no_memory = !row->flag || (!row->key && !(d->props & OPT_NO_KEY));
        if (d->dflt && !o->no_memory) opt_set(o, row, d->dflt, &nowhere);
        ASSERT(o->n_problems == 0);
    }
    return o->no_memory ? -ENOMEM : 0;
}

int opts_create(const struct opt_def *defs, struct opts **ret)
{
    struct opts *o = mem_zalloc(sizeof *o);
    int r = o ? opts_add_section(o, NULL, defs) : -ENOMEM;
    if (r < 0)
        opts_destroy(o);
    else
        *ret = o;
    return r;
}

void opts_destroy(struct opts *o)
{
    if (!o) return;
    for (size_t i = 0; i < o->n_rows; i++) {
        clear_values(&o->rows[i]);
        mem_free(o->rows[i].texts);
        mem_free(o->rows[i].flag);
        mem_free(o->rows[i].key);
    }
    buf_fini(&o->named);
    buf_fini(&o->exposed);
    mem_free(o->rows);
    mem_free(o);
}

/* ---- reading ---- */

static const struct opt_row *row_of(const struct opts *o, const char *name)
{
    const struct opt_row *row = opt_of_flag(o, name);
    if (!row) row = opt_of_key(o, name);
    ASSERT(row);
    return row;
}

/* The last text of an option of these types; "": unset. What it says was checked. */
static const char *option_text(const struct opts *o, const char *name, enum opt_type a,
                               enum opt_type b)
{
    const struct opt_row *row = row_of(o, name);
    ASSERT(row->def->type == a || row->def->type == b);
    return row->n ? row->texts[row->n - 1] : "";
}

const char *opt_str(const struct opts *o, const char *name)
{
    return option_text(o, name, OPT_STR, OPT_ENUM);
}

bool opt_bool(const struct opts *o, const char *name)
{
    bool v = false;
    (void)opt_parse_bool(option_text(o, name, OPT_BOOL, OPT_BOOL), &v);
    return v;
}

int64_t opt_int(const struct opts *o, const char *name)
{
    int64_t v = 0;
    (void)opt_parse_int(option_text(o, name, OPT_INT, OPT_INT), &v);
    return v;
}

double opt_double(const struct opts *o, const char *name)
{
    double v = 0;
    (void)opt_parse_double(option_text(o, name, OPT_DOUBLE, OPT_INT), &v);
    return v;
}

uint64_t opt_size(const struct opts *o, const char *name)
{
    uint64_t v = 0;
    (void)opt_parse_size(option_text(o, name, OPT_SIZE, OPT_SIZE), &v);
    return v;
}

uint64_t opt_duration_ms(const struct opts *o, const char *name)
{
    uint64_t v = 0;
    (void)opt_parse_duration_ms(option_text(o, name, OPT_DURATION, OPT_DURATION), &v);
    return v;
}

const char *opts_exposed(struct opts *o)
{
    return buf_cstr(&o->exposed);
}

enum opt_source opt_source(const struct opts *o, const char *name)
{
    return row_of(o, name)->source;
}

bool opt_given(const struct opts *o, const char *name)
{
    return opt_source(o, name) > OPT_DEFAULT;
}

char **opt_list(const struct opts *o, const char *name, size_t *ret_n)
{
    const struct opt_row *row = row_of(o, name);
    *ret_n = row->n;
    return row->texts;
}

/* Both from one table. */
static bool same_values(const struct opt_row *a, const struct opt_row *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->texts[i], b->texts[i]) != 0) return false;
    return true;
}

int opts_restart_keys(const struct opts *a, const struct opts *b, struct buf *out)
{
    int n = 0;
    for (size_t i = 0; i < a->n_rows; i++) {
        const struct opt_row *row = &a->rows[i];
        if (!row->key || (row->def->props & OPT_LIVE) || same_values(row, &b->rows[i])) continue;
        if (buf_addf(out, "%s%s", n++ ? "," : "", row->key) < 0) return -ENOMEM;
    }
    return n;
}

static void put_text(struct buf *out, const char *before, const char *text)
{
    (void)buf_adds(out, before);
    if (text)
        (void)buf_add_json_str(out, text, strlen(text));
    else
        (void)buf_adds(out, "null");
}

static void put_row(const struct opts *o, const struct opt_row *row, struct buf *out)
{
    const struct opt_def *d = row->def;
    char variable[OPT_NAME_BYTES];
    const bool form = d->type == OPT_STR && d->values;
    const char *shown = kinds[d->type].shown;
    put_text(out, "{\"flag\":", row->flag);
    put_text(out, ",\"value\":", form ? d->values : *shown ? shown + 1 : NULL);
    put_text(out, ",\"words\":", d->type == OPT_ENUM ? d->values : NULL);
    put_text(out, ",\"default\":", d->dflt);
    put_text(out, ",\"help\":", d->help);
    put_text(out, ",\"key\":", row->key);
    put_text(out, ",\"variable\":", opt_variable(row, o->dumped, variable) ? variable : NULL);
    (void)buf_addf(out, ",\"switch\":%s,\"repeatable\":%s,\"positional\":%s,\"live\":%s}",
                   d->type == OPT_BOOL ? "true" : "false", d->repeatable ? "true" : "false",
                   d->positional ? "true" : "false", d->props & OPT_LIVE ? "true" : "false");
}

static int dump(const struct opts *o, const char *program, const char *about, struct buf *out)
{
    const char *comma = "";
    put_text(out, "{\"program\":", program);
    put_text(out, ",\"about\":", about);
    (void)buf_addf(out, ",\"file\":%s,\"options\":[", opt_of_flag(o, "config") ? "true" : "false");
    for (const struct opt_row *row = o->rows; row < o->rows + o->n_rows; row++) {
        if (!row->def->help) continue;
        (void)buf_adds(out, comma);
        put_row(o, row, out);
        comma = ",";
    }
    (void)buf_adds(out, "]}\n");
    return buf_status(out);
}

int opts_help(const struct opts *o, const char *program, const char *about, struct buf *out)
{
    if (o->dumped) return dump(o, program, about, out);
    const struct opt_row *config = opt_of_flag(o, "config");
    (void)buf_addf(out, "Usage: %s [options]", program);
    for (const struct opt_row *row = o->rows; row < o->rows + o->n_rows; row++)
        if (row->def->positional)
            (void)buf_addf(out, " [%s%s]", row->flag, row->def->repeatable ? "…" : "");
    (void)buf_addf(out, "\n%s\n\nOptions:\n", about);
    for (const struct opt_row *row = o->rows; row < o->rows + o->n_rows; row++) {
        const struct opt_def *d = row->def;
        if (!d->help) continue;
        size_t start = out->len;
        const bool form = d->type == OPT_STR && d->values;
        (void)buf_addf(out, "  --%s%s%s", row->flag, form ? " " : kinds[d->type].shown,
                       d->values ? d->values : "");
        size_t width = out->len - start;
        (void)buf_addf(out, width < 28 ? "%*s" : "\n%*s", (int)(width < 28 ? 28 - width : 28), "");
        (void)buf_addf(out, "%s%s", d->help, d->repeatable ? " (may be repeated)" : "");
        if (d->dflt && strcmp(d->dflt, "false") != 0) (void)buf_addf(out, " [%s]", d->dflt);
        if (config && row->key) (void)buf_addf(out, " (%s)", row->key);
        (void)buf_addc(out, '\n');
    }
    (void)buf_addf(out,
                   "  --help                    Print this text.\n\nDefaults are in brackets%s. A "
                   "switch is turned off by --no-NAME.\n",
                   config ? ", keys of the file in parentheses" : "");
    return buf_status(out);
}
