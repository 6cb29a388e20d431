/* Runs are found by binary search; ASCII never comes here on the hot path (tok_scan.c has a table).
 *
 * NFC works on stretches: from a stable starter up to the next one. Everything between two stable
 * starters is decomposed, put in canonical order and composed on its own, so text that is already
 * NFC (nearly all) is only looked at, never copied. */
#include "fusor/text/unicode.h"

#include "base/assert.h"
#include "fusor/text/unicode_data.h"

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { /* Hangul syllables are composed by arithmetic (Unicode, chapter 3.12) */
       S_BASE = 0xAC00,
       L_BASE = 0x1100,
       V_BASE = 0x1161,
       T_BASE = 0x11A7,
       L_COUNT = 19,
       V_COUNT = 21,
       T_COUNT = 28,
       S_COUNT = L_COUNT * V_COUNT * T_COUNT
};

uint32_t uni_decode(const uint8_t *s, size_t n, unsigned *ret_len)
{
    uint32_t c = s[0], cp;
    *ret_len = 1;
    if (c < 0x80) return c;
    unsigned len = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || len > n) return UNI_BAD;
    cp = c & (0x7Fu >> len);
    for (unsigned i = 1; i < len; i++) {
        if ((s[i] & 0xC0) != 0x80) return UNI_BAD;
        cp = cp << 6 | (s[i] & 0x3Fu);
    }
    bool overlong = (len == 3 && cp < 0x800) || (len == 4 && cp < 0x10000);
    if (overlong || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) return UNI_BAD;
    *ret_len = len;
    return cp;
}

unsigned uni_encode(uint32_t cp, uint8_t out[4])
{
    ASSERT(cp < UNI_BAD);
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xC0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xE0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (cp & 0x3F));
    return 4;
}

static uint32_t run_value(const uint32_t *runs, size_t n, uint32_t cp, unsigned shift)
{
    uint32_t key = cp << shift | ((1u << shift) - 1);
    size_t lo = 0; /* runs[0] starts at 0, so the answer exists */
    while (n > 1) {
        size_t half = n / 2;
        lo = runs[lo + half] <= key ? lo + half : lo;
        n -= half;
    }
    return runs[lo] & ((1u << shift) - 1);
}

enum uni_class uni_class(uint32_t cp)
{
    if (cp >= UNI_BAD) return UNI_OTHER;
    return (enum uni_class)run_value(uni_class_runs, N_OF(uni_class_runs), cp, 3);
}

static unsigned ccc(uint32_t cp)
{
    if (cp < 0x300 || cp >= UNI_BAD) return 0;
    return run_value(uni_ccc_runs, N_OF(uni_ccc_runs), cp, 8);
}

static bool unstable(uint32_t cp)
{
    if (cp < 0x300 || cp >= UNI_BAD) return false;
    return run_value(uni_unstable_runs, N_OF(uni_unstable_runs), cp, 1) != 0;
}

size_t uni_stable(const uint8_t *s, size_t n)
{
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
    unsigned len;
    (void)uni_decode(s, n, &len);
    size_t i = len;
    for (unsigned k = 1; k < UNI_NFC_MAX && i < n; k++) {
        if (!unstable(uni_decode(s + i, n - i, &len))) break;
        i += len;
    }
    return i;
}

static const uint32_t *decomp_find(uint32_t cp)
{
    size_t lo = 0, hi = N_OF(uni_decomp) / 3;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        uint32_t k = uni_decomp[3 * mid];
        if (k == cp) return &uni_decomp[3 * mid];
        if (k < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* 0 = the pair does not compose. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a >= L_BASE && a < L_BASE + L_COUNT && b >= V_BASE && b < V_BASE + V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a >= S_BASE && a < S_BASE + S_COUNT && (a - S_BASE) % T_COUNT == 0 && b > T_BASE &&
        b < T_BASE + T_COUNT)
        return a + (b - T_BASE);
    size_t lo = 0, hi = N_OF(uni_compose);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const uint32_t *d = &uni_decomp[3 * uni_compose[mid]];
        if (d[1] == a && d[2] == b) return d[0];
        if (d[1] < a || (d[1] == a && d[2] < b))
            lo = mid + 1;
        else
            hi = mid;
    }
    return 0;
}

/* Full decomposition of one character: at most 4 code points in Unicode. */
static unsigned decompose(uint32_t cp, uint32_t out[UNI_NFC_GROWTH])
{
    if (cp >= S_BASE && cp < S_BASE + S_COUNT) {
        uint32_t i = cp - S_BASE;
        out[0] = L_BASE + i / (V_COUNT * T_COUNT);
        out[1] = V_BASE + i % (V_COUNT * T_COUNT) / T_COUNT;
        out[2] = T_BASE + i % T_COUNT;
        return i % T_COUNT ? 3 : 2;
    }
    unsigned n = 0;
    uint32_t tail[UNI_NFC_GROWTH];
    unsigned n_tail = 0; /* seconds, collected from the outside in */
    const uint32_t *d;
    while ((d = decomp_find(cp))) {
        if (d[2]) tail[n_tail++] = d[2];
        ASSERT(n_tail < UNI_NFC_GROWTH);
        cp = d[1];
    }
    out[n++] = cp;
    while (n_tail)
        out[n++] = tail[--n_tail];
    return n;
}

size_t uni_nfc(uint32_t *cp, size_t n_cp)
{
    /* Decompose from the back into the upper part of the room, so that nothing is overwritten. */
    size_t room = UNI_NFC_GROWTH * n_cp, w = room;
    for (size_t i = n_cp; i-- > 0;) {
        uint32_t d[UNI_NFC_GROWTH];
        unsigned n = decompose(cp[i], d);
        w -= n;
        for (unsigned k = 0; k < n; k++)
            cp[w + k] = d[k];
    }
    size_t n = room - w;
    for (size_t i = 0; i < n; i++)
        cp[i] = cp[w + i];
    for (size_t i = 1; i < n; i++) { /* canonical order: stable insertion among marks */
        uint32_t c = cp[i];
        unsigned cc = ccc(c);
        size_t k = i;
        for (; cc && k > 0 && ccc(cp[k - 1]) > cc; k--)
            cp[k] = cp[k - 1];
        cp[k] = c;
    }
    size_t out = 0, starter = SIZE_MAX;
    unsigned last = 0; /* class of the last code point kept */
    for (size_t i = 0; i < n; i++) {
        unsigned cc = ccc(cp[i]);
        bool adjacent = starter != SIZE_MAX && out == starter + 1;
        if (starter != SIZE_MAX && (adjacent || last < cc)) {
            uint32_t c = compose(cp[starter], cp[i]);
            if (c) {
                cp[starter] = c;
                continue;
            }
        }
        if (cc == 0) starter = out;
        last = cc;
        cp[out++] = cp[i];
    }
    return out;
}
