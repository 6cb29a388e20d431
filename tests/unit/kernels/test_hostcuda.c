/* What only a device of its own has: its name, its memory, errors that come late or for ever, bf16.
 */
#include "base/mem.h"
#include "kernels/cuda/drain.h"
#include "kernels/cuda/replay.h"
#include "kernels/rate.h"
#include "kernels/cuda/stage.h"
#include "kernels/gpu.h"
#include "tests/unit/kernels/kern.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static struct kn_dev *open_device(enum kn_arith arith)
{
    struct kn_dev *d = NULL;
    struct err e = {0};
    const struct kn_dev_opts o = {.device = "hostcuda", .arith = arith};
    if (kn_dev_create(&o, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

TEST(devices_are_known_by_name)
{
    static const char *const unknown[] = {"gpu", "cuda:", "cuda:-1", "cuda:1x", "hostcuda:"};
    struct kn_dev *d = NULL;
    struct err e = {0};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        const struct kn_dev_opts o = {.device = unknown[i]};
        ASSERT_ERR(kn_dev_create(&o, &d, &e), -EINVAL);
        ASSERT_TRUE(strstr(e.msg, unknown[i]) && strstr(e.msg, "cuda:N"));
    }
    const struct kn_dev_opts own = {.device = "hostcuda", .gemm = "own-f32"};
    ASSERT_ERR(kn_dev_create(&own, &d, &e), -EINVAL);
    ASSERT_TRUE(strstr(e.msg, "cublaslt") != NULL);
    d = open_device(KN_ARITH_BF16);
    ASSERT_TRUE(strstr(kn_info(d)->device, "hostcuda:0") != NULL);
    ASSERT_STREQ(kn_info(d)->gemm, "cublaslt-bf16");
    ASSERT_TRUE(!kn_info(d)->is_host);
    ASSERT_EQ(kn_info(d)->kv_value_bytes, 2);
    kn_dev_destroy(d);
}

TEST(a_backend_that_is_not_there_is_said_to_be_so)
{
    struct kn_dev *d = NULL;
    struct err e = {0};
    const struct kn_dev_opts o = {.device = "hostcuda"};
    char *dir = strdup(getenv("KVBLEND_KERNELS_DIR"));
    ASSERT_OK(setenv("KVBLEND_KERNELS_DIR", "/nowhere", 1));
    ASSERT_ERR(kn_dev_create(&o, &d, &e), -ENOTSUP);
    ASSERT_TRUE(strstr(e.msg, "hostcuda") != NULL);
    ASSERT_TRUE(!d);
    char other[] = "/tmp/kvblend-module-XXXXXX", path[64];
    Dl_info libc; /* a library, but none of ours */
    ASSERT_TRUE(mkdtemp(other) && dladdr((void *)(uintptr_t)getenv, &libc));
    (void)snprintf(path, sizeof path, "%s/libkn_hostcuda.so", other);
    ASSERT_OK(symlink(libc.dli_fname, path));
    ASSERT_OK(setenv("KVBLEND_KERNELS_DIR", other, 1));
    ASSERT_ERR(kn_dev_create(&o, &d, &e), -ENOTSUP);
    ASSERT_TRUE(strstr(e.msg, "is no backend") != NULL);
    ASSERT_OK(unlink(path));
    ASSERT_OK(rmdir(other));
    ASSERT_OK(setenv("KVBLEND_KERNELS_DIR", dir, 1));
    kn_dev_destroy(open_device(KN_ARITH_F32));
    (free)(dir);
}

/* The whole status of a child that runs fn. */
static int child_of(void (*fn)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(0);
        fn();
        _exit(0);
    }
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

static void touch_device_memory(void)
{
    struct kn_dev *d = open_device(KN_ARITH_F32);
    volatile float *p = kn_mem_alloc(d, KN_MEM_DEVICE, 4096);
    if (p) p[7] = 1;
}

static void touch_past_the_end(void)
{
    struct kn_dev *d = open_device(KN_ARITH_F32);
    volatile char *p = kn_mem_alloc(d, KN_MEM_SHARED, 4096);
    if (p) p[4096] = 1;
}

TEST(device_memory_is_out_of_the_hosts_reach)
{
    ASSERT_TRUE(child_of(touch_past_the_end) != 0);
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[8192];
    bool keys = false;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "flags", 5) == 0 && strstr(line, " ospke")) keys = true;
    if (f) fclose(f);
    if (!keys) SKIP("this processor has no protection keys");
    ASSERT_TRUE(child_of(touch_device_memory) != 0);
}

struct body {
    int (*fn)(struct kn_stream *st, void *arg);
    void *arg;
};

static int call(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct body *b = arg;
    return b->fn(st, b->arg);
}

static int run(struct kn_dev *d, int (*fn)(struct kn_stream *st, void *arg), void *arg)
{
    struct body b = {fn, arg};
    return kn_wide(d, 1, NULL, call, &b);
}

struct turn {
    float *x;
    int32_t *pos;
    const struct kn_rope *rope;
    float early, late;
};

static int rope_and_look(struct kn_stream *st, void *arg)
{
    struct turn *t = arg;
    int r = kn_rope(st, t->rope, t->x, 2, 1, 1, t->pos);
    t->early = t->x[0];
    if (r == 0) r = kn_sync(st);
    t->late = t->x[0];
    return r;
}

TEST(operations_happen_later)
{
    struct kn_dev *d = open_device(KN_ARITH_F32);
    float *dev = kn_mem_alloc(d, KN_MEM_DEVICE, 64), *p = kn_mem_alloc(d, KN_MEM_SHARED, 64);
    ASSERT_TRUE(dev && p && p[0] == 0);
    p[0] = 5;
    ASSERT_OK(kn_mem_copy(d, dev, p, 64));
    p[0] = 6;
    ASSERT_OK(kn_mem_copy(d, p, dev, 64));
    ASSERT_TRUE(p[0] == 5);
    /* A quarter turn at position 0, seen only behind the wait. */
    p[0] = 1, p[1] = 2, p[2] = 0, p[3] = 1;
    const struct kn_rope rope = {2, 2, p + 2, p + 3, 1, 1};
    struct turn t = {.x = p, .pos = (int32_t *)(void *)(p + 4), .rope = &rope};
    t.pos[0] = 0;
    ASSERT_OK(run(d, rope_and_look, &t));
    ASSERT_TRUE(t.early == 1 && t.late == -2);
    kn_mem_free(d, dev);
    kn_mem_free(d, p);
    kn_dev_destroy(d);
}

static int bad_rope(struct kn_stream *st, void *arg)
{
    static const struct kn_rope r = {2, 0, NULL, NULL, 4, 1};
    int32_t *pos = arg;
    return kn_rope(st, &r, (float *)(pos + 4), 2, 1, 1, pos);
}

TEST(a_bad_position_is_told_once_and_a_lost_device_for_ever)
{
    struct kn_dev *d = open_device(KN_ARITH_F32);
    int32_t *pos = kn_mem_alloc(d, KN_MEM_SHARED, 64);
    pos[0] = 4;
    ASSERT_ERR(run(d, bad_rope, pos), -EINVAL);
    pos[0] = 3;
    ASSERT_OK(run(d, bad_rope, pos));
    char path[4096];
    snprintf(path, sizeof path, "%s/libkn_hostcuda.so", getenv("KVBLEND_KERNELS_DIR"));
    void *lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void (*fail_after)(long) = NULL;
    ASSERT_TRUE(lib != NULL);
    *(void **)&fail_after = dlsym(lib, "hostcuda_fail_after");
    ASSERT_TRUE(fail_after != NULL);
    ASSERT_TRUE(!kn_dev_lost(d));
    fail_after(0);
    ASSERT_ERR(run(d, bad_rope, pos), -EIO);
    fail_after(-1); /* the driver is well again; this device stays lost */
    ASSERT_ERR(run(d, bad_rope, pos), -EIO);
    ASSERT_TRUE(kn_dev_lost(d));
    ASSERT_ERR(kn_mem_copy(d, pos, pos, 4), -EIO);
    ASSERT_TRUE(kn_mem_alloc(d, KN_MEM_DEVICE, 64) == NULL);
    kn_mem_free(d, pos);
    kn_dev_destroy(d);
    d = open_device(KN_ARITH_F32); /* and the next one works */
    kn_dev_destroy(d);
}

struct held {
    struct kn_dev *d;
    float *x;
    int32_t *ret; /* shared */
};

static int draw_later(struct kn_stream *st, void *arg)
{
    const struct held *h = arg;
    return kn_draw(st, h->x, 4, 1, 4, NULL, h->ret);
}

/* What a run that is held has queued reads and writes memory that its caller gives back when the
 * next one says that it was cancelled. */
TEST(a_cancelled_run_has_waited_for_what_was_held)
{
    static const float x[4] = {1, 2, 9, 3};
    struct kn_dev *d = open_device(KN_ARITH_F32);
    struct held h = {d, kn_mem_alloc(d, KN_MEM_DEVICE, sizeof x),
                     kn_mem_alloc(d, KN_MEM_SHARED, sizeof(int32_t))};
    atomic_bool cancel = true;
    struct body b = {draw_later, &h};
    ASSERT_OK(kn_mem_copy(d, h.x, x, sizeof x));
    for (int wide = 0; wide < 2; wide++) {
        *h.ret = -7;
        kn_defer(d, true);
        ASSERT_OK(run(d, draw_later, &h));
        kn_defer(d, false);
        ASSERT_EQ(*h.ret, -7);
        ASSERT_ERR((wide ? kn_wide : kn_rows)(d, 1, &cancel, call, &b), -ECANCELED);
        ASSERT_EQ(*h.ret, 2);
    }
    kn_mem_free(d, h.x);
    kn_mem_free(d, h.ret);
    kn_dev_destroy(d);
}

TEST(a_run_that_trails_waits_for_the_one_before)
{
    enum { RUNS = 5 };
    struct kn_dev *d = open_device(KN_ARITH_F32);
    float x[RUNS][4] = {{0}};
    struct held h[RUNS];
    float *dev = kn_mem_alloc(d, KN_MEM_DEVICE, sizeof x);
    int32_t *ret = kn_mem_alloc(d, KN_MEM_SHARED, RUNS * sizeof *ret);
    for (int i = 0; i < RUNS; i++) {
        x[i][i % 4] = 1;
        h[i] = (struct held){d, dev + 4 * i, ret + i};
        ret[i] = -7;
    }
    ASSERT_OK(kn_mem_copy(d, dev, x, sizeof x));
    ASSERT_OK(kn_fence(d)); /* nothing to wait for */
    kn_pipeline(d, true);
    for (int i = 0; i < 3; i++) {
        kn_defer(d, true);
        ASSERT_OK(run(d, draw_later, &h[i])); /* twice: held ones belong to the run behind them */
        kn_defer(d, false);
        ASSERT_OK(run(d, draw_later, &h[i]));
        ASSERT_EQ(ret[i], -7);
        if (i > 0) ASSERT_EQ(ret[i - 1], i - 1);
    }
    kn_pipeline(d, false);
    ASSERT_OK(kn_fence(d));
    ASSERT_EQ(ret[2], 2);
    kn_pipeline(d, true);
    ASSERT_OK(run(d, draw_later, &h[3]));
    kn_pipeline(d, false);
    ASSERT_EQ(ret[3], -7);
    ASSERT_OK(run(d, draw_later, &h[4])); /* one that does not trail waits for all */
    ASSERT_EQ(ret[3], 3);
    ASSERT_EQ(ret[4], 0);
    ret[4] = -7;
    kn_defer(d, true);
    ASSERT_OK(run(d, draw_later, &h[4]));
    kn_defer(d, false);
    ASSERT_EQ(ret[4], -7);
    ASSERT_OK(kn_fence(d)); /* what was held as well */
    ASSERT_EQ(ret[4], 0);
    kn_mem_free(d, dev);
    kn_mem_free(d, ret);
    kn_dev_destroy(d);
}

static void *draw_elsewhere(void *arg)
{
    struct held *h = arg;
    *h->ret = -7;
    ASSERT_OK(run(h->d, draw_later, h));
    return NULL;
}

/* A device is opened by one thread and run by another, whose current device is the first. */
TEST(the_second_device_runs_on_any_thread)
{
    typedef int (*create_fn)(const struct kn_dev_opts *, const char *, int, struct kn_dev **,
                             struct err *);
    static const float x[4] = {1, 2, 3, 9};
    void (*devices)(int) = NULL;
    create_fn create = NULL;
    struct err e = {0};
    const struct kn_dev_opts o = {.arith = KN_ARITH_F32};
    struct kn_dev *d[2];
    pthread_t thread;
    *(void **)&devices = kern_hook("hostcuda_devices");
    *(void **)&create = kern_hook("kn_cuda_create");
    devices(2);
    for (int i = 0; i < 2; i++)
        ASSERT_OK(create(&o, "hostcuda", i, &d[i], &e));
    ASSERT_ERR(create(&o, "hostcuda", 2, &d[0], &e), -ENODEV);
    struct held h = {d[1], kn_mem_alloc(d[1], KN_MEM_DEVICE, sizeof x),
                     kn_mem_alloc(d[1], KN_MEM_SHARED, sizeof(int32_t))};
    ASSERT_OK(kn_mem_copy(d[1], h.x, x, sizeof x));
    ASSERT_OK(pthread_create(&thread, NULL, draw_elsewhere, &h));
    ASSERT_OK(pthread_join(thread, NULL));
    ASSERT_EQ(*h.ret, 3);
    (void)draw_elsewhere(&h); /* and in turns on one thread */
    kn_mem_free(d[1], h.x);
    kn_mem_free(d[1], h.ret);
    kn_dev_destroy(d[0]);
    kn_dev_destroy(d[1]);
    devices(1);
}

struct looked_up {
    const struct kn_mat *w;
    int32_t *id;
    float *ret;
};

static int look_up(struct kn_stream *st, void *arg)
{
    const struct looked_up *l = arg;
    return kn_embed(st, l->w, l->id, 2, l->ret, 4096);
}

/* Rows may be made anew in the same place once they are given, pinned or not, whatever of them is
 * still on its way: here thrice the memory that they pass through, some slices larger than half of
 * it. */
TEST(weights_are_the_callers_again_once_they_are_given)
{
    enum { K = 4096, SLICE = 320, SLICES = 4, LARGE = 1200, N = SLICES * SLICE + 2 * LARGE };
    struct kn_dev *d = open_device(KN_ARITH_F32);
    float *rows = kn_mem_alloc(d, KN_MEM_HOST, LARGE * K * sizeof *rows);
    struct kn_mat *w = NULL;
    struct looked_up l = {.id = kn_mem_alloc(d, KN_MEM_SHARED, 2 * sizeof *l.id),
                          .ret = kn_mem_alloc(d, KN_MEM_SHARED, 2 * K * sizeof *l.ret)};
    ASSERT_OK(kn_mat_create(d, N, K, &w));
    for (size_t at = 0, n; at < N; at += n) {
        n = at < SLICES * SLICE ? SLICE : LARGE;
        for (size_t i = 0; i < n; i++)
            rows[i * K] = rows[i * K + K - 1] = (float)(at + i);
        ASSERT_OK(kn_mat_fill(w, at, n, rows));
    }
    ASSERT_OK(kn_mat_done(w));
    l.w = w;
    for (int32_t i = 0; i < N; i += 2) {
        l.id[0] = i, l.id[1] = i + 1;
        ASSERT_OK(run(d, look_up, &l));
        for (size_t j = 0; j < 2; j++)
            ASSERT_TRUE(l.ret[j * K] == (float)l.id[j] && l.ret[j * K + K - 1] == (float)l.id[j]);
    }
    kn_mem_free(d, rows), kn_mem_free(d, l.id), kn_mem_free(d, l.ret);
    kn_mat_destroy(w);
    kn_dev_destroy(d);
}

/* A device that is lost meanwhile says so at once or at the end; what rows pass through goes with
 * it, whether it has been used or not. */
TEST(weights_that_do_not_arrive_are_told)
{
    enum { K = 4096, N = 1200 };
    void (*fail_after)(long) = NULL;
    *(void **)&fail_after = kern_hook("hostcuda_fail_after");
    float *rows = mem_zalloc(N * K * sizeof *rows);
    ASSERT_TRUE(rows != NULL);
    for (long n = 0; n < 4; n++) {
        struct kn_dev *d = open_device(KN_ARITH_F32);
        struct kn_mat *w = NULL;
        ASSERT_OK(kn_mat_create(d, N, K, &w));
        fail_after(n);
        int r = kn_mat_fill(w, 0, N, rows);
        if (r == 0) r = kn_mat_done(w);
        fail_after(-1);
        ASSERT_ERR(r, -EIO);
        kn_mat_destroy(w);
        kn_dev_destroy(d);
    }
    mem_free(rows);
}

struct product {
    struct kn_gemm_args g;
};

static int multiply(struct kn_stream *st, void *arg)
{
    return kn_gemm(st, &((struct product *)arg)->g);
}

/* A bench's ceiling is of products alone: their operands are written before. */
TEST(the_ceiling_is_of_products_alone)
{
    static const size_t shape[3][2] = {{64, 32}, {96, 32}, {32, 96}};
    struct kn_dev *d = open_device(KN_ARITH_BF16);
    struct kn_mat *mat[3] = {NULL};
    unsigned long launches, waits, before;
    void (*counts)(unsigned long *, unsigned long *) = NULL;
    for (int i = 0; i < 3; i++) {
        float *w = kern_random(shape[i][0] * shape[i][1], 1, 1);
        ASSERT_OK(kn_mat_create(d, shape[i][0], shape[i][1], &mat[i]));
        ASSERT_OK(kn_mat_fill(mat[i], 0, shape[i][0], w));
        ASSERT_OK(kn_mat_done(mat[i]));
        free(w);
    }
    *(void **)&counts = kern_hook("hostcuda_counts");
    counts(&before, &waits);
    ASSERT_TRUE(kn_dev_gemm_gflops(d, mat, 3, 20) > 0);
    counts(&launches, &waits);
    ASSERT_EQ(launches - before, 3 + 5 * 3); /* norms, then five rounds */
    for (int i = 0; i < 3; i++)
        kn_mat_destroy(mat[i]);
    kn_dev_destroy(d);
}

/* The emulation ends the process where an algorithm meets addresses that it was not asked for. */
TEST(products_take_results_at_any_address)
{
    enum { M = 5, N = 33, K = 64, ROOM = 1024 };
    static const size_t offsets[] = {0, 1, 2, 4, 16, 64, 1, 0};
    struct kn_dev *d = open_device(KN_ARITH_BF16);
    float *a = kern_random(M * K, 1, 1), *w = kern_random(N * K, 2, 1), first[M * N];
    float *dev_a = kn_mem_alloc(d, KN_MEM_DEVICE, M * K * sizeof *a);
    float *c = kn_mem_alloc(d, KN_MEM_SHARED, ROOM * sizeof *c);
    struct kn_mat *mat = NULL;
    ASSERT_OK(kn_mem_copy(d, dev_a, a, M * K * sizeof *a));
    ASSERT_OK(kn_mat_create(d, N, K, &mat));
    ASSERT_OK(kn_mat_fill(mat, 0, N, w));
    ASSERT_OK(kn_mat_done(mat));
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        struct product p = {
            .g = {.a = dev_a, .lda = K, .m = M, .w = mat, .c = c + offsets[i], .ldc = N}};
        ASSERT_OK(run(d, multiply, &p));
        if (i == 0) memcpy(first, c, sizeof first);
        ASSERT_MEMEQ(c + offsets[i], first, sizeof first);
        p.g.m = 1;
        p.g.c = c + offsets[i] + N;
        ASSERT_OK(run(d, multiply, &p));
        ASSERT_MEMEQ(c + offsets[i] + N, first, N * sizeof *first);
    }
    kn_mat_destroy(mat);
    kn_mem_free(d, dev_a);
    kn_mem_free(d, c);
    free(a), free(w);
    kn_dev_destroy(d);
}

/* ---- runs that are played again ---- */

struct played {
    float *x, *host; /* x: [64] dev; host: [64] of KN_MEM_HOST, copied to x by each run */
    int32_t *best, calls;
    size_t scratch; /* bytes that a run asks for */
    int fails;
    bool waits;
};

static int copy_and_look(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct played *p = arg;
    p->calls++;
    if (p->fails) return p->fails;
    float *s = kn_scratch(st, 0, p->scratch);
    if (!s) return -ENOMEM;
    int r = kn_copy(st, p->x, p->host, 64 * sizeof(float));
    if (r == 0 && p->waits) r = kn_sync(st);
    if (r == 0) r = kn_copy(st, s, p->x, 64 * sizeof(float));
    return r == 0 ? kn_draw(st, s, 64, 1, 64, NULL, p->best) : r;
}

static void played_init(struct kn_dev *d, struct played *p)
{
    *p = (struct played){.scratch = 256};
    p->x = kn_mem_alloc(d, KN_MEM_DEVICE, 64 * sizeof(float));
    p->host = kn_mem_alloc(d, KN_MEM_HOST, 64 * sizeof(float));
    p->best = kn_mem_alloc(d, KN_MEM_SHARED, sizeof(int32_t));
    ASSERT_TRUE(p->x && p->host && p->best);
}

static void played_fini(struct kn_dev *d, struct played *p)
{
    kn_mem_free(d, p->x), kn_mem_free(d, p->host), kn_mem_free(d, p->best);
}

/* One run with the largest value at `at`. */
static int play(struct kn_dev *d, struct played *p, uint64_t key, int at)
{
    for (int i = 0; i < 64; i++)
        p->host[i] = i == at ? 1 : 0;
    *p->best = -7;
    return kn_replay(d, key, 1, NULL, copy_and_look, p);
}

static void play_ok(struct kn_dev *d, struct played *p, uint64_t key, int at)
{
    ASSERT_OK(play(d, p, key, at));
    ASSERT_EQ(*p->best, at);
}

TEST(a_run_is_recorded_once_and_played)
{
    struct kn_dev *d = open_device(KN_ARITH_F32);
    struct played p;
    unsigned long l0, l1, w0, w1;
    void (*counts)(unsigned long *, unsigned long *) = NULL;
    *(void **)&counts = kern_hook("hostcuda_counts");
    played_init(d, &p);
    for (int i = 0; i < 5; i++) {
        const uint64_t n_allocs = kn_dev_memory(d).n_allocs;
        counts(&l0, &w0);
        play_ok(d, &p, 1, 3 * i);
        counts(&l1, &w1);
        ASSERT_EQ(l1 - l0, 1);
        ASSERT_EQ(w1 - w0, 1);
        if (i) ASSERT_EQ(kn_dev_memory(d).n_allocs, n_allocs);
    }
    ASSERT_EQ(p.calls, 2); /* to run, and to be recorded */
    ASSERT_EQ(kn_replays(d).n_recorded, 1);
    ASSERT_EQ(kn_replays(d).n_played, 4);
    play_ok(d, &p, 2, 7); /* another key is another recording */
    play_ok(d, &p, 2, 8);
    ASSERT_EQ(p.calls, 4);
    play_ok(d, &p, 1, 9);
    ASSERT_EQ(p.calls, 4);
    kn_forget(d);
    play_ok(d, &p, 1, 10);
    ASSERT_EQ(p.calls, 5);
    const atomic_bool cancel = true;
    ASSERT_ERR(kn_replay(d, 1, 1, &cancel, copy_and_look, &p), -ECANCELED);
    played_fini(d, &p);
    kn_dev_destroy(d);
}

static int want_scratch(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const size_t *bytes = arg;
    return kn_scratch(st, 0, *bytes) ? 0 : -ENOMEM;
}

TEST(scratch_that_moves_is_recorded_again)
{
    struct kn_dev *d = open_device(KN_ARITH_F32);
    struct played p;
    size_t more = 1 << 20;
    played_init(d, &p);
    for (int i = 0; i < 3; i++)
        play_ok(d, &p, 1, i);
    ASSERT_EQ(p.calls, 2);
    ASSERT_OK(kn_wide(d, 1, NULL, want_scratch, &more)); /* somebody else's run needs more */
    play_ok(d, &p, 1, 5);
    play_ok(d, &p, 1, 6);
    ASSERT_EQ(p.calls, 3);
    ASSERT_EQ(kn_replays(d).n_recorded, 2);
    kn_forget(d);
    play_ok(d, &p, 1, 7);
    p.scratch =
        4 << 20; /* more than it was prepared with: no recording, and none is lost for ever */
    play_ok(d, &p, 1, 8);
    ASSERT_EQ(kn_replays(d).n_recorded, 2);
    ASSERT_TRUE(!kn_replays(d).refused);
    play_ok(d, &p, 1, 9);
    play_ok(d, &p, 1, 10);
    ASSERT_EQ(kn_replays(d).n_recorded, 3);
    played_fini(d, &p);
    kn_dev_destroy(d);
}

TEST(the_recording_that_was_played_least_recently_makes_room)
{
    enum { KEYS = REPLAY_MAX + 1 };
    struct kn_dev *d = open_device(KN_ARITH_F32);
    struct played p;
    played_init(d, &p);
    for (uint64_t key = 0; key < KEYS; key++)
        for (int i = 0; i < 2; i++)
            play_ok(d, &p, key, i);
    p.calls = 0;
    for (uint64_t key = 1; key < KEYS; key++)
        play_ok(d, &p, key, 5);
    ASSERT_EQ(p.calls, 0);
    play_ok(d, &p, 0, 6);
    ASSERT_EQ(p.calls, 1);
    play_ok(d, &p, 2, 7);
    ASSERT_EQ(p.calls, 1);
    play_ok(d, &p, 1, 8);
    ASSERT_EQ(p.calls, 2);
    played_fini(d, &p);
    kn_dev_destroy(d);
}

TEST(what_cannot_be_recorded_runs_as_ever)
{
    struct kn_dev *d = open_device(KN_ARITH_F32);
    struct played p;
    void (*records)(bool) = NULL;
    *(void **)&records = kern_hook("hostcuda_records");
    played_init(d, &p);
    records(false);
    for (int i = 0; i < 4; i++)
        play_ok(d, &p, 1, i);
    records(true);
    ASSERT_EQ(p.calls, 4);
    ASSERT_TRUE(kn_replays(d).refused);
    ASSERT_EQ(kn_replays(d).n_recorded, 0);
    played_fini(d, &p);
    kn_dev_destroy(d);

    d = open_device(KN_ARITH_F32); /* a run that waits spoils its recording, not the device */
    played_init(d, &p);
    p.waits = true;
    for (int i = 0; i < 4; i++)
        play_ok(d, &p, 1, i);
    ASSERT_TRUE(kn_replays(d).refused && !kn_dev_lost(d));
    played_fini(d, &p);
    kn_dev_destroy(d);

    d = open_device(KN_ARITH_F32); /* what fails by itself says so, and is recorded when it works */
    played_init(d, &p);
    p.fails = -ERANGE;
    for (int i = 0; i < 3; i++)
        ASSERT_ERR(play(d, &p, 1, i), -ERANGE);
    p.fails = 0;
    for (int i = 0; i < 3; i++)
        play_ok(d, &p, 1, i);
    ASSERT_EQ(kn_replays(d).n_recorded, 1);
    void (*fail_after)(long) = NULL;
    *(void **)&fail_after = kern_hook("hostcuda_fail_after");
    fail_after(0);
    ASSERT_ERR(play(d, &p, 1, 3), -EIO);
    fail_after(-1);
    ASSERT_TRUE(kn_dev_lost(d));
    ASSERT_ERR(play(d, &p, 1, 3), -EIO);
    ASSERT_ERR(play(d, &p, 2, 3), -EIO);
    played_fini(d, &p);
    kn_dev_destroy(d);
}

static void give_the_hosts_memory(void)
{
    struct kn_dev *d = open_device(KN_ARITH_F32);
    struct played p;
    int32_t mine;
    played_init(d, &p);
    p.best = &mine;
    (void)kn_wide(d, 1, NULL, copy_and_look, &p);
}

TEST(a_kernel_that_is_given_the_hosts_memory_ends_the_process)
{
    ASSERT_TRUE(child_of(give_the_hosts_memory) != 0);
}

/* Prompts of ever other lengths ask for ever other sizes: what is spare serves those that are not
 * much smaller, and goes back before a request fails for want of memory (an H100 refused every
 * prompt whose length it had not seen before, once forty lengths had been). */
TEST(memory_of_other_sizes_is_found_again_or_given_back)
{
    enum { UNIT = 4096, LENGTHS = 40 };
    struct kn_dev *d = open_device(KN_ARITH_F32);
    void (*room)(size_t) = NULL;
    *(void **)&room = kern_hook("hostcuda_room");
    const uint64_t before = kn_dev_memory(d).device_bytes, allocs = kn_dev_memory(d).n_allocs;
    room(8 * LENGTHS * UNIT);
    for (size_t i = 0; i < LENGTHS; i++) { /* longest first */
        void *p = kn_mem_alloc(d, KN_MEM_DEVICE, (2 * LENGTHS - i) * UNIT);
        ASSERT_TRUE(p != NULL);
        kn_mem_free(d, p);
    }
    ASSERT_EQ(kn_dev_memory(d).n_allocs - allocs, 1);
    for (size_t i = 0; i < 3 * LENGTHS; i++) { /* longer than before, until two have no room */
        void *p = kn_mem_alloc(d, KN_MEM_DEVICE, (2 * LENGTHS + i) * UNIT);
        ASSERT_TRUE(p != NULL);
        kn_mem_free(d, p);
    }
    ASSERT_TRUE(kn_dev_memory(d).device_bytes - before <= 8 * LENGTHS * UNIT);
    void *held = kn_mem_alloc(d, KN_MEM_DEVICE, 5 * LENGTHS * UNIT);
    ASSERT_TRUE(held && !kn_mem_alloc(d, KN_MEM_DEVICE, 4 * LENGTHS * UNIT)); /* really full */
    ASSERT_TRUE(!kn_dev_lost(d));
    kn_mem_free(d, held);
    room(SIZE_MAX);
    kn_dev_destroy(d);
}

/* ---- gpu.h on the same device ---- */

static void gpu_of(struct kn_dev *d, struct gpu **ret)
{
    struct err e = {0};
    if (kn_dev_gpu(d, ret, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
}

/* NULL: as all tests run. */
static void set_mode(const char *words)
{
    void (*fn)(const char *) = NULL;
    *(void **)&fn = kern_hook("hostcuda_mode");
    fn(words ? words : getenv("KVBLEND_HOSTCUDA"));
}

TEST(copies_of_a_stream_of_ones_own_reach_what_operations_read)
{
    enum { N = 8192 };
    set_mode("");
    struct kn_dev *d = open_device(KN_ARITH_F32);
    struct gpu *g = NULL;
    struct gpu_stream *s = NULL;
    struct gpu_event *e = NULL;
    gpu_of(d, &g);
    char *dev = kn_mem_alloc(d, KN_MEM_DEVICE, N), *seen = kn_mem_alloc(d, KN_MEM_SHARED, N);
    char *host = mem_aligned(4096, N);
    memset(host, 1, N);
    ASSERT_OK(gpu_host_register(g, host, N));
    ASSERT_ERR(gpu_host_register(g, host, N), -EEXIST);
    ASSERT_OK(gpu_stream_create(g, -1, &s));
    ASSERT_OK(gpu_event_create(g, &e));
    ASSERT_OK(gpu_event_wait(g, e)); /* unrecorded: it has fired */
    ASSERT_OK(gpu_copy_async(g, s, dev, host, N));
    ASSERT_ERR(gpu_copy_async(g, s, dev + 1, host, N), -EINVAL);
    ASSERT_OK(gpu_event_record(g, e, s));
    memset(host, 2, N);
    ASSERT_OK(kn_mem_copy(d, seen, dev, N)); /* nobody waited: what was there */
    ASSERT_EQ(seen[0], 0);
    ASSERT_OK(gpu_event_wait(g, e));
    ASSERT_OK(kn_mem_copy(d, seen, dev, N)); /* pinned memory is read when its turn comes */
    ASSERT_TRUE(seen[0] == 2 && seen[N - 1] == 2);
    gpu_event_destroy(g, e);
    gpu_stream_destroy(g, s);
    gpu_host_unregister(g, host);
    gpu_close(g);
    mem_free(host);
    kn_mem_free(d, dev);
    kn_mem_free(d, seen);
    kn_dev_destroy(d);
    set_mode(NULL);
}

/* One seed is one order of turns, in which everybody has one. */
TEST(a_seed_is_an_order_of_threads)
{
    enum { N = 96 };
    static const char *const words[] = {"", "seed=1", "seed=2", "eager,seed=1"};
    unsigned turn[4][N];
    void (*turns)(unsigned, unsigned *) = NULL;
    *(void **)&turns = kern_hook("hostcuda_turns");
    for (int i = 0; i < 4; i++) {
        bool had[N] = {false};
        set_mode(words[i]);
        turns(N, turn[i]);
        for (unsigned j = 0; j < N; j++) {
            ASSERT_TRUE(turn[i][j] < N && !had[turn[i][j]]);
            had[turn[i][j]] = true;
            if (i == 0) ASSERT_EQ(turn[i][j], j);
        }
    }
    ASSERT_MEMEQ(turn[3], turn[1], sizeof turn[1]);
    ASSERT_TRUE(memcmp(turn[1], turn[0], sizeof turn[0]) &&
                memcmp(turn[1], turn[2], sizeof turn[0]));
    turns(N, turn[2]); /* the next block's is another one */
    ASSERT_TRUE(memcmp(turn[1], turn[2], sizeof turn[0]));
    set_mode(NULL);
}

struct copied {
    void *to;
    const void *from;
    size_t bytes;
};

static int copy_later(struct kn_stream *st, void *arg)
{
    const struct copied *c = arg;
    return kn_copy(st, c->to, c->from, c->bytes);
}

/* A copy that nothing holds back: it comes too late for who does not wait for it, and in the other
 * mode too early for who still reads. */
TEST(an_eager_copy_overtakes_who_still_reads)
{
    enum { N = 64 };
    char host[N], *wanted[2] = {"", "eager"};
    for (int eager = 0; eager < 2; eager++) {
        set_mode(wanted[eager]);
        struct kn_dev *d = open_device(KN_ARITH_F32);
        struct gpu *g = NULL;
        struct gpu_stream *s = NULL;
        gpu_of(d, &g);
        char *dev = kn_mem_alloc(d, KN_MEM_DEVICE, N), *seen = kn_mem_alloc(d, KN_MEM_SHARED, N);
        struct copied c = {seen, dev, N};
        memset(host, 1, N);
        ASSERT_OK(kn_mem_copy(d, dev, host, N));
        ASSERT_OK(gpu_host_register(g, host, N));
        ASSERT_OK(gpu_stream_create(g, -1, &s));
        kn_defer(d, true);
        ASSERT_OK(run(d, copy_later, &c));
        kn_defer(d, false);
        memset(host, 2, N);
        ASSERT_OK(gpu_copy_async(g, s, dev, host, N));
        memset(host, 3, N);
        ASSERT_OK(kn_fence(d));
        ASSERT_EQ(seen[0], eager ? 2 : 1);
        ASSERT_OK(gpu_stream_sync(g, s));
        ASSERT_OK(kn_mem_copy(d, seen, dev, N));
        ASSERT_EQ(seen[0], eager ? 2 : 3);
        gpu_stream_destroy(g, s);
        gpu_host_unregister(g, host);
        gpu_close(g);
        kn_mem_free(d, dev), kn_mem_free(d, seen);
        kn_dev_destroy(d);
    }
    set_mode(NULL);
}

/* ---- staged KV ---- */

struct load {
    struct kn_kv kv;
    const void *k, *v;
    enum kn_dtype t;
    size_t n;
    uint64_t turn;
    const struct kn_rope *rope;
};

static int load_rows(struct kn_stream *st, void *arg)
{
    const struct load *l = arg;
    const struct kn_stored s = {3, 3, l->n, l->k, l->v, l->t};
    int r = kn_staged(st, l->turn);
    return r < 0 ? r : kn_kv_load(st, &l->kv, 0, l->rope, &s, 1);
}

static int wait_for_it(struct kn_stream *st, void *arg)
{
    return kn_staged(st, ((const struct load *)arg)->turn);
}

/* Rotated, widened and put into pages from the ring as from the host's memory, bit for bit, in
 * every stored form. */
TEST(staged_kv_is_loaded_as_from_the_host)
{
    enum { G = 2, K = 16, N = 70, VALUES = 2 * G * K * KN_PAGE * 2 };
    for (int arith = 0; arith < 2; arith++) {
        struct kn_dev *d = open_device(arith ? KN_ARITH_BF16 : KN_ARITH_F32);
        float *tab = kn_mem_alloc(d, KN_MEM_SHARED, 2 * 128 * K / 2 * sizeof *tab);
        int32_t *pages = kn_mem_alloc(d, KN_MEM_SHARED, 2 * sizeof *pages);
        char *pool[2];
        ASSERT_OK(kn_stage_room(d, 64 << 10));
        for (int i = 0; i < 128 * K; i++)
            tab[i] = (float)(i % 7) * 0.125f;
        pages[0] = 1;
        const struct kn_rope rope = {K, K, tab, tab + 128 * K / 2, 128, 1};
        for (int t = KN_F32; t <= KN_Q8; t++) {
            const size_t bytes = N * kn_row_bytes((enum kn_dtype)t, G, K);
            float *x = kern_random(2 * N * G * K, 5 + (uint64_t)t, 2);
            char *host = mem_aligned(4096, 2 * bytes + 4096);
            ASSERT_OK(kn_convert(x, KN_F32, N * G * K, K, (enum kn_dtype)t, host));
            ASSERT_OK(
                kn_convert(x + N * G * K, KN_F32, N * G * K, K, (enum kn_dtype)t, host + bytes));
            struct kn_piece p[2] = {{host, bytes, NULL}, {host + bytes, bytes, NULL}};
            struct load l = {.t = (enum kn_dtype)t, .n = N, .rope = &rope};
            l.kv = (struct kn_kv){.page_stride = VALUES / 2,
                                  .layer_stride = VALUES / 2,
                                  .pages = pages,
                                  .n_pages = 2,
                                  .G = G,
                                  .K = K};
            for (int staged = 0; staged < 2; staged++) {
                pool[staged] = kn_mem_alloc(d, KN_MEM_SHARED, VALUES * sizeof(float));
                l.kv.base = pool[staged];
                l.k = host, l.v = host + bytes;
                if (staged) {
                    ASSERT_OK(kn_stage(d, p, 2, &l.turn));
                    ASSERT_TRUE(l.turn > 0 && p[0].at != p[0].from && p[1].at != p[1].from);
                    l.k = p[0].at, l.v = p[1].at;
                }
                ASSERT_OK(run(d, load_rows, &l));
                kn_unstage(d, l.turn);
            }
            ASSERT_MEMEQ(pool[0], pool[1], VALUES * sizeof(float));
            for (int i = 0; i < 2; i++)
                kn_mem_free(d, pool[i]);
            mem_free(host);
            free(x);
        }
        kn_mem_free(d, tab);
        kn_mem_free(d, pages);
        kn_dev_destroy(d);
    }
}

/* Groups come and go in any order: each stays as it is while it is held, and there is an end. */
TEST(so_many_groups_may_be_on_their_way)
{
    struct kn_dev *d = open_device(KN_ARITH_F32);
    char host[64] = {0};
    struct kn_piece p = {host, sizeof host, NULL};
    uint64_t turn[STAGE_GROUPS], more;
    ASSERT_ERR(kn_stage(d, &p, 1, &more), -EAGAIN); /* there is no ring yet */
    ASSERT_OK(kn_stage_room(d, 1 << 20));
    for (int i = 0; i < STAGE_GROUPS; i++)
        ASSERT_OK(kn_stage(d, &p, 1, &turn[i]));
    ASSERT_ERR(kn_stage(d, &p, 1, &more), -EAGAIN);
    kn_unstage(d, turn[1]);
    ASSERT_ERR(kn_stage(d, &p, 1, &more), -EAGAIN); /* the first one is still held */
    kn_unstage(d, turn[0]);
    ASSERT_OK(kn_stage(d, &p, 1, &turn[0]));
    ASSERT_OK(kn_stage(d, &p, 1, &turn[1]));
    for (int i = 0; i < STAGE_GROUPS; i++)
        kn_unstage(d, turn[i]);
    kn_dev_destroy(d);
}

TEST(property_ring_of_staged_kv)
{
    enum { RING = 16 << 10, HELD = 8, MOST = 6000 };
    struct kn_dev *d = open_device(KN_ARITH_F32);
    char *host[HELD], *seen = kn_mem_alloc(d, KN_MEM_SHARED, MOST);
    struct kn_piece p[HELD];
    uint64_t turn[HELD] = {0}, rand = 11;
    unsigned refused = 0, staged = 0;
    ASSERT_OK(kn_stage_room(d, RING));
    for (int i = 0; i < HELD; i++)
        host[i] = mem_alloc(MOST);
    const uint64_t allocs = kn_dev_memory(d).n_allocs;
    for (int i = 0; i < 400; i++) {
        const size_t h = test_rand(&rand) % HELD;
        if (turn[h]) {
            kn_unstage(d, turn[h]);
            turn[h] = 0;
        } else {
            p[h] = (struct kn_piece){host[h], 1 + test_rand(&rand) % MOST, NULL};
            memset(host[h], i, p[h].bytes);
            const int r = kn_stage(d, &p[h], 1, &turn[h]);
            ASSERT_TRUE(r == 0 || r == -EAGAIN);
            refused += r < 0;
            staged += r == 0;
            if (r < 0) turn[h] = 0;
        }
        for (int j = 0; i % 8 == 0 && j < HELD; j++) {
            if (!turn[j]) continue;
            struct load l = {.turn = turn[j]};
            ASSERT_OK(run(d, wait_for_it, &l));
            ASSERT_OK(kn_mem_copy(d, seen, p[j].at, p[j].bytes));
            ASSERT_MEMEQ(seen, host[j], p[j].bytes);
        }
    }
    ASSERT_TRUE(refused > 0 && staged > 50);
    ASSERT_EQ(kn_dev_memory(d).n_allocs, allocs);
    for (int i = 0; i < HELD; i++) {
        if (turn[i]) kn_unstage(d, turn[i]);
        mem_free(host[i]);
    }
    p[0] = (struct kn_piece){seen, RING + 1, NULL};
    ASSERT_OK(kn_stage(d, p, 1, &turn[0])); /* the device reads it where it is */
    ASSERT_TRUE(turn[0] == 0 && p[0].at == seen);
    kn_mem_free(d, seen);
    kn_dev_destroy(d);
}

/* ---- KV that leaves ---- */

enum { WIDE = 4096 };
struct leaving { /* rows of WIDE, in calls of so many */
    const float *x;
    size_t n_rows, rows;
    enum kn_dtype t;
    char *to;
    int *bad; /* of each call */
};

static int let_go(struct kn_stream *st, void *arg)
{
    const struct leaving *l = arg;
    const size_t row = kn_row_bytes(l->t, 1, WIDE);
    int r = 0;
    for (size_t at = 0, call = 0; r == 0 && at < l->n_rows; at += l->rows, call++) {
        const size_t left = l->n_rows - at, m = left < l->rows ? left : l->rows;
        r = kn_encode_rows(st, l->x + at * WIDE, WIDE, m, WIDE, WIDE, l->t, l->to + at * row,
                           &l->bad[call]);
    }
    return r;
}

/* Nobody waits before the fence, behind which all of it is there: three rings of it in few pieces,
 * in one that is larger than a ring, in more than may be on their way. A copy that came too early,
 * or whose place was written again too early, would show, in one mode or the other. */
TEST(kv_leaves_behind_the_host)
{
    enum { ROWS = 3 * DRAIN_BYTES / WIDE / sizeof(float) + 5 };
    static const size_t rows[] = {100, ROWS, 1};
    static const char *const modes[] = {"", "eager"};
    void (*counts)(unsigned long *, unsigned long *) = NULL;
    unsigned long launches, before, after;
    *(void **)&counts = kern_hook("hostcuda_counts");
    float *x = kern_random((size_t)ROWS * WIDE, 1, 1);
    for (int i = 0; i < 6; i++) {
        set_mode(modes[i % 2]);
        struct kn_dev *d = open_device(KN_ARITH_F32);
        const size_t bytes = (size_t)ROWS * WIDE * sizeof(float);
        struct leaving l = {x,
                            ROWS,
                            rows[i / 2],
                            KN_F32,
                            kn_mem_alloc(d, KN_MEM_HOST, bytes),
                            kern_alloc(ROWS * sizeof(int))};
        kn_defer(d, true);
        counts(&launches, &before);
        ASSERT_OK(run(d, let_go, &l));
        counts(&launches, &after);
        kn_defer(d, false);
        ASSERT_EQ(after, before);
        if (i % 2 == 0) ASSERT_EQ(l.to[bytes - 1], 0); /* the emulation runs when it has to */
        ASSERT_OK(kn_fence(d));
        ASSERT_MEMEQ(l.to, x, bytes);
        const uint64_t allocs = kn_dev_memory(d).n_allocs;
        memset(l.to, 0, bytes);
        ASSERT_OK(run(d, let_go, &l)); /* which is not deferred */
        ASSERT_MEMEQ(l.to, x, bytes);
        ASSERT_EQ(kn_dev_memory(d).n_allocs, allocs);
        kn_mem_free(d, l.to);
        kern_free(l.bad);
        kn_dev_destroy(d);
    }
    free(x);
    set_mode(NULL);
}

/* Each call has its own word, and others' rows are as they should be. */
TEST(who_has_what_does_not_fit_is_told)
{
    enum { ROWS = 9, BAD = 4 };
    static const enum kn_dtype types[] = {KN_F16, KN_Q8};
    for (int i = 0; i < 2; i++) {
        struct kn_dev *d = open_device(KN_ARITH_F32);
        const size_t row = kn_row_bytes(types[i], 1, WIDE);
        float *x = kern_random(ROWS * WIDE, 1, 1);
        struct leaving l = {x,
                            ROWS,
                            1,
                            types[i],
                            kn_mem_alloc(d, KN_MEM_HOST, ROWS * row),
                            kern_alloc(ROWS * sizeof(int))};
        char *want = mem_alloc(row);
        x[BAD * WIDE + 77] = 7e4f;
        kn_defer(d, true);
        ASSERT_OK(run(d, let_go, &l));
        kn_defer(d, false);
        ASSERT_OK(kn_fence(d));
        for (size_t r = 0; r < ROWS; r++) {
            ASSERT_EQ(l.bad[r], r == BAD);
            if (r == BAD) continue;
            ASSERT_OK(kn_convert(x + r * WIDE, KN_F32, WIDE, WIDE, types[i], want));
            ASSERT_MEMEQ(l.to + r * row, want, row);
        }
        mem_free(want);
        kn_mem_free(d, l.to);
        kern_free(l.bad), free(x);
        kn_dev_destroy(d);
    }
}

struct many {
    struct kern_kv s;
    struct kn_attn_args a;
    int32_t *key_pos;
    float *k, *v;
    size_t n_keys;
};

static int put_and_attend(struct kn_stream *st, void *arg)
{
    struct many *m = arg;
    const size_t GK = (size_t)m->s.kv.G * m->s.kv.K;
    int r = kn_kv_put(st, &m->s.kv, 0, m->key_pos, m->n_keys, m->k, GK, m->v, GK);
    return r < 0 ? r : kn_attn(st, &m->a);
}

/* Keys of several parts; bf16 pages carry 2^-9 a value, and so do the outputs. */
static void long_attention(enum kn_arith arith, double tolerance)
{
    enum { G = 1, H = 2, K = 16, N = 2500, M = 3, HK = H * K };
    struct kn_dev *d = open_device(arith);
    struct many m = {.n_keys = N};
    double out[K], *prob = kern_alloc(N * sizeof *prob);
    kern_kv_init(&m.s, G, K, N, 1);
    m.k = kern_random(N * G * K, 1, 1), m.v = kern_random(N * G * K, 2, 1);
    m.key_pos = kern_alloc(N * sizeof *m.key_pos);
    for (int32_t i = 0; i < N; i++)
        m.key_pos[i] = i;
    int32_t *pos = kern_alloc(M * sizeof *pos);
    pos[0] = 700, pos[1] = 1024, pos[2] = N - 1;
    float *q = kern_random(M * HK, 3, 2), *got = kern_alloc(M * HK * sizeof *got),
          *lse = kern_alloc(M * H * sizeof *lse);
    m.a = (struct kn_attn_args){.q = q,
                                .ldq = HK,
                                .m = M,
                                .pos = pos,
                                .H = H,
                                .kv = &m.s.kv,
                                .scale = 0.25f,
                                .out = got,
                                .ldo = HK,
                                .lse = lse};
    ASSERT_OK(run(d, put_and_attend, &m));
    for (size_t i = 0; i < M * H; i++) {
        double l =
            ref_attn(q + i * K, m.k, m.v, G * K, K, (size_t)pos[i / H] + 1, 0.25, 0, out, prob);
        ASSERT_NEAR(lse[i], l, tolerance * (1 + fabs(l)));
        for (size_t x = 0; x < K; x++)
            ASSERT_NEAR(got[i * K + x], out[x], tolerance);
    }
    kern_kv_fini(&m.s);
    kern_free(prob), kern_free(m.k), kern_free(m.v), kern_free(m.key_pos), kern_free(pos);
    kern_free(q), kern_free(got), kern_free(lse);
    kn_dev_destroy(d);
}

TEST(attention_over_parts_of_the_keys)
{
    long_attention(KN_ARITH_F32, 5e-6);
}

TEST(attention_over_bf16_pages)
{
    long_attention(KN_ARITH_BF16, 4e-3);
}
