/* Hand-written scanners for the pre-token patterns of the families.
 *
 * Each scanner tries the alternatives of its pattern in their order; `\s+(?!\S)` means: a run of
 * white space leaves its last character to what follows. Every character is looked at a bounded
 * number of times, whatever the text. The patterns themselves are in the table at the end. */
#include "base/assert.h"
#include "fusor/text/tok_load.h"
#include "fusor/text/unicode.h"

#include <string.h>
#include <utf8proc.h>

enum { /* character classes as bits; 0 = end of text */
       C_UPPER = 1,
       C_LOWER = 2,
       C_OTHER_LETTER = 4,
       C_LETTER = 7,
       C_MARK = 8,
       C_NUMBER = 16,
       C_SPACE = 32, /* without CR and LF */
       C_NEWLINE = 64,
       C_WHITE = C_SPACE | C_NEWLINE,
       C_SYMBOL = 128,
       C_OTHER = C_SYMBOL | C_MARK /* [^\s\p{L}\p{N}] */
};

struct view {
    const uint8_t *s;
    size_t n;
};

static const uint8_t category_bit[UTF8PROC_CATEGORY_CO + 1] = {
    [UTF8PROC_CATEGORY_LU] = C_UPPER,        [UTF8PROC_CATEGORY_LT] = C_UPPER,
    [UTF8PROC_CATEGORY_LL] = C_LOWER,        [UTF8PROC_CATEGORY_LM] = C_OTHER_LETTER,
    [UTF8PROC_CATEGORY_LO] = C_OTHER_LETTER, [UTF8PROC_CATEGORY_MN] = C_MARK,
    [UTF8PROC_CATEGORY_MC] = C_MARK,         [UTF8PROC_CATEGORY_ME] = C_MARK,
    [UTF8PROC_CATEGORY_ND] = C_NUMBER,       [UTF8PROC_CATEGORY_NL] = C_NUMBER,
    [UTF8PROC_CATEGORY_NO] = C_NUMBER,       [UTF8PROC_CATEGORY_ZS] = C_SPACE,
    [UTF8PROC_CATEGORY_ZL] = C_SPACE,        [UTF8PROC_CATEGORY_ZP] = C_SPACE,
};

/* The class of the character at p and its length. */
static inline unsigned at(struct view v, size_t p, unsigned *ret_len)
{
    *ret_len = 1;
    if (p >= v.n) return 0;
    uint8_t c = v.s[p];
    if (c < 0x80) {
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return c & 0x20 ? C_LOWER : C_UPPER;
        if (c == ' ') return C_SPACE;
        if (c >= '0' && c <= '9') return C_NUMBER;
        if (c >= '\t' && c <= '\r') return c == '\n' || c == '\r' ? C_NEWLINE : C_SPACE;
        return C_SYMBOL;
    }
    uint32_t cp = uni_decode(v.s + p, v.n - p, ret_len);
    if (cp == 0x85) return C_SPACE; /* the one control character here that is white space */
    uint8_t bit = category_bit[utf8proc_category((int32_t)cp)];
    return bit ? bit : C_SYMBOL;
}

static inline size_t run_length(struct view v, size_t p, unsigned mask)
{
    unsigned len;
    while (at(v, p, &len) & mask)
        p += len;
    return p;
}

/* 's 't 're 've 'm 'll 'd at p; 0 = no. */
static size_t contraction(struct view v, size_t p, bool any_case)
{
    if (v.n - p < 2 || v.s[p] != '\'') return 0;
    uint8_t a = v.s[p + 1], b = v.n - p > 2 ? v.s[p + 2] : 0;
    if (any_case) {
        /* The long s folds to s as well. */
        if (a == 0xC5 && b == 0xBF) return p + 3;
        if (a >= 'A' && a <= 'Z') a |= 0x20;
        if (b >= 'A' && b <= 'Z') b |= 0x20;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
    return 0;
}

/* White space at p: with `newlines`, `\s*[\r\n]+` first; then `\s+(?!\S)|\s+`. `digits_split`: a
 * digit ends the text here, because it was cut off before this pattern ran. */
static size_t white(struct view v, size_t p, bool newlines, bool digits_split)
{
    size_t end = p, last = p, after_newline = 0;
    unsigned len, c;
    while ((c = at(v, end, &len)) & C_WHITE) {
        last = end;
        end += len;
        if (c == C_NEWLINE) after_newline = end;
    }
    if (newlines && after_newline) return after_newline;
    bool at_end = c == 0 || (digits_split && c == C_NUMBER);
    return at_end || last == p ? end : last;
}

static size_t scan_gpt2(struct view v, size_t p, bool digits_split)
{
    unsigned len, len2;
    unsigned c = at(v, p, &len);
    size_t q = contraction(v, p, false);
    if (q) return q;
    if (digits_split && c == C_NUMBER) return p + len;
    q = p;
    if (v.s[p] == ' ') {
        c = at(v, p + 1, &len2);
        q = p + 1;
        if (digits_split && c == C_NUMBER) c = C_WHITE;
    }
    if (c & C_LETTER) return run_length(v, q, C_LETTER);
    if (c & C_NUMBER) return run_length(v, q, C_NUMBER);
    if (c & C_OTHER) return run_length(v, q, C_OTHER);
    return white(v, p, false, digits_split);
}

/* ` ?[^\s\p{L}\p{N}]+` and what may trail it; 0 = no. */
static size_t symbols(struct view v, size_t p, bool slash)
{
    unsigned len;
    size_t q = v.s[p] == ' ' ? p + 1 : p;
    if (!(at(v, q, &len) & C_OTHER)) return 0;
    q = run_length(v, q, C_OTHER);
    while (q < v.n && (v.s[q] == '\r' || v.s[q] == '\n' || (slash && v.s[q] == '/')))
        q++;
    return q;
}

static size_t numbers(struct view v, size_t p, unsigned most)
{
    unsigned len;
    for (unsigned i = 0; i < most && at(v, p, &len) == C_NUMBER; i++)
        p += len;
    return p;
}

static size_t scan_llama3(struct view v, size_t p, unsigned digits)
{
    unsigned len, len2;
    unsigned c = at(v, p, &len);
    if (c & C_LETTER) return run_length(v, p, C_LETTER);
    size_t q = contraction(v, p, true);
    if (q) return q;
    if (c == C_NUMBER) return numbers(v, p, digits);
    if (c != C_NEWLINE && (at(v, p + len, &len2) & C_LETTER))
        return run_length(v, p + len, C_LETTER);
    q = symbols(v, p, false);
    return q ? q : white(v, p, true, false);
}

enum { C_CASELESS = C_OTHER_LETTER | C_MARK };

/* [Lu Lt Lm Lo M]*[Ll Lm Lo M]+ at p; 0 = no. The star is greedy; where nothing follows for the
 * plus, it backs up to the last caseless character, which then is all the plus gets. */
static size_t cased_tail(struct view v, size_t p)
{
    size_t upper = run_length(v, p, C_UPPER | C_CASELESS);
    size_t end = run_length(v, upper, C_LOWER | C_CASELESS);
    if (end > upper) return end;
    end = 0;
    unsigned len;
    for (size_t q = p; q < upper; q += len)
        if (at(v, q, &len) & C_CASELESS) end = q + len;
    return end;
}

/* [Lu Lt Lm Lo M]+[Ll Lm Lo M]* at p; 0 = no. */
static size_t cased_head(struct view v, size_t p)
{
    size_t upper = run_length(v, p, C_UPPER | C_CASELESS);
    return upper > p ? run_length(v, upper, C_LOWER | C_CASELESS) : 0;
}

/* Tekken's; o200k: up to three digits, and a contraction belongs to its word. */
static size_t scan_cased(struct view v, size_t p, bool o200k)
{
    unsigned len;
    unsigned c = at(v, p, &len);
    bool lead = !(c & (C_LETTER | C_NUMBER | C_NEWLINE)); /* may be the optional first character */
    size_t q = lead ? cased_tail(v, p + len) : 0;
    if (!q) q = cased_tail(v, p);
    if (!q && lead) q = cased_head(v, p + len);
    if (!q) q = cased_head(v, p);
    const size_t end = q && o200k ? contraction(v, q, true) : 0;
    if (q) return end ? end : q;
    if (c == C_NUMBER) return numbers(v, p, o200k ? 3 : 1);
    q = symbols(v, p, true);
    return q ? q : white(v, p, true, false);
}

static size_t scan_spm(struct view v, size_t p, bool each)
{
    if (each) {
        const uint8_t *sp = p + 1 < v.n ? memchr(v.s + p + 1, ' ', v.n - p - 1) : NULL;
        return sp ? (size_t)(sp - v.s) : v.n;
    }
    while (p < v.n && v.s[p] == ' ')
        p++;
    const uint8_t *sp = p < v.n ? memchr(v.s + p, ' ', v.n - p) : NULL;
    return sp ? (size_t)(sp - v.s) : v.n;
}

size_t tok_scan(enum tok_pre pre, const uint8_t *s, size_t n, size_t p)
{
    DEBUG_ASSERT(p < n);
    struct view v = {s, n};
    switch (pre) {
    case TOK_PRE_GPT2:
        return scan_gpt2(v, p, false);
    case TOK_PRE_DIGITS_GPT2:
        return scan_gpt2(v, p, true);
    case TOK_PRE_LLAMA3:
    case TOK_PRE_CL100K:
        return scan_llama3(v, p, 3);
    case TOK_PRE_QWEN2:
        return scan_llama3(v, p, 1);
    case TOK_PRE_TEKKEN:
        return scan_cased(v, p, false);
    case TOK_PRE_O200K:
        return scan_cased(v, p, true);
    case TOK_PRE_SPM:
        return scan_spm(v, p, false);
    case TOK_PRE_SPM_EACH:
        return scan_spm(v, p, true);
    case TOK_PRE_WHOLE:
        return n;
    }
    return n;
}

#define END "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct {
    const char *name;
    enum tok_pre pre;
} pre_names[] = {
    /* tokenizer.ggml.pre */
    {"gpt-2", TOK_PRE_GPT2},
    {"phi-2", TOK_PRE_GPT2},
    {"olmo", TOK_PRE_GPT2},
    {"mpt", TOK_PRE_GPT2},
    {"smollm", TOK_PRE_DIGITS_GPT2},
    {"starcoder", TOK_PRE_DIGITS_GPT2},
    {"refact", TOK_PRE_DIGITS_GPT2},
    {"command-r", TOK_PRE_DIGITS_GPT2},
    {"codeshell", TOK_PRE_DIGITS_GPT2},
    {"llama-bpe", TOK_PRE_LLAMA3},
    {"llama3", TOK_PRE_LLAMA3},
    {"llama-v3", TOK_PRE_LLAMA3},
    {"dbrx", TOK_PRE_CL100K},
    {"smaug-bpe", TOK_PRE_CL100K},
    {"chatglm-bpe", TOK_PRE_CL100K},
    {"glm4", TOK_PRE_CL100K},
    {"qwen2", TOK_PRE_QWEN2},
    {"deepseek-r1-qwen", TOK_PRE_QWEN2},
    {"stablelm2", TOK_PRE_QWEN2},
    {"tekken", TOK_PRE_TEKKEN},
    {"gpt-4o", TOK_PRE_O200K},
    {"llama4", TOK_PRE_O200K},
    /* Split patterns of tokenizer.json */
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     TOK_PRE_GPT2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL,
     TOK_PRE_LLAMA3},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL,
     TOK_PRE_QWEN2},
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
     "\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL,
     TOK_PRE_TEKKEN},
    {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" END
     "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
     "*" END "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL,
     TOK_PRE_O200K},
};

int tok_pre_parse(const char *name, enum tok_pre *ret)
{
    for (size_t i = 0; i < sizeof pre_names / sizeof pre_names[0]; i++) {
        if (strcmp(pre_names[i].name, name) != 0) continue;
        *ret = pre_names[i].pre;
        return 1;
    }
    return 0;
}
