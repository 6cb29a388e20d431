#include "fusor/text/tok_charsmap.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>

struct tok_charsmap {
    size_t n_units, n_bytes; /* of the double array; of all that stands in `data` */
    const char *texts;       /* zero-ended, up to the end of the data */
    size_t texts_len;
    uint8_t data[]; /* u32 bytes of the array, little-endian; the array; the texts */
};

static int digit_of(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Into to, which has room for 3/4 of len; the number of bytes, or -EBADMSG. */
static long decode_base64(const char *s, size_t len, uint8_t *to)
{
    uint32_t bits = 0;
    unsigned n_bits = 0;
    long n = 0;
    while (len > 0 && s[len - 1] == '=')
        len--;
    for (size_t i = 0; i < len; i++) {
        const int d = digit_of(s[i]);
        if (d < 0) return -EBADMSG;
        bits = bits << 6 | (uint32_t)d;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        to[n++] = (uint8_t)(bits >> n_bits);
    }
    return n;
}

static uint32_t word_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int tok_charsmap_open(const char *text, size_t len, struct tok_charsmap **ret)
{
    struct tok_charsmap *m = mem_alloc(sizeof *m + len / 4 * 3 + 4);
    if (!m) return -ENOMEM;
    const long n = decode_base64(text, len, m->data);
    const size_t array = n > 4 ? word_at(m->data) : 0;
    /* Every replacement ends before the end. */
    if (array == 0 || array % 4 || array > (size_t)n - 4 || array + 4 == (size_t)n ||
        m->data[n - 1] != 0) {
        mem_free(m);
        return -EBADMSG;
    }
    m->n_bytes = (size_t)n;
    m->n_units = array / 4;
    m->texts = (const char *)m->data + 4 + array;
    m->texts_len = (size_t)n - 4 - array;
    *ret = m;
    return 0;
}

void tok_charsmap_close(struct tok_charsmap *m)
{
    mem_free(m);
}

const void *tok_charsmap_bytes(const struct tok_charsmap *m, size_t *ret_len)
{
    *ret_len = m->n_bytes;
    return m->data;
}

/* A unit of the array; 0 beyond its end, which is no label of a byte. */
static uint32_t unit_at(const struct tok_charsmap *m, size_t i)
{
    return i < m->n_units ? word_at(m->data + 4 + i * 4) : 0;
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 0x200) >> 6);
}

const char *tok_charsmap_find(const struct tok_charsmap *m, const uint8_t *s, size_t len)
{
    size_t at = offset_of(unit_at(m, 0));
    for (size_t i = 0; i < len && s[i]; i++) {
        at ^= s[i];
        const uint32_t unit = unit_at(m, at);
        if ((unit & 0x800000FFu) != s[i]) return NULL;
        at ^= offset_of(unit);
        if (!(unit & 0x100)) continue;
        const size_t text = unit_at(m, at) & 0x7FFFFFFFu;
        return text < m->texts_len ? m->texts + text : NULL;
    }
    return NULL;
}
