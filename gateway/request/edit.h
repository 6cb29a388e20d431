/* edit: a body with a few places changed, as pieces to send: nothing is parsed or copied.
 *
 * The pieces borrow the body and the texts of the edits. One source of edits is LMCache, which
 * finds chunks by a text that stands around them in the prompt (LMCACHE_BLEND_SPECIAL_STR): the
 * edits put it before and behind every chunk of the request's texts, once where two chunks touch,
 * so that a chunk is the same segment wherever it stands. Nothing is inserted where the application
 * has put it already, into texts without chunks, or into `documents`. Thread: any; pure. */
#ifndef GATEWAY_REQUEST_EDIT_H
#define GATEWAY_REQUEST_EDIT_H

#include "gateway/request/scan.h"

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
/* After gw_scan_chunks(). separator: as JSON has it, without quotes (gw_upstream.separator);
 * borrowed by the edits. *ret is mem_free()d, NULL when there is nothing to insert. -ENOMEM. */
int gw_lmcache_edits(const struct gw_scan *s, const char *separator, struct gw_edit **ret,
                     size_t *ret_n);

#endif
