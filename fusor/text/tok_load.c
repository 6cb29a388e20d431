/* What both loaders need: GPT-2's printable alphabet, SentencePiece spellings, end-of-turn names.
 */
#include "fusor/text/tok_int.h"
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

bool tok_unprintable(const char *s, size_t len, uint8_t *out, size_t *ret_len)
{
    size_t n = 0;
    unsigned l;
    for (size_t i = 0; i < len; i += l) {
        int b = alphabet_byte(uni_decode((const uint8_t *)s + i, len - i, &l));
        if (b < 0) return false;
        out[n++] = (uint8_t)b;
    }
    *ret_len = n;
    return true;
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
    int r = buf_reserve(&plain, len);
    for (size_t i = 0; r == 0 && i < len;) {
        bool space = len - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
        r = buf_addc(&plain, space ? ' ' : text[i]);
        i += space ? 3 : 1;
    }
    if (r == 0) r = tok_set(t, id, plain.data, plain.len, type);
    buf_fini(&plain);
    return r;
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

void tok_mark_eog(struct tok *t)
{
    static const char *const names[] = {
        "<|eot_id|>",      "<|eom_id|>",      "<|im_end|>",    "<|end|>", "<|endoftext|>",
        "<|end_of_text|>", "<|end_of_turn|>", "<end_of_turn>", "<|eot|>", "<EOT>",
    };
    for (size_t i = 0; i < t->n_vocab; i++) {
        struct tok_entry *e = &t->e[i];
        if (e->type != TOK_T_CONTROL && e->type != TOK_T_USER) continue;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
            if (strlen(names[k]) != e->len || memcmp(names[k], tok_raw(t, (int32_t)i), e->len) != 0)
                continue;
            e->eog = true;
        }
    }
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
