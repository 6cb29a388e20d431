/* slow: the slowest completions of the last hour, as their lines of the access log.
 *
 * Kept whether or not there is an access log; like that it holds neither prompt text nor keys.
 * Memory: GW_SLOW_KEPT lines of GW_SLOW_LINE_MAX. Thread: any; a lock of its own. */
#ifndef GATEWAY_PROCESS_SLOW_H
#define GATEWAY_PROCESS_SLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct gw_slow;
enum { GW_SLOW_KEPT = 256, GW_SLOW_LINE_MAX = 4096, GW_SLOW_S = 3600 };
int gw_slow_create(struct gw_slow **ret);
void gw_slow_destroy(struct gw_slow *s);
/* Would one that took so long be kept? Before its line is made. */
bool gw_slow_wants(struct gw_slow *s, double took_ms, uint64_t now_ns);
/* A JSON object, with or without a line break. A longer one is not kept. */
void gw_slow_note(struct gw_slow *s, double took_ms, uint64_t now_ns, const char *line, size_t len);
/* The lines with commas between them, the slowest first. */
void gw_slow_put(struct gw_slow *s, uint64_t now_ns, struct buf *out);

#endif
