/* What only a device of its own has: its name, its memory, errors that come late or for ever, bf16.
 */
#include "tests/unit/kernels/kern.h"

#include <dlfcn.h>
#include <errno.h>
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
    static const char *const unknown[] = {"gpu", "cuda:", "cuda:-1", "cuda:1x", "hostcuda:0"};
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
    ASSERT_TRUE(strstr(kn_dev_device(d), "hostcuda:0") != NULL);
    ASSERT_STREQ(kn_dev_gemm(d), "cublaslt-bf16");
    ASSERT_TRUE(!kn_dev_is_host(d));
    ASSERT_EQ(kn_kv_value_bytes(d), 2);
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
    ASSERT_OK(setenv("KVBLEND_KERNELS_DIR", dir, 1));
    (free)(dir);
}

/* The whole status of a child that runs fn. */
static int child_of(void (*fn)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        (void)freopen("/dev/null", "w", stderr);
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
    ASSERT_OK(kn_mem_write(d, dev, p, 64));
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
    ASSERT_ERR(kn_mem_write(d, pos, pos, 4), -EIO);
    ASSERT_TRUE(kn_mem_alloc(d, KN_MEM_DEVICE, 64) == NULL);
    kn_mem_free(d, pos);
    kn_dev_destroy(d);
    d = open_device(KN_ARITH_F32); /* and the next one works */
    kn_dev_destroy(d);
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
        double l = ref_attn(q + i * K, m.k, m.v, G * K, K, (size_t)pos[i / H] + 1, 0.25, out, prob);
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
