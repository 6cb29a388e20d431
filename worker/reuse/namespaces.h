/* namespaces: whose a record is: how its name is made, parsed and shown.
 *
 * Thread: any. */
#ifndef WORKER_REUSE_NAMESPACES_H
#define WORKER_REUSE_NAMESPACES_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct wk_namespaces;
enum { WK_NS_BYTES = 512 };
/* A namespace within the gateway's: a body cannot leave the one its caller was put in. Either may
 * be NULL. -ERANGE when too long. */
int wk_ns_join(char *out, size_t cap, const char *outer, const char *inner);
/* As operators write it: "acme" (of the caller's key), "/team" (of the body), "acme/team". */
int wk_ns_parse(const char *text, char *out, size_t cap);
/* What a namespace is called, as far as it was heard of since the start. */
int wk_namespaces_create(struct wk_namespaces **ret);
void wk_namespaces_destroy(struct wk_namespaces *n);
void wk_namespaces_note(struct wk_namespaces *n, const char *ns); /* n may be NULL */
/* As operators write it, in quotes; "/": of no tenant; null: not known. */
int wk_namespaces_put(struct wk_namespaces *n, uint64_t hash, struct buf *out);

#endif
