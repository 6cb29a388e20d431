/* The worker's helper threads. */
#include "tests/test.h"
#include "base/jobs.h"
#include "worker/loop_queue.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

enum { JOBS = 50 };

struct seen {
    atomic_int *n;
    int nice, policy;
};

static void look(void *arg)
{
    struct seen *s = arg;
    s->nice = getpriority(PRIO_PROCESS, (id_t)gettid());
    s->policy = sched_getscheduler(0);
    atomic_fetch_add(s->n, 1);
}

/* Compute threads must not have to share a core with them as equals; whoever made them keeps what
 * it has. */
TEST(helpers_do_what_they_are_given_and_give_way)
{
    struct jobs *pool = NULL;
    struct seen s[JOBS];
    atomic_int n = 0;
    const int own = getpriority(PRIO_PROCESS, (id_t)gettid()), policy = sched_getscheduler(0);
    ASSERT_OK(wk_helpers_create(2, &pool));
    for (int i = 0; i < JOBS; i++) {
        s[i] = (struct seen){.n = &n};
        ASSERT_OK(jobs_submit(pool, look, &s[i]));
    }
    jobs_destroy(pool); /* runs what is queued */
    ASSERT_EQ(atomic_load(&n), JOBS);
    for (int i = 0; i < JOBS; i++) {
        ASSERT_TRUE(s[i].nice > own || own == 19);
        ASSERT_EQ(s[i].policy, SCHED_BATCH);
    }
    ASSERT_EQ(getpriority(PRIO_PROCESS, (id_t)gettid()), own);
    ASSERT_EQ(sched_getscheduler(0), policy);
}

static sem_t gate, entered;

static void wait_at_gate(void *arg)
{
    (void)sem_post(&entered);
    (void)sem_wait(&gate);
}

TEST(a_full_queue_refuses)
{
    struct jobs *j;
    (void)sem_init(&gate, 0, 0);
    (void)sem_init(&entered, 0, 0);
    ASSERT_OK(jobs_create(&(struct jobs_opts){1, 2}, &j));
    ASSERT_OK(jobs_submit(j, wait_at_gate, NULL));
    (void)sem_wait(&entered); /* the thread is busy and the queue empty */
    ASSERT_OK(jobs_submit(j, wait_at_gate, NULL));
    ASSERT_OK(jobs_submit(j, wait_at_gate, NULL));
    ASSERT_ERR(jobs_submit(j, wait_at_gate, NULL), -EAGAIN);
    for (int i = 0; i < 3; i++)
        (void)sem_post(&gate);
    jobs_destroy(j);
}
