/* pull: downloads a model from the hub into the folder of hub.h, as the hub's own library lays it
 * out: blobs/HASH, snapshots/COMMIT/PATH (links to blobs), refs/REVISION.
 *
 * What is downloaded is what the name means (hub.h), of a folder the files that the loader reads.
 * Sizes and hashes are those that the hub's list of the revision states: SHA-256 of large files
 * (git LFS; the same as their X-Linked-Etag), git's SHA-1 of others; a file that does not have them
 * is removed. A download that ended early goes on where it stood (blobs/HASH.incomplete); the
 * revision's ref is written when all is there, and a blob that is there is not asked for again.
 * Thread: one; returns when all is done. */
#ifndef BASE_HUB_PULL_H
#define BASE_HUB_PULL_H

#include "base/buf.h"
#include "base/err.h"

#include <stdint.h>

struct hub_progress {
    const char *file;              /* on its way */
    uint64_t done, fetched, total; /* bytes of all files: there, of them new; to be there */
    size_t i, n;                   /* the how manieth file, from 1, of how many */
};
struct hub_pull {
    const char *name;                                          /* as in hub.h; a path is -EINVAL */
    const char *endpoint;                                      /* of the hub, as in fetch.h */
    const char *token;                                         /* NULL: none */
    void (*progress)(void *ctx, const struct hub_progress *p); /* may be NULL */
    void *ctx;
};
/* Appends the model's path. -EINVAL: no name, or one that several files fit; -ENOENT, -EACCES: the
 * hub does not have it, or not for this token; -EBADMSG: what came is not what the list says, or
 * the list is hostile; -ENOSPC; -EIO, …: no connection, or a file could not be written. err: one
 * sentence. */
int hub_pull(const struct hub_pull *p, struct buf *out, struct err *err);

#endif
