#include "gateway/process/models.h"

#include "base/buf.h"
#include "base/mem.h"
#include "gateway/process/config.h"
#include "gateway/process/entry.h"
#include "worker/opts_table.h"

#include <string.h>

enum { FIELDS_MAX = 64 };

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
        else if (argc == FIELDS_MAX)
            r = err_set(err, -EINVAL, "models: \"%.60s\": too many fields", m->path);
        else
            r = (argv[argc++] = flag_of(word.data)) ? 1 : -ENOMEM;
    }
    if (r == -EINVAL && !err->code)
        (void)err_set(err, r, "models: a quote is not closed in \"%.60s\"", text);
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

void gw_models_free(struct gw_models *m)
{
    for (size_t i = 0; i < m->n; i++) {
        mem_free(m->v[i].path);
        opts_destroy(m->v[i].opts);
    }
    mem_free(m->v);
    *m = (struct gw_models){0};
}
