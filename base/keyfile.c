#include "base/keyfile.h"

#include "base/fnv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_MAX_BYTES = 4096 };

static void keyfile_path(const struct keyfile *k, char ret[PATH_MAX_BYTES])
{
    const uint64_t hash = fnv_add(FNV_START, k->key, strlen(k->key));
    (void)snprintf(ret, PATH_MAX_BYTES, "%s/%s-%016" PRIx64 ".txt", k->dir, k->name, hash);
}

static bool next_line(FILE *f, char line[KEYFILE_LINE_MAX])
{
    if (!fgets(line, KEYFILE_LINE_MAX, f)) return false;
    line[strcspn(line, "\n")] = 0;
    return true;
}

bool keyfile_read(const struct keyfile *k, bool (*take)(void *arg, const char *line), void *arg)
{
    char path[PATH_MAX_BYTES], line[KEYFILE_LINE_MAX];
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
    char path[PATH_MAX_BYTES], tmp[PATH_MAX_BYTES + 24];
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
