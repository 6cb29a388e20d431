#include "tests/doubles/gpu_host.h"

#include "base/mem.h"
#include "kernels/kn.h"

#include "tests/test.h"

#include <pthread.h>
#include <unistd.h>
#include <sys/mman.h>

static struct gpu *open_host(void)
{
    struct gpu *g = NULL;
    struct err err = {0};
    ASSERT_OK(gpu_host_open(0, &g, &err));
    return g;
}

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)test_rand(&seed);
}

TEST(open_says_what_is_missing)
{
    struct gpu *g = NULL;
    struct err err = {0};
    ASSERT_ERR(gpu_host_open(1, &g, &err), -ENODEV);
}

/* What both kinds promise; runs on a device as well where there is one. */
static void round_trip(struct gpu *g)
{
    enum { N = 3 << 20 };
    uint8_t *a = mem_aligned(4096, N), *b = mem_aligned(4096, N);
    fill(a, N, 1);
    memset(b, 0, N);
    void *dev = NULL;
    struct gpu_stream *up = NULL, *down = NULL;
    struct gpu_event *e = NULL;
    ASSERT_OK(gpu_alloc(g, N, &dev));
    ASSERT_EQ((uintptr_t)dev % 256, 0);
    ASSERT_OK(gpu_host_register(g, a, N));
    ASSERT_OK(gpu_stream_create(g, 0, &up));
    ASSERT_OK(gpu_stream_create(g, -1, &down));
    ASSERT_OK(gpu_event_create(g, &e));
    ASSERT_OK(gpu_event_wait(g, e)); /* unrecorded: it has fired */
    ASSERT_OK(gpu_copy_async(g, up, dev, a, N));
    ASSERT_OK(gpu_event_record(g, e, up));
    ASSERT_OK(gpu_event_wait(g, e));
    for (size_t i = 0; i < 100; i++) {
        size_t lo = N * i / 100, hi = N * (i + 1) / 100;
        ASSERT_OK(gpu_copy_async(g, down, b + lo, (uint8_t *)dev + lo, hi - lo));
    }
    ASSERT_OK(gpu_event_record(g, e, down));
    ASSERT_OK(gpu_event_wait(g, e));
    ASSERT_OK(gpu_event_wait(g, e));
    ASSERT_MEMEQ(a, b, N);
    memset(b, 0, N);
    ASSERT_OK(gpu_copy_async(g, down, b, dev, N));
    ASSERT_OK(gpu_stream_sync(g, down));
    ASSERT_MEMEQ(a, b, N);
    gpu_event_destroy(g, e);
    gpu_stream_destroy(g, up);
    gpu_stream_destroy(g, down);
    gpu_host_unregister(g, a);
    gpu_free(g, dev);
    gpu_free(g, NULL);
    mem_free(a);
    mem_free(b);
    gpu_close(g);
}

TEST(round_trip_host)
{
    round_trip(open_host());
}

TEST(round_trip_cuda)
{
    struct kn_dev *d = NULL;
    struct gpu *g = NULL;
    struct err err = {0};
    if (kn_dev_create(&(struct kn_dev_opts){.device = "cuda"}, &d, &err) < 0) SKIP(err.msg);
    ASSERT_OK(kn_dev_gpu(d, &g, &err));
    round_trip(g);
    kn_dev_destroy(d);
}

/* The kernel refuses to read what the process may not. */
TEST(device_memory_is_out_of_reach)
{
    struct gpu *g = open_host();
    void *dev = NULL;
    int fd[2];
    ASSERT_OK(gpu_alloc(g, 5000, &dev));
    ASSERT_OK(pipe(fd));
    ASSERT_EQ(write(fd[1], dev, 16), -1);
    ASSERT_EQ(errno, EFAULT);
    (void)close(fd[0]);
    (void)close(fd[1]);
    for (size_t i = 0; i < 5000; i++)
        ASSERT_EQ(gpu_host_view(g, dev)[i], 0xDB);
    gpu_free(g, dev);
    gpu_close(g);
}

TEST(ranges_are_checked)
{
    struct gpu *g = open_host();
    void *dev = NULL;
    struct gpu_stream *s = NULL;
    uint8_t host[64] = {0};
    ASSERT_ERR(gpu_alloc(g, SIZE_MAX / 2, &dev), -ENOMEM);
    ASSERT_OK(gpu_alloc(g, 100, &dev));
    ASSERT_OK(gpu_stream_create(g, 0, &s));
    ASSERT_ERR(gpu_copy_async(g, s, (uint8_t *)dev + 90, host, 11), -EINVAL);
    ASSERT_ERR(gpu_copy_async(g, s, host, (uint8_t *)dev - 1, 2), -EINVAL);
    ASSERT_OK(gpu_copy_async(g, s, (uint8_t *)dev + 90, host, 10));
    ASSERT_ERR(gpu_host_register(g, host + 1, 64), -EINVAL);
    gpu_stream_destroy(g, s);
    gpu_free(g, dev);
    gpu_close(g);
}

/* A source that changes before its copy has run is copied changed: nobody waited. */
TEST(copies_run_later)
{
    struct gpu *g = open_host();
    void *dev = NULL;
    struct gpu_stream *s = NULL;
    struct gpu_event *e = NULL;
    uint8_t *host = mem_aligned(4096, 4096);
    ASSERT_OK(gpu_alloc(g, 4096, &dev));
    ASSERT_OK(gpu_stream_create(g, 0, &s));
    ASSERT_OK(gpu_event_create(g, &e));
    memset(host, 1, 4096);
    gpu_host_pause(g, true);
    ASSERT_OK(gpu_copy_async(g, s, dev, host, 4096));
    ASSERT_OK(gpu_event_record(g, e, s));
    ASSERT_EQ(gpu_host_view(g, dev)[4095], 0xDB); /* as it was given out */
    memset(host, 2, 4096);
    gpu_host_pause(g, false);
    ASSERT_OK(gpu_event_wait(g, e));
    ASSERT_EQ(gpu_host_view(g, dev)[4095], 2);
    gpu_event_destroy(g, e);
    gpu_stream_destroy(g, s);
    gpu_free(g, dev);
    gpu_close(g);
    mem_free(host);
}

/* An event may be destroyed while its record is queued. */
TEST(an_event_goes_before_its_record)
{
    struct gpu *g = open_host();
    struct gpu_stream *s = NULL;
    struct gpu_event *e = NULL;
    ASSERT_OK(gpu_stream_create(g, 0, &s));
    ASSERT_OK(gpu_event_create(g, &e));
    gpu_host_pause(g, true);
    ASSERT_OK(gpu_event_record(g, e, s));
    gpu_event_destroy(g, e);
    gpu_host_pause(g, false);
    ASSERT_OK(gpu_stream_sync(g, s));
    gpu_stream_destroy(g, s);
    gpu_close(g);
}

struct waiter {
    struct gpu *g;
    struct gpu_event *e;
};

static void *wait_for(void *arg)
{
    const struct waiter *w = arg;
    return (void *)(intptr_t)gpu_event_wait(w->g, w->e);
}

TEST(lost_device_says_so_for_ever)
{
    struct gpu *g = open_host();
    struct gpu_stream *s = NULL;
    struct gpu_event *e = NULL;
    void *dev = NULL, *dev2, *r = NULL;
    uint8_t host[16] = {0};
    pthread_t waiter;
    struct waiter waits;
    ASSERT_OK(gpu_alloc(g, 4096, &dev));
    ASSERT_OK(gpu_stream_create(g, 0, &s));
    ASSERT_OK(gpu_event_create(g, &e));
    gpu_host_pause(g, true);
    ASSERT_OK(gpu_copy_async(g, s, dev, host, 16));
    ASSERT_OK(gpu_event_record(g, e, s));
    waits = (struct waiter){g, e};
    ASSERT_EQ(pthread_create(&waiter, NULL, wait_for, &waits), 0);
    gpu_host_lose(g);
    ASSERT_EQ(pthread_join(waiter, &r), 0);
    ASSERT_EQ((intptr_t)r, -EIO);
    for (int i = 0; i < 2; i++) {
        ASSERT_ERR(gpu_copy_async(g, s, dev, host, 16), -EIO);
        ASSERT_ERR(gpu_event_record(g, e, s), -EIO);
        ASSERT_ERR(gpu_event_wait(g, e), -EIO);
        ASSERT_ERR(gpu_alloc(g, 1, &dev2), -EIO);
        gpu_host_pause(g, false);
    }
    gpu_event_destroy(g, e);
    gpu_stream_destroy(g, s);
    gpu_free(g, dev);
    gpu_close(g);
}

TEST(every_allocation_may_fail)
{
    for (unsigned n = 1;; n++) {
        struct gpu *g = NULL;
        struct gpu_stream *s = NULL;
        struct gpu_event *e = NULL;
        void *dev = NULL;
        struct err err;
        uint8_t x = 0;
        mem_fail_nth(n);
        int r = gpu_host_open(0, &g, &err);
        if (r == 0) r = gpu_alloc(g, 100, &dev);
        if (r == 0) r = gpu_stream_create(g, 0, &s);
        if (r == 0) r = gpu_event_create(g, &e);
        if (r == 0) r = gpu_copy_async(g, s, dev, &x, 1);
        if (r == 0) r = gpu_event_record(g, e, s);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        gpu_event_destroy(g, e);
        gpu_stream_destroy(g, s);
        if (g) gpu_free(g, dev);
        gpu_close(g);
        if (!fired) break;
    }
}
