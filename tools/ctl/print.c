/* Templates and tables for people, and how a command says that it failed or asks first. */
#include "tools/ctl/ctl.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COLUMNS_MAX = 32 };

/* ---- what a field shows ---- */

static json_t *at(json_t *v, const char *path)
{
    while (v && *path) {
        size_t n = strcspn(path, ".");
        v = json_is_array(v) ? json_array_get(v, strtoul(path, NULL, 10))
                             : json_object_getn(v, path, n);
        path += n + (path[n] == '.');
    }
    return v;
}

/* Takes the expression apart. */
static double number(json_t *o, char *expression)
{
    double sum = 0, factor = 1;
    char *rest = strchr(expression, '*'), *term;
    if (rest) factor = strtod(expression, NULL);
    rest = rest ? rest + 1 : expression;
    while ((term = strsep(&rest, "+"))) {
        json_t *v = at(o, term), *count;
        const char *key;
        sum += json_number_value(v);
        json_object_foreach(v, key, count)
            sum += json_number_value(count);
    }
    return factor * sum;
}

static bool holds(json_t *o, char *condition)
{
    char *op = condition + strcspn(condition, "=>"), what = *op;
    *op = '\0';
    if (what == '>') return number(o, condition) > strtod(op + 1, NULL);
    const json_t *v = at(o, condition);
    const char *text = json_string_value(v);
    if (what == '=') return text && strcmp(text, op + 1) == 0;
    return v && !json_is_null(v) && !json_is_false(v) && !(text && !*text);
}

static void put_counts(struct buf *out, json_t *counts, bool name_first)
{
    const char *name, *sep = "";
    json_t *v;
    json_object_foreach(counts, name, v) {
        double n = json_number_value(v);
        if (n <= 0) continue;
        (void)buf_addf(out, name_first ? "%1$s%2$s %3$.0f" : "%1$s%3$.0f %2$s", sep, name, n);
        sep = ", ";
    }
}

/* As many as fit into so many bytes. */
static void put_list(struct buf *out, const json_t *list, size_t bytes_max)
{
    size_t i, begin = out->len;
    const json_t *v;
    json_array_foreach(list, i, v) {
        const char *s = json_string_value(v) ? json_string_value(v) : "?";
        if (i > 0 && out->len - begin + strlen(s) + 2 > bytes_max) {
            (void)buf_addf(out, " and %zu more", json_array_size(list) - i);
            return;
        }
        (void)buf_addf(out, "%s%.60s", i ? ", " : "", s);
    }
}

static void put_bytes(struct buf *out, double n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    for (; n >= 1024 && u < 4; u++)
        n /= 1024;
    (void)buf_addf(out, u ? "%.1f %s" : "%.0f %s", n, units[u]);
}

static void put_time(struct buf *out, double s)
{
    if (s < 60)
        (void)buf_addf(out, "%.1f s", s);
    else if (s < 3600)
        (void)buf_addf(out, "%ld m %ld s", (long)s / 60, (long)s % 60);
    else
        (void)buf_addf(out, "%.1f h", s / 3600);
}

static void put_field(struct buf *out, json_t *o, char *expression, const char *format)
{
    json_t *v = at(o, expression);
    const char *text = json_string_value(v), *digits = format + strcspn(format, "0123456789");
    int n = *digits ? (int)strtol(digits, NULL, 10) : -1;
    size_t begin = out->len;
    if (text)
        (void)buf_addf(out, "%.*s", n, text); /* -1: all of it */
    else if (strcmp(format, "counts") == 0 || strcmp(format, "amounts") == 0)
        put_counts(out, v, *format == 'c');
    else if (strncmp(format, "list", 4) == 0)
        put_list(out, v, n < 0 ? SIZE_MAX : (size_t)n);
    else if (strcmp(format, "bytes") == 0)
        put_bytes(out, number(o, expression));
    else if (strcmp(format, "time") == 0)
        put_time(out, number(o, expression));
    else if (*format == 'g')
        (void)buf_addf(out, "%.*g", n, number(o, expression)); /* -1: as many as usual */
    else if (json_is_number(v) || strpbrk(expression, "+*"))
        (void)buf_addf(out, "%.*f", n < 0 ? 0 : n, number(o, expression));
    for (; begin < out->len; begin++)
        if (iscntrl((unsigned char)out->data[begin])) out->data[begin] = ' ';
}

/* ---- templates ---- */

static const char *piece(struct buf *out, json_t *o, const char *t, bool *on);

/* From behind '{' to '}'; a condition that does not hold turns *on off. */
static const char *field(struct buf *out, json_t *o, const char *t, bool *on)
{
    char text[80];
    size_t n = strcspn(t, "}");
    (void)snprintf(text, sizeof text, "%.*s", (int)n, t);
    char *format = strchr(text, ':');
    if (!*on) return t + n;
    if (format) *format++ = '\0';
    if (*text == '?')
        *on = holds(o, text + 1);
    else
        put_field(out, o, text, format ? format : "");
    return t + n;
}

static const char *choice(struct buf *out, json_t *o, const char *t, bool on)
{
    for (;; t++) {
        bool taken = on;
        t = piece(out, o, t, &taken);
        on = on && !taken;
        if (*t != '|') return t;
    }
}

static const char *loop(struct buf *out, json_t *o, const char *t, bool on)
{
    char path[40];
    size_t n = strcspn(t, ":"), i = 0;
    (void)snprintf(path, sizeof path, "%.*s", (int)n, t);
    json_t *of = on ? at(o, path) : NULL;
    const char *end;
    do {
        json_t *e = json_is_object(of) ? of : json_array_get(of, i);
        bool there = e != NULL;
        if (json_is_object(e)) (void)json_object_set_new(e, "#", json_integer((json_int_t)i + 1));
        end = piece(out, e, t + n + 1, &there);
    } while (++i < json_array_size(of));
    return end;
}

/* Up to what ends it: '|', ']' or '>', or the end. Writes nothing while it is off. */
static const char *piece(struct buf *out, json_t *o, const char *t, bool *on)
{
    for (; *t && !strchr("|]>", *t); t++) {
        if (*t == '{')
            t = field(out, o, t + 1, on);
        else if (*t == '[')
            t = choice(out, o, t + 1, *on);
        else if (*t == '<')
            t = loop(out, o, t + 1, *on);
        else if (*on)
            (void)buf_addc(out, *t);
    }
    return t;
}

/* Continuation bytes of UTF-8 take no column of the screen. */
static size_t width_of(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

bool ctl_has_colours(int fd)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fd) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

/* The lines of [text, end), with their cells one below the other, titles bold. */
static void print_table(const char *text, const char *end)
{
    const char *bold = ctl_has_colours(STDOUT_FILENO) ? "\033[1m" : "";
    const char *plain = *bold ? "\033[0m" : "";
    size_t widths[COLUMNS_MAX] = {0};
    bool right[COLUMNS_MAX] = {false};
    for (size_t pass = 0; pass < 2; pass++) { /* measures, then prints */
        size_t line = 0, k = 0, n;
        for (const char *p = text; p < end; p += n + 1) {
            if (line == 0 && *p == '^') right[k] = p++;
            n = strcspn(p, "\t\n");
            size_t width = width_of(p, n);
            bool last = p[n] == '\n';
            if (pass == 0 && width > widths[k]) widths[k] = width;
            int pad = (int)(widths[k] - width);
            if (pass > 0)
                (void)printf("%s%*s%.*s%s%*s%s", line == 0 ? bold : "", right[k] ? pad : 0, "",
                             (int)n, p, line == 0 ? plain : "", right[k] || last ? 0 : pad, "",
                             last ? "\n" : "  ");
            line += last;
            k = last ? 0 : k + (k + 1 < COLUMNS_MAX);
        }
    }
}

static bool has_tab(const char *line)
{
    return line[strcspn(line, "\t\n")] == '\t';
}

void ctl_say(json_t *o, const char *view)
{
    struct buf b = BUF_INIT;
    bool on = true;
    (void)piece(&b, o, view, &on);
    const char *p = buf_cstr(&b), *begin;
    while (*(begin = p)) {
        bool table = has_tab(p);
        do {
            p = strchrnul(p, '\n');
            p += *p != '\0';
        } while (*p && has_tab(p) == table);
        if (table)
            print_table(begin, p);
        else
            (void)fwrite(begin, 1, (size_t)(p - begin), stdout);
    }
    buf_fini(&b);
}

/* ---- the rest ---- */

int ctl_fail(const struct ctl_args *a, int rc, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    const bool red = ctl_has_colours(STDERR_FILENO);
    (void)fprintf(stderr, "%skvblendctl:%s %s\n", red ? "\033[31m" : "", red ? "\033[0m" : "", why);
    struct buf b = BUF_INIT; /* not jansson: the sentence may quote what is not UTF-8 */
    if (a->json && buf_add_json_str(&b, why, strlen(why)) == 0)
        (void)printf("{\"error\":{\"message\":%s}}\n", buf_cstr(&b));
    buf_fini(&b);
    return rc;
}

int ctl_confirm(const struct ctl_args *a, json_t *o, const char *what)
{
    struct buf b = BUF_INIT;
    char line[16] = "";
    bool on = true;
    int rc = CTL_OK;
    if (a->yes) return CTL_OK;
    (void)piece(&b, o, what, &on);
    if (!isatty(STDIN_FILENO)) {
        rc = ctl_fail(a, CTL_USAGE, "this would %s; --yes does it, --dry-run says what would go",
                      buf_cstr(&b));
    } else {
        (void)fprintf(stderr, "This will %s. Go on? [y/N] ", buf_cstr(&b));
        if (!fgets(line, sizeof line, stdin) || (line[0] != 'y' && line[0] != 'Y'))
            rc = ctl_fail(a, CTL_REFUSED, "nothing was changed");
    }
    buf_fini(&b);
    return rc;
}

void ctl_print(const struct ctl_args *a, json_t *answer, const char *view)
{
    if (!a->json) {
        ctl_say(answer, view);
        return;
    }
    (void)json_dumpf(answer, stdout, JSON_COMPACT);
    (void)putchar('\n');
}

const char *ctl_str(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

double ctl_num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}
