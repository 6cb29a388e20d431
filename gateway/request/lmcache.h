/* lmcache: separators for an upstream that blends by LMCache.
 *
 * LMCache finds chunks by a text that stands around them in the prompt (LMCACHE_BLEND_SPECIAL_STR).
 * The edits put it before and behind every chunk of the request's texts, once where two chunks
 * touch: so a chunk is the same segment wherever it stands. Nothing is inserted where the
 * application has put it already, into texts without chunks, or into `documents`. The rest of the
 * body stays as it is. Thread: any; pure. */
#ifndef GATEWAY_REQUEST_LMCACHE_H
#define GATEWAY_REQUEST_LMCACHE_H

#include "gateway/request/scan.h"
#include "gateway/request/splice.h"

/* After gw_scan_chunks(). separator: as JSON has it, without quotes (gw_upstream.separator);
 * borrowed by the edits. *ret is mem_free()d, NULL when there is nothing to insert. -ENOMEM. */
int gw_lmcache_edits(const struct gw_scan *s, const char *separator, struct gw_edit **ret,
                     size_t *ret_n);

#endif
