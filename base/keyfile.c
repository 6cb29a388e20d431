#include "base/keyfile.h"

#include "base/fnv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *keyfile_dir(const char *below, char ret[KEYFILE_PATH_MAX])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool own = base && *base == '/';
    if (!own && !(home && *home == '/')) return NULL;
    const int n =
        snprintf(ret, KEYFILE_PATH_MAX, "%s%s%s", own ? base : home, own ? "" : "/.cache", below);
    if (n >= KEYFILE_PATH_MAX) return NULL;
    for (char *p = ret + 1; (p = strchr(p, '/')); p++) { /* mkdir -p */
        *p = '\0';
        (void)mkdir(ret, 0700);
        *p = '/';
    }
    return mkdir(ret, 0700) == 0 || errno == EEXIST ? ret : NULL;
}

static void keyfile_path(const struct keyfile *k, char ret[KEYFILE_PATH_MAX])
{
    const uint64_t hash = fnv_add(FNV_START, k->key, strlen(k->key));
    (void)snprintf(ret, KEYFILE_PATH_MAX, "%s/%s-%016" PRIx64 ".txt", k->dir, k->name, hash);
}

static bool next_line(FILE *f, char line[KEYFILE_LINE_MAX])
{
    if (!fgets(line, KEYFILE_LINE_MAX, f)) return false;
    line[strcspn(line, "\n")] = 0;
    return true;
}

bool keyfile_read(const struct keyfile *k, bool (*take)(void *arg, const char *line), void *arg)
{
    char path[KEYFILE_PATH_MAX], line[KEYFILE_LINE_MAX];
    if (!k->dir) return false;
    keyfile_path(k, path);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    const bool ours = next_line(f, line) && strcmp(line, k->key) == 0;
    while (ours && next_line(f, line))
        if (!take(arg, line)) break;
    (void)fclose(f);
    return ours;
}

void keyfile_write(const struct keyfile *k, struct buf *lines)
{
    char path[KEYFILE_PATH_MAX], tmp[KEYFILE_PATH_MAX + 24];
    if (!k->dir || buf_status(lines) < 0) return;
    (void)mkdir(k->dir, 0777);
    keyfile_path(k, path);
    (void)snprintf(tmp, sizeof tmp, "%s.%ld", path, (long)getpid());
    FILE *f = fopen(tmp, "we");
    if (!f) return;
    bool ok = fprintf(f, "%s\n", k->key) > 0;
    ok = fwrite(lines->data, 1, lines->len, f) == lines->len && ok;
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(tmp, path) != 0) (void)unlink(tmp);
}
