#include "gateway/request/splice.h"

#include <errno.h>
#include <stdbool.h>

static bool in_order(size_t len, const struct gw_edit *edit, size_t n)
{
    size_t end = 0; /* of what the edit before took */
    for (size_t i = 0; i < n; i++) {
        if (edit[i].at < end || edit[i].at > len || edit[i].cut > len - edit[i].at) return false;
        end = edit[i].at + edit[i].cut;
    }
    return true;
}

static void piece(struct iovec *ret, size_t *n, size_t *sum, const char *p, size_t len)
{
    if (len == 0) return;
    ret[(*n)++] = (struct iovec){(void *)p, len}; /* read only: the type is the system's */
    *sum += len;
}

int gw_splice(const char *body, size_t len, const struct gw_edit *edit, size_t n, struct iovec *ret,
              size_t *ret_n, size_t *ret_len)
{
    size_t at = 0, n_pieces = 0, sum = 0;
    if (!in_order(len, edit, n)) return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        piece(ret, &n_pieces, &sum, body + at, edit[i].at - at);
        piece(ret, &n_pieces, &sum, edit[i].text, edit[i].len);
        at = edit[i].at + edit[i].cut;
    }
    piece(ret, &n_pieces, &sum, body + at, len - at);
    *ret_n = n_pieces;
    *ret_len = sum;
    return 0;
}
