/* What names mean: their form, and which of a repository's files they name. */
#include "base/hub/hub_int.h"

#include <ctype.h>
#include <stdio.h>
#include <strings.h>

enum { PATH_BYTES_MAX = 1024, PART_BYTES_MAX = 255, COMMIT_DIGITS = 40 };

static bool is_word(const char *s, size_t n, const char *also)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr(also, s[i])) return false;
    return n > 0;
}

/* The hub's rule for both halves of ORG/NAME. */
static bool is_repo_part(const char *s, size_t n)
{
    if (!is_word(s, n, "._-") || strchr(".-", s[0]) || strchr(".-", s[n - 1])) return false;
    for (size_t i = 0; i + 1 < n; i++)
        if (s[i] == s[i + 1] && strchr(".-", s[i])) return false;
    return true;
}

bool hub_path_is_safe(const char *path)
{
    const size_t len = strlen(path);
    if (len == 0 || len > PATH_BYTES_MAX) return false;
    for (const char *p = path; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || *p == '\\') return false;
    for (const char *p = path;; p++) {
        const size_t n = strcspn(p, "/");
        if (n == 0 || n > PART_BYTES_MAX || (n <= 2 && strspn(p, ".") >= n)) return false;
        p += n;
        if (!*p) return true;
    }
}

bool hub_is_commit(const char *text)
{
    return strspn(text, "0123456789abcdef") == COMMIT_DIGITS && !text[COMMIT_DIGITS];
}

static bool copy_part(char *to, size_t cap, const char *from, size_t n)
{
    if (n == 0 || n >= cap) return false;
    memcpy(to, from, n);
    to[n] = '\0';
    return true;
}

int hub_name_parse(const char *text, struct hub_name *ret)
{
    const bool meant = strncmp(text, "hf:", 3) == 0;
    const int none = meant ? -EINVAL : 0;
    struct hub_name n = {.revision = "main"};
    const char *s = text + (meant ? 3 : 0);
    const size_t org = strcspn(s, "/@:"), name = s[org] == '/' ? strcspn(s + org + 1, "/@:") : 0;
    const char *rest = s + org + 1 + name;
    if (name == 0 || !is_repo_part(s, org) || !is_repo_part(s + org + 1, name)) return none;
    if (!copy_part(n.repo, sizeof n.repo, s, org + 1 + name)) return none;
    if (*rest == '@') {
        const size_t len = strcspn(++rest, ":");
        if (!is_word(rest, len, "._-/") || !copy_part(n.revision, sizeof n.revision, rest, len) ||
            !hub_path_is_safe(n.revision))
            return none;
        rest += len;
    }
    if (*rest == ':' && (!copy_part(n.which, sizeof n.which, rest + 1, strlen(rest + 1)) ||
                         !hub_path_is_safe(n.which)))
        return none;
    if (*rest && *rest != ':') return none;
    *ret = n;
    return 1;
}

/* ---- files ---- */

int hub_files_add(struct hub_files *f, const char *path)
{
    if (f->n == HUB_FILES_MAX) return -ERANGE;
    if (f->n == f->cap) {
        const size_t cap = f->cap ? 2 * f->cap : 64;
        char **p = mem_realloc(f->path, cap * sizeof *p);
        if (!p) return -ENOMEM;
        f->path = p, f->cap = cap;
    }
    char *copy = arena_strndup(&f->texts, path, strlen(path));
    if (!copy) return -ENOMEM;
    f->path[f->n++] = copy;
    return 0;
}

void hub_files_fini(struct hub_files *f)
{
    arena_fini(&f->texts);
    mem_free(f->path);
    *f = (struct hub_files){0};
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool ends(const char *path, const char *with)
{
    const size_t n = strlen(path), w = strlen(with);
    return n > w && strcasecmp(path + n - w, with) == 0;
}

/* Where "-00001-of-00003.gguf" begins; NULL: the name ends otherwise. */
static const char *part_of(const char *path, unsigned *ret_i, unsigned *ret_n)
{
    static const char form[] = "-00001-of-00003.gguf";
    const size_t n = strlen(path);
    const char *at = path + n - (sizeof form - 1);
    int used = 0;
    if (n < sizeof form) return NULL;
    if (sscanf(at, "-%5u-of-%5u.gguf%n", ret_i, ret_n, &used) != 2 || used != sizeof form - 1)
        return NULL;
    return at;
}

unsigned hub_parts(const char *path)
{
    unsigned i, n;
    return part_of(path, &i, &n) ? n : 1;
}

static bool is_gguf(const char *path)
{
    unsigned i = 1, n;
    if (!ends(path, ".gguf") || strncasecmp(base_of(path), "mmproj", 6) == 0) return false;
    return !part_of(path, &i, &n) || i == 1;
}

static bool is_tensors(const char *path)
{
    return strncmp(path, "model", 5) == 0 && ends(path, ".safetensors");
}

bool hub_needs(const char *picked, const char *path)
{
    unsigned i, n;
    if (picked) {
        const char *at = part_of(picked, &i, &n), *of = part_of(path, &i, &n);
        if (!at || !of || at - picked != of - path) return strcmp(picked, path) == 0;
        return strncmp(picked, path, (size_t)(at - picked)) == 0 && strcmp(at + 6, of + 6) == 0;
    }
    /* sentence-transformers keeps the settings of its modules in folders 0_Name, 1_Name, … */
    const char *slash = strchr(path, '/');
    if (slash) return isdigit((unsigned char)*path) && strcmp(slash, "/config.json") == 0;
    return ends(path, ".json") || ends(path, ".jinja") || is_tensors(path);
}

/* Is the word in the path, in any case, with nothing but its ends, '/', '-' or '.' around it? */
static bool has_word(const char *path, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = path; (p = strcasestr(p, word)); p++)
        if ((p == path || strchr("/-.", p[-1])) && (!p[n] || strchr("/-.", p[n]))) return true;
    return false;
}

/* As many of the GGUF files as an error has room for. */
static void list_files(const struct hub_files *f, const char *word, char *out, size_t cap)
{
    size_t n_all = 0, n = 0, at = 0;
    for (size_t i = 0; i < f->n; i++)
        n_all += is_gguf(f->path[i]) && (!word || has_word(f->path[i], word));
    *out = '\0';
    for (size_t i = 0; i < f->n; i++) {
        if (!is_gguf(f->path[i]) || (word && !has_word(f->path[i], word))) continue;
        if (at + strlen(f->path[i]) + 24 > cap) break;
        at += (size_t)snprintf(out + at, cap - at, "%s%s", n++ ? ", " : "", f->path[i]);
    }
    if (n < n_all)
        (void)snprintf(out + at, cap - at, "%s%zu%s", n ? " and " : "", n_all - n,
                       n ? " more" : " GGUF files");
}

static int pick_gguf(const struct hub_name *name, const struct hub_files *f, const char **ret,
                     struct err *err)
{
    const char *word = *name->which ? name->which : NULL, *found = NULL;
    char list[150];
    size_t n = 0, n_gguf = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (word && strcmp(f->path[i], word) == 0 && ends(word, ".gguf")) {
            *ret = f->path[i];
            return 0;
        }
        if (!is_gguf(f->path[i])) continue;
        n_gguf++;
        if (word && !has_word(f->path[i], word)) continue;
        found = f->path[i];
        n++;
    }
    if (n == 1) {
        *ret = found;
        return 0;
    }
    list_files(f, n ? word : NULL, list, sizeof list);
    if (n > 1)
        return err_set(err, -EINVAL, "%s has several, name one as %s:FILE: %s", name->repo,
                       name->repo, list);
    if (n_gguf > 0)
        return err_set(err, -ENOENT, "%s has no GGUF file %.40s, but %s", name->repo, word, list);
    return err_set(err, -ENOENT, "%s has neither a GGUF file nor config.json with safetensors",
                   name->repo);
}

int hub_pick(const struct hub_name *name, const struct hub_files *f, const char **ret,
             struct err *err)
{
    bool config = false, tensors = false;
    for (size_t i = 0; i < f->n; i++) {
        config |= strcmp(f->path[i], "config.json") == 0;
        tensors |= !strchr(f->path[i], '/') && is_tensors(f->path[i]);
    }
    if (*name->which || !config || !tensors) return pick_gguf(name, f, ret, err);
    *ret = NULL;
    return 0;
}
