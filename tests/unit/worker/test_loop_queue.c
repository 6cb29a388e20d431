/* The worker's helper threads. */
#include "tests/test.h"
#include "worker/loop_queue.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

enum { JOBS = 50 };

struct seen {
    struct wk_job job; /* first */
    atomic_int *n;
    int nice, policy;
};

static void look(struct wk_job *j)
{
    struct seen *s = (struct seen *)j;
    s->nice = getpriority(PRIO_PROCESS, (id_t)gettid());
    s->policy = sched_getscheduler(0);
    atomic_fetch_add(s->n, 1);
}

/* Compute threads must not have to share a core with them as equals; whoever made them keeps what
 * it has. */
TEST(helpers_do_what_they_are_given_and_give_way)
{
    struct wk_pool *pool = NULL;
    struct seen s[JOBS];
    atomic_int n = 0;
    const int own = getpriority(PRIO_PROCESS, (id_t)gettid()), policy = sched_getscheduler(0);
    ASSERT_OK(wk_pool_create(2, &pool));
    for (int i = 0; i < JOBS; i++) {
        s[i] = (struct seen){.job = {.fn = look}, .n = &n};
        wk_pool_submit(pool, &s[i].job);
    }
    wk_pool_destroy(pool); /* runs what is queued */
    ASSERT_EQ(atomic_load(&n), JOBS);
    for (int i = 0; i < JOBS; i++) {
        ASSERT_TRUE(s[i].nice > own || own == 19);
        ASSERT_EQ(s[i].policy, SCHED_BATCH);
    }
    ASSERT_EQ(getpriority(PRIO_PROCESS, (id_t)gettid()), own);
    ASSERT_EQ(sched_getscheduler(0), policy);
}
