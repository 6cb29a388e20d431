#include "gateway/process/pool.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

struct pool_job {
    void (*fn)(void *arg);
    void *arg;
};
struct gw_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* guarded by lock */
    struct pool_job *ring;
    unsigned cap, head, n;
    bool stop;
    unsigned n_threads, n_idle, threads_max;
    pthread_t thread[8];
};

static void *pool_main(void *arg)
{
    struct gw_pool *p = arg;
    (void)pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->n == 0 && !p->stop) {
            p->n_idle++;
            (void)pthread_cond_wait(&p->wake, &p->lock);
            p->n_idle--;
        }
        if (p->n == 0) break;
        struct pool_job job = p->ring[p->head];
        p->head = (p->head + 1) % p->cap;
        p->n--;
        (void)pthread_mutex_unlock(&p->lock);
        job.fn(job.arg);
        (void)pthread_mutex_lock(&p->lock);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* One thread more, if there may be one. Signals belong to the loop's thread. */
static void add_thread(struct gw_pool *p)
{
    sigset_t all, old;
    if (p->n_threads == p->threads_max) return;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&p->thread[p->n_threads], NULL, pool_main, p) == 0) p->n_threads++;
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int gw_pool_create(unsigned n_threads, unsigned capacity, struct gw_pool **ret)
{
    struct gw_pool *p = mem_zalloc(sizeof *p);
    if (!p) return -ENOMEM;
    p->ring = mem_alloc(capacity * sizeof *p->ring);
    if (!p->ring) {
        mem_free(p);
        return -ENOMEM;
    }
    p->cap = capacity;
    p->threads_max = n_threads > 8 ? 8 : n_threads;
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->wake, NULL);
    *ret = p;
    return 0;
}

int gw_pool_submit(struct gw_pool *p, void (*fn)(void *arg), void *arg)
{
    int r = -EAGAIN;
    (void)pthread_mutex_lock(&p->lock);
    if (p->n >= p->n_idle) add_thread(p);
    if (p->n < p->cap && p->n_threads > 0) {
        p->ring[(p->head + p->n++) % p->cap] = (struct pool_job){fn, arg};
        (void)pthread_cond_signal(&p->wake);
        r = 0;
    }
    (void)pthread_mutex_unlock(&p->lock);
    return r;
}

void gw_pool_destroy(struct gw_pool *p)
{
    if (!p) return;
    (void)pthread_mutex_lock(&p->lock);
    p->stop = true;
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->n_threads; i++)
        (void)pthread_join(p->thread[i], NULL);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    mem_free(p->ring);
    mem_free(p);
}
