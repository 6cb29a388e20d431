/* splice: a body with a few places changed, as pieces to send: nothing is parsed or copied.
 *
 * Thread: any. The pieces borrow the body and the texts of the edits. */
#ifndef GATEWAY_REQUEST_SPLICE_H
#define GATEWAY_REQUEST_SPLICE_H

#include <stddef.h>
#include <sys/uio.h>

struct gw_edit { /* bytes [at, at + cut) of the body become `text` */
    size_t at, cut;
    const char *text;
    size_t len;
};
struct gw_pieces {
    struct iovec *v; /* room for 2 * n + 1 */
    size_t n;        /* of them are used */
};
/* Edits ascending by `at`, not overlapping (-EINVAL). */
int gw_splice(const char *body, size_t len, const struct gw_edit *edit, size_t n,
              struct gw_pieces *ret);

#endif
