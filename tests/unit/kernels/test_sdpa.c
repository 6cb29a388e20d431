/* Attention by cuDNN: where it is used, that it gives what our own kernel gives, and what it is
 * left out for. On the emulation, whose library computes what the descriptors say and can be made
 * wrong, slow, old or unwilling; the first three tests on a GPU as well, where there is cuDNN. */
#include "tests/unit/kernels/kern.h"

#include <dirent.h>
#include <unistd.h>

enum { HONEST, OLD, REFUSES_PLANS, REFUSES_TO_RUN, IS_WRONG, SEES_TOO_MUCH, IS_SLOW };
enum { KEYS_MAX = 250 /* a plan of 256 keys */ };
static const struct kern_shape small = {4, 2, 64};

static bool is_emulated(void)
{
    return kern_device() && strcmp(kern_device(), "hostcuda") == 0;
}

static void library(unsigned how)
{
    void (*fn)(unsigned);
    if (how == HONEST && !is_emulated()) return;
    *(void **)&fn = kern_hook("hostcuda_cudnn");
    fn(how);
}

static unsigned long ran(void)
{
    unsigned long (*fn)(void);
    if (!is_emulated()) return 0;
    *(void **)&fn = kern_hook("hostcuda_cudnn_ran");
    return fn();
}

static void use_library(const char *which)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/libkn_hostcuda.so", getenv("KVBLEND_KERNELS_DIR"));
    if (is_emulated()) setenv("KVBLEND_CUDNN", path, 1);
    setenv("KVBLEND_ATTN", which, 1);
}

static struct kn_dev *open_device(struct kern_shape sh, size_t keys_max, const char *cache_dir)
{
    const struct kn_shape w = {32, 16, false};
    const struct kn_dev_opts o = {.device = kern_device(),
                                  .arith = KN_ARITH_BF16,
                                  .kv_q8 = kern_kv_q8(),
                                  .cache_dir = cache_dir,
                                  .tune = {.shapes = &w,
                                           .n_shapes = 1,
                                           .rows = 16,
                                           .rows_max = 16,
                                           .H = sh.H,
                                           .G = sh.G,
                                           .K = sh.K,
                                           .keys_max = keys_max}};
    struct kn_dev *d = NULL;
    struct err e = {0};
    if (kn_dev_create(&o, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

static bool is_used(const struct kn_dev *d)
{
    return strncmp(kn_info(d)->attn, "cudnn 9.", 8) == 0;
}

struct rows { /* the last m of n positions, through attention and a product that changes nothing */
    struct kern_shape sh;
    size_t n, m;
    struct kern_kv s;
    struct kn_attn_args a;
    struct kn_rope rope; /* n_rot 0: none */
    struct kn_mat *same;
    float *q, *k, *v, *out, *lse, *tab, *eye;
    int32_t *pos;
};

static void rows_init(struct rows *r, struct kn_dev *d, struct kern_shape sh, size_t n, size_t m)
{
    const size_t HK = (size_t)sh.H * sh.K, GK = (size_t)sh.G * sh.K;
    *r = (struct rows){.sh = sh, .n = n, .m = m};
    r->q = kern_random(m * HK, 3, 3), r->k = kern_random(n * GK, 1, 1);
    r->v = kern_random(n * GK, 2, 1), r->eye = kern_random(HK * HK, 0, 0);
    r->out = malloc(m * HK * sizeof *r->out), r->lse = malloc(m * sh.H * sizeof *r->lse);
    r->pos = malloc(n * sizeof *r->pos);
    for (size_t i = 0; i < n; i++)
        r->pos[i] = (int32_t)i;
    for (size_t i = 0; i < HK; i++)
        r->eye[i * HK + i] = 1;
    r->same = kern_mat(d, HK, HK, r->eye);
    kern_kv_init(&r->s, sh.G, sh.K, n, 2);
    r->a = (struct kn_attn_args){.q = r->q,
                                 .ldq = HK,
                                 .m = m,
                                 .pos = r->pos + n - m,
                                 .n_keys = n,
                                 .H = sh.H,
                                 .kv = &r->s.kv,
                                 .layer = 1,
                                 .scale = 1 / sqrtf((float)sh.K),
                                 .ldo = HK};
}

/* Of angles that are as good as any. */
static void rows_rotate(struct rows *r)
{
    const size_t half = r->sh.K / 2;
    r->tab = kern_random(2 * r->n * half, 7, 1);
    for (size_t i = 0; i < r->n * half; i++) {
        const float angle = r->tab[i] * 3;
        r->tab[i] = cosf(angle), r->tab[r->n * half + i] = sinf(angle);
    }
    r->rope = (struct kn_rope){.K = r->sh.K,
                               .n_rot = r->sh.K,
                               .cos = r->tab,
                               .sin = r->tab + r->n * half,
                               .pos_cap = r->n,
                               .mscale = 1};
    r->a.to = (struct kn_rotation){&r->rope, r->a.pos};
}

static void rows_fini(struct rows *r)
{
    kn_mat_destroy(r->same);
    kern_kv_fini(&r->s);
    free(r->q), free(r->k), free(r->v), free(r->out), free(r->lse), free(r->pos), free(r->eye);
    free(r->tab);
}

static int attend_and_copy(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct rows *r = arg;
    const size_t GK = (size_t)r->sh.G * r->sh.K, HK = r->a.ldo;
    struct kn_attn_args a = r->a;
    a.out = kn_operand(st, 2, m, r->same);
    if (!a.out) return -ENOMEM;
    int e = kn_kv_put(st, &r->s.kv, 1, r->pos, r->n, r->k, GK, r->v, GK);
    if (e == 0) e = kn_attn(st, &a);
    const struct kn_gemm_args g = {
        .a = a.out, .lda = HK, .m = m, .w = r->same, .c = r->out, .ldc = HK};
    return e == 0 ? kn_gemm(st, &g) : e;
}

/* By head, as the tuning compares them. */
static void assert_alike(const float *got, const float *want, size_t n_heads, size_t K)
{
    for (size_t h = 0; h < n_heads; h++) {
        double apart = 0, length = 0;
        for (size_t i = h * K; i < (h + 1) * K; i++) {
            const double d = (double)got[i] - (double)want[i];
            apart += d * d, length += (double)want[i] * (double)want[i];
        }
        if (!(apart <= length / (64.0 * 64.0)))
            test_fail(__FILE__, __LINE__, "row and head %zu: %g of %g apart", h, sqrt(apart),
                      sqrt(length));
    }
}

/* The rows with what the caller knows of them, and without. by_library: who shall have them. */
static void check_rows(struct kn_dev *d, struct rows *r, bool by_library)
{
    const size_t values = r->m * r->a.ldo, n_keys = r->a.n_keys;
    float *own = malloc(values * sizeof *own);
    r->a.n_keys = 0;
    const unsigned long before = ran();
    ASSERT_OK(kn_rows(d, r->m, NULL, attend_and_copy, r));
    ASSERT_EQ(ran(), before);
    memcpy(own, r->out, values * sizeof *own);
    memset(r->out, 0, values * sizeof *r->out);
    r->a.n_keys = n_keys;
    ASSERT_OK(kn_rows(d, r->m, NULL, attend_and_copy, r));
    if (is_emulated()) ASSERT_EQ(ran() > before, by_library);
    assert_alike(r->out, own, r->m * r->sh.H, r->sh.K);
    if (!by_library) ASSERT_MEMEQ(r->out, own, values * sizeof *own);
    free(own);
}

static void check_range(struct kn_dev *d, struct kern_shape sh, size_t n, size_t m, bool rotate,
                        bool by_library)
{
    struct rows r;
    rows_init(&r, d, sh, n, m);
    if (rotate) rows_rotate(&r);
    check_rows(d, &r, by_library);
    rows_fini(&r);
}

TEST(it_gives_what_our_kernel_gives)
{
    static const struct kern_shape shapes[] = {{4, 2, 64},  {2, 2, 96},  {16, 1, 64},
                                               {4, 1, 128}, {2, 1, 256}, {3, 1, 72}};
    library(HONEST);
    use_library("cudnn");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (kern_kv_q8() && shapes[i].K % 16) continue; /* on plain cores */
        struct kn_dev *d = open_device(shapes[i], KEYS_MAX, NULL);
        if (!is_emulated() && !is_used(d)) SKIP("no cuDNN");
        ASSERT_TRUE(is_used(d));
        ASSERT_TRUE(kn_info(d)->attn_warning == NULL);
        check_range(d, shapes[i], 161, 161, false, true); /* ends inside a page */
        check_range(d, shapes[i], 192, 131, true, true);  /* behind a prefix */
        kn_dev_destroy(d);
    }
}

TEST(all_sizes_up_to_a_plan_and_from_a_quarter_of_it)
{
    static const size_t n_keys[] = {64, 65, 127, 128, 200, 255, 256};
    library(HONEST);
    use_library("cudnn");
    struct kn_dev *d = open_device(small, KEYS_MAX, NULL);
    for (size_t i = 0; i < sizeof n_keys / sizeof *n_keys; i++)
        check_range(d, small, n_keys[i], n_keys[i], true, true);
    check_range(d, small, 256, 64, true, true);
    check_range(d, small, 256, 63, true, false); /* too few for the plan */
    check_range(d, small, 257, 257, true, false);
    kn_dev_destroy(d);
}

TEST(what_it_does_not_know_is_left_to_our_kernel)
{
    struct rows r;
    float sink[4] = {0, 1, 0, 1};
    library(HONEST);
    use_library("cudnn");
    struct kn_dev *d = open_device(small, KEYS_MAX, NULL);
    rows_init(&r, d, small, 192, 192);
    check_rows(d, &r, true);
    r.a.window = 100;
    check_rows(d, &r, false);
    r.a.window = 192; /* sees everything */
    check_rows(d, &r, true);
    r.a.window = 0, r.a.cap = 5;
    check_rows(d, &r, false);
    r.a.cap = 0, r.a.lse = r.lse;
    check_rows(d, &r, false);
    float *near = malloc(sizeof sink);
    memcpy(near, sink, sizeof sink);
    r.a.lse = NULL, r.a.sink = near;
    check_rows(d, &r, false);
    free(near);
    rows_fini(&r);
    check_range(d, (struct kern_shape){2, 2, 64}, 192, 192, false, false);
    kn_dev_destroy(d);
}

/* Whoever says that rows follow one another when they do not is told. */
TEST(other_rows_than_was_said_are_a_bad_position)
{
    struct rows r;
    library(HONEST);
    use_library("cudnn");
    struct kn_dev *d = open_device(small, KEYS_MAX, NULL);
    rows_init(&r, d, small, 192, 150);
    r.a.pos--;
    ASSERT_EQ(kn_rows(d, r.m, NULL, attend_and_copy, &r), -EINVAL);
    rows_fini(&r);
    kn_dev_destroy(d);
}

TEST(a_library_with_other_values_is_left_out_with_a_warning)
{
    static const unsigned wrong[] = {IS_WRONG, SEES_TOO_MUCH};
    use_library("cudnn");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        library(wrong[i]);
        struct kn_dev *d = open_device(small, KEYS_MAX, NULL);
        library(HONEST);
        ASSERT_STREQ(kn_info(d)->attn, "own");
        ASSERT_TRUE(strstr(kn_info(d)->attn_warning, "9.19.0") != NULL);
        check_range(d, small, 192, 192, false, false);
        kn_dev_destroy(d);
    }
}

TEST(a_library_that_is_missing_old_or_makes_no_plan_is_not_used)
{
    static const unsigned none[] = {OLD, REFUSES_PLANS};
    use_library("");
    for (size_t i = 0; i < 3; i++) {
        library(i < 2 ? none[i] : HONEST);
        if (i == 2) setenv("KVBLEND_CUDNN", "/nowhere/libcudnn.so", 1);
        struct kn_dev *d = open_device(small, KEYS_MAX, NULL);
        ASSERT_STREQ(kn_info(d)->attn, "own");
        ASSERT_TRUE(kn_info(d)->attn_warning == NULL);
        kn_dev_destroy(d);
    }
    setenv("KVBLEND_ATTN", "cudnn", 1); /* who asks for it hears of it */
    for (size_t i = 0; i < 2; i++) {
        struct kn_dev *d = open_device(small, KEYS_MAX, NULL);
        ASSERT_TRUE(strstr(kn_info(d)->attn_warning, i == 0 ? "9.10.2" : "no plan") != NULL);
        kn_dev_destroy(d);
        library(REFUSES_PLANS);
        use_library("cudnn");
    }
}

TEST(a_call_that_it_refuses_is_our_kernel_s_and_the_last_it_is_asked_for)
{
    library(HONEST);
    use_library("cudnn");
    struct kn_dev *d = open_device(small, KEYS_MAX, NULL);
    library(REFUSES_TO_RUN);
    check_range(d, small, 192, 192, true, false);
    library(HONEST);
    check_range(d, small, 192, 192, true, false);
    kn_dev_destroy(d);
}

TEST(it_is_used_only_when_asked_for_or_faster_and_what_is_faster_is_remembered)
{
    char dir[] = "/tmp/kvblend-sdpa-XXXXXX", path[300];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    library(HONEST);
    use_library("own");
    struct kn_dev *d = open_device(small, KEYS_MAX, dir);
    ASSERT_TRUE(!is_used(d));
    kn_dev_destroy(d);
    library(IS_SLOW);
    use_library("auto");
    d = open_device(small, 64, dir);
    ASSERT_STREQ(kn_info(d)->attn, "own");
    ASSERT_TRUE(kn_info(d)->attn_warning == NULL);
    kn_dev_destroy(d);
    library(HONEST);
    const unsigned long before = ran();
    d = open_device(small, 64, dir);
    ASSERT_TRUE(!is_used(d)); /* as the file says */
    ASSERT_EQ(ran(), before);
    kn_dev_destroy(d);
    use_library("cudnn");
    d = open_device(small, 64, dir);
    ASSERT_TRUE(is_used(d));
    ASSERT_EQ(ran(), before + 1); /* its values are compared, its time is not taken */
    kn_dev_destroy(d);
    DIR *h = opendir(dir);
    for (struct dirent *e; h && (e = readdir(h));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (h) closedir(h);
    ASSERT_EQ(rmdir(dir), 0);
}

TEST(a_device_of_f32_and_one_that_is_not_tuned_do_without)
{
    library(HONEST);
    use_library("cudnn");
    struct kn_dev *d = open_device((struct kern_shape){0, 0, 0}, KEYS_MAX, NULL);
    ASSERT_TRUE(!is_used(d));
    kn_dev_destroy(d);
}
