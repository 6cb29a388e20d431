/* Design: a prompt is nearly all string, with something special every fifty bytes or so, so what
 * costs is not the bytes but the mispredicted branch at each special one. Hence 64 bytes become one
 * bit mask; simple escapes are checked and stepped over within it, and UTF-8 is checked beforehand
 * for the whole text without looking at single characters (Keiser and Lemire, "Validating UTF-8 in
 * less than one instruction per byte"). */
#include "base/jsonskip.h"

#include <stdint.h>
#include <string.h>

/* Eight bytes at once: the high bit of each byte that is a quote, a backslash or below 0x20. A
 * borrow may also mark a byte behind a real one, which is harmless: the first one counts. */
static uint64_t special_of_word(uint64_t w)
{
    const uint64_t ones = 0x0101010101010101ull, highs = 0x8080808080808080ull;
    uint64_t quote = w ^ (ones * '"'), slash = w ^ (ones * '\\');
    return (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((w - ones * 0x20) & ~w)) &
           highs;
}

/* Of text that is known to be UTF-8 this may begin within a character. */
static const char *skip_words(const char *p, const char *end, bool utf8)
{
    const uint64_t doubt = utf8 ? 0 : 0x8080808080808080ull;
    while (end - p >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        uint64_t stop = special_of_word(w) | (w & doubt);
        if (stop && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) return p + __builtin_ctzll(stop) / 8;
        if (stop) break;
        p += 8;
    }
    for (; p < end; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c == '"' || c == '\\' || (c >= 0x80 && !utf8)) break;
    }
    return p;
}

static const char *string_end_bytes(const char *p, const char *end)
{
    for (; p < end && *p != '"'; p++)
        if (*p == '\\' && ++p == end) break;
    return p < end ? p : end;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,bmi")))

AVX2 static inline __m256i load32(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* clang-format off */
/* What may follow a backslash: 1 = that is all, 2 = four hexadecimal digits. */
static const unsigned char escape_kind[256] = {
    ['"'] = 1, ['\\'] = 1, ['/'] = 1, ['b'] = 1, ['f'] = 1, ['n'] = 1, ['r'] = 1, ['t'] = 1,
    ['u'] = 2};
#define DIGITS                                                                                     \
    ['0'] = 1, ['1'] = 1, ['2'] = 1, ['3'] = 1, ['4'] = 1, ['5'] = 1, ['6'] = 1, ['7'] = 1,        \
    ['8'] = 1, ['9'] = 1, ['a'] = 1, ['b'] = 1, ['c'] = 1, ['e'] = 1, ['f'] = 1, ['A'] = 1,        \
    ['B'] = 1, ['C'] = 1, ['E'] = 1, ['F'] = 1
static const unsigned char hex[256] = {DIGITS, ['d'] = 1, ['D'] = 1};
static const unsigned char hex_first[256] = {DIGITS}; /* without D: surrogates come in pairs */
/* clang-format on */

static bool escape_ok(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    if (escape_kind[p[1]] != 2) return escape_kind[p[1]] == 1;
    return hex_first[p[2]] & hex[p[3]] & hex[p[4]] & hex[p[5]];
}

/* A bit for each of 32 bytes that is a quote, a backslash or below 0x20. */
AVX2 static inline uint32_t special_of_32(const char *p)
{
    __m256i v = load32(p), least = _mm256_set1_epi8(0x1F);
    __m256i quote = _mm256_cmpeq_epi8(v, _mm256_set1_epi8('"'));
    __m256i slash = _mm256_cmpeq_epi8(v, _mm256_set1_epi8('\\'));
    __m256i control = _mm256_cmpeq_epi8(_mm256_max_epu8(v, least), least);
    return (uint32_t)_mm256_movemask_epi8(_mm256_or_si256(_mm256_or_si256(quote, slash), control));
}

AVX2 static inline uint32_t high_of_32(const char *p)
{
    return (uint32_t)_mm256_movemask_epi8(load32(p));
}

enum { BLOCK = 64, ESCAPE_BYTES = 6 };

AVX2 static const char *skip_avx2(const char *p, const char *end, bool utf8)
{
    while (end - p >= BLOCK + ESCAPE_BYTES) {
        uint64_t stop = special_of_32(p) | (uint64_t)special_of_32(p + 32) << 32;
        if (!utf8) stop |= high_of_32(p) | (uint64_t)high_of_32(p + 32) << 32;
        size_t over = 0; /* an escape that reaches into the next block */
        while (stop) {
            unsigned i = (unsigned)__builtin_ctzll(stop);
            if (p[i] != '\\' || !escape_ok(p + i)) return p + i;
            over = i == BLOCK - 1;
            stop &= ~(3ull << i); /* the character after it may be a quote or a backslash */
        }
        p += BLOCK + over;
    }
    return p;
}

/* Is the byte at p escaped: behind an odd number of backslashes? Looked at where a quote is near,
 * so that no run is counted twice. */
static inline uint64_t is_escaped(const char *p, const char *begin)
{
    const char *run = p;
    while (run > begin && run[-1] == '\\')
        run--;
    return (uint64_t)(p - run) & 1;
}

/* Most blocks have no quote. In the others which quotes are escaped follows from the runs of
 * backslashes by arithmetic alone (Langdale and Lemire, "Parsing gigabytes of JSON per second",
 * 3.1.1), since they stand close together where there are some. */
AVX2 static const char *string_end_avx2(const char *p, const char *end)
{
    const uint64_t even = 0x5555555555555555ull;
    const __m256i quote = _mm256_set1_epi8('"'), slash = _mm256_set1_epi8('\\');
    const char *begin = p;
    for (; end - p >= BLOCK; p += BLOCK) {
        __m256i v = load32(p), w = load32(p + 32);
        uint64_t quotes = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, quote)) |
                          (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(w, quote))
                              << 32;
        if (quotes == 0) continue;
        uint64_t slashes = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, slash)) |
                           (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(w, slash))
                               << 32;
        uint64_t carry = is_escaped(p, begin), sum;
        slashes &= ~carry;
        uint64_t follows = slashes << 1 | carry;
        sum = (slashes & ~even & ~follows) + slashes;
        uint64_t escaped = (even ^ (sum << 1)) & follows;
        if (quotes & ~escaped) return p + __builtin_ctzll(quotes & ~escaped);
    }
    return string_end_bytes(p + is_escaped(p, begin), end);
}

/* The three tables of the paper: what may be wrong with two bytes, by their nibbles. */
enum {
    TOO_SHORT = 1,
    TOO_LONG = 2,
    OVERLONG_3 = 4,
    TOO_LARGE = 8,
    SURROGATE = 16,
    OVERLONG_2 = 32,
    TOO_LARGE_1000 = 64,
    OVERLONG_4 = 64,
    TWO_CONTS = 128,
    CARRY = TOO_SHORT | TOO_LONG | TWO_CONTS
};
#define TWICE(...)                                                                                 \
    {                                                                                              \
        __VA_ARGS__, __VA_ARGS__                                                                   \
    }
static const uint8_t first_high[32] =
    TWICE(TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TWO_CONTS,
          TWO_CONTS, TWO_CONTS, TWO_CONTS, TOO_SHORT | OVERLONG_2, TOO_SHORT,
          TOO_SHORT | OVERLONG_3 | SURROGATE, TOO_SHORT | TOO_LARGE | TOO_LARGE_1000 | OVERLONG_4);
#define LARGE (CARRY | TOO_LARGE | TOO_LARGE_1000)
static const uint8_t first_low[32] =
    TWICE(CARRY | OVERLONG_3 | OVERLONG_2 | OVERLONG_4, CARRY | OVERLONG_2, CARRY, CARRY,
          CARRY | TOO_LARGE, LARGE, LARGE, LARGE, LARGE, LARGE, LARGE, LARGE, LARGE,
          LARGE | SURROGATE, LARGE, LARGE);
#define SECOND (TOO_LONG | OVERLONG_2 | TWO_CONTS)
static const uint8_t second_high[32] =
    TWICE(TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT,
          SECOND | OVERLONG_3 | TOO_LARGE_1000 | OVERLONG_4, SECOND | OVERLONG_3 | TOO_LARGE,
          SECOND | SURROGATE | TOO_LARGE, SECOND | SURROGATE | TOO_LARGE, TOO_SHORT, TOO_SHORT,
          TOO_SHORT, TOO_SHORT);

/* Where a block of 32 bytes and the end of the one before it are wrong. */
AVX2 static inline __m256i wrong_of_32(__m256i v, __m256i before)
{
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    __m256i seam = _mm256_permute2x128_si256(before, v, 0x21);
    __m256i prev1 = _mm256_alignr_epi8(v, seam, 15), prev2 = _mm256_alignr_epi8(v, seam, 14);
    __m256i prev3 = _mm256_alignr_epi8(v, seam, 13);
    __m256i a = _mm256_shuffle_epi8(load32(first_high),
                                    _mm256_and_si256(_mm256_srli_epi16(prev1, 4), nibble));
    __m256i b = _mm256_shuffle_epi8(load32(first_low), _mm256_and_si256(prev1, nibble));
    __m256i c =
        _mm256_shuffle_epi8(load32(second_high), _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble));
    __m256i third = _mm256_subs_epu8(prev2, _mm256_set1_epi8(0xE0 - 0x80));
    __m256i fourth = _mm256_subs_epu8(prev3, _mm256_set1_epi8((char)(0xF0 - 0x80)));
    __m256i must = _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8((char)0x80));
    return _mm256_xor_si256(must, _mm256_and_si256(_mm256_and_si256(a, b), c));
}

/* What the last bytes of a block may be at most if no character is cut there. */
static const uint8_t last_whole[32] = {255, 255, 255, 255, 255, 255, 255, 255,  255,  255, 255,
                                       255, 255, 255, 255, 255, 255, 255, 255,  255,  255, 255,
                                       255, 255, 255, 255, 255, 255, 255, 0xEF, 0xDF, 0xBF};

AVX2 static bool utf8_avx2(const char *text, size_t len)
{
    __m256i wrong = _mm256_setzero_si256(), before = wrong, cut = wrong;
    size_t i = 0;
    for (; len - i >= 64; i += 64) {
        __m256i v = load32(text + i), w = load32(text + i + 32);
        if (_mm256_movemask_epi8(_mm256_or_si256(v, w)) == 0) {
            wrong = _mm256_or_si256(wrong, cut);
            cut = _mm256_setzero_si256();
        } else {
            wrong = _mm256_or_si256(wrong, wrong_of_32(v, before));
            wrong = _mm256_or_si256(wrong, wrong_of_32(w, v));
            cut = _mm256_subs_epu8(w, load32(last_whole));
        }
        before = w;
    }
    char tail[96] = {0}; /* the zeros behind it show a character that is cut off */
    memcpy(tail, text + i, len - i);
    for (size_t k = 0; k < 96; k += 32) {
        __m256i v = load32(tail + k);
        wrong = _mm256_or_si256(wrong, wrong_of_32(v, before));
        before = v;
    }
    return _mm256_testz_si256(wrong, wrong);
}

bool json_utf8_valid(const char *text, size_t len)
{
    return __builtin_cpu_supports("avx2") && utf8_avx2(text, len);
}

const char *json_skip_string(const char *p, const char *end, bool utf8)
{
    if (end - p >= BLOCK + ESCAPE_BYTES && __builtin_cpu_supports("avx2"))
        p = skip_avx2(p, end, utf8);
    return skip_words(p, end, utf8);
}
const char *json_string_end(const char *p, const char *end)
{
    return end - p >= BLOCK && __builtin_cpu_supports("avx2") ? string_end_avx2(p, end)
                                                              : string_end_bytes(p, end);
}
#else
const char *json_string_end(const char *p, const char *end)
{
    return string_end_bytes(p, end);
}

bool json_utf8_valid(const char *text, size_t len)
{
    return false;
}

const char *json_skip_string(const char *p, const char *end, bool utf8)
{
    return skip_words(p, end, utf8);
}
#endif
