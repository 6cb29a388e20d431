/* The YAML file, read through libyaml's event stream: a mapping of keys and of one level of
 * sections. Nothing is built in memory, so a hostile file costs its own size at most; depth is
 * bounded. */
#include "gateway/process/config.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/opt_removed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum {
    DEPTH_MAX = 2,
    OPEN_MAX =
        16, /* chosen: four are ever of use, and libyaml takes quadratic time for thousands */
};

struct yaml_state {
    struct gw_conf_build *b;
    struct gw_conf_source src;
    char path[DEPTH_MAX][64];       /* key at each mapping level */
    struct buf seen[DEPTH_MAX + 1]; /* the keys there so far, a line each; the last: an item's */
    int depth;                      /* open mappings */
    bool want_value;                /* the key of the innermost mapping has been read */
    const struct gw_conf_key *list; /* inside the sequence of this key */
    struct {                        /* a mapping as an item of that list */
        bool open, want_value, in_list;
        bool is_key; /* the value to come is the entry's first word */
        struct buf key, rest;
    } entry;
    int skip; /* > 0: inside a value that was already complained about */
    int open; /* brackets, of any kind */
};

static void full_path(const struct yaml_state *s, char *out, size_t cap)
{
    if (s->depth > 1)
        (void)snprintf(out, cap, "%s.%s", s->path[0], s->path[1]);
    else
        (void)snprintf(out, cap, "%s", s->path[0]);
}

static bool is_section(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < gw_conf_n_keys; i++)
        if (strncmp(gw_conf_keys[i].yaml, name, n) == 0 && gw_conf_keys[i].yaml[n] == '.')
            return true;
    return opt_removed_section(name);
}

static void unknown_key(struct yaml_state *s, const char *path)
{
    const char *near = NULL, *instead = opt_removed(path, NULL);
    size_t best = 4; /* chosen: up to three typing errors are worth a suggestion */
    if (instead) {
        gw_conf_problem(s->b, &s->src, "%s: was removed; %s", path, instead);
        return;
    }
    for (size_t i = 0; i < gw_conf_n_keys; i++) {
        if (gw_conf_keys[i].props & GW_NOFILE) continue;
        size_t d = opt_distance(path, gw_conf_keys[i].yaml);
        if (d >= best) continue;
        best = d;
        near = gw_conf_keys[i].yaml;
    }
    if (near)
        gw_conf_problem(s->b, &s->src, "%s: unknown key; expected one like \"%s\"", path, near);
    else
        gw_conf_problem(s->b, &s->src, "%s: unknown key; kvblend --help lists the known ones",
                        path);
}

/* YAML has a mapping's key once; the second one would win in silence. */
static int note_key(struct yaml_state *s, struct buf *seen, const char *where, const char *key)
{
    struct buf line = BUF_INIT;
    int r = buf_addf(&line, "\n%s\n", key);
    if (r == 0 && seen->len > 0 && memmem(seen->data, seen->len, line.data, line.len))
        gw_conf_problem(s->b, &s->src, "%s: expected once, found again", where);
    else if (r == 0)
        r = buf_add(seen, line.data, line.len);
    buf_fini(&line);
    return r;
}

/* "${NAME}" and "os.environ/NAME" stand for a variable, so that secrets stay out of the file. */
static const char *expand(struct yaml_state *s, const char *text, char *name, size_t cap)
{
    size_t len = strlen(text);
    if (strncmp(text, "os.environ/", 11) == 0)
        (void)snprintf(name, cap, "%s", text + 11);
    else if (len > 3 && text[0] == '$' && text[1] == '{' && text[len - 1] == '}')
        (void)snprintf(name, cap, "%.*s", (int)(len - 3), text + 2);
    else
        return text;
    const char *v = getenv(name);
    (void)buf_addf(&s->b->named, " %s ", name);
    if (!v) gw_conf_problem(s->b, &s->src, "variable %s is not set", name);
    return v;
}

/* ---- mappings as items: {key: K, id: x, models: [a, b]} is "K id=x models=a,b" ---- */

/* The words that name an entry's first part. */
static bool is_head(const struct yaml_state *s, const char *name)
{
    if (s->list->props & GW_QUOTED) return strcmp(name, "url") == 0;
    return strcmp(name, "key") == 0 || strcmp(name, "hash") == 0;
}

static int add_quoted(struct buf *to, const char *v)
{
    if (*v && !v[strcspn(v, " \t\r\n\"\\;")]) return buf_adds(to, v);
    int r = buf_addc(to, '"');
    for (; r == 0 && *v; v++) {
        if (*v == '"' || *v == '\\') r = buf_addc(to, '\\');
        if (r == 0) r = buf_addc(to, *v);
    }
    return r < 0 ? r : buf_addc(to, '"');
}

static int entry_scalar(struct yaml_state *s, const char *text)
{
    char name[128];
    if (!s->entry.want_value) {
        s->entry.is_key = is_head(s, text);
        s->entry.want_value = true;
        (void)snprintf(name, sizeof name, "%s, %.40s", s->list->yaml, text);
        if (note_key(s, &s->seen[DEPTH_MAX], name, text) < 0) return -ENOMEM;
        return s->entry.is_key ? 0 : buf_addf(&s->entry.rest, " %s=", text);
    }
    const char *v = expand(s, text, name, sizeof name);
    struct buf *to = s->entry.is_key ? &s->entry.key : &s->entry.rest;
    if (!s->entry.in_list) s->entry.want_value = false;
    if (!v) return 0;
    bool quoted = (s->list->props & GW_QUOTED) && !s->entry.is_key;
    if (!quoted && (!*v || v[strcspn(v, " \t\r\n")])) {
        gw_conf_problem(s->b, &s->src, "%s: expected a value without spaces", s->list->yaml);
        return 0;
    }
    bool more = s->entry.in_list && to->len > 0 && to->data[to->len - 1] != '=';
    if (more && buf_addc(to, ',') < 0) return -ENOMEM;
    return quoted ? add_quoted(to, v) : buf_adds(to, v);
}

static int entry_event(struct yaml_state *s, const yaml_event_t *e)
{
    int r = 0;
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return entry_scalar(s, (const char *)e->data.scalar.value);
    case YAML_SEQUENCE_START_EVENT:
        if (s->entry.want_value && !s->entry.in_list && !s->entry.is_key) {
            s->entry.in_list = true;
            return 0;
        }
        break;
    case YAML_SEQUENCE_END_EVENT:
        s->entry.in_list = s->entry.want_value = false;
        return 0;
    case YAML_MAPPING_END_EVENT:
        s->entry.open = false;
        if (s->entry.key.len == 0)
            gw_conf_problem(s->b, &s->src, "%s: expected %s", s->list->yaml,
                            s->list->props & GW_QUOTED ? "\"url\"" : "\"key\" or \"hash\"");
        else if ((r = buf_add(&s->entry.key, s->entry.rest.data, s->entry.rest.len)) == 0 &&
                 buf_cstr(&s->entry.key))
            r = gw_conf_set(s->b, s->list, s->entry.key.data, &s->src);
        buf_fini(&s->entry.key);
        buf_fini(&s->entry.rest);
        return r;
    default:
        break;
    }
    gw_conf_problem(s->b, &s->src, "%s: expected a plain value", s->list->yaml);
    s->entry.want_value = false;
    s->skip = e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
    return 0;
}

static int on_scalar(struct yaml_state *s, const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    char path[160], name[128];
    if (s->list) {
        const char *v = expand(s, text, name, sizeof name);
        return v ? gw_conf_set(s->b, s->list, v, &s->src) : 0;
    }
    if (s->depth == 0) {
        gw_conf_problem(s->b, &s->src, "expected \"key: value\" lines, found \"%.40s\"", text);
        return 0;
    }
    if (!s->want_value) {
        (void)snprintf(s->path[s->depth - 1], sizeof s->path[0], "%s", text);
        s->want_value = true;
        full_path(s, path, sizeof path);
        return note_key(s, &s->seen[s->depth - 1], path, text);
    }
    s->want_value = false;
    full_path(s, path, sizeof path);
    const struct gw_conf_key *k = gw_conf_find_yaml(path);
    if (!k) {
        if (s->depth == 1 && is_section(path)) {
            if (*text)
                gw_conf_problem(s->b, &s->src, "%s: expected a section of keys, found \"%.40s\"",
                                path, text);
            return 0;
        }
        unknown_key(s, path);
        return 0;
    }
    bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0)) return 0;
    const char *v = expand(s, text, name, sizeof name);
    return v ? gw_conf_set(s->b, k, v, &s->src) : 0;
}

static void on_mapping_start(struct yaml_state *s)
{
    char path[160];
    if (s->depth == 0) {
        s->depth = 1;
        return;
    }
    full_path(s, path, sizeof path);
    if (s->list && (s->list->props & GW_ENTRIES)) {
        s->entry.open = true;
        s->entry.want_value = false;
        buf_clear(&s->seen[DEPTH_MAX]);
        return;
    }
    if (s->list) {
        gw_conf_problem(s->b, &s->src, "%s: expected plain texts, found a mapping", s->list->yaml);
    } else if (!s->want_value) {
        gw_conf_problem(s->b, &s->src, "expected a key, found a mapping");
    } else if (s->depth == 1 && is_section(path)) {
        s->depth = 2;
        s->want_value = false;
        buf_clear(&s->seen[1]);
        return;
    } else if (gw_conf_find_yaml(path)) {
        gw_conf_problem(s->b, &s->src, "%s: expected a value, found a mapping", path);
    } else {
        unknown_key(s, path);
    }
    s->want_value = false;
    s->skip = 1;
}

static void on_sequence_start(struct yaml_state *s)
{
    char path[160];
    full_path(s, path, sizeof path);
    const struct gw_conf_key *k = s->depth > 0 && s->want_value ? gw_conf_find_yaml(path) : NULL;
    s->want_value = false;
    if (k && k->kind == GW_LIST && !s->list) {
        s->list = k;
        return;
    }
    if (s->depth == 0)
        gw_conf_problem(s->b, &s->src, "expected \"key: value\" lines, found a list");
    else if (k || s->list)
        gw_conf_problem(s->b, &s->src, "%s: expected one value, found a list", path);
    else
        unknown_key(s, path);
    s->skip = 1;
}

static int on_event(struct yaml_state *s, const yaml_event_t *e)
{
    bool opens = e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
    bool closes = e->type == YAML_MAPPING_END_EVENT || e->type == YAML_SEQUENCE_END_EVENT;
    s->open += opens - closes;
    if (s->open > OPEN_MAX) {
        s->src.line = (unsigned)e->start_mark.line + 1;
        gw_conf_problem(s->b, &s->src, "nested too deeply: more than %d levels", OPEN_MAX);
        return -E2BIG;
    }
    if (s->skip > 0) {
        s->skip += opens - closes;
        return 0;
    }
    s->src.line = (unsigned)e->start_mark.line + 1;
    if (e->type == YAML_SCALAR_EVENT && memchr(e->data.scalar.value, '\0', e->data.scalar.length))
        gw_conf_problem(s->b, &s->src, "a text holds a NUL byte");
    if (s->entry.open) return entry_event(s, e);
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return on_scalar(s, e);
    case YAML_MAPPING_START_EVENT:
        on_mapping_start(s);
        return 0;
    case YAML_SEQUENCE_START_EVENT:
        on_sequence_start(s);
        return 0;
    case YAML_MAPPING_END_EVENT:
        s->depth--;
        return 0;
    case YAML_SEQUENCE_END_EVENT:
        s->list = NULL;
        return 0;
    case YAML_ALIAS_EVENT:
        gw_conf_problem(s->b, &s->src, "aliases are not supported");
        s->want_value = false;
        return 0;
    default:
        return 0;
    }
}

int gw_conf_read_yaml(struct gw_conf_build *b, const char *path)
{
    struct yaml_state s = {.b = b, .src = {path, 0, 1}};
    FILE *f = fopen(path, "rb");
    if (!f) {
        gw_conf_problem(b, &s.src, "cannot be read: %s", strerror(errno));
        return -EINVAL;
    }
    yaml_parser_t p;
    if (!yaml_parser_initialize(&p)) {
        (void)fclose(f);
        return -ENOMEM;
    }
    yaml_parser_set_input_file(&p, f);
    int r = 0;
    for (bool end = false; !end && r != -ENOMEM && r != -E2BIG;) {
        yaml_event_t e;
        if (!yaml_parser_parse(&p, &e)) {
            s.src.line = (unsigned)p.problem_mark.line + 1;
            gw_conf_problem(b, &s.src, "not YAML: %s", p.problem ? p.problem : "unreadable");
            r = -EINVAL;
            break;
        }
        end = e.type == YAML_STREAM_END_EVENT;
        r = on_event(&s, &e);
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&p);
    (void)fclose(f);
    buf_fini(&s.entry.key); /* of a file that ended in its middle */
    buf_fini(&s.entry.rest);
    for (int i = 0; i <= DEPTH_MAX; i++)
        buf_fini(&s.seen[i]);
    return r == -ENOMEM ? r : b->n_problems ? -EINVAL : 0;
}
