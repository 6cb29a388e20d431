/* Stop strings in a growing text: find the earliest one, and how much may be shown before the next
 * token decides. The text searched again per token is bounded by the longest stop string. */
#include "worker/api/api_reply.h"

#include <string.h>

size_t api_stop_begun(const struct api_stops *s, const char *text, size_t len)
{
    size_t most = 0;

    for (size_t i = 0; i < s->n; i++) {
        size_t k = s->len[i] - 1 < len ? s->len[i] - 1 : len;
        while (k > most && memcmp(text + len - k, s->s[i], k) != 0)
            k--;
        if (k > most) most = k;
    }
    return most;
}

int api_stop_scan(const struct api_stops *s, const char *text, size_t len, size_t from,
                  size_t *ret_safe)
{
    size_t best = SIZE_MAX;

    for (size_t i = 0; i < s->n; i++) {
        size_t n = s->len[i];
        size_t start = from >= n ? from - n + 1 : 0;
        const char *hit = start < len ? memmem(text + start, len - start, s->s[i], n) : NULL;
        if (hit && (size_t)(hit - text) < best) best = (size_t)(hit - text);
    }
    if (best != SIZE_MAX) {
        *ret_safe = best;
        return 1;
    }
    *ret_safe = len - api_stop_begun(s, text, len);
    return 0;
}
