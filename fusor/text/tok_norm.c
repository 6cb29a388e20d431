/* What changes the text before merging, and how token offsets find back to the source.
 *
 * Three things change text: the dummy space of SentencePiece, a literal U+2581 in the input (which
 * means a space to SentencePiece; the vocabulary is kept with plain spaces here), and NFC. Each
 * change is recorded as an edit; nearly all text has none and is used in place. Inside an edit
 * offsets are interpolated and clipped, so that tokens still ascend and cover the source. */
#include "base/mem.h"
#include "fusor/text/tok_int.h"
#include "fusor/text/unicode.h"

#include <string.h>

static const uint8_t spm_space[3] = {0xE2, 0x96, 0x81}; /* U+2581 */

static const uint8_t *find_space(const uint8_t *s, const uint8_t *end)
{
    return s < end ? memmem(s, (size_t)(end - s), spm_space, sizeof spm_space) : NULL;
}

int tok_norm_edit(struct tok_norm *n, size_t dst, size_t dst_len, size_t src, size_t src_len)
{
    if (n->n_edit == n->cap_edit) {
        size_t cap = n->cap_edit ? n->cap_edit * 2 : 16;
        struct tok_edit *e = mem_realloc(n->edit, cap * sizeof *e);
        if (!e) return -ENOMEM;
        n->edit = e;
        n->cap_edit = cap;
    }
    n->edit[n->n_edit++] =
        (struct tok_edit){(uint32_t)dst, (uint32_t)dst_len, (uint32_t)src, (uint32_t)src_len};
    return 0;
}

/* Normalise the stretch [src, src + len) of s onto the end of the text. */
static int add_nfc(struct tok_norm *n, const uint8_t *s, size_t src, size_t len)
{
    size_t dst = n->text.len;
    int r = uni_add_nfc(&n->text, s + src, len);
    if (r < 0) return r;
    size_t dst_len = n->text.len - dst;
    bool same = dst_len == len && memcmp(n->text.data + dst, s + src, len) == 0;
    return same ? 0 : tok_norm_edit(n, dst, dst_len, src, len);
}

static int normalise_nfc(struct tok_norm *n, const uint8_t *s, size_t len)
{
    int r = 0;
    for (size_t p = 0; r == 0 && p < len;) {
        size_t stable = uni_stable(s + p, len - p);
        if (stable) r = buf_add(&n->text, s + p, stable);
        p += stable;
        if (r < 0 || p >= len) break;
        size_t stretch = uni_unstable_len(s + p, len - p);
        r = add_nfc(n, s, p, stretch);
        p += stretch;
    }
    return r;
}

static int normalise_spm(struct tok_norm *n, const uint8_t *s, size_t len)
{
    const uint8_t *end = s + len;
    for (const uint8_t *p = s; p < end;) {
        const uint8_t *sp = find_space(p, end);
        int r = buf_add(&n->text, p, (size_t)((sp ? sp : end) - p));
        if (r < 0) return r;
        if (!sp) break;
        r = tok_norm_edit(n, n->text.len, 1, (size_t)(sp - s), sizeof spm_space);
        if (r == 0) r = buf_addc(&n->text, ' ');
        if (r < 0) return r;
        p = sp + sizeof spm_space;
    }
    return 0;
}

int tok_normalise(const struct tok *t, const uint8_t *s, size_t len, bool prefix,
                  struct tok_norm *n)
{
    buf_clear(&n->text);
    n->n_edit = 0;
    bool spm = t->kind == TOK_SPM;
    if (prefix && t->prefix_unless_space && len) {
        if (s[0] == ' ' || (spm && len >= 3 && memcmp(s, spm_space, 3) == 0)) prefix = false;
    }
    bool change = prefix || (spm && find_space(s, s + len)) || (t->nfc && uni_stable(s, len) < len);
    if (!change || len == 0) return 0;
    int r = buf_reserve(&n->text, len + 1);
    if (r == 0 && prefix) {
        r = tok_norm_edit(n, 0, 1, 0, 0);
        if (r == 0) r = buf_addc(&n->text, ' ');
    }
    if (r == 0)
        r = t->nfc ? normalise_nfc(n, s, len)
            : spm  ? normalise_spm(n, s, len)
                   : buf_add(&n->text, s, len);
    return r < 0 ? r : 1;
}

void tok_norm_offsets(const struct tok_norm *n, size_t base, struct tok_ids *ids, size_t from)
{
    size_t k = 0; /* edits before k start at or before the offset looked at */
    uint32_t last = (uint32_t)base;
    for (size_t i = from; i < ids->n; i++) {
        uint32_t end = ids->end[i] - (uint32_t)base, out = end;
        while (k < n->n_edit && n->edit[k].dst <= end)
            k++;
        if (k > 0) {
            const struct tok_edit *e = &n->edit[k - 1];
            uint32_t into = end - e->dst;
            if (into < e->dst_len)
                out = e->src + (into < e->src_len ? into : e->src_len);
            else
                out = e->src + e->src_len + (into - e->dst_len);
        }
        ids->begin[i] = last;
        last = ids->end[i] = out + (uint32_t)base;
    }
}

void tok_norm_fini(struct tok_norm *n)
{
    buf_fini(&n->text);
    mem_free(n->edit);
}
