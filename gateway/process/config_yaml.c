/* The configuration file, read through libyaml's event stream by recursive descent: a mapping of
 * keys and of one level of sections. Nothing is built in memory, so a hostile file costs its own
 * size at most; depth is bounded. Rejected: libcyaml, because its schema would be a second table
 * and its messages do not name the key's line together with what was expected. */
#include "gateway/process/config.h"

#include "base/opt_int.h"
#include "base/opt_removed.h"
#include "gateway/process/entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum {
    OPEN_MAX =
        16, /* chosen: four are ever of use, and libyaml takes quadratic time for thousands */
    KEY_BYTES = 64,
};

struct yaml_reader {
    struct opts *o;
    struct opt_place at;
    yaml_parser_t parser;
    yaml_event_t event; /* the last one */
    int open;           /* brackets, of any kind */
    bool over;          /* the rest is not worth reading */
};

#define complain(rd, ...) opt_problem((rd)->o, &(rd)->at, __VA_ARGS__)

/* ---- events ---- */

static yaml_event_type_t next_event(struct yaml_reader *rd)
{
    yaml_event_t *e = &rd->event;
    yaml_event_delete(e); /* and now it is of no type */
    if (rd->over || rd->o->no_memory) return YAML_STREAM_END_EVENT;
    if (!yaml_parser_parse(&rd->parser, e)) {
        rd->at.line = rd->parser.problem_mark.line + 1;
        complain(rd, "not YAML: %s", rd->parser.problem ? rd->parser.problem : "unreadable");
        rd->over = true;
        return YAML_STREAM_END_EVENT;
    }
    rd->at.line = e->start_mark.line + 1;
    rd->open += e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
    rd->open -= e->type == YAML_MAPPING_END_EVENT || e->type == YAML_SEQUENCE_END_EVENT;
    rd->over = rd->open > OPEN_MAX || e->type == YAML_ALIAS_EVENT;
    if (rd->open > OPEN_MAX) complain(rd, "nested too deeply: more than %d levels", OPEN_MAX);
    if (e->type == YAML_ALIAS_EVENT) complain(rd, "aliases are not supported");
    if (e->type == YAML_SCALAR_EVENT && memchr(e->data.scalar.value, '\0', e->data.scalar.length))
        complain(rd, "a text holds a NUL byte");
    return rd->over ? YAML_STREAM_END_EVENT : e->type;
}

/* The next event within a mapping or list; false: it was its end. */
static bool next_within(struct yaml_reader *rd)
{
    const yaml_event_type_t type = next_event(rd);
    return type != YAML_MAPPING_END_EVENT && type != YAML_SEQUENCE_END_EVENT &&
           type != YAML_STREAM_END_EVENT;
}

static const char *text_of(const struct yaml_reader *rd) /* NULL: it is no scalar */
{
    const yaml_event_t *e = &rd->event;
    return e->type == YAML_SCALAR_EVENT ? (const char *)e->data.scalar.value : NULL;
}

/* The rest of a value that began where so many brackets were open. */
static void skip_to(struct yaml_reader *rd, int open)
{
    while (rd->open > open && next_event(rd) != YAML_STREAM_END_EVENT)
        ;
}

/* ---- keys and texts ---- */

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
    if (!gw_entry_names_variable(text, name, sizeof name)) return text;
    const char *v = getenv(name);
    if (buf_addf(&rd->o->named, " %s ", name) < 0) rd->o->no_memory = true;
    if (!v) complain(rd, "variable %s is not set", name);
    return v;
}

/* ---- mappings as items: {key: K, id: x, models: [a, b]} is "K id=x models=a,b" ---- */

static bool is_head(const struct opt_row *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list->def->head;; p++) {
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

static void add_item_value(struct yaml_reader *rd, const struct opt_row *list, bool quote,
                           struct buf *to)
{
    const char *v = expand(rd, text_of(rd));
    if (!v) return;
    if (!quote && (!*v || v[strcspn(v, " \t\r\n")]))
        complain(rd, "%s: expected a value without spaces", list->key);
    else if (quote)
        add_quoted(to, v);
    else
        (void)buf_adds(to, v);
}

static void read_item_value(struct yaml_reader *rd, const struct opt_row *list, bool is_head,
                            struct buf *to)
{
    const bool quote = list->def->split && strchr(list->def->split, ';') && !is_head;
    const int here = rd->open;
    bool first = true;
    (void)next_event(rd);
    if (text_of(rd)) {
        add_item_value(rd, list, quote, to);
        return;
    }
    bool plain = rd->event.type == YAML_SEQUENCE_START_EVENT && !is_head;
    while (plain && next_within(rd) && (plain = text_of(rd) != NULL)) {
        if (!first) (void)buf_addc(to, ',');
        add_item_value(rd, list, quote, to);
        first = false;
    }
    if (plain) return;
    complain(rd, "%s: expected a plain value", list->key);
    skip_to(rd, here);
}

static void read_item(struct yaml_reader *rd, struct opt_row *list)
{
    struct buf head = BUF_INIT, rest = BUF_INIT, seen = BUF_INIT;
    const int here = rd->open;
    while (next_within(rd)) {
        char where[OPT_NAME_BYTES + KEY_BYTES];
        const char *key = text_of(rd);
        const bool first = key && is_head(list, key);
        if (key) {
            (void)snprintf(where, sizeof where, "%s, %.40s", list->key, key);
            note_key(rd, &seen, where, key);
            if (!first) (void)buf_addf(&rest, " %s=", key);
        } else {
            complain(rd, "%s: expected a plain value", list->key);
            skip_to(rd, here);
        }
        read_item_value(rd, list, first, first ? &head : &rest);
    }
    if (head.len > 0)
        (void)buf_add_buf(&head, &rest);
    else if (!rd->over)
        complain(rd, "%s: expected one of %s", list->key, list->def->head);
    if (buf_status(&head) < 0 || buf_status(&rest) < 0 || !buf_cstr(&head))
        rd->o->no_memory = true;
    else if (head.len > 0 && !rd->over)
        opt_set(rd->o, list, head.data, &rd->at);
    buf_fini(&head);
    buf_fini(&rest);
    buf_fini(&seen);
}

/* ---- values ---- */

static void set_expanded(struct yaml_reader *rd, struct opt_row *row)
{
    const char *v = expand(rd, text_of(rd));
    if (v) opt_set(rd->o, row, v, &rd->at);
}

static void read_list(struct yaml_reader *rd, struct opt_row *row)
{
    const int here = rd->open;
    while (next_within(rd)) {
        const yaml_event_type_t type = rd->event.type;
        if (type == YAML_SCALAR_EVENT) {
            set_expanded(rd, row);
        } else if (type == YAML_MAPPING_START_EVENT && row->def->head) {
            read_item(rd, row);
        } else {
            complain(rd,
                     type == YAML_MAPPING_START_EVENT ? "%s: expected plain texts, found a mapping"
                                                      : "%s: expected one value, found a list",
                     row->key);
            skip_to(rd, here);
        }
    }
}

static void read_mapping(struct yaml_reader *rd, const char *section);

static void read_value(struct yaml_reader *rd, const char *path, bool may_be_section)
{
    struct opt_row *row = opt_of_key(rd->o, path);
    const int here = rd->open;
    const bool section = may_be_section && is_section(rd, path);
    const yaml_event_type_t type = next_event(rd);
    const char *text = text_of(rd);
    if (text && row) {
        const bool plain = rd->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        if (!plain || (*text && strcmp(text, "~") != 0 && strcmp(text, "null") != 0))
            set_expanded(rd, row);
    } else if (text && section) {
        if (*text) complain(rd, "%s: expected a section of keys, found \"%.40s\"", path, text);
    } else if (type == YAML_MAPPING_START_EVENT && section) {
        read_mapping(rd, path);
    } else if (type == YAML_SEQUENCE_START_EVENT && row && row->def->repeatable) {
        read_list(rd, row);
    } else if (type != YAML_STREAM_END_EVENT) {
        if (!row)
            opt_unknown(rd->o, &rd->at, path, text);
        else
            complain(rd,
                     type == YAML_MAPPING_START_EVENT ? "%s: expected a value, found a mapping"
                                                      : "%s: expected one value, found a list",
                     path);
        skip_to(rd, here);
    }
}

/* Of all keys, or of a section's. */
static void read_mapping(struct yaml_reader *rd, const char *section)
{
    struct buf seen = BUF_INIT;
    const int here = rd->open;
    while (next_within(rd)) {
        char path[2 * KEY_BYTES] = "";
        const char *key = text_of(rd);
        if (key) {
            (void)snprintf(path, sizeof path, "%s%s%.*s", section, *section ? "." : "",
                           KEY_BYTES - 1, key);
            note_key(rd, &seen, path, key);
            read_value(rd, path, !*section);
        } else {
            complain(rd, "expected a key, found a mapping or list");
            skip_to(rd, here);
            (void)next_event(rd);
            skip_to(rd, here);
        }
    }
    buf_fini(&seen);
}

static void read_documents(struct yaml_reader *rd)
{
    int n_documents = 0;
    for (yaml_event_type_t type; (type = next_event(rd)) != YAML_STREAM_END_EVENT;) {
        const char *text = text_of(rd);
        if (type == YAML_DOCUMENT_START_EVENT && ++n_documents == 2) {
            complain(rd, "expected one document, found more");
            return;
        }
        if (type == YAML_MAPPING_START_EVENT) read_mapping(rd, "");
        if (text && *text) complain(rd, "expected \"key: value\" lines, found \"%.40s\"", text);
        if (type == YAML_SEQUENCE_START_EVENT) {
            complain(rd, "expected \"key: value\" lines, found a list");
            skip_to(rd, 0);
        }
    }
}

void gw_config_read_yaml(struct opts *o, const char *path)
{
    struct yaml_reader rd = {.o = o, .at = {OPT_FILE, path, 1}};
    FILE *f = fopen(path, "rb");
    if (!f) {
        complain(&rd, "cannot be read: %s", strerror(errno));
        return;
    }
    if (yaml_parser_initialize(&rd.parser)) {
        yaml_parser_set_input_file(&rd.parser, f);
        read_documents(&rd);
        yaml_event_delete(&rd.event);
        yaml_parser_delete(&rd.parser);
    } else {
        o->no_memory = true;
    }
    (void)fclose(f);
}
