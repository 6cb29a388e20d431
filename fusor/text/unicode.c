/* NFC works on stretches: from a stable starter up to the next one. Everything between two stable
 * starters is decomposed, put in canonical order and composed on its own, so text that is already
 * NFC (nearly all) is only looked at, never copied. */
#include "fusor/text/unicode.h"

#include <pthread.h>
#include <utf8proc.h>

#define NFC ((utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE))
enum { GROWTH = 4 }; /* code points that one decomposes into, at most */

uint32_t uni_decode(const uint8_t *s, size_t n, unsigned *ret_len)
{
    *ret_len = 1;
    if (s[0] < 0x80) return s[0];
    int32_t cp;
    ssize_t len = utf8proc_iterate(s, (ssize_t)n, &cp);
    if (len < 0) return UNI_BAD;
    *ret_len = (unsigned)len;
    return (uint32_t)cp;
}

/* Of the character at s, 0 = it is none. */
static size_t space_len(const uint8_t *s, size_t n, bool python)
{
    unsigned len;
    const uint32_t cp = uni_decode(s, n, &len);
    if (cp >= 0x1C && cp <= 0x1F) return python ? len : 0;
    if (cp < 0x80) return cp == ' ' || (cp >= '\t' && cp <= '\r') ? len : 0;
    const utf8proc_category_t c = utf8proc_category((int32_t)cp);
    return cp == 0x85 || (c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_ZP) ? len : 0;
}

size_t uni_space_head(const void *text, size_t n, bool python)
{
    const uint8_t *s = text;
    size_t at = 0, len;
    while (at < n && (len = space_len(s + at, n - at, python)))
        at += len;
    return at;
}

size_t uni_space_tail(const void *text, size_t n, bool python)
{
    const uint8_t *s = text;
    size_t keep = n;
    while (keep > 0) {
        size_t p = keep - 1;
        while (p > 0 && (s[p] & 0xC0) == 0x80 && keep - p < 4)
            p--;
        if (space_len(s + p, keep - p, python) != keep - p) break;
        keep = p;
    }
    return n - keep;
}

unsigned uni_case(uint32_t cp, enum uni_case to, uint8_t ret[4])
{
    const int32_t c = (int32_t)cp, mapped = to == UNI_UPPER   ? utf8proc_toupper(c)
                                            : to == UNI_LOWER ? utf8proc_tolower(c)
                                                              : utf8proc_totitle(c);
    return (unsigned)utf8proc_encode_char(mapped, ret);
}

bool uni_printable(uint32_t cp)
{
    if (cp < 0x80) return cp >= 0x20 && cp < 0x7F;
    const utf8proc_category_t c = utf8proc_category((int32_t)cp);
    return c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS;
}

unsigned uni_encode(uint32_t cp, uint8_t ret[4])
{
    return (unsigned)utf8proc_encode_char((int32_t)cp, ret);
}

enum uni_kind uni_kind(uint32_t cp)
{
    if (cp < 0x80) {
        if (cp == ' ' || cp == '\t' || cp == '\n' || cp == '\r') return UNI_SPACE;
        if (cp < ' ' || cp == 0x7F) return UNI_CONTROL;
        const uint32_t small = cp | 0x20;
        return (cp >= '0' && cp <= '9') || (small >= 'a' && small <= 'z') ? UNI_OTHER
                                                                          : UNI_PUNCTUATION;
    }
    const utf8proc_category_t c = utf8proc_category((int32_t)cp);
    if (c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_ZP) return UNI_SPACE;
    if (c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO)
        return UNI_CONTROL;
    if (c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO) return UNI_PUNCTUATION;
    return c == UTF8PROC_CATEGORY_MN ? UNI_MARK : UNI_OTHER;
}

unsigned uni_lower(uint32_t cp, uint32_t ret[2])
{
    ret[0] = cp == 0x130 ? 'i' : (uint32_t)utf8proc_tolower((int32_t)cp);
    ret[1] = 0x307; /* of the one letter that becomes two: a capital I with its dot */
    return cp == 0x130 ? 2 : 1;
}

unsigned uni_decompose(uint32_t cp, uint32_t ret[UNI_PARTS])
{
    ret[0] = cp;
    if (cp < 0xC0) return 1;
    int32_t part[UNI_PARTS];
    const ssize_t n = utf8proc_decompose_char((int32_t)cp, part, UNI_PARTS,
                                              UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
    for (ssize_t i = 0; i < n && i < UNI_PARTS; i++)
        ret[i] = (uint32_t)part[i];
    return n > 0 && n <= UNI_PARTS ? (unsigned)n : 1;
}

size_t uni_grapheme(const uint8_t *s, size_t n)
{
    unsigned len;
    uint32_t cp = uni_decode(s, n, &len);
    size_t at = len;
    int32_t state = 0;
    while (at < n) {
        const uint32_t next = uni_decode(s + at, n - at, &len);
        if (cp == UNI_BAD || next == UNI_BAD) break;
        if (utf8proc_grapheme_break_stateful((int32_t)cp, (int32_t)next, &state)) break;
        cp = next;
        at += len;
    }
    return at;
}

uint8_t uni_order(uint32_t cp)
{
    return cp < 0x300 ? 0 : (uint8_t)utf8proc_get_property((int32_t)cp)->combining_class;
}

/* A bit for each character that NFC may change, join to the one before, or move. Unicode has none
 * of them from U+30000 on. Asking utf8proc each time made Hindi a fifth slower. */
enum { UNSTABLE_END = 0x30000 };
static uint64_t unstable_bits[UNSTABLE_END / 64];
static pthread_once_t unstable_once = PTHREAD_ONCE_INIT;

static void set_unstable(int32_t cp)
{
    unstable_bits[cp / 64] |= 1ull << cp % 64;
}

static void find_unstable(void)
{
    for (int32_t cp = 0x300; cp < UNSTABLE_END; cp++) {
        const utf8proc_property_t *p = utf8proc_get_property(cp);
        if (p->combining_class) set_unstable(cp);
        if (p->decomp_seqindex == UINT16_MAX || p->decomp_type) continue; /* no composition */
        int32_t part[GROWTH];
        ssize_t n = utf8proc_decompose_char(cp, part, GROWTH, NFC, NULL);
        const int32_t last = part[n - 1];
        n = utf8proc_normalize_utf32(part, n, NFC);
        set_unstable(n == 1 && part[0] == cp ? last : cp);
    }
    for (int32_t cp = 0x1161; cp < 0x1176; cp++) /* Hangul vowels */
        set_unstable(cp);
    for (int32_t cp = 0x11A8; cp < 0x11C3; cp++) /* and tails; utf8proc 2.8 takes U+11A7 for one */
        set_unstable(cp);
}

static bool unstable(uint32_t cp)
{
    return cp < UNSTABLE_END && (unstable_bits[cp / 64] >> cp % 64 & 1);
}

size_t uni_stable(const uint8_t *s, size_t n)
{
    (void)pthread_once(&unstable_once, find_unstable);
    size_t starter = 0, i = 0;
    while (i < n) {
        unsigned len = 1;
        if (s[i] >= 0xCC) { /* U+0300 and up */
            uint32_t cp = uni_decode(s + i, n - i, &len);
            if (unstable(cp)) return starter;
        } else if (s[i] >= 0xC2 && i + 1 < n) {
            len = (s[i + 1] & 0xC0) == 0x80 ? 2 : 1;
        }
        starter = i;
        i += len;
    }
    return n;
}

size_t uni_unstable_len(const uint8_t *s, size_t n)
{
    (void)pthread_once(&unstable_once, find_unstable);
    unsigned len;
    (void)uni_decode(s, n, &len);
    size_t i = len;
    for (unsigned k = 1; k < UNI_NFC_MAX && i < n; k++) {
        if (!unstable(uni_decode(s + i, n - i, &len))) break;
        i += len;
    }
    return i;
}

int uni_add_nfc(struct buf *b, const uint8_t *s, size_t len)
{
    int32_t cp[GROWTH * UNI_NFC_MAX + 1]; /* utf8proc_reencode() ends it with a zero */
    ssize_t n = utf8proc_decompose(s, (ssize_t)len, cp, GROWTH * UNI_NFC_MAX, NFC);
    if (n < 0 || n > GROWTH * UNI_NFC_MAX) return buf_add(b, s, len);
    n = utf8proc_reencode(cp, n, NFC);
    return n < 0 ? buf_add(b, s, len) : buf_add(b, cp, (size_t)n);
}
