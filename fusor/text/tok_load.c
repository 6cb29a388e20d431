/* What loaders need: GPT-2's printable alphabet, SentencePiece spellings, end-of-turn names. */
#include "fusor/text/tok_load.h"
#include "fusor/text/unicode.h"

#include <stdio.h>
#include <string.h>

/* The alphabet shows bytes 33 to 126, 161 to 172 and 174 to 255 as themselves; the other 68, in
 * order, are U+0100 and up. -1 = not in the alphabet. */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return (int)cp;
    if (cp < 0x100 || cp >= 0x100 + 68) return -1;
    unsigned i = cp - 0x100;
    if (i < 33) return (int)i;
    if (i < 33 + 34) return (int)(127 + i - 33);
    return 173;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool tok_is_byte_name(const char *s, size_t len, uint8_t *ret)
{
    if (len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return false;
    int hi = hex(s[3]), lo = hex(s[4]);
    if (hi < 0 || lo < 0) return false;
    *ret = (uint8_t)(hi << 4 | lo);
    return true;
}

/* Spaces are kept as spaces: U+2581 becomes one. */
static int add_spm(struct buf *out, const char *s, size_t len)
{
    int r = buf_reserve(out, len);
    for (size_t i = 0; r == 0 && i < len;) {
        bool space = len - i >= 3 && memcmp(s + i, "\xE2\x96\x81", 3) == 0;
        r = buf_addc(out, space ? ' ' : s[i]);
        i += space ? 3 : 1;
    }
    return r;
}

/* GPT-2's printable alphabet back to bytes: 1 done, 0 a character is not in it. */
static int add_printable(struct buf *out, const char *s, size_t len)
{
    unsigned l;
    int r = buf_reserve(out, len);
    for (size_t i = 0; r == 0 && i < len; i += l) {
        int b = alphabet_byte(uni_decode((const uint8_t *)s + i, len - i, &l));
        if (b < 0) return 0;
        r = buf_addc(out, (char)b);
    }
    return r < 0 ? r : 1;
}

int tok_set_spm(struct tok *t, size_t id, const char *text, size_t len, enum tok_type type)
{
    uint8_t b;
    if (type == TOK_T_BYTE) {
        if (!tok_is_byte_name(text, len, &b)) return -EBADMSG;
        return tok_set(t, id, (const char *)&b, 1, type);
    }
    if (type != TOK_T_NORMAL && type != TOK_T_UNUSED && type != TOK_T_USER)
        return tok_set(t, id, text, len, type);
    struct buf plain = BUF_INIT;
    int r = add_spm(&plain, text, len);
    if (r == 0) r = tok_set(t, id, plain.data, plain.len, type);
    buf_fini(&plain);
    return r;
}

int tok_set_printable(struct tok *t, size_t id, const char *text, size_t len, enum tok_type type,
                      enum tok_type otherwise)
{
    struct buf raw = BUF_INIT;
    int r = add_printable(&raw, text, len);
    if (r >= 0)
        r = r ? tok_set(t, id, raw.data, raw.len, type) : tok_set(t, id, text, len, otherwise);
    buf_fini(&raw);
    return r;
}

bool tok_merge_cut(const char *s, size_t len, struct tok_merge *ret)
{
    const char *gap = len > 1 ? memchr(s + 1, ' ', len - 1) : NULL;
    if (!gap || gap + 1 == s + len) return false;
    *ret = (struct tok_merge){s, gap + 1, (size_t)(gap - s), (size_t)(s + len - gap) - 1};
    return true;
}

/* One side of a merge as the vocabulary has it: 1 added, 0 it can be no token. */
static int add_side(const struct tok *t, struct buf *raw, const char *s, size_t len)
{
    if (t->kind == TOK_BYTE_LEVEL) return add_printable(raw, s, len);
    int r = add_spm(raw, s, len);
    return r < 0 ? r : 1;
}

int tok_merge_texts(struct tok *t, const struct tok_merge *m, uint32_t rank, struct buf *room)
{
    buf_clear(room);
    int r = add_side(t, room, m->left, m->left_len);
    const size_t cut = room->len;
    if (r == 1) r = add_side(t, room, m->right, m->right_len);
    if (r <= 0) return r;
    const int32_t left = tok_text_id(t, room->data, cut),
                  right = tok_text_id(t, room->data + cut, room->len - cut),
                  both = tok_text_id(t, room->data, room->len);
    if (left < 0 || right < 0 || both < 0) return 0; /* can never apply */
    return tok_merge_add(t, left, right, both, rank);
}

enum tok_pre tok_spm_pre(const struct tok *t)
{
    for (size_t i = 0; i < t->n_vocab; i++) {
        const struct tok_entry *e = &t->e[i];
        if (e->type != TOK_T_NORMAL && e->type != TOK_T_UNUSED) continue;
        const uint8_t *s = tok_raw(t, (int32_t)i);
        for (uint32_t k = 1; k < e->len; k++)
            if (s[k] == ' ' && s[k - 1] != ' ') return TOK_PRE_WHOLE;
    }
    return TOK_PRE_SPM;
}

static bool is_named(const struct tok *t, size_t i, const char *name)
{
    const struct tok_entry *e = &t->e[i];
    return (e->type == TOK_T_CONTROL || e->type == TOK_T_USER) && strlen(name) == e->len &&
           memcmp(name, tok_raw(t, (int32_t)i), e->len) == 0;
}

/* Where an answer may be several messages (harmony), what ends one is not the end of the answer. */
void tok_mark_eog(struct tok *t)
{
    static const char *const names[] = {
        "<|eot_id|>",      "<|eom_id|>",      "<|im_end|>",    "<|endoftext|>",
        "<|end_of_text|>", "<|end_of_turn|>", "<end_of_turn>", "<|eot|>",
        "<|eom|>",         "<EOT>",           "<|return|>",    "<|call|>",
    };
    bool messages = false;
    for (size_t i = 0; i < t->n_vocab; i++) {
        messages |= is_named(t, i, "<|return|>");
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            t->e[i].eog |= is_named(t, i, names[k]);
    }
    for (size_t i = 0; i < t->n_vocab; i++)
        if (is_named(t, i, "<|end|>")) t->e[i].eog = !messages;
    if (t->eos >= 0) t->e[t->eos].eog = true;
    /* What ends or starts a text must never come from user text, so a file's other type is
     * overruled; unless the token is an ordinary one, which only a wrong id in the file can mean.
     */
    for (size_t i = 0; i < t->n_vocab; i++) {
        struct tok_entry *e = &t->e[i];
        if ((!e->eog && (int32_t)i != t->bos) || e->len < 3) continue;
        const uint8_t *s = tok_raw(t, (int32_t)i);
        bool name = s[0] == '<' && s[e->len - 1] == '>';
        if (name || e->type == TOK_T_USER || e->type == TOK_T_UNKNOWN) e->type = TOK_T_CONTROL;
    }
}
