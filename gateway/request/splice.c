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

static void add_piece(struct gw_pieces *ret, const char *p, size_t len)
{
    if (len > 0)
        ret->v[ret->n++] = (struct iovec){(void *)p, len}; /* only read: the type is the system's */
}

int gw_splice(const char *body, size_t len, const struct gw_edit *edit, size_t n,
              struct gw_pieces *ret)
{
    size_t at = 0;
    if (!in_order(len, edit, n)) return -EINVAL;
    ret->n = 0;
    for (size_t i = 0; i < n; i++) {
        add_piece(ret, body + at, edit[i].at - at);
        add_piece(ret, edit[i].text, edit[i].len);
        at = edit[i].at + edit[i].cut;
    }
    add_piece(ret, body + at, len - at);
    return 0;
}
