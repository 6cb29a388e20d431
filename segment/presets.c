/* Presets: data files (JSON) into compiled patterns. An unknown key is an error: a misspelt preset
 * must not silently do nothing. */
#include "segment/segment_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { PRESET_FILE_BYTES_MAX = 64 << 10, PRESETS_MAX = 256 };

static void list_fini(struct pat_list *l)
{
    for (unsigned i = 0; i < l->n; i++)
        pat_fini(&l->p[i]);
    l->n = 0;
}

static void preset_fini(struct preset *p)
{
    mem_free(p->name);
    list_fini(&p->begin);
    list_fini(&p->end);
    list_fini(&p->open);
    list_fini(&p->close);
    list_fini(&p->join);
}

void seg_presets_free(struct seg_presets *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n; i++)
        preset_fini(&p->preset[i]);
    list_fini(&p->question);
    mem_free(p->preset);
    mem_free(p);
}

static int read_list(const char *file, const char *key, const json_t *v, struct pat_list *ret,
                     struct err *err)
{
    size_t i;
    json_t *item;
    if (!json_is_array(v)) return err_set(err, -EINVAL, "%s: %s must be a list", file, key);
    json_array_foreach(v, i, item)
    {
        const char *s = json_string_value(item);
        if (!s || ret->n == PRESET_LIST_MAX)
            return err_set(err, -EINVAL, "%s: %s: at most %d strings", file, key, PRESET_LIST_MAX);
        int r = pat_compile(s, &ret->p[ret->n]);
        if (r < 0) return err_set(err, r, "%s: %s: bad pattern \"%s\"", file, key, s);
        ret->n++;
    }
    return 0;
}

static int read_split(const char *file, const json_t *v, enum preset_split *ret, struct err *err)
{
    static const char *const names[] = {"blocks", "lines", "join", "whole"};
    const char *s = json_string_value(v);
    for (unsigned i = 0; s && i < sizeof names / sizeof *names; i++)
        if (strcmp(s, names[i]) == 0) {
            *ret = (enum preset_split)i;
            return 0;
        }
    return err_set(err, -EINVAL, "%s: split must be blocks, lines, join or whole", file);
}

static int read_key(const char *file, const char *key, const json_t *v, struct preset *p,
                    struct pat_list *question, struct err *err)
{
    const struct {
        const char *key;
        struct pat_list *list;
    } lists[] = {{"begin", &p->begin}, {"end", &p->end},   {"open", &p->open},
                 {"close", &p->close}, {"join", &p->join}, {"question", question}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (strcmp(key, lists[i].key) == 0) return read_list(file, key, v, lists[i].list, err);
    const struct {
        const char *key;
        bool *flag;
    } flags[] = {{"close_required", &p->close_required},
                 {"to_end", &p->to_end},
                 {"tool_only", &p->tool_only}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags && json_is_boolean(v); i++)
        if (strcmp(key, flags[i].key) == 0) {
            *flags[i].flag = json_is_true(v);
            return 0;
        }
    if (strcmp(key, "note") == 0 && json_is_string(v)) return 0;
    if (strcmp(key, "split") == 0) return read_split(file, v, &p->split, err);
    if (strcmp(key, "min_matches") == 0 && json_is_integer(v) && json_integer_value(v) >= 1 &&
        json_integer_value(v) <= 100) {
        p->min_matches = (unsigned)json_integer_value(v);
        return 0;
    }
    if (strcmp(key, "name") == 0 && json_is_string(v)) {
        if (p->name || !detector_ok(json_string_value(v), json_string_length(v)))
            return err_set(err, -EINVAL, "%s: bad name", file);
        p->name = mem_strdup(json_string_value(v));
        return p->name ? 0 : err_set(err, -ENOMEM, "no memory for presets");
    }
    return err_set(err, -EINVAL, "%s: unknown key or wrong type: %s", file, key);
}

/* A preset needs something that tells where chunks are. */
static int preset_check(const char *file, const struct preset *p, struct err *err)
{
    if (!p->name) return err_set(err, -EINVAL, "%s: no name", file);
    if (p->split == SPLIT_JOIN && p->join.n == 0)
        return err_set(err, -EINVAL, "%s: split join needs a join list", file);
    if (p->open.n == 0 && p->begin.n == 0 && p->split != SPLIT_JOIN)
        return err_set(err, -EINVAL, "%s: needs open, begin or join", file);
    if (p->close_required && p->close.n == 0)
        return err_set(err, -EINVAL, "%s: close_required without close", file);
    return 0;
}

static int load_one(struct seg_presets *s, const char *file, const char *text, size_t len,
                    struct err *err)
{
    json_error_t je;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    if (!root) return err_set(err, -EINVAL, "%s:%d: %s", file, je.line, je.text);
    struct preset p = {.min_matches = 2};
    const char *key;
    json_t *v;
    unsigned n_question = s->question.n;
    int r = json_is_object(root) ? 0 : err_set(err, -EINVAL, "%s: not an object", file);
    if (r == 0) {
        json_object_foreach(root, key, v)
        {
            r = read_key(file, key, v, &p, &s->question, err);
            if (r < 0) break;
        }
    }
    json_decref(root);
    bool keeps = r == 0 && s->question.n == n_question; /* a file of lead-ins has no preset */
    if (keeps) r = preset_check(file, &p, err);
    if (keeps && r == 0 && s->n == PRESETS_MAX) r = err_set(err, -ERANGE, "too many presets");
    if (!keeps || r < 0) {
        preset_fini(&p);
        return r;
    }
    struct preset *grown = mem_realloc(s->preset, (s->n + 1) * sizeof *grown);
    if (!grown) {
        preset_fini(&p);
        return err_set(err, -ENOMEM, "no memory for presets");
    }
    s->preset = grown;
    s->preset[s->n++] = p;
    return 0;
}

static int is_json(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 5 && d->d_name[0] != '.' && strcmp(d->d_name + n - 5, ".json") == 0;
}

static int load_file(struct seg_presets *s, const char *dir, const char *name, struct err *err)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(err, -ENAMETOOLONG, "path of preset %s is too long", name);
    FILE *f = fopen(path, "rb");
    if (!f) return err_set(err, -errno, "cannot open preset %s", path);
    char *text = mem_alloc(PRESET_FILE_BYTES_MAX + 1);
    size_t len = text ? fread(text, 1, PRESET_FILE_BYTES_MAX + 1, f) : 0;
    int r = 0;
    if (!text)
        r = err_set(err, -ENOMEM, "no memory for presets");
    else if (ferror(f))
        r = err_set(err, -EIO, "cannot read preset %s", path);
    else if (len > PRESET_FILE_BYTES_MAX)
        r = err_set(err, -ERANGE, "preset %s is larger than 64 KiB", path);
    else
        r = load_one(s, path, text, len, err);
    fclose(f);
    mem_free(text);
    return r;
}

/* In the order of their names, so that ties do not depend on the folder's. */
static int load_dir(struct seg_presets *s, const char *dir, struct err *err)
{
    struct dirent **found;
    const int n = scandir(dir, &found, is_json, alphasort);
    if (n < 0) return err_set(err, -errno, "cannot open the preset folder %s", dir);
    int r = 0;
    if (n > PRESETS_MAX) r = err_set(err, -ERANGE, "more than %d presets in %s", PRESETS_MAX, dir);
    for (int i = 0; i < n; i++) {
        if (r == 0) r = load_file(s, dir, found[i]->d_name, err);
        mem_free(found[i]); /* scandir's own memory, as found */
    }
    mem_free(found);
    return r;
}

int seg_presets_load(const char *dir, struct seg_presets **ret, struct err *err)
{
    struct seg_presets *s = mem_zalloc(sizeof *s);
    if (!s) return err_set(err, -ENOMEM, "no memory for presets");
    int r = dir ? load_dir(s, dir, err) : 0;
    for (size_t i = 0; !dir && r == 0 && i < seg_n_builtins; i++)
        r = load_one(s, seg_builtins[i].file, seg_builtins[i].json, strlen(seg_builtins[i].json),
                     err);
    if (r < 0) {
        seg_presets_free(s);
        return r;
    }
    *ret = s;
    return 0;
}
