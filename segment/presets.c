/* Presets: data files (JSON) into compiled patterns. An unknown key is an error: a misspelt preset
 * must not silently do nothing. */
#include "segment/segment_int.h"

#include "base/mem.h"

#include <dirent.h>
#include <jansson.h>
#include <string.h>

enum { PRESETS_MAX = 256 };

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
    json_array_foreach(v, i, item) {
        const char *s = json_string_value(item);
        if (!s || ret->n == PRESET_LIST_MAX)
            return err_set(err, -EINVAL, "%s: %s: at most %d strings", file, key, PRESET_LIST_MAX);
        int r = pat_compile(s, &ret->p[ret->n]);
        if (r < 0) return err_set(err, r, "%s: %s: bad pattern \"%s\"", file, key, s);
        ret->n++;
    }
    return 0;
}

static int read_split(const char *file, const char *s, enum preset_split *ret, struct err *err)
{
    static const char *const names[] = {"blocks", "lines", "join", "whole"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(s, names[i]) == 0) {
            *ret = (enum preset_split)i;
            return 0;
        }
    return err_set(err, -EINVAL, "%s: split must be blocks, lines, join or whole", file);
}

static int read_preset(const char *file, json_t *root, struct preset *p, struct pat_list *question,
                       struct err *err)
{
    enum { BEGIN, END, OPEN, CLOSE, JOIN, QUESTION, LISTS };
    static const char *const key[LISTS] = {"begin", "end", "open", "close", "join", "question"};
    struct pat_list *const list[LISTS] = {&p->begin, &p->end,  &p->open,
                                          &p->close, &p->join, question};
    json_t *v[LISTS] = {NULL};
    const char *name = NULL, *note, *split = "blocks";
    int min_matches = 2, close_required = 0, to_end = 0, tool_only = 0;
    json_error_t je;
    if (json_unpack_ex(root, &je, JSON_STRICT,
                       "{s?s, s?s, s?s, s?i, s?b, s?b, s?b, s?o, s?o, s?o, s?o, s?o, s?o}", "name",
                       &name, "note", &note, "split", &split, "min_matches", &min_matches,
                       "close_required", &close_required, "to_end", &to_end, "tool_only",
                       &tool_only, key[BEGIN], &v[BEGIN], key[END], &v[END], key[OPEN], &v[OPEN],
                       key[CLOSE], &v[CLOSE], key[JOIN], &v[JOIN], key[QUESTION], &v[QUESTION]) < 0)
        return err_set(err, -EINVAL, "%s: %s", file, je.text);
    if (name && !detector_ok(name, strlen(name)))
        return err_set(err, -EINVAL, "%s: bad name", file);
    if (min_matches < 1 || min_matches > 100)
        return err_set(err, -EINVAL, "%s: min_matches must be 1 to 100", file);
    p->min_matches = (unsigned)min_matches;
    p->close_required = close_required;
    p->to_end = to_end;
    p->tool_only = tool_only;
    if (name && !(p->name = mem_strdup(name)))
        return err_set(err, -ENOMEM, "no memory for presets");
    int r = read_split(file, split, &p->split, err);
    for (int i = 0; i < LISTS && r == 0; i++)
        if (v[i]) r = read_list(file, key[i], v[i], list[i], err);
    return r;
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

/* Takes root; NULL: why not. */
static int load_one(struct seg_presets *s, const char *file, json_t *root, const json_error_t *je,
                    struct err *err)
{
    if (!root) return err_set(err, -EINVAL, "%s:%d: %s", file, je->line, je->text);
    struct preset p = {0};
    unsigned n_question = s->question.n;
    int r = read_preset(file, root, &p, &s->question, err);
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
    json_error_t je;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(err, -ENAMETOOLONG, "path of preset %s is too long", name);
    return load_one(s, path, json_load_file(path, JSON_REJECT_DUPLICATES, &je), &je, err);
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
    for (size_t i = 0; !dir && r == 0 && i < seg_n_builtins; i++) {
        const struct seg_builtin *b = &seg_builtins[i];
        json_error_t je;
        r = load_one(s, b->file, json_loads(b->json, JSON_REJECT_DUPLICATES, &je), &je, err);
    }
    if (r < 0) {
        seg_presets_free(s);
        return r;
    }
    *ret = s;
    return 0;
}
