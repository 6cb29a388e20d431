/* The sample documents: a folder of .txt files, in the order of their names. */
#include "tools/bench/bench.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f) return NULL;
    struct buf b = BUF_INIT;
    char piece[4096];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        if (buf_add(&b, piece, n) < 0) break;
    (void)fclose(f);
    while (b.len > 0 && b.data[b.len - 1] == '\n')
        b.len--;
    return buf_take(&b, NULL);
}

/* The default is a path below the source tree, whatever the current folder is. */
static const char *find_folder(const char *folder)
{
    struct stat st;
    static const char fallback[] = KV_SOURCE_DIR "/etc/demo";
    return stat(folder, &st) < 0 && strcmp(folder, "etc/demo") == 0 ? fallback : folder;
}

int bench_documents(const char *folder, char *ret_doc[BENCH_DOCS_MAX], size_t *ret_n,
                    struct err *err)
{
    char *name[BENCH_DOCS_MAX];
    size_t n = 0, n_docs = 0;
    folder = find_folder(folder);
    DIR *dir = opendir(folder);
    if (!dir) return err_set(err, -errno, "%s: cannot be opened: %s", folder, strerror(errno));
    for (struct dirent *e; (e = readdir(dir)) && n < BENCH_DOCS_MAX;) {
        size_t len = strlen(e->d_name);
        if (len > 4 && strcmp(e->d_name + len - 4, ".txt") == 0) {
            struct buf path = BUF_INIT;
            (void)buf_addf(&path, "%s/%s", folder, e->d_name);
            name[n] = buf_take(&path, NULL);
            if (name[n]) n++;
        }
    }
    (void)closedir(dir);
    qsort(name, n, sizeof *name, by_name);
    for (size_t i = 0; i < n; i++) {
        ret_doc[n_docs] = read_text(name[i]);
        if (ret_doc[n_docs]) n_docs++;
        mem_free(name[i]);
    }
    *ret_n = n_docs;
    return 0;
}

static int random_tokens(const struct bench *b, struct tok_ids *ret)
{
    enum { N = 1 << 16 }; /* chosen: no prompt repeats itself */
    struct rng rng = {1};
    const size_t V = b->cfg->V;
    *ret = (struct tok_ids){.id = mem_alloc(N * sizeof *ret->id)};
    if (!ret->id) return -ENOMEM;
    while (ret->n < N) {
        const int32_t id = (int32_t)(rng_next(&rng) % V);
        if (!tok_is_special(b->tok, id)) ret->id[ret->n++] = id;
    }
    return 0;
}

/* Tokens of the sample documents, end to end: natural text, because what a strategy selects, and so
 * what its rows cost, depends on it (random tokens send `query` to the end of the prompt). */
int bench_sample_tokens(const struct bench *b, const char *folder, struct tok_ids *ret,
                        struct err *err)
{
    char *doc[BENCH_DOCS_MAX];
    struct rng_field field;
    size_t n = 0;
    if (model_random(b->model, MODEL_Q, 0, &field)) return random_tokens(b, ret);
    int r = bench_documents(folder, doc, &n, err);
    for (size_t i = 0; i < n; i++) {
        struct tok_piece piece = {doc[i], strlen(doc[i]), false};
        if (r == 0) r = tok_encode(b->tok, &piece, 1, 0, ret);
        mem_free(doc[i]);
    }
    return r == 0 && ret->n == 0 ? err_set(err, -EINVAL, "%s: no text", folder) : r;
}
