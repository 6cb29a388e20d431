/* nvme_engine: transfers of whole pages between memory and a file: io_uring, else threads.
 *
 * Life cycle: create → start and poll, on_done comes from poll → destroy when none is busy.
 * Internal to tiers/nvme/. Thread: one, but wake(). */
#ifndef TIERS_NVME_ENGINE_H
#define TIERS_NVME_ENGINE_H

#include "tiers/nvme/nvme_format.h"

#include <sys/queue.h>
#include <sys/uio.h>

enum {
    NVME_READ_DEPTH = 16,
    NVME_WRITE_DEPTH = 4, /* and 1 while reads wait: large writes hurt their tails */
};
struct nvme_io {   /* one transfer: whole or failed */
    uint8_t *page; /* NULL, or 4 KiB that come before `buf` on the device */
    uint8_t *buf;
    uint64_t off;
    uint32_t bytes; /* with the page */
    bool write, durable;
    void (*on_done)(struct nvme_io *io, int status); /* from nvme_engine_poll() */
    void *ctx, *ctx2;
    uint32_t arg;
    /* The engine's. */
    uint32_t done, limit, retries, at;
    uint64_t id, begun_ns;
    struct iovec iov[2];
    int res;
    TAILQ_ENTRY(nvme_io) link;
};
TAILQ_HEAD(nvme_ios, nvme_io);
/* Tests: asked before each system call. >= left: as it should be; less: so many bytes are moved;
 * <0 fails without moving any; NVME_HANG: never comes back. */
enum { NVME_HANG = INT32_MIN };
typedef int (*nvme_fault_fn)(void *ctx, const struct nvme_io *io, uint32_t left);
struct nvme_engine;
/* `depth`: transfers at a time, at most. The pool of threads is used when io_uring is refused,
 * *ret_refused its errno, or with force_pool. */
int nvme_engine_create(int fd, unsigned depth, bool force_pool, struct nvme_engine **ret,
                       int *ret_refused);
void nvme_engine_set_fault(struct nvme_engine *e, nvme_fault_fn fn, void *ctx);
void nvme_engine_start(struct nvme_engine *e, struct nvme_io *io);
/* Runs on_done of what has ended; waits for that or a wake, at most timeout_ns. */
void nvme_engine_poll(struct nvme_engine *e, uint64_t timeout_ns);
void nvme_engine_wake(struct nvme_engine *e); /* any thread */
unsigned nvme_engine_busy(const struct nvme_engine *e);
uint64_t nvme_engine_oldest_ns(const struct nvme_engine *e); /* begin of the oldest; 0 = none */
int nvme_engine_add_memory(struct nvme_engine *e, uint8_t *base, size_t bytes);
/* -EBUSY: transfers never came back; the engine stays as it is, for ever. */
int nvme_engine_destroy(struct nvme_engine *e);

#endif
