#include "gateway/process/models.h"

#include "base/buf.h"
#include "base/mem.h"
#include "gateway/process/config.h"
#include "gateway/process/entry.h"
#include "worker/opts_table.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { FIELDS_MAX = 64, IDLE_MS_MIN = 1000 /* chosen: loading takes as long */ };

/* "served_model_name=emb" as the flag that the table of options knows. */
static char *flag_of(const char *word)
{
    const size_t name = strcspn(word, "=");
    struct buf b = BUF_INIT;
    (void)buf_addf(&b, "--%s", word);
    for (size_t i = 2; b.data && i < 2 + name && i < b.len; i++)
        if (b.data[i] == '_') b.data[i] = '-';
    char *flag = buf_cstr(&b) ? buf_take(&b, NULL) : NULL;
    buf_fini(&b);
    return flag;
}

/* What opts_read() says of a flag, as said of the entry's field. */
static int complain(const struct gw_model *m, const char *problems, struct err *err)
{
    static const char lead[] = "command line: ";
    const char *p = problems ? problems : "out of memory";
    if (strncmp(p, lead, sizeof lead - 1) == 0) p += sizeof lead - 1;
    return err_set(err, -EINVAL, "models: \"%.60s\": %.*s", m->path, (int)strcspn(p, "\n"), p);
}

static int read_fields(struct gw_model *m, int argc, char *const *argv, struct err *err)
{
    static char *const no_variables[] = {NULL};
    const struct opt_args from = {argc, argv, no_variables, "KVBLEND", NULL};
    struct buf problems = BUF_INIT;
    int r = opts_create(wk_opts_table, &m->opts);
    if (r == 0) r = opts_read(m->opts, &from, &problems);
    if (r == 1) r = -EINVAL; /* "help" is no field */
    if (r == -EINVAL) r = complain(m, problems.len ? buf_cstr(&problems) : "no such field", err);
    buf_fini(&problems);
    for (const struct opt_def *d = wk_opts_table; r == 0 && d->name; d++)
        if (d->props & OPT_SECRET && opt_given(m->opts, d->name))
            r = err_set(err, -EINVAL,
                        "models: \"%.60s\": %s is said in the section worker, for all models",
                        m->path, d->name);
    return r;
}

static int set_load(void *entry, struct arena *texts, const char *value)
{
    struct gw_model *m = entry;
    m->on_demand = strcmp(value, "on_demand") == 0;
    return m->on_demand || strcmp(value, "start") == 0 ? 0 : -EINVAL;
}

static const struct gw_entry_field life[] = {
    {"load", .set = set_load},
    {"idle", GW_ENTRY_MS, offsetof(struct gw_model, idle_ms), IDLE_MS_MIN, UINT32_MAX, NULL},
    {0}};

/* NAME=VALUE of when its worker runs. -ENOENT: it is another field. */
static int read_life(struct gw_model *m, const char *word, struct err *err)
{
    const size_t n = strcspn(word, "=");
    char name[8];
    if (n >= sizeof name) return -ENOENT;
    (void)snprintf(name, sizeof name, "%.*s", (int)n, word);
    const int r = gw_entry_set(life, m, NULL, name, word + n + 1);
    if (r == -EINVAL)
        return err_set(err, r, "models: \"%.60s\": %s is not \"%.40s\": %s", m->path, name,
                       word + n + 1,
                       *name == 'l' ? "expected start or on_demand"
                                    : "expected a time of a second at least, such as 10m");
    return r;
}

static int parse_model(const char *text, struct gw_model *m, struct err *err)
{
    char *argv[FIELDS_MAX + 1] = {NULL};
    int argc = 1;
    struct buf word = BUF_INIT;
    const char *p = text;
    int r = gw_entry_word(&p, &word);
    if (r == 1) {
        const char *path = word.len > 0 ? word.data : "";
        m->path = mem_strdup(strncmp(path, "path=", 5) == 0 ? path + 5 : path);
        r = m->path ? 1 : -ENOMEM;
    }
    if (r == 0 || (r == 1 && !*m->path))
        r = err_set(err, -EINVAL, "models: an entry names no path");
    while (r == 1 && (r = gw_entry_word(&p, &word)) == 1) {
        if (!strchr(word.data, '='))
            r = err_set(err, -EINVAL, "models: \"%.60s\": expected NAME=VALUE, found \"%.40s\"",
                        m->path, word.data);
        else if ((r = read_life(m, word.data, err)) != -ENOENT)
            r = r == 0 ? 1 : r;
        else if (argc == FIELDS_MAX)
            r = err_set(err, -EINVAL, "models: \"%.60s\": too many fields", m->path);
        else
            r = (argv[argc++] = flag_of(word.data)) ? 1 : -ENOMEM;
    }
    if (r == -EINVAL && !err->code)
        (void)err_set(err, r, "models: a quote is not closed in \"%.60s\"", text);
    if (r == 0 && m->idle_ms && !m->on_demand)
        r = err_set(err, -EINVAL, "models: \"%.60s\": idle is for load=on_demand", m->path);
    if (r == 0) r = read_fields(m, argc, argv, err);
    while (--argc > 0)
        mem_free(argv[argc]);
    buf_fini(&word);
    return r;
}

int gw_models_parse(const struct gw_strs *entries, struct gw_models *ret, struct err *err)
{
    struct gw_models m = {.v = mem_zalloc((entries->n + 1) * sizeof *m.v)};
    int r = m.v ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < entries->n; i++)
        r = parse_model(entries->v[i], &m.v[m.n++], err);
    if (r < 0)
        gw_models_free(&m);
    else
        *ret = m;
    return r;
}

const char *gw_model_name(const struct gw_model *m, char *ret, size_t cap)
{
    const char *at = opt_str(m->opts, "served-model-name");
    size_t len = at ? strcspn(at, ",") : 0;
    if (len == 0) {
        at = m->path;
        len = strlen(at);
        while (len > 1 && at[len - 1] == '/')
            len--;
        const char *slash = memrchr(at, '/', len - 1);
        if (slash) len -= (size_t)(slash + 1 - at);
        if (slash) at = slash + 1;
        if (len > 5 && memcmp(at + len - 5, ".gguf", 5) == 0) len -= 5;
    }
    (void)snprintf(ret, cap, "%.*s", (int)len, at);
    return ret;
}

void gw_models_free(struct gw_models *m)
{
    for (size_t i = 0; i < m->n; i++) {
        mem_free(m->v[i].path);
        opts_destroy(m->v[i].opts);
    }
    mem_free(m->v);
    *m = (struct gw_models){0};
}
