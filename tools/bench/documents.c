/* The sample documents, a folder of .txt files in the order of their names, and prompts made of
 * them. */
#include "tools/bench/dataset.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"

#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

int dataset_sample_path(const char *installed, const char *in_tree, struct buf *ret)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash) *slash = '\0';
    buf_clear(ret);
    int r = buf_addf(ret, "%s/../share/kvblend/%s", self, installed);
    if (r < 0 || !buf_cstr(ret)) return -ENOMEM;
    if (access(ret->data, R_OK) == 0) return 0;
    buf_clear(ret);
    r = buf_addf(ret, "%s/%s", KV_SOURCE_DIR, in_tree);
    return r < 0 || !buf_cstr(ret) ? -ENOMEM : 0;
}

int bench_documents(const char *folder, struct buf *ret, struct err *err)
{
    struct buf pattern = BUF_INIT;
    glob_t file = {0};
    bool ours = strcmp(folder, "etc/demo") == 0 && access(folder, R_OK) < 0; /* the default */
    int r = ours ? dataset_sample_path("demo", folder, &pattern) : buf_adds(&pattern, folder);
    if (r == 0) r = buf_adds(&pattern, "/*.txt");
    r = r == 0 && buf_cstr(&pattern) && glob(pattern.data, 0, NULL, &file) == 0
            ? 0
            : err_set(err, -ENOENT, "%s: no .txt files", folder);
    for (size_t i = 0; r == 0 && i < file.gl_pathc; i++) {
        r = bench_read_text(file.gl_pathv[i], ret, err);
        while (ret->len > 0 && ret->data[ret->len - 1] == '\n')
            ret->len--;
        if (r == 0) r = buf_addc(ret, '\0');
    }
    globfree(&file);
    buf_fini(&pattern);
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
    struct buf all = BUF_INIT;
    struct rng_field field;
    if (model_random(b->model, MODEL_Q, 0, &field)) return random_tokens(b, ret);
    int r = bench_documents(folder, &all, err);
    for (const char *doc = all.data; r == 0 && doc < all.data + all.len; doc += strlen(doc) + 1)
        r = tok_encode(b->tok, &(struct tok_piece){doc, strlen(doc), false}, 1, 0, ret);
    buf_fini(&all);
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
