/* The configuration file, read through libyaml's event stream: a mapping of keys and of one level
 * of sections. Nothing is built in memory, so a hostile file costs its own size at most; depth is
 * bounded. Rejected: libcyaml, because its schema would be a second table and its messages do not
 * name the key's line together with what was expected. */
#include "gateway/process/config.h"

#include "base/opt_int.h"
#include "base/opt_removed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum {
    DEPTH_MAX = 2,
    OPEN_MAX =
        16, /* chosen: four are ever of use, and libyaml takes quadratic time for thousands */
    KEY_BYTES = 64,
};

struct yaml_reader {
    struct opts *o;
    struct opt_place at;
    char path[DEPTH_MAX][KEY_BYTES]; /* key at each mapping level */
    struct buf seen[DEPTH_MAX + 1];  /* the keys there so far, a line each; the last: an item's */
    int depth;                       /* open mappings */
    bool want_value;                 /* the key of the innermost mapping has been read */
    struct opt_row *list;            /* inside the sequence of this key */
    struct {                         /* a mapping as an item of that list */
        bool open, want_value, in_list;
        bool is_head; /* the value to come is the item's first word */
        struct buf head, rest;
    } item;
    int skip; /* > 0: inside a value that was already complained about */
    int open; /* brackets, of any kind */
    int n_documents;
};

#define complain(rd, ...) opt_problem((rd)->o, &(rd)->at, __VA_ARGS__)

static void full_path(const struct yaml_reader *rd, char *out, size_t cap)
{
    if (rd->depth > 1)
        (void)snprintf(out, cap, "%s.%s", rd->path[0], rd->path[1]);
    else
        (void)snprintf(out, cap, "%s", rd->path[0]);
}

static bool is_section(const struct yaml_reader *rd, const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < rd->o->n_rows; i++) {
        const char *key = rd->o->rows[i].key;
        if (key && strncmp(key, name, n) == 0 && key[n] == '.') return true;
    }
    return opt_removed_section(name);
}

/* YAML has a mapping's key once; the second one would win in silence. */
static void note_key(struct yaml_reader *rd, struct buf *seen, const char *where, const char *key)
{
    for (const char *p = seen->data, *end = p + seen->len; p && p < end;) {
        const size_t n = strcspn(p, "\n");
        if (strlen(key) == n && opt_same_name(p, key, n)) {
            complain(rd, "%s: expected once, found again", where);
            return;
        }
        p += n + 1;
    }
    if (buf_addf(seen, "%s\n", key) < 0) rd->o->no_memory = true;
}

/* "${NAME}" and "os.environ/NAME" stand for a variable, so that secrets stay out of the file. */
static const char *expand(struct yaml_reader *rd, const char *text)
{
    char name[OPT_NAME_BYTES];
    const size_t len = strlen(text);
    if (strncmp(text, "os.environ/", 11) == 0)
        (void)snprintf(name, sizeof name, "%s", text + 11);
    else if (len > 3 && text[0] == '$' && text[1] == '{' && text[len - 1] == '}')
        (void)snprintf(name, sizeof name, "%.*s", (int)(len - 3), text + 2);
    else
        return text;
    const char *v = getenv(name);
    if (buf_addf(&rd->o->named, " %s ", name) < 0) rd->o->no_memory = true;
    if (!v) complain(rd, "variable %s is not set", name);
    return v;
}

/* ---- mappings as items: {key: K, id: x, models: [a, b]} is "K id=x models=a,b" ---- */

static bool is_head(const struct yaml_reader *rd, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = rd->list->def->head;; p++) {
        const size_t len = strcspn(p, "|");
        if (len == n && strncmp(p, name, n) == 0) return true;
        p += len;
        if (!*p) return false;
    }
}

static void add_quoted(struct buf *to, const char *v)
{
    if (*v && !v[strcspn(v, " \t\r\n\"\\;")]) {
        (void)buf_adds(to, v);
        return;
    }
    (void)buf_addc(to, '"');
    for (; *v; v++) {
        if (*v == '"' || *v == '\\') (void)buf_addc(to, '\\');
        (void)buf_addc(to, *v);
    }
    (void)buf_addc(to, '"');
}

static void item_scalar(struct yaml_reader *rd, const char *text)
{
    const struct opt_row *list = rd->list;
    if (!rd->item.want_value) {
        char where[OPT_NAME_BYTES + KEY_BYTES];
        rd->item.is_head = is_head(rd, text);
        rd->item.want_value = true;
        (void)snprintf(where, sizeof where, "%s, %.40s", list->key, text);
        note_key(rd, &rd->seen[DEPTH_MAX], where, text);
        if (!rd->item.is_head) (void)buf_addf(&rd->item.rest, " %s=", text);
        return;
    }
    const char *v = expand(rd, text);
    struct buf *to = rd->item.is_head ? &rd->item.head : &rd->item.rest;
    if (!rd->item.in_list) rd->item.want_value = false;
    if (!v) return;
    const bool quoted = list->def->split && strchr(list->def->split, ';') && !rd->item.is_head;
    if (!quoted && (!*v || v[strcspn(v, " \t\r\n")])) {
        complain(rd, "%s: expected a value without spaces", list->key);
        return;
    }
    if (rd->item.in_list && to->len > 0 && to->data[to->len - 1] != '=') (void)buf_addc(to, ',');
    if (quoted)
        add_quoted(to, v);
    else
        (void)buf_adds(to, v);
}

static void end_item(struct yaml_reader *rd)
{
    struct buf *head = &rd->item.head, *rest = &rd->item.rest;
    rd->item.open = false;
    if (head->len > 0)
        (void)buf_add_buf(head, rest);
    else
        complain(rd, "%s: expected one of %s", rd->list->key, rd->list->def->head);
    if (buf_status(head) < 0 || buf_status(rest) < 0 || !buf_cstr(head))
        rd->o->no_memory = true;
    else if (head->len > 0)
        opt_set(rd->o, rd->list, head->data, &rd->at);
    buf_fini(head);
    buf_fini(rest);
}

static void item_event(struct yaml_reader *rd, const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        item_scalar(rd, (const char *)e->data.scalar.value);
        return;
    case YAML_SEQUENCE_START_EVENT:
        if (rd->item.want_value && !rd->item.in_list && !rd->item.is_head) {
            rd->item.in_list = true;
            return;
        }
        break;
    case YAML_SEQUENCE_END_EVENT:
        rd->item.in_list = rd->item.want_value = false;
        return;
    case YAML_MAPPING_END_EVENT:
        end_item(rd);
        return;
    default:
        break;
    }
    complain(rd, "%s: expected a plain value", rd->list->key);
    rd->item.want_value = false;
    rd->skip = e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
}

/* ---- keys and values ---- */

static void set_expanded(struct yaml_reader *rd, struct opt_row *row, const char *text)
{
    const char *v = expand(rd, text);
    if (v) opt_set(rd->o, row, v, &rd->at);
}

static void on_scalar(struct yaml_reader *rd, const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    const bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    char path[2 * KEY_BYTES];
    if (rd->list) {
        set_expanded(rd, rd->list, text);
        return;
    }
    if (rd->depth == 0) {
        if (*text) complain(rd, "expected \"key: value\" lines, found \"%.40s\"", text);
        return;
    }
    if (!rd->want_value) {
        (void)snprintf(rd->path[rd->depth - 1], KEY_BYTES, "%s", text);
        rd->want_value = true;
        full_path(rd, path, sizeof path);
        note_key(rd, &rd->seen[rd->depth - 1], path, text);
        return;
    }
    rd->want_value = false;
    full_path(rd, path, sizeof path);
    struct opt_row *row = opt_of_key(rd->o, path);
    if (!row && rd->depth == 1 && is_section(rd, path)) {
        if (*text) complain(rd, "%s: expected a section of keys, found \"%.40s\"", path, text);
    } else if (!row) {
        opt_unknown(rd->o, &rd->at, path);
    } else if (!plain || (*text && strcmp(text, "~") != 0 && strcmp(text, "null") != 0)) {
        set_expanded(rd, row, text);
    }
}

static void on_mapping_start(struct yaml_reader *rd)
{
    char path[2 * KEY_BYTES];
    full_path(rd, path, sizeof path);
    if (rd->depth == 0) {
        rd->depth = 1;
        return;
    }
    if (rd->list && rd->list->def->head) {
        rd->item.open = true;
        rd->item.want_value = false;
        buf_clear(&rd->seen[DEPTH_MAX]);
        return;
    }
    if (rd->list) {
        complain(rd, "%s: expected plain texts, found a mapping", rd->list->key);
    } else if (!rd->want_value) {
        complain(rd, "expected a key, found a mapping");
    } else if (rd->depth == 1 && is_section(rd, path)) {
        rd->depth = 2;
        rd->want_value = false;
        buf_clear(&rd->seen[1]);
        return;
    } else if (opt_of_key(rd->o, path)) {
        complain(rd, "%s: expected a value, found a mapping", path);
    } else {
        opt_unknown(rd->o, &rd->at, path);
    }
    rd->want_value = false;
    rd->skip = 1;
}

static void on_sequence_start(struct yaml_reader *rd)
{
    char path[2 * KEY_BYTES];
    full_path(rd, path, sizeof path);
    struct opt_row *row = rd->depth > 0 && rd->want_value ? opt_of_key(rd->o, path) : NULL;
    rd->want_value = false;
    if (row && row->def->repeatable && !rd->list) {
        rd->list = row;
        return;
    }
    if (rd->depth == 0)
        complain(rd, "expected \"key: value\" lines, found a list");
    else if (row || rd->list)
        complain(rd, "%s: expected one value, found a list", path);
    else
        opt_unknown(rd->o, &rd->at, path);
    rd->skip = 1;
}

static void walk_event(struct yaml_reader *rd, const yaml_event_t *e)
{
    if (rd->item.open) {
        item_event(rd, e);
        return;
    }
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++rd->n_documents == 2) complain(rd, "expected one document, found more");
        return;
    case YAML_SCALAR_EVENT:
        on_scalar(rd, e);
        return;
    case YAML_MAPPING_START_EVENT:
        on_mapping_start(rd);
        return;
    case YAML_SEQUENCE_START_EVENT:
        on_sequence_start(rd);
        return;
    case YAML_MAPPING_END_EVENT:
        rd->depth--;
        return;
    case YAML_SEQUENCE_END_EVENT:
        rd->list = NULL;
        return;
    case YAML_ALIAS_EVENT:
        complain(rd, "aliases are not supported");
        rd->want_value = false;
        return;
    default:
        return;
    }
}

/* False: the rest is not worth reading. */
static bool take_event(struct yaml_reader *rd, const yaml_event_t *e)
{
    const bool opens = e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
    const bool closes = e->type == YAML_MAPPING_END_EVENT || e->type == YAML_SEQUENCE_END_EVENT;
    rd->at.line = e->start_mark.line + 1;
    rd->open += opens - closes;
    if (rd->open > OPEN_MAX) {
        complain(rd, "nested too deeply: more than %d levels", OPEN_MAX);
        return false;
    }
    if (rd->skip > 0) {
        rd->skip += opens - closes;
        return true;
    }
    if (e->type == YAML_SCALAR_EVENT && memchr(e->data.scalar.value, '\0', e->data.scalar.length))
        complain(rd, "a text holds a NUL byte");
    walk_event(rd, e);
    return !rd->o->no_memory && rd->n_documents < 2;
}

void gw_config_read_yaml(struct opts *o, const char *path)
{
    struct yaml_reader rd = {.o = o, .at = {OPT_FILE, path, 1}};
    FILE *f = fopen(path, "rb");
    yaml_parser_t p;
    if (!f) {
        complain(&rd, "cannot be read: %s", strerror(errno));
        return;
    }
    if (!yaml_parser_initialize(&p)) {
        (void)fclose(f);
        o->no_memory = true;
        return;
    }
    yaml_parser_set_input_file(&p, f);
    for (bool more = true; more;) {
        yaml_event_t e;
        if (!yaml_parser_parse(&p, &e)) {
            rd.at.line = p.problem_mark.line + 1;
            complain(&rd, "not YAML: %s", p.problem ? p.problem : "unreadable");
            break;
        }
        more = take_event(&rd, &e) && e.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&p);
    (void)fclose(f);
    buf_fini(&rd.item.head); /* of a file that ended in its middle */
    buf_fini(&rd.item.rest);
    for (int i = 0; i <= DEPTH_MAX; i++)
        buf_fini(&rd.seen[i]);
}
