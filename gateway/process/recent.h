/* recent: the last requests, as their lines of the access log, for those who look on.
 *
 * gw_recent_create() → gw_recent_put() as requests end → gw_recent_list() as often as somebody
 * asks. Each line has a number, from 1 on; a reader names the last one that it has seen. Memory:
 * GW_RECENT_LINES lines of at most GW_RECENT_LINE_BYTES each; a longer one is left out, and its
 * number with it. Thread: any; a lock of its own, which stands alone. */
#ifndef GATEWAY_PROCESS_RECENT_H
#define GATEWAY_PROCESS_RECENT_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct gw_recent;
enum {
    GW_RECENT_LINES = 512, /* chosen: half a minute of a busy gateway, half a day of another */
    GW_RECENT_LINE_BYTES = 2048, /* chosen: a line has some 600 */
};
int gw_recent_create(struct gw_recent **ret);
void gw_recent_destroy(struct gw_recent *r);
/* line: a JSON object, copied; without room for the copy it is left out. */
void gw_recent_put(struct gw_recent *r, const char *line, size_t len);
/* Lines behind number `after`, oldest first and at most `max` of them, the newest: appended as the
 * elements of a JSON array. Returns the number of the last line there is. */
uint64_t gw_recent_list(struct gw_recent *r, uint64_t after, size_t max, struct buf *out);

#endif
