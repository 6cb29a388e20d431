/* memory: what the segmenter has learned, carried over a restart.
 *
 * Read once at start; a file that is damaged, of another version or somebody else's is ignored and
 * replaced. Written by a helper every few minutes when something new was learned, and at the end.
 * Nothing here ever stops the gateway. Thread: the control loop; destroy after the helpers. */
#ifndef GATEWAY_PROCESS_MEMORY_H
#define GATEWAY_PROCESS_MEMORY_H

struct gw_memory;
struct jobs;
struct http_loop;
struct seg_learner;

/* setting: a path, "off", or NULL: a file in $CACHE_DIRECTORY (systemd's), else in run_dir. *ret
 * NULL: off. */
int gw_memory_create(struct http_loop *loop, struct jobs *pool, struct seg_learner *learner,
                     const char *setting, const char *run_dir, struct gw_memory **ret);
void gw_memory_destroy(struct gw_memory *m); /* saves */

#endif
