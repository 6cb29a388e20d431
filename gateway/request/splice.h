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
/* Edits ascending by `at`, not overlapping (-EINVAL). ret has room for 2 * n + 1 pieces; *ret_n of
 * them are used, *ret_len is their sum. */
int gw_splice(const char *body, size_t len, const struct gw_edit *edit, size_t n, struct iovec *ret,
              size_t *ret_n, size_t *ret_len);

#endif
