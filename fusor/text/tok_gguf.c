/* A tokenizer from GGUF metadata (keys `tokenizer.ggml.*`, ggml's format description). */
#include "base/mem.h"
#include "fusor/model/gguf.h"
#include "fusor/text/tok_load.h"

#include <math.h>
#include <string.h>

struct src {
    const struct gguf *g;
    const struct gguf_kv *tokens, *types, *merges, *scores;
    struct tok *t;
    struct err *err;
};

static int set_tokens(struct src *s)
{
    struct tok *t = s->t;
    int r = 0;
    for (size_t i = 0; r == 0 && i < t->n_vocab; i++) {
        const char *text;
        size_t len;
        int64_t type = TOK_T_NORMAL;
        if (gguf_arr_str(s->tokens, i, &text, &len) != 1 ||
            (s->types && gguf_arr_i64(s->types, i, &type) != 1) || type < TOK_T_NORMAL ||
            type > TOK_T_BYTE) {
            r = err_set(s->err, -EBADMSG,
                        "token %zu of the vocabulary has no text or an unknown type", i);
            break;
        }
        if (t->kind == TOK_SPM) {
            r = tok_set_spm(t, i, text, len, (enum tok_type)type);
        } else if (type == TOK_T_NORMAL || type == TOK_T_UNUSED) {
            /* Otherwise it is an added token that the file calls normal. */
            r = tok_set_printable(t, i, text, len, (enum tok_type)type, TOK_T_USER);
        } else {
            r = tok_set(t, i, text, len, (enum tok_type)type);
        }
        if (r == -EBADMSG)
            (void)err_set(s->err, r, "token %zu of the vocabulary cannot be read", i);
    }
    return r;
}

static int set_merges(struct src *s)
{
    struct buf room = BUF_INIT;
    int r = 0;
    for (size_t i = 0; r == 0 && s->merges && i < s->merges->n; i++) {
        const char *text;
        size_t len;
        struct tok_merge m;
        if (gguf_arr_str(s->merges, i, &text, &len) != 1)
            r = err_set(s->err, -EBADMSG, "the list of merges cannot be read");
        else if (tok_merge_cut(text, len, &m))
            r = tok_merge_texts(s->t, &m, (uint32_t)i, &room);
    }
    buf_fini(&room);
    return r;
}

static int set_scores(struct src *s)
{
    size_t n = s->t->n_vocab;
    float *score = mem_alloc(n * sizeof *score);
    if (!score) return -ENOMEM;
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        double v;
        if (gguf_arr_f64(s->scores, i, &v) != 1 || !isfinite(v))
            r = err_set(s->err, -EBADMSG, "token %zu has no score", i);
        else
            score[i] = (float)v;
    }
    if (r == 0) r = tok_merges_from_scores(s->t, score);
    mem_free(score);
    return r;
}

static int32_t id_of(const struct src *s, const char *key)
{
    uint64_t v;
    return gguf_u64(s->g, key, &v) == 1 && v < s->t->n_vocab ? (int32_t)v : -1;
}

/* Defaults are llama.cpp's: the SentencePiece family adds BOS and a space, the others do not, but
 * for Llama 3, whose files used to leave the key out. */
static int set_settings(struct src *s)
{
    struct tok *t = s->t;
    const struct gguf *g = s->g;
    t->bos = id_of(s, "tokenizer.ggml.bos_token_id");
    t->eos = id_of(s, "tokenizer.ggml.eos_token_id");
    t->unk = id_of(s, "tokenizer.ggml.unknown_token_id");
    bool space = true;
    if (t->kind == TOK_SPM) {
        t->add_bos = true;
        (void)gguf_bool(g, "tokenizer.ggml.add_space_prefix", &space);
        t->prefix = space ? TOK_PREFIX_ALWAYS : TOK_PREFIX_NONE;
    } else {
        t->add_bos = t->pre == TOK_PRE_LLAMA3 || t->pre == TOK_PRE_TEKKEN;
        t->ignore_merges = t->add_bos;
        t->nfc = t->pre == TOK_PRE_QWEN2;
    }
    (void)gguf_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos);
    (void)gguf_bool(g, "tokenizer.ggml.add_eos_token", &t->add_eos);
    static const char *const ends[] = {"tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < 2; i++) {
        int32_t id = id_of(s, ends[i]);
        if (id >= 0) t->e[id].eog = true;
    }
    const char *template = gguf_str(g, "tokenizer.chat_template"),
               *arch = gguf_str(g, "general.architecture");
    t->chat_template = template ? mem_strdup(template) : NULL;
    if (template && !t->chat_template) return -ENOMEM;
    /* GGUF has no key for it: phi-3's added tokens take the white space that follows them. */
    bool phi = arch && strcmp(arch, "phi3") == 0;
    for (size_t i = 0; phi && i < t->n_vocab; i++) {
        struct tok_entry *e = &t->e[i];
        if (e->type != TOK_T_CONTROL || e->len < 5 || tok_raw(t, (int32_t)i)[1] != '|') continue;
        e->rstrip = e->len != 13 || memcmp(tok_raw(t, (int32_t)i), "<|endoftext|>", 13) != 0;
    }
    return 0;
}

static int find_arrays(struct src *s)
{
    s->tokens = gguf_find(s->g, "tokenizer.ggml.tokens");
    s->types = gguf_find(s->g, "tokenizer.ggml.token_type");
    s->merges = gguf_find(s->g, "tokenizer.ggml.merges");
    s->scores = gguf_find(s->g, "tokenizer.ggml.scores");
    size_t n = s->tokens ? s->tokens->n : 0;
    if (n == 0 || s->tokens->type != GGUF_STR)
        return err_set(s->err, -EBADMSG, "the file holds no vocabulary (tokenizer.ggml.tokens)");
    if (s->types && s->types->n != n)
        return err_set(s->err, -EBADMSG, "token_type has %zu entries for %zu tokens", s->types->n,
                       n);
    return 0;
}

static int choose_kind(struct src *s, const char *model)
{
    struct tok *t = s->t;
    const char *pre = gguf_str(s->g, "tokenizer.ggml.pre");
    if (strcmp(model, "gpt2") == 0) {
        t->kind = TOK_BYTE_LEVEL;
        if (!s->merges || s->merges->type != GGUF_STR)
            return err_set(s->err, -EBADMSG, "the file holds no merges (tokenizer.ggml.merges)");
        if (!pre) pre = "default";
        if (tok_pre_parse(pre, &t->pre) == 1) return 0;
        return err_set(s->err, -ENOTSUP, "unknown pre-tokenizer '%.60s' (tokenizer.ggml.pre)", pre);
    }
    if (strcmp(model, "llama") == 0) {
        t->kind = TOK_SPM;
        if (s->scores && s->scores->n == t->n_vocab) return 0;
        return err_set(s->err, -EBADMSG, "the file holds no scores for its tokens");
    }
    return err_set(s->err, -ENOTSUP, "unknown tokenizer model '%.60s' (tokenizer.ggml.model)",
                   model);
}

int tok_open_gguf(const struct gguf *g, struct tok **ret, struct err *err)
{
    struct src s = {.g = g, .err = err};
    const char *model = gguf_str(g, "tokenizer.ggml.model");
    if (!model) return err_set(err, -EBADMSG, "the file names no tokenizer (tokenizer.ggml.model)");
    int r = find_arrays(&s);
    if (r < 0) return r;
    r = tok_new(s.tokens->n, &s.t);
    if (r < 0) return err_set(err, r, "cannot hold a vocabulary of %zu tokens", s.tokens->n);
    r = choose_kind(&s, model);
    if (r == 0) r = set_tokens(&s);
    if (r == 0) r = set_settings(&s);
    if (r == 0) {
        tok_mark_eog(s.t);
        r = tok_index(s.t);
    }
    if (r == 0) r = s.t->kind == TOK_SPM ? set_scores(&s) : set_merges(&s);
    if (r == 0) {
        if (s.t->kind == TOK_SPM) s.t->pre = tok_spm_pre(s.t);
        r = tok_finish(s.t);
    }
    if (r < 0) {
        tok_close(s.t);
        if (r == -ENOMEM) (void)err_set(err, r, "out of memory while reading the vocabulary");
        return r;
    }
    *ret = s.t;
    return 0;
}
