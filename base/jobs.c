#include "base/jobs.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

enum { THREADS_MAX = 8 };

struct job {
    void (*fn)(void *arg);
    void *arg;
};
struct jobs {
    struct jobs_opts o;
    pthread_mutex_t m; /* guards what follows */
    pthread_cond_t more;
    struct job *ring; /* [capacity] */
    unsigned head, n, n_threads, n_idle;
    bool stop;
    pthread_t thread[THREADS_MAX];
};

static void *jobs_main(void *arg)
{
    struct jobs *j = arg;

    if (j->o.on_thread) j->o.on_thread();
    pthread_mutex_lock(&j->m);
    for (;;) {
        j->n_idle++;
        while (j->n == 0 && !j->stop)
            pthread_cond_wait(&j->more, &j->m);
        j->n_idle--;
        if (j->n == 0) break;
        const struct job now = j->ring[j->head];
        j->head = (j->head + 1) % j->o.capacity;
        j->n--;
        pthread_mutex_unlock(&j->m);
        now.fn(now.arg);
        pthread_mutex_lock(&j->m);
    }
    pthread_mutex_unlock(&j->m);
    return NULL;
}

/* Signals belong to the loop's thread. */
static void add_thread(struct jobs *j)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&j->thread[j->n_threads], NULL, jobs_main, j) == 0) j->n_threads++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int jobs_create(const struct jobs_opts *o, struct jobs **ret)
{
    struct jobs *j = mem_zalloc(sizeof *j);

    if (!j) return -ENOMEM;
    j->o = *o;
    if (j->o.n_threads > THREADS_MAX) j->o.n_threads = THREADS_MAX;
    pthread_mutex_init(&j->m, NULL);
    pthread_cond_init(&j->more, NULL);
    j->ring = mem_alloc(o->capacity * sizeof *j->ring);
    if (!j->ring) {
        jobs_destroy(j);
        return -ENOMEM;
    }
    *ret = j;
    return 0;
}

int jobs_submit(struct jobs *j, void (*fn)(void *arg), void *arg)
{
    int rc = -EAGAIN;

    pthread_mutex_lock(&j->m);
    if (j->n >= j->n_idle && j->n_threads < j->o.n_threads) add_thread(j);
    if (j->n < j->o.capacity && j->n_threads > 0) {
        j->ring[(j->head + j->n++) % j->o.capacity] = (struct job){fn, arg};
        pthread_cond_signal(&j->more);
        rc = 0;
    }
    pthread_mutex_unlock(&j->m);
    return rc;
}

void jobs_destroy(struct jobs *j)
{
    if (!j) return;
    pthread_mutex_lock(&j->m);
    j->stop = true;
    pthread_cond_broadcast(&j->more);
    pthread_mutex_unlock(&j->m);
    for (unsigned i = 0; i < j->n_threads; i++)
        pthread_join(j->thread[i], NULL);
    pthread_cond_destroy(&j->more);
    pthread_mutex_destroy(&j->m);
    mem_free(j->ring);
    mem_free(j);
}
