/* A tokenizer from a Hugging Face folder: tokenizer.json and the files that stand beside it.
 *
 * tokenizer.json describes a pipeline (normalizer, pre_tokenizer, model, post_processor) of which
 * only the shapes that our families use are known; any other part is refused by its name, because
 * leaving one out would change tokens silently. tokenizer_config.json adds BOS, EOS and the chat
 * template, chat_template.jinja replaces that template, generation_config.json (else config.json)
 * adds what ends a text. The decoder entry is not read: it follows from the kind of vocabulary. */
#include "base/mem.h"
#include "fusor/model/map.h"
#include "fusor/model/safetensors.h"
#include "fusor/text/tok_charsmap.h"
#include "fusor/text/tok_load.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILE_MAX = 256 << 20, /* chosen: ten times the largest tokenizer.json known */
    WORD_MAX = 1 << 12    /* letters of a word; published: 100. The time of a word is its square */
};
#define SPM_SPACE "\xE2\x96\x81"

struct hf {
    const char *folder;
    struct err *err;
    struct tok *t;
    json_t *root, *config; /* tokenizer.json; tokenizer_config.json or NULL */
    enum tok_pre pre;
    enum tok_kind kind;
    enum tok_prefix prefix;
    bool prefix_unless_space, nfc;
    bool replace;         /* the normalizer turns spaces into U+2581 */
    bool byte_level, cut; /* pre-tokenizers seen: ByteLevel; one that cuts */
};

/* ---- files ---------------------------------------------------------------------------------- */

/* 1 read, 0 absent, which leaves no message. */
static int read_result(int r, const struct err *inner, struct err *err)
{
    if (r == 0 || r == -ENOENT) return r == 0;
    return inner->code ? err_set(err, r, "%s", inner->msg) : r;
}

static int read_json(const char *folder, const char *name, json_t **ret, struct err *err)
{
    struct buf path = BUF_INIT;
    struct err inner = {0};
    int r = buf_addf(&path, "%s/%s", folder, name);
    if (r == 0) r = st_json_file(buf_cstr(&path), FILE_MAX, JSON_ALLOW_NUL, ret, &inner);
    buf_fini(&path);
    return read_result(r, &inner, err);
}

/* ---- small reads ---------------------------------------------------------------------------- */

static const char *str(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static bool flag(const json_t *o, const char *key, bool otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

static bool is_type(const json_t *o, const char *type)
{
    return strcmp(str(o, "type"), type) == 0;
}

static int unknown(struct hf *h, const char *part, const json_t *o)
{
    return err_set(h->err, -ENOTSUP,
                   "tokenizer.json: the %s '%.60s' is not supported in this place", part,
                   str(o, "type"));
}

/* The members of a Sequence, or the thing itself as the only one. */
static size_t n_steps(const json_t *o, const char *list)
{
    if (!json_is_object(o)) return 0;
    return is_type(o, "Sequence") ? json_array_size(json_object_get(o, list)) : 1;
}

static const json_t *step(const json_t *o, const char *list, size_t i)
{
    return is_type(o, "Sequence") ? json_array_get(json_object_get(o, list), i) : o;
}

/* ---- the pipeline --------------------------------------------------------------------------- */

static int read_normalizer(struct hf *h)
{
    const json_t *all = json_object_get(h->root, "normalizer");
    for (size_t i = 0; i < n_steps(all, "normalizers"); i++) {
        const json_t *o = step(all, "normalizers", i);
        const json_t *pattern = json_object_get(o, "pattern");
        if (is_type(o, "NFC"))
            h->nfc = true;
        else if (is_type(o, "Prepend") && strcmp(str(o, "prepend"), SPM_SPACE) == 0)
            h->prefix = TOK_PREFIX_ALWAYS;
        else if (is_type(o, "Replace") && strcmp(str(pattern, "String"), " ") == 0 &&
                 strcmp(str(o, "content"), SPM_SPACE) == 0)
            h->replace = true;
        else
            return unknown(h, "normalizer", o);
    }
    if (h->prefix == TOK_PREFIX_ALWAYS && !h->replace) return unknown(h, "normalizer", all);
    return 0;
}

static int read_split(struct hf *h, const json_t *o)
{
    const char *regex = str(json_object_get(o, "pattern"), "Regex");
    const char *behaviour = str(o, "behavior");
    bool invert = flag(o, "invert", false);
    /* The patterns cover every text, so keeping the matches is the same either way round. */
    bool keeps = (strcmp(behaviour, "Isolated") == 0 && !invert) ||
                 (strcmp(behaviour, "Removed") == 0 && invert);
    /* A plain space split does nothing once the normalizer has turned all spaces into U+2581. */
    if (h->replace && strcmp(str(json_object_get(o, "pattern"), "String"), " ") == 0) return 0;
    if (h->cut || !keeps) return unknown(h, "pre_tokenizer", o);
    if (!tok_pre_parse(regex, &h->pre))
        return err_set(h->err, -ENOTSUP, "tokenizer.json: unknown Split pattern '%.150s'", regex);
    h->cut = true;
    return 0;
}

static int read_metaspace(struct hf *h, const json_t *o)
{
    const char *scheme = str(o, "prepend_scheme");
    if (strcmp(str(o, "replacement"), SPM_SPACE) != 0) return unknown(h, "pre_tokenizer", o);
    if (!*scheme) scheme = flag(o, "add_prefix_space", true) ? "always" : "never"; /* older files */
    h->prefix = strcmp(scheme, "always") == 0  ? TOK_PREFIX_ALWAYS
                : strcmp(scheme, "first") == 0 ? TOK_PREFIX_FIRST
                                               : TOK_PREFIX_NONE;
    h->prefix_unless_space = true;
    h->replace = true;
    if (flag(o, "split", true)) {
        h->cut = true;
        h->pre = TOK_PRE_SPM_EACH;
    }
    return 0;
}

static int read_byte_level(struct hf *h, const json_t *o, bool alone)
{
    if (h->byte_level) return unknown(h, "pre_tokenizer", o);
    h->byte_level = true;
    if (flag(o, "add_prefix_space", false)) {
        if (!alone) return unknown(h, "pre_tokenizer", o);
        h->prefix = TOK_PREFIX_ALWAYS;
        h->prefix_unless_space = true;
    }
    if (!flag(o, "use_regex", true)) return 0;
    if (h->cut && h->pre != TOK_PRE_DIGITS_GPT2) return unknown(h, "pre_tokenizer", o);
    if (!h->cut) h->pre = TOK_PRE_GPT2;
    h->cut = true;
    return 0;
}

static int read_pre_tokenizer(struct hf *h)
{
    const json_t *all = json_object_get(h->root, "pre_tokenizer");
    size_t n = n_steps(all, "pretokenizers");
    int r = 0;
    bool digits = false;
    for (size_t i = 0; r == 0 && i < n; i++) {
        const json_t *o = step(all, "pretokenizers", i);
        if (is_type(o, "Split")) {
            r = read_split(h, o);
        } else if (is_type(o, "Digits") && flag(o, "individual_digits", false) && !h->cut) {
            h->cut = digits = true; /* only together with ByteLevel's own pattern, checked below */
            h->pre = TOK_PRE_DIGITS_GPT2;
        } else if (is_type(o, "ByteLevel")) {
            if (digits && !flag(o, "use_regex", true)) return unknown(h, "pre_tokenizer", o);
            r = read_byte_level(h, o, n == 1);
        } else if (is_type(o, "Metaspace") && n == 1) {
            r = read_metaspace(h, o);
        } else {
            r = unknown(h, "pre_tokenizer", o);
        }
    }
    if (r < 0) return r;
    h->kind = h->byte_level ? TOK_BYTE_LEVEL : TOK_SPM;
    bool ok = h->byte_level ? h->cut && !h->replace : h->replace && !h->nfc;
    if (!h->byte_level && h->cut && h->pre != TOK_PRE_SPM_EACH) ok = false;
    return ok ? 0
              : err_set(h->err, -ENOTSUP,
                        "tokenizer.json: this combination of normalizer and pre_tokenizer is not "
                        "known");
}

/* ---- vocabulary ----------------------------------------------------------------------------- */

static int set_token(struct hf *h, size_t id, const char *text, size_t len)
{
    struct tok *t = h->t;
    if (h->kind == TOK_SPM) {
        uint8_t b;
        bool byte = tok_is_byte_name(text, len, &b);
        return tok_set_spm(t, id, text, len, byte ? TOK_T_BYTE : TOK_T_NORMAL);
    }
    if (h->kind == TOK_WORDPIECE) return tok_set(t, id, text, len, TOK_T_NORMAL);
    return tok_set_printable(t, id, text, len, TOK_T_NORMAL, TOK_T_UNUSED);
}

/* The largest id, top among them. */
static long long top_added(const json_t *added, long long top)
{
    for (size_t i = 0; i < json_array_size(added); i++) {
        long long id = json_integer_value(json_object_get(json_array_get(added, i), "id"));
        if (id > top) top = id;
    }
    return top;
}

static int set_added(struct hf *h, const json_t *added)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i);
        long long id = json_is_integer(json_object_get(a, "id"))
                           ? json_integer_value(json_object_get(a, "id"))
                           : -1;
        const json_t *content = json_object_get(a, "content");
        enum tok_type type = flag(a, "special", false) ? TOK_T_CONTROL : TOK_T_USER;
        if (id < 0 || !json_is_string(content))
            return err_set(h->err, -EBADMSG, "tokenizer.json: added token %zu has no id or content",
                           i);
        const char *s = json_string_value(content);
        size_t len = json_string_length(content);
        r = h->kind == TOK_SPM ? tok_set_spm(h->t, (size_t)id, s, len, type)
                               : tok_set(h->t, (size_t)id, s, len, type);
        h->t->e[id].lstrip = flag(a, "lstrip", false);
        h->t->e[id].rstrip = flag(a, "rstrip", false);
    }
    return r;
}

static int set_vocab(struct hf *h, json_t *vocab, const json_t *added)
{
    const char *text;
    json_t *v;
    long long top = -1;
    json_object_foreach(vocab, text, v) {
        if (json_is_integer(v) && json_integer_value(v) > top) top = json_integer_value(v);
    }
    top = top_added(added, top);
    int r = top < 0 || top > INT32_MAX ? -EBADMSG : tok_new((size_t)top + 1, &h->t);
    if (r == -EBADMSG) return err_set(h->err, r, "tokenizer.json: a vocabulary up to id %lld", top);
    if (r < 0) return r;
    h->t->kind = h->kind;
    json_object_foreach(vocab, text, v) {
        if (r < 0) break;
        bool ok = json_is_integer(v) && json_integer_value(v) >= 0;
        r = ok ? set_token(h, (size_t)json_integer_value(v), text, strlen(text)) : -EBADMSG;
        if (r == -EBADMSG)
            (void)err_set(h->err, r, "tokenizer.json: bad vocabulary entry '%.60s'", text);
    }
    return r < 0 ? r : set_added(h, added);
}

/* "left right", or a list of the two. */
static bool merge_of(const json_t *m, struct tok_merge *ret)
{
    const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
    if (json_is_string(m)) return tok_merge_cut(json_string_value(m), json_string_length(m), ret);
    if (!json_is_string(a) || !json_is_string(b)) return false;
    *ret = (struct tok_merge){json_string_value(a), json_string_value(b), json_string_length(a),
                              json_string_length(b)};
    return ret->left_len > 0 && ret->right_len > 0;
}

static int set_merges(struct hf *h, const json_t *merges)
{
    struct buf room = BUF_INIT;
    int r = 0;
    for (size_t i = 0; r == 0 && i < json_array_size(merges); i++) {
        struct tok_merge m;
        if (!merge_of(json_array_get(merges, i), &m))
            r = err_set(h->err, -EBADMSG, "tokenizer.json: merge %zu is not a pair", i);
        else
            r = tok_merge_texts(h->t, &m, (uint32_t)i, &room);
    }
    buf_fini(&room);
    return r;
}

/* ---- special tokens ------------------------------------------------------------------------- */

static int32_t id_in_vocab(const struct tok *t, const json_t *v)
{
    const long long id = json_is_integer(v) ? json_integer_value(v) : -1;
    return id >= 0 && (size_t)id < t->n_vocab ? (int32_t)id : -1;
}

static int32_t id_of_text(const struct hf *h, const char *text)
{
    const json_t *added = json_object_get(h->root, "added_tokens");
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i);
        if (strcmp(str(a, "content"), text) == 0)
            return (int32_t)json_integer_value(json_object_get(a, "id"));
    }
    const json_t *vocab = json_object_get(json_object_get(h->root, "model"), "vocab");
    return id_in_vocab(h->t, json_object_get(vocab, text));
}

/* "bos_token": a string or {"content": …}. */
static int32_t named(const struct hf *h, const char *key)
{
    const json_t *v = json_object_get(h->config, key);
    const char *s = json_is_object(v) ? str(v, "content") : json_string_value(v);
    return s && *s ? id_of_text(h, s) : -1;
}

/* The older form of a template: "cls" before the text, "sep" behind it, each [text, id]. */
static int read_ends_of_pair(struct hf *h, const json_t *o)
{
    struct tok *t = h->t;
    t->bos = id_in_vocab(t, json_array_get(json_object_get(o, "cls"), 1));
    t->eos = id_in_vocab(t, json_array_get(json_object_get(o, "sep"), 1));
    t->add_bos = t->add_eos = true;
    if (t->bos < 0 || t->eos < 0) return -EBADMSG;
    const bool bert = is_type(o, "BertProcessing"); /* RoBERTa's ends each text, and has no types */
    t->has_frame = true;
    t->frame = (struct tok_frame){{{{t->bos}, 1}, {{t->eos, t->eos}, bert ? 1 : 2}, {{t->eos}, 1}},
                                  .typed = bert};
    return 0;
}

/* The template of a pair, where it is "A" and then "B" with control tokens around them. */
static void read_frame(struct hf *h, const json_t *pair)
{
    struct tok_frame f = {0};
    const json_t *item;
    size_t i, at = 0;
    json_array_foreach(pair, i, item) {
        const json_t *text = json_object_get(item, "Sequence"),
                     *special = json_object_get(item, "SpecialToken");
        const json_t *type = json_object_get(text ? text : special, "type_id");
        const int32_t id = special ? id_of_text(h, str(special, "id")) : -1;
        if (text && strcmp(str(text, "id"), at == 0 ? "A" : "B") == 0 && at < 2) {
            if (++at == 2) f.typed = json_integer_value(type) == 1;
        } else if (id >= 0 && f.part[at].n < TOK_FRAME_MAX) {
            f.part[at].id[f.part[at].n++] = id;
        } else {
            return;
        }
        if (json_integer_value(type) != (at == 2 && f.typed)) return; /* types of another kind */
    }
    if (at != 2) return;
    h->t->has_frame = true;
    h->t->frame = f;
}

static int read_post_processor(struct hf *h)
{
    const json_t *all = json_object_get(h->root, "post_processor");
    struct tok *t = h->t;
    for (size_t i = 0; i < n_steps(all, "processors"); i++) {
        const json_t *o = step(all, "processors", i);
        if (is_type(o, "ByteLevel")) continue; /* trims offsets only */
        if (is_type(o, "BertProcessing") || is_type(o, "RobertaProcessing")) {
            if (read_ends_of_pair(h, o) < 0) return unknown(h, "post_processor", o);
            continue;
        }
        if (!is_type(o, "TemplateProcessing")) return unknown(h, "post_processor", o);
        const json_t *single = json_object_get(o, "single");
        size_t n = json_array_size(single), n_text = 0;
        for (size_t k = 0; k < n; k++) {
            const json_t *item = json_array_get(single, k);
            const json_t *special = json_object_get(item, "SpecialToken");
            if (!special) {
                n_text++;
                continue;
            }
            int32_t id = id_of_text(h, str(special, "id"));
            if (id < 0 || (n_text ? k + 1 < n : k > 1)) return unknown(h, "post_processor", o);
            *(n_text ? &t->eos : k == 0 ? &t->bos : &t->bos_next) = id;
            *(n_text ? &t->add_eos : &t->add_bos) = true;
        }
        if (n_text != 1) return unknown(h, "post_processor", o);
        read_frame(h, json_object_get(o, "pair"));
    }
    return 0;
}

static int read_ends(struct hf *h)
{
    static const char *const files[] = {"generation_config.json", "config.json"};
    for (size_t i = 0; i < 2; i++) {
        json_t *o = NULL;
        int r = read_json(h->folder, files[i], &o, h->err);
        if (r < 0) return r;
        if (r == 0) continue;
        const json_t *v = json_object_get(o, "eos_token_id");
        bool found = json_is_integer(v) || json_is_array(v);
        const size_t n = json_is_array(v) ? json_array_size(v) : 1;
        for (size_t k = 0; k < n; k++) { /* one, or a list whose first is the main one */
            const int32_t id = id_in_vocab(h->t, json_is_array(v) ? json_array_get(v, k) : v);
            if (id >= 0) h->t->e[id].eog = true;
            if (k == 0 && h->t->eos < 0) h->t->eos = id;
        }
        json_decref(o);
        if (found) break;
    }
    return 0;
}

static int read_template(struct hf *h)
{
    struct buf path = BUF_INIT;
    struct err inner = {0};
    struct map map;
    int r = buf_addf(&path, "%s/chat_template.jinja", h->folder);
    if (r == 0) r = map_open(buf_cstr(&path), &map, &inner);
    buf_fini(&path);
    r = read_result(r, &inner, h->err);
    if (r == 1) {
        h->t->chat_template = mem_strndup((const char *)map.data, map.size_bytes);
        map_close(&map);
        return h->t->chat_template ? 0 : -ENOMEM;
    }
    if (r < 0) return r;
    const json_t *v = json_object_get(h->config, "chat_template");
    const char *s = json_string_value(v);
    for (size_t i = 0; !s && i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        if (strcmp(str(item, "name"), "default") == 0)
            s = json_string_value(json_object_get(item, "template"));
    }
    if (!s) return 0;
    h->t->chat_template = mem_strdup(s);
    return h->t->chat_template ? 0 : -ENOMEM;
}

static int read_specials(struct hf *h)
{
    struct tok *t = h->t;
    t->bos = named(h, "bos_token");
    t->eos = named(h, "eos_token");
    int32_t unk = id_of_text(h, str(json_object_get(h->root, "model"), "unk_token"));
    int r = read_post_processor(h);
    if (r < 0) return r;
    /* Llama's tokenizer class makes its post-processor from these two; others do not read them. */
    if (strncmp(str(h->config, "tokenizer_class"), "Llama", 5) == 0) {
        t->add_bos = flag(h->config, "add_bos_token", t->add_bos);
        t->add_eos = flag(h->config, "add_eos_token", t->add_eos);
    }
    if (unk >= 0 && h->kind == TOK_SPM) {
        t->unk = unk;
        if (t->e[unk].type == TOK_T_NORMAL) t->e[unk].type = TOK_T_UNKNOWN;
    }
    r = read_ends(h);
    if (r == 0) r = read_template(h);
    if (r == 0) tok_mark_eog(t);
    return r;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int check_model(struct hf *h, const json_t *model)
{
    if (!json_is_object(model)) return err_set(h->err, -EBADMSG, "tokenizer.json: no model");
    /* The oldest files leave the type out, but have merges. */
    bool bpe = is_type(model, "BPE") || (!*str(model, "type") && json_object_get(model, "merges"));
    if (!bpe) return unknown(h, "model", model);
    if (*str(model, "continuing_subword_prefix") || *str(model, "end_of_word_suffix"))
        return err_set(h->err, -ENOTSUP,
                       "tokenizer.json: subword prefixes and suffixes are not supported");
    if (h->kind == TOK_SPM && !flag(model, "byte_fallback", false))
        return err_set(h->err, -ENOTSUP,
                       "tokenizer.json: a vocabulary with neither ByteLevel nor byte_fallback");
    return 0;
}

/* BertNormalizer, BertPreTokenizer and WordPiece go together. */
static int build_wordpiece(struct hf *h, json_t *model)
{
    const json_t *n = json_object_get(h->root, "normalizer"),
                 *pre = json_object_get(h->root, "pre_tokenizer"),
                 *strip = json_object_get(n, "strip_accents"),
                 *most = json_object_get(model, "max_input_chars_per_word");
    const char *prefix = str(model, "continuing_subword_prefix");
    struct tok_bert b = {.clean = flag(n, "clean_text", true),
                         .ideographs = flag(n, "handle_chinese_chars", true),
                         .lower = flag(n, "lowercase", true),
                         .word_max = 100};
    if (!is_type(n, "BertNormalizer")) return unknown(h, "normalizer", n);
    if (!is_type(pre, "BertPreTokenizer")) return unknown(h, "pre_tokenizer", pre);
    if (strip && !json_is_null(strip) && !json_is_boolean(strip))
        return unknown(h, "normalizer", n);
    b.strip = json_is_boolean(strip) ? json_is_true(strip) : b.lower;
    if (json_is_integer(most) && json_integer_value(most) > 0 &&
        json_integer_value(most) <= WORD_MAX)
        b.word_max = (uint32_t)json_integer_value(most);
    else if (most)
        return err_set(h->err, -EBADMSG, "tokenizer.json: max_input_chars_per_word is not 1 to %d",
                       WORD_MAX);
    if (!*prefix || strlen(prefix) >= sizeof b.prefix)
        return err_set(h->err, -ENOTSUP,
                       "tokenizer.json: a continuing_subword_prefix of %zu bytes is not supported",
                       strlen(prefix));
    (void)snprintf(b.prefix, sizeof b.prefix, "%s", prefix);
    h->kind = TOK_WORDPIECE;
    int r = set_vocab(h, json_object_get(model, "vocab"), json_object_get(h->root, "added_tokens"));
    if (r < 0) return r;
    h->t->bert = b;
    h->t->unk = id_of_text(h, str(model, "unk_token"));
    if (h->t->unk < 0)
        return err_set(h->err, -EBADMSG, "tokenizer.json: the vocabulary has no unk_token");
    r = read_specials(h);
    if (r == 0) r = tok_index(h->t);
    return r < 0 ? r : tok_finish(h->t);
}

/* A number as the tokenizers package reads it: its digits as one whole number, rounded, over a
 * power of ten, rounded again. From 16 digits on that may be one bit off, by which cuts into the
 * same pieces in another order tie or not. */
static double package_number(double v)
{
    enum { DIGITS = 17 }; /* enough for any double; a file has the fewest that give it back */
    char text[DIGITS + 16];
    int digits = 15;
    do {
        (void)snprintf(text, sizeof text, "%.*e", digits - 1, fabs(v));
    } while (strtod(text, NULL) != fabs(v) && digits++ < DIGITS);
    const char *c = text;
    uint64_t whole = 0;
    for (; *c && *c != 'e'; c++)
        if (*c >= '0' && *c <= '9') whole = whole * 10 + (uint64_t)(*c - '0');
    char *end;
    const long shift = digits - 1 - (*c ? strtol(c + 1, &end, 10) : 0);
    const double power = pow(10, (double)labs(shift));
    return copysign(shift < 0 ? (double)whole * power : (double)whole / power, v);
}

/* A Unigram vocabulary is a list of [piece, score]. */
static int set_pieces(struct hf *h, const json_t *vocab, const json_t *added)
{
    const size_t n = json_array_size(vocab);
    const long long top = top_added(added, (long long)n - 1);
    int r = n == 0 || top > INT32_MAX ? -EBADMSG : tok_new((size_t)top + 1, &h->t);
    if (r == -EBADMSG) return err_set(h->err, r, "tokenizer.json: a vocabulary up to id %lld", top);
    if (r < 0) return r;
    struct tok_unigram *u = &h->t->unigram;
    h->t->kind = h->kind;
    u->score = mem_zalloc(h->t->n_vocab * sizeof *u->score);
    u->least = INFINITY;
    if (!u->score) return -ENOMEM;
    for (size_t i = 0; r == 0 && i < n; i++) {
        const json_t *one = json_array_get(vocab, i), *piece = json_array_get(one, 0),
                     *score = json_array_get(one, 1);
        if (!json_is_string(piece) || !json_is_number(score))
            return err_set(h->err, -EBADMSG, "tokenizer.json: piece %zu has no text or score", i);
        u->score[i] = package_number(json_number_value(score));
        u->least = fmin(u->least, u->score[i]);
        r = tok_set(h->t, i, json_string_value(piece), json_string_length(piece), TOK_T_NORMAL);
        if (r == -EBADMSG) return err_set(h->err, r, "tokenizer.json: piece %zu is too long", i);
    }
    return r;
}

/* Of the map, spaces that become one, white space that goes at the end. */
static int read_unigram_normalizer(struct hf *h, struct tok_unigram *u)
{
    const json_t *all = json_object_get(h->root, "normalizer");
    for (size_t i = 0; i < n_steps(all, "normalizers"); i++) {
        const json_t *o = step(all, "normalizers", i),
                     *map = json_object_get(o, "precompiled_charsmap");
        const char *regex = str(json_object_get(o, "pattern"), "Regex"), *to = str(o, "content");
        if (is_type(o, "Precompiled") && json_is_string(map) && i == 0) {
            int r = tok_charsmap_open(json_string_value(map), json_string_length(map), &u->map);
            if (r == -EBADMSG)
                return err_set(h->err, r, "tokenizer.json: the precompiled_charsmap is damaged");
            if (r < 0) return r;
        } else if (is_type(o, "Strip") && !flag(o, "strip_left", true) &&
                   flag(o, "strip_right", true) && !u->joins_spaces) {
            u->strips = true;
        } else if (is_type(o, "Replace") && strcmp(regex, " {2,}") == 0 &&
                   (strcmp(to, " ") == 0 || strcmp(to, SPM_SPACE) == 0)) {
            u->joins_spaces = true;
        } else {
            return unknown(h, "normalizer", o);
        }
    }
    return 0;
}

/* Metaspace, alone or behind a split at white space. */
static int read_unigram_cuts(struct hf *h, struct tok_unigram *u)
{
    const json_t *all = json_object_get(h->root, "pre_tokenizer");
    const size_t n = n_steps(all, "pretokenizers");
    u->split = n == 2 && is_type(step(all, "pretokenizers", 0), "WhitespaceSplit");
    const json_t *o = step(all, "pretokenizers", u->split);
    const char *scheme = str(o, "prepend_scheme");
    const bool always = *scheme ? strcmp(scheme, "always") == 0 : flag(o, "add_prefix_space", true);
    if (n != 1u + u->split || !is_type(o, "Metaspace") || !always || !flag(o, "split", true) ||
        strcmp(str(o, "replacement"), SPM_SPACE) != 0)
        return unknown(h, "pre_tokenizer", n == 1 ? o : all);
    return 0;
}

static int build_unigram(struct hf *h, const json_t *model)
{
    h->kind = TOK_UNIGRAM;
    const json_t *added = json_object_get(h->root, "added_tokens");
    int r = set_pieces(h, json_object_get(model, "vocab"), added);
    if (r == 0) r = read_unigram_normalizer(h, &h->t->unigram);
    if (r == 0) r = read_unigram_cuts(h, &h->t->unigram);
    if (r < 0) return r;
    if (flag(model, "byte_fallback", false))
        return err_set(h->err, -ENOTSUP,
                       "tokenizer.json: a Unigram model with byte_fallback is "
                       "not supported");
    h->t->unk = id_in_vocab(h->t, json_object_get(model, "unk_id"));
    if (h->t->unk < 0)
        return err_set(h->err, -EBADMSG, "tokenizer.json: the Unigram model has no unk_id");
    r = set_added(h, added);
    if (r < 0) return r;
    if (h->t->e[h->t->unk].type == TOK_T_NORMAL) h->t->e[h->t->unk].type = TOK_T_UNKNOWN;
    r = read_specials(h);
    if (r == 0) r = tok_index(h->t);
    if (r == 0) r = tok_unigram_index(h->t);
    return r < 0 ? r : tok_finish(h->t);
}

static int build(struct hf *h)
{
    json_t *model = json_object_get(h->root, "model");
    if (is_type(model, "WordPiece")) return build_wordpiece(h, model);
    if (is_type(model, "Unigram")) return build_unigram(h, model);
    int r = read_normalizer(h);
    if (r == 0) r = read_pre_tokenizer(h);
    if (r == 0) r = check_model(h, model);
    if (r == 0)
        r = set_vocab(h, json_object_get(model, "vocab"), json_object_get(h->root, "added_tokens"));
    if (r < 0) return r;
    struct tok *t = h->t;
    t->prefix = h->prefix;
    t->prefix_unless_space = h->prefix_unless_space;
    t->nfc = h->nfc;
    t->ignore_merges = flag(model, "ignore_merges", false);
    r = read_specials(h);
    if (r == 0) r = tok_index(t);
    if (r == 0) r = set_merges(h, json_object_get(model, "merges"));
    if (r < 0) return r;
    t->pre = h->cut ? h->pre : tok_spm_pre(t);
    return tok_finish(t);
}

int tok_open_hf(const char *folder, const char *file, struct tok **ret, struct err *err)
{
    struct hf h = {.folder = folder, .err = err};
    int r = read_json(folder, file, &h.root, err);
    if (r == 0) r = err_set(err, -ENOENT, "'%s' has no %s", folder, file);
    if (r == 1) r = read_json(folder, "tokenizer_config.json", &h.config, err);
    if (r >= 0) r = build(&h);
    json_decref(h.root);
    json_decref(h.config);
    if (r < 0) {
        tok_close(h.t);
        if (r == -ENOMEM) (void)err_set(err, r, "out of memory while reading the vocabulary");
        return r;
    }
    *ret = h.t;
    return 0;
}
