/* Design: libyaml's events drive a small stack of mapping levels; the joined key is kept in one
 * buffer that is cut back at the end of each level. */
#include "base/opt.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/opt_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

enum {
    DEPTH_MAX = 16,
    FILE_BYTES_MAX = 1024 * 1024, /* chosen: a configuration, not a data file */
    KEYS_MAX = 4096,
};

struct reader {
    struct opts *opts;
    const char *file;
    struct buf key;                /* "gateway.listen" */
    size_t key_len[DEPTH_MAX + 1]; /* length of the key at each level */
    int depth;                     /* open mappings */
    bool have_key, in_list;
    char *seen[KEYS_MAX];
    size_t n_seen;
};

static void place(const struct reader *rd, const yaml_event_t *ev, char *where, size_t size)
{
    (void)snprintf(where, size, "file %.60s line %zu%s%.60s", rd->file, ev->start_mark.line + 1,
                   rd->key.len ? ", key " : "", rd->key.len ? rd->key.data : "");
}

static int refuse(const struct reader *rd, const yaml_event_t *ev, const char *why, struct err *err)
{
    char where[200];
    place(rd, ev, where, sizeof where);
    return err_set(err, -EINVAL, "%s: %s", where, why);
}

static int take_key(struct reader *rd, const yaml_event_t *ev, struct err *err)
{
    const char *text = (const char *)ev->data.scalar.value;
    size_t len = ev->data.scalar.length;
    if (len == 0 || memchr(text, '\0', len)) return refuse(rd, ev, "empty or binary key", err);
    int r = rd->key.len ? buf_addc(&rd->key, '.') : 0;
    if (r == 0) r = buf_add(&rd->key, text, len);
    if (r < 0 || !buf_cstr(&rd->key)) return err_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < rd->n_seen; i++)
        if (strcmp(rd->seen[i], rd->key.data) == 0)
            return refuse(rd, ev, "this key is given twice", err);
    if (rd->n_seen == KEYS_MAX) return refuse(rd, ev, "too many keys", err);
    rd->seen[rd->n_seen] = mem_strdup(rd->key.data);
    if (!rd->seen[rd->n_seen]) return err_set(err, -ENOMEM, "out of memory");
    rd->n_seen++;
    rd->have_key = true;
    return 0;
}

static int drop_key(struct reader *rd)
{
    rd->key.len = rd->key_len[rd->depth];
    rd->have_key = false;
    return buf_cstr(&rd->key) ? 0 : -ENOMEM;
}

static int take_scalar(struct reader *rd, const yaml_event_t *ev, struct err *err)
{
    const char *text = (const char *)ev->data.scalar.value;
    size_t len = ev->data.scalar.length;
    if (rd->depth == 0)
        return len ? refuse(rd, ev, "the file must hold a mapping of keys", err) : 0;
    if (!rd->in_list && !rd->have_key) return take_key(rd, ev, err);
    if (memchr(text, '\0', len)) return refuse(rd, ev, "the value has a NUL byte", err);
    bool plain = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    bool null = plain && (len == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
    char where[200];
    place(rd, ev, where, sizeof where);
    int r = null ? 0 : opts_set_file_value(rd->opts, rd->key.data, text, rd->in_list, where, err);
    return r == 0 && !rd->in_list ? drop_key(rd) : r;
}

static int take_event(struct reader *rd, const yaml_event_t *ev, struct err *err)
{
    switch (ev->type) {
    case YAML_SCALAR_EVENT:
        return take_scalar(rd, ev, err);
    case YAML_MAPPING_START_EVENT:
        if (rd->in_list || (rd->depth > 0 && !rd->have_key))
            return refuse(rd, ev, "a mapping is not expected here", err);
        if (rd->depth == DEPTH_MAX) return refuse(rd, ev, "nested too deeply", err);
        rd->key_len[++rd->depth] = rd->key.len;
        rd->have_key = false;
        return 0;
    case YAML_MAPPING_END_EVENT:
        rd->depth--;
        return drop_key(rd);
    case YAML_SEQUENCE_START_EVENT:
        if (rd->in_list || !rd->have_key) return refuse(rd, ev, "a list is not expected here", err);
        rd->in_list = true;
        return 0;
    case YAML_SEQUENCE_END_EVENT:
        rd->in_list = false;
        return drop_key(rd);
    case YAML_ALIAS_EVENT:
        return refuse(rd, ev, "aliases are not supported", err);
    default:
        return 0;
    }
}

int opts_parse_yaml(struct opts *o, const char *text, size_t len, const char *file_name,
                    struct err *err)
{
    struct reader *rd = mem_zalloc(sizeof *rd);
    yaml_parser_t parser;
    if (!rd || !yaml_parser_initialize(&parser)) {
        mem_free(rd);
        return err_set(err, -ENOMEM, "out of memory");
    }
    rd->opts = o;
    rd->file = file_name;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    int r = 0, n_documents = 0;
    for (bool end = false; r == 0 && !end;) {
        yaml_event_t ev;
        if (!yaml_parser_parse(&parser, &ev)) {
            r = err_set(err, -EINVAL, "file %.60s line %zu: %s", file_name,
                        parser.problem_mark.line + 1, parser.problem ? parser.problem : "not YAML");
            break;
        }
        end = ev.type == YAML_STREAM_END_EVENT;
        if (ev.type == YAML_DOCUMENT_START_EVENT && ++n_documents > 1)
            r = refuse(rd, &ev, "more than one document", err);
        if (r == 0) r = take_event(rd, &ev, err);
        yaml_event_delete(&ev);
    }
    yaml_parser_delete(&parser);
    for (size_t i = 0; i < rd->n_seen; i++)
        mem_free(rd->seen[i]);
    buf_fini(&rd->key);
    mem_free(rd);
    return r;
}

int opts_parse_file(struct opts *o, const char *path, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0) return err_set(err, -errno, "file %.120s: %s", path, strerror(errno));
    struct buf text = BUF_INIT;
    int r = 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX)
        r = err_set(err, -EINVAL, "file %.120s: not a regular file of at most 1 MiB", path);
    if (r == 0 && buf_reserve(&text, (size_t)st.st_size) < 0)
        r = err_set(err, -ENOMEM, "out of memory");
    while (r == 0 && text.len < (size_t)st.st_size) {
        ssize_t n = read(fd, text.data + text.len, (size_t)st.st_size - text.len);
        if (n < 0 && errno != EINTR)
            r = err_set(err, -errno, "file %.120s: %s", path, strerror(errno));
        if (n == 0) break;
        if (n > 0) text.len += (size_t)n;
    }
    (void)close(fd);
    if (r == 0) r = opts_parse_yaml(o, text.data, text.len, path, err);
    buf_fini(&text);
    return r;
}
