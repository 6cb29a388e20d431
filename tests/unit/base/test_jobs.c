#include "tests/test.h"

#include "base/jobs.h"
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>

static atomic_int n_run;
static sem_t gate, entered;

static void count(void *arg)
{
    atomic_fetch_add(&n_run, *(int *)arg);
}

static void wait_at_gate(void *arg)
{
    (void)sem_post(&entered);
    (void)sem_wait(&gate);
}

TEST(runs_all_before_it_ends)
{
    struct jobs *p;
    int one = 1;
    ASSERT_OK(jobs_create(&(struct jobs_opts){3, 1000, NULL}, &p));
    for (int i = 0; i < 1000; i++)
        ASSERT_OK(jobs_submit(p, count, &one));
    jobs_destroy(p);
    ASSERT_EQ(n_run, 1000);
}

TEST(a_full_queue_refuses)
{
    struct jobs *p;
    (void)sem_init(&gate, 0, 0);
    (void)sem_init(&entered, 0, 0);
    ASSERT_OK(jobs_create(&(struct jobs_opts){1, 2, NULL}, &p));
    ASSERT_OK(jobs_submit(p, wait_at_gate, NULL));
    (void)sem_wait(&entered); /* the thread is busy and the queue empty */
    ASSERT_OK(jobs_submit(p, wait_at_gate, NULL));
    ASSERT_OK(jobs_submit(p, wait_at_gate, NULL));
    ASSERT_ERR(jobs_submit(p, wait_at_gate, NULL), -EAGAIN);
    for (int i = 0; i < 3; i++)
        (void)sem_post(&gate);
    jobs_destroy(p);
}
