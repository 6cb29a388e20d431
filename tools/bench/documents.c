/* The sample documents, a folder of .txt files in the order of their names, and prompts made of
 * them. */
#include "tools/bench/bench.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int bench_read_text(const char *path, struct buf *ret, struct err *err)
{
    char piece[8192];
    size_t n;
    int r = 0;
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
    while (r == 0 && (n = fread(piece, 1, sizeof piece, f)) > 0)
        r = buf_add(ret, piece, n);
    if (r == 0 && ferror(f)) r = -EIO;
    (void)fclose(f);
    return r < 0 ? err_set(err, r, "%s: cannot be read: %s", path, err_name(r)) : 0;
}

/* The default is a path below the source tree, whatever the current folder is. */
static const char *find_folder(const char *folder)
{
    struct stat st;
    static const char fallback[] = KV_SOURCE_DIR "/etc/demo";
    return stat(folder, &st) < 0 && strcmp(folder, "etc/demo") == 0 ? fallback : folder;
}

static int is_text_file(const struct dirent *e)
{
    const size_t len = strlen(e->d_name);
    return len > 4 && strcmp(e->d_name + len - 4, ".txt") == 0;
}

int bench_documents(const char *folder, char *ret_doc[BENCH_DOCS_MAX], size_t *ret_n,
                    struct err *err)
{
    struct dirent **entry;
    size_t n_docs = 0;
    int r = 0;
    folder = find_folder(folder);
    const int n = scandir(folder, &entry, is_text_file, alphasort);
    if (n < 0) return err_set(err, -errno, "%s: cannot be opened: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        struct buf path = BUF_INIT, text = BUF_INIT;
        if (r == 0 && n_docs < BENCH_DOCS_MAX) {
            r = buf_addf(&path, "%s/%s", folder, entry[i]->d_name);
            if (r == 0) r = bench_read_text(buf_cstr(&path), &text, err);
            while (text.len > 0 && text.data[text.len - 1] == '\n')
                text.len--;
            if (r == 0 && (ret_doc[n_docs] = buf_take(&text, NULL))) n_docs++;
        }
        buf_fini(&path);
        buf_fini(&text);
        mem_free(entry[i]); /* scandir's own memory, as entry */
    }
    mem_free(entry);
    while (r < 0 && n_docs > 0)
        mem_free(ret_doc[--n_docs]);
    if (r == 0) *ret_n = n_docs;
    return r;
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

int bench_make_prompt(const struct bench *b, const struct tok_ids *sample, const struct opts *opts,
                      struct bench_prompt *ret, struct err *err)
{
    uint32_t chunks = (uint32_t)opt_int(opts, "chunks"), head = b->sink >= 0;
    uint32_t chunk_tokens = (uint32_t)opt_int(opts, "chunk-tokens");
    uint32_t query_tokens = (uint32_t)opt_int(opts, "query-tokens");
    uint64_t total = (uint64_t)chunks * chunk_tokens + query_tokens + 1;
    if (total > fus_core_ctx_max(b->core))
        return err_set(err, -ERANGE, "the prompt would have %llu tokens, the context holds %u",
                       (unsigned long long)total, fus_core_ctx_max(b->core));
    struct bench_prompt p = {.n_tok = head + chunks * chunk_tokens + query_tokens};
    p.tok = mem_alloc(p.n_tok * sizeof *p.tok);
    if (!p.tok) return -ENOMEM;
    for (uint32_t i = 0; i < p.n_tok; i++)
        p.tok[i] = i < head ? b->sink : sample->id[(i - head) % sample->n];
    for (uint32_t i = 0; i < chunks; i++) {
        p.chunk[i].tok0 = head + i * chunk_tokens;
        p.chunk[i].n = chunk_tokens;
    }
    p.n_chunks = chunks;
    p.suffix0 = head + chunks * chunk_tokens;
    *ret = p;
    return 0;
}
