#include "gateway/request/merge.h"

#include "base/buf.h"
#include "base/mem.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct gw_merge_family {
    char *name;
    struct buf head;    /* HELP and TYPE lines, without the name: " text\n" pairs */
    struct buf samples; /* finished lines */
    bool has_help, has_type, has_unit;
};

static const char prefix[] = "kvblend_", renamed[] = "kvblend_worker_";

static struct gw_merge_family *family_find(const struct gw_merge *m, size_t n, const char *name,
                                           size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(m->family[i].name) == len && memcmp(m->family[i].name, name, len) == 0)
            return &m->family[i];
    return NULL;
}

static struct gw_merge_family *family_get(struct gw_merge *m, const char *name, size_t len)
{
    struct gw_merge_family *f = family_find(m, m->n, name, len);
    if (f) return f;
    f = mem_realloc(m->family, (m->n + 1) * sizeof *f);
    if (!f) return NULL;
    m->family = f;
    f = &f[m->n];
    *f = (struct gw_merge_family){.name = mem_strndup(name, len)};
    if (!f->name) return NULL;
    m->n++;
    return f;
}

/* Write `name` as the merged page calls it. */
static int put_name(struct buf *out, bool rename, const char *name, size_t len)
{
    size_t skip = sizeof prefix - 1;
    if (!rename || len < skip || memcmp(name, prefix, skip) != 0) return buf_add(out, name, len);
    int r = buf_adds(out, renamed);
    return r < 0 ? r : buf_add(out, name + skip, len - skip);
}

enum { MODEL_LABEL_MAX = 512 };
struct model_label { /* model="…": what a worker's figures are of; n 0: not known */
    const char *text;
    size_t n;
};

static int add_sample(struct gw_merge_family *f, bool rename, int worker,
                      const struct model_label *model, const char *line, size_t len)
{
    size_t n_name = 0;
    while (n_name < len && line[n_name] != '{' && line[n_name] != ' ')
        n_name++;
    int r = put_name(&f->samples, rename, line, n_name);
    if (r == 0 && worker < 0) r = buf_add(&f->samples, line + n_name, len - n_name);
    if (r == 0 && worker >= 0) {
        bool labels = n_name < len && line[n_name] == '{';
        size_t rest = n_name + labels;
        bool more = labels && rest < len && line[rest] != '}';
        r = buf_addf(&f->samples, "{worker=\"%d\"%s", worker, model->n ? "," : "");
        if (r == 0) r = buf_add(&f->samples, model->text, model->n);
        if (r == 0) r = buf_adds(&f->samples, labels ? (more ? "," : "") : "}");
        if (r == 0) r = buf_add(&f->samples, line + rest, len - rest);
    }
    return r < 0 ? r : buf_addc(&f->samples, '\n');
}

/* Behind kvblend_model_info all figures are that model's; before it are the process's. */
static void note_model(struct model_label *m, const char *line, size_t len)
{
    static const char info[] = "kvblend_model_info{";
    if (len < sizeof info || memcmp(line, info, sizeof info - 1) != 0) return;
    const char *end = memrchr(line, '}', len);
    if (!end) return;
    m->text = line + sizeof info - 1;
    m->n = end - m->text <= MODEL_LABEL_MAX ? (size_t)(end - m->text) : 0; /* it comes often */
}

/* kind: "# HELP " and its like. */
static int add_comment(struct gw_merge_family *f, const char *kind, const char *rest, size_t len)
{
    bool *has = kind[2] == 'T' ? &f->has_type : kind[2] == 'U' ? &f->has_unit : &f->has_help;
    if (*has) return 0;
    *has = true;
    int r = buf_addf(&f->head, "%.7s%s", kind, f->name);
    if (r == 0) r = buf_add(&f->head, rest, len);
    return r < 0 ? r : buf_addc(&f->head, '\n');
}

int gw_merge_page(struct gw_merge *m, int worker, const char *text, size_t len)
{
    char family[200] = "";
    bool rename = false;
    struct model_label model = {"", 0};
    const char *end = text + len;
    for (const char *p = text; p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);
        const char *line = p;
        p += n + 1;
        bool known = n > 7 && (memcmp(line, "# TYPE ", 7) == 0 || memcmp(line, "# HELP ", 7) == 0 ||
                               memcmp(line, "# UNIT ", 7) == 0);
        if (n == 0 || memchr(line, '\0', n)) continue; /* no text */
        if (*line == '#' && !known) continue;
        size_t skip = *line == '#' ? 7 : 0, n_name = 0;
        while (skip + n_name < n && line[skip + n_name] != ' ' && line[skip + n_name] != '{')
            n_name++;
        if (n_name == 0 || n_name >= sizeof family - sizeof renamed) continue;
        const char *name = line + skip;
        /* Samples follow their family's comments; one without stands for itself. */
        size_t n_family = strlen(family);
        bool same = n_family > 0 && n_name >= n_family && memcmp(name, family, n_family) == 0 &&
                    (n_name == n_family || name[n_family] == '_');
        if (skip || !same) {
            (void)snprintf(family, sizeof family, "%.*s", (int)n_name, name);
            rename = worker >= 0 && family_find(m, m->n_own, name, n_name);
        }
        struct buf final = BUF_INIT;
        int r = put_name(&final, rename, family, strlen(family));
        struct gw_merge_family *f = r < 0 ? NULL : family_get(m, final.data, final.len);
        buf_fini(&final);
        if (!f) return -ENOMEM;
        r = skip ? add_comment(f, line, name + n_name, n - skip - n_name)
                 : add_sample(f, rename, worker, &model, line, n);
        if (r < 0) return r;
        if (!skip && worker >= 0) note_model(&model, line, n);
    }
    if (worker < 0) m->n_own = m->n;
    return 0;
}

int gw_merge_render(const struct gw_merge *m, struct buf *out)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct gw_merge_family *f = &m->family[i];
        int r = buf_add(out, f->head.data, f->head.len);
        if (r == 0) r = buf_add(out, f->samples.data, f->samples.len);
        if (r < 0) return r;
    }
    return 0;
}

void gw_merge_fini(struct gw_merge *m)
{
    for (size_t i = 0; i < m->n; i++) {
        mem_free(m->family[i].name);
        buf_fini(&m->family[i].head);
        buf_fini(&m->family[i].samples);
    }
    mem_free(m->family);
    *m = (struct gw_merge){0};
}
