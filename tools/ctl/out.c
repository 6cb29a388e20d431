#include "tools/ctl/ctl.h"

#include "base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void add_cell(struct ctl_table *t, char *s)
{
    if (t->n_cells == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        char **v = mem_realloc(t->cell, cap * sizeof *v);
        if (!v) {
            mem_free(s);
            return;
        }
        t->cell = v;
        t->cap = cap;
    }
    t->cell[t->n_cells++] = s;
}

void ctl_table_head(struct ctl_table *t, const char *const *names, size_t n, const char *right)
{
    t->n_columns = n;
    for (size_t i = 0; i < n; i++) {
        t->right[i] = right[i] == 'r';
        add_cell(t, mem_strdup(names[i]));
    }
}

void ctl_cell(struct ctl_table *t, const char *fmt, ...)
{
    struct buf b = BUF_INIT;
    va_list ap;
    va_start(ap, fmt);
    if (buf_vaddf(&b, fmt, ap) == 0 && buf_cstr(&b))
        add_cell(t, mem_strdup(buf_cstr(&b)));
    else
        add_cell(t, NULL);
    va_end(ap);
    buf_fini(&b);
}

/* Columns on the screen: continuation bytes of UTF-8 take none. */
static size_t width_of(const char *s)
{
    size_t n = 0;
    for (; s && *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

void ctl_table_print(const struct ctl_table *t)
{
    size_t width[CTL_COLUMNS_MAX] = {0};
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t w = width_of(t->cell[i]);
        if (w > width[i % t->n_columns]) width[i % t->n_columns] = w;
    }
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t c = i % t->n_columns, w = width_of(t->cell[i]);
        int pad = (int)(width[c] - w);
        bool last = c + 1 == t->n_columns;
        const char *s = t->cell[i] ? t->cell[i] : "";
        if (t->right[c])
            (void)printf("%*s%s", pad, "", s);
        else
            (void)printf("%s%*s", s, last ? 0 : pad, "");
        (void)fputs(last ? "\n" : "  ", stdout);
    }
}

void ctl_table_fini(struct ctl_table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        mem_free(t->cell[i]);
    mem_free(t->cell);
    *t = (struct ctl_table){0};
}

int ctl_fail(const struct ctl_args *a, int rc, const char *fmt, ...)
{
    char why[512];
    struct buf b = BUF_INIT;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    (void)fprintf(stderr, "kvblendctl: %s\n", why);
    int r = a->json ? buf_adds(&b, "{\"error\":{\"message\":") : -ENOENT;
    if (r == 0) r = buf_add_json_str(&b, why, strlen(why));
    if (r == 0) (void)printf("%s}}\n", buf_cstr(&b));
    buf_fini(&b);
    return rc;
}

int ctl_confirm(const struct ctl_args *a, const char *what)
{
    char line[16] = "";
    if (a->yes) return CTL_OK;
    if (!isatty(STDIN_FILENO))
        return ctl_fail(a, CTL_USAGE, "this would %s; --yes does it, --dry-run says what would go",
                        what);
    (void)fprintf(stderr, "This will %s. Go on? [y/N] ", what);
    if (fgets(line, sizeof line, stdin) && (line[0] == 'y' || line[0] == 'Y')) return CTL_OK;
    return ctl_fail(a, CTL_REFUSED, "nothing was changed");
}

void ctl_print_json(const struct ctl_reply *r)
{
    (void)fwrite(r->body.data, 1, r->body.len, stdout);
    if (r->body.len == 0 || r->body.data[r->body.len - 1] != '\n') (void)putchar('\n');
}

const char *ctl_bytes(double n, char *buf, size_t cap)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (n >= 1024 && u < 4) {
        n /= 1024;
        u++;
    }
    (void)snprintf(buf, cap, u ? "%.1f %s" : "%.0f %s", n, units[u]);
    return buf;
}

const char *ctl_seconds(double s, char *buf, size_t cap)
{
    if (s < 60)
        (void)snprintf(buf, cap, "%.1f s", s);
    else if (s < 3600)
        (void)snprintf(buf, cap, "%ld m %ld s", (long)s / 60, (long)s % 60);
    else
        (void)snprintf(buf, cap, "%.1f h", s / 3600);
    return buf;
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

bool ctl_flag(const json_t *o, const char *key)
{
    return json_is_true(json_object_get(o, key));
}
