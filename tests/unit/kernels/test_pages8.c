/* Pages in 8 bits: rows that come in by any way are the same bytes, in their documented places;
 * attention over them gives in f32 the very bits of f32 pages with the same values, and in bf16
 * what the oracle says. What test_attn_rows.c holds of all pages is there. */
#include "kernels/cpu/pages.h"
#include "tests/unit/kernels/kern.h"

enum { G = 3, H = 9, KEYS = 150, M = 5, LAYER = 1 };

struct rows {
    unsigned K;
    struct kern_kv s;
    float *k, *v; /* [KEYS, G, K] */
    uint8_t *k8, *v8;
    float *q, *out, *lse, *mass;
    int32_t *pos, *key_pos;
    bool stored; /* they come as stored rows */
};

static void rows_init(struct rows *r, unsigned K)
{
    const size_t n = (size_t)KEYS * G * K;
    *r = (struct rows){.K = K, .k = kern_random(n, 1, 1), .v = kern_random(n, 2, 3)};
    for (size_t i = 0; i < n; i++) /* heads of very different sizes */
        r->k[i] *= ldexpf(1, -(int)(i / K % 7)), r->v[i] *= ldexpf(1, -(int)(i / K % 11));
    r->k8 = malloc(KEYS * kn_row_bytes(KN_Q8, G, K)),
    r->v8 = malloc(KEYS * kn_row_bytes(KN_Q8, G, K));
    ASSERT_OK(kn_convert(r->k, KN_F32, n, K, KN_Q8, r->k8));
    ASSERT_OK(kn_convert(r->v, KN_F32, n, K, KN_Q8, r->v8));
    kern_kv_init(&r->s, G, K, KEYS, LAYER + 1);
    r->q = kern_random((size_t)M * H * K, 3, 3);
    r->out = malloc((size_t)M * H * K * sizeof(float)), r->lse = malloc(M * H * sizeof(float));
    r->mass = malloc(KEYS * sizeof(float));
    r->pos = malloc(M * sizeof(int32_t)), r->key_pos = malloc(KEYS * sizeof(int32_t));
    for (int i = 0; i < KEYS; i++)
        r->key_pos[i] = i;
    for (int i = 0; i < M; i++)
        r->pos[i] = (i + 1) * KEYS / M - 1;
}

static void rows_fini(struct rows *r)
{
    kern_kv_fini(&r->s);
    free(r->k), free(r->v), free(r->k8), free(r->v8), free(r->q), free(r->out), free(r->lse);
    free(r->mass), free(r->pos), free(r->key_pos);
}

/* As they are, or what 8 bits have made of them. */
static int put(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct rows *r = arg;
    const struct kn_stored s = {0, -1, KEYS, r->k8, r->v8, KN_Q8};
    const size_t GK = (size_t)G * r->K;
    memset(r->s.mem, 0, r->s.kv.n_pages * r->s.kv.page_stride * sizeof(float));
    if (r->stored) return kn_kv_load(st, &r->s.kv, LAYER, NULL, &s, 1);
    return kn_kv_put(st, &r->s.kv, LAYER, r->key_pos, KEYS, r->k, GK, r->v, GK);
}

static struct kn_attn_args args_of(const struct rows *r)
{
    return (struct kn_attn_args){.q = r->q,
                                 .ldq = (size_t)H * r->K,
                                 .m = M,
                                 .pos = r->pos,
                                 .H = H,
                                 .kv = &r->s.kv,
                                 .layer = LAYER,
                                 .scale = 1 / sqrtf((float)r->K),
                                 .out = r->out,
                                 .ldo = (size_t)H * r->K,
                                 .lse = r->lse};
}

static int attend(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct rows *r = arg;
    const struct kn_attn_args a = args_of(r);
    memset(r->mass, 0, KEYS * sizeof(float));
    int rc = kn_attn(st, &a);
    return rc < 0 ? rc : kn_attn_mass(st, &a, r->mass, 0, KEYS);
}

static const unsigned sizes[] = {64, 80, 96, 128, 256, 50, 6};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* Where pages.h says that a byte of a row is: the CPU's, or kernels/cuda/pages.h. */
static void check_places(const struct rows *r)
{
    const size_t K = r->K, row = kn_row_bytes(KN_Q8, 1, K);
    for (size_t key = 0; key < KEYS; key += 7)
        for (unsigned g = 0; g < G; g++) {
            const char *layer = kn_page_layer(&r->s.kv, LAYER, key / KN_PAGE, 1);
            const struct page8 k = page8_of(layer + g * page8_bytes(K));
            const struct page8 v = page8_of(layer + (G + g) * page8_bytes(K));
            const uint8_t *of_k = r->k8 + (key * G + g) * row, *of_v = r->v8 + (key * G + g) * row;
            const size_t slot = key % KN_PAGE;
            ASSERT_MEMEQ(k.top + slot, of_k, 2);
            ASSERT_MEMEQ(v.top + slot, of_v, 2);
            ASSERT_MEMEQ(v.code + slot * K, of_v + 2, K);
            for (size_t d = 0; d < K; d++)
                ASSERT_EQ(
                    k.code[kern_device() ? slot * K + d : (slot / 16 * K + d) * 16 + slot % 16],
                    (int8_t)of_k[2 + d]);
        }
}

TEST(a_stored_row_is_what_a_put_row_becomes)
{
    for (unsigned i = KERN_PAGES; i < KERN_PAGES_INT16; i++) {
        struct kn_dev *d = kern_dev_of_pages(i, 2);
        for (size_t z = 0; d && z < N_SIZES; z++) {
            struct rows r;
            rows_init(&r, sizes[z]);
            const size_t bytes = r.s.kv.n_pages * r.s.kv.page_stride;
            ASSERT_EQ(kn_kv_layer_values(kn_info(d)->kv, G, r.K), 2 * KN_PAGE * G * (r.K + 2));
            ASSERT_OK(kern_run(d, true, 1, put, &r));
            check_places(&r);
            char *was = malloc(bytes);
            memcpy(was, r.s.mem, bytes);
            r.stored = true;
            ASSERT_OK(kern_run(d, true, 1, put, &r));
            ASSERT_MEMEQ(r.s.mem, was, bytes);
            free(was);
            rows_fini(&r);
        }
        kn_dev_destroy(d);
    }
}

static void check(const struct rows *r, double tolerance)
{
    const size_t K = r->K, GK = G * K;
    double out[256], prob[KEYS], mass[KEYS] = {0};
    for (size_t i = 0; i < M; i++)
        for (size_t h = 0; h < H; h++) {
            const size_t g = h / (H / G), n = (size_t)r->pos[i] + 1, row = i * H + h;
            const double lse = ref_attn(r->q + row * K, r->k + g * K, r->v + g * K, GK, K, n,
                                        1 / sqrt((double)K), 0, out, prob);
            ASSERT_NEAR(r->lse[row], lse, tolerance * (1 + fabs(lse)));
            for (size_t d = 0; d < K; d++)
                ASSERT_NEAR(r->out[row * K + d], out[d], 3 * tolerance);
            for (size_t key = 0; key < n; key++)
                mass[key] += prob[key];
        }
    for (size_t key = 0; key < KEYS; key++)
        ASSERT_NEAR(r->mass[key], mass[key], 4 * tolerance * (mass[key] + 0.1));
}

/* Beside products in bf16 the oracle's queries are those that bf16 holds; what is left is the
 * rounding of scaled queries and of probabilities, 2^-9 of values up to 3. */
TEST(attention_reads_the_values_that_8_bits_hold)
{
    for (unsigned i = 0; i < KERN_PAGES; i++) {
        struct kn_dev *d = kern_dev_of_pages(KERN_PAGES + i, 2);
        struct kn_dev *f32 = i < KERN_PAGES_BF16 ? kern_dev_of_pages(i, 2) : NULL;
        for (size_t z = 0; d && z < N_SIZES; z++) {
            struct rows r;
            rows_init(&r, sizes[z]);
            const size_t n = (size_t)KEYS * G * r.K, bytes = (size_t)M * H * r.K * sizeof(float);
            ASSERT_OK(kern_run(d, true, 1, put, &r));
            ASSERT_OK(kern_run(d, true, 1, attend, &r));
            ASSERT_OK(kn_convert(r.k8, KN_Q8, n, r.K, KN_F32, r.k));
            ASSERT_OK(kn_convert(r.v8, KN_Q8, n, r.K, KN_F32, r.v));
            check(&r, i < KERN_PAGES_BF16 ? 1e-5 : 0x1p-7);
            if (!f32) {
                rows_fini(&r);
                continue;
            }
            float *out = malloc(bytes), *lse = malloc(M * H * sizeof *lse),
                  *mass = malloc(KEYS * sizeof *mass);
            memcpy(out, r.out, bytes);
            memcpy(lse, r.lse, M * H * sizeof *lse);
            memcpy(mass, r.mass, KEYS * sizeof *mass);
            ASSERT_OK(kern_run(f32, true, 1, put, &r));
            ASSERT_OK(kern_run(f32, true, 1, attend, &r));
            ASSERT_MEMEQ(out, r.out, bytes);
            ASSERT_MEMEQ(lse, r.lse, M * H * sizeof *lse);
            ASSERT_MEMEQ(mass, r.mass, KEYS * sizeof *mass);
            free(out), free(lse), free(mass);
            rows_fini(&r);
        }
        kn_dev_destroy(d);
        kn_dev_destroy(f32);
    }
}

/* ---- rotated on their way ---- */

enum { TABLE = 40, ROT0 = 11, AT = 58 /* over the end of a page */, N_ROWS = 21 };

struct turned {
    struct kern_kv s;
    struct kn_rope rope;
    struct kn_stored stored;
    float *k, *v; /* [N_ROWS, G, K] */
    int32_t *pos, *to;
    enum { LOADED, ROPE_PUT, ROPE_AND_PUT } way;
};

static int put_turned(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct turned *t = arg;
    const size_t GK = (size_t)G * t->s.kv.K;
    const struct kn_rotation to = {&t->rope, t->to};
    memset(t->s.mem, 0, t->s.kv.n_pages * t->s.kv.page_stride * sizeof(float));
    if (t->way == LOADED) return kn_kv_load(st, &t->s.kv, LAYER, &t->rope, &t->stored, 1);
    if (t->way == ROPE_PUT)
        return kn_rope_put(st, &t->s.kv, LAYER, &to, t->pos, N_ROWS, t->k, GK, t->v, GK);
    int r = kn_rope(st, &t->rope, t->k, GK, N_ROWS, G, t->to);
    return r < 0 ? r : kn_kv_put(st, &t->s.kv, LAYER, t->pos, N_ROWS, t->k, GK, t->v, GK);
}

/* A record's rows in dtype t, as they come out of a page; and the same values put. */
static void check_turned(struct kn_dev *d, unsigned K, unsigned n_rot, enum kn_dtype t)
{
    const size_t n = (size_t)N_ROWS * G * K, table = TABLE * n_rot / 2;
    float *cos = kern_random(table, 5, 1), *sin = kern_random(table, 6, 1);
    float *k = kern_random(n, 7, 2), *v = kern_random(n, 8, 2);
    void *tk = malloc(n * sizeof(float)), *tv = malloc(n * sizeof(float));
    struct turned x = {.rope = {K, n_rot, cos, sin, TABLE, 1.125f},
                       .stored = {AT, ROT0, N_ROWS, tk, tv, t},
                       .k = malloc(n * sizeof(float)),
                       .v = malloc(n * sizeof(float)),
                       .pos = malloc(N_ROWS * sizeof *x.pos),
                       .to = malloc(N_ROWS * sizeof *x.to)};
    char *want = NULL;
    kern_kv_init(&x.s, G, K, AT + N_ROWS, LAYER + 1);
    const size_t bytes = x.s.kv.n_pages * x.s.kv.page_stride;
    ASSERT_OK(kn_convert(k, KN_F32, n, K, t, tk));
    ASSERT_OK(kn_convert(v, KN_F32, n, K, t, tv));
    for (int i = 0; i < N_ROWS; i++)
        x.pos[i] = AT + i, x.to[i] = ROT0 + i;
    for (x.way = LOADED; x.way <= ROPE_AND_PUT; x.way++) {
        ASSERT_OK(kn_convert(tk, t, n, K, KN_F32, x.k));
        ASSERT_OK(kn_convert(tv, t, n, K, KN_F32, x.v));
        ASSERT_OK(kern_run(d, true, 1, put_turned, &x));
        if (!want) memcpy(want = malloc(bytes), x.s.mem, bytes);
        ASSERT_MEMEQ(x.s.mem, want, bytes);
    }
    kern_kv_fini(&x.s);
    free(want), free(cos), free(sin), free(k), free(v), free(tk), free(tv);
    free(x.k), free(x.v), free(x.pos), free(x.to);
}

/* By a record, on the way or before: the same bytes. In halves that fours divide, and that they do
 * not; all of a head or some of it. */
TEST(rotated_rows_are_the_same_bytes_by_any_way)
{
    static const unsigned shapes[][2] = {{64, 64}, {64, 24}, {50, 50}, {128, 128}, {6, 2}};
    for (unsigned i = KERN_PAGES; i < KERN_PAGES_INT16; i++) {
        struct kn_dev *d = kern_dev_of_pages(i, 2);
        for (size_t z = 0; d && z < sizeof shapes / sizeof *shapes; z++)
            for (int t = KN_F32; t < KN_Q8; t++)
                check_turned(d, shapes[z][0], shapes[z][1], (enum kn_dtype)t);
        kn_dev_destroy(d);
    }
}

/* What 8 bits do not know, and heads that have no pairs. */
TEST(what_has_no_8_bits_is_refused)
{
    static const float bad[] = {NAN, INFINITY, -65520};
    for (unsigned i = KERN_PAGES; i < KERN_PAGES_INT16; i++) {
        struct kn_dev *d = kern_dev_of_pages(i, 2);
        for (size_t z = 0; d && z < 2 * sizeof bad / sizeof *bad; z++) {
            struct rows r;
            rows_init(&r, 64);
            (z % 2 ? r.k : r.v)[1234] = bad[z / 2];
            ASSERT_ERR(kern_run(d, true, 1, put, &r), -ERANGE);
            rows_fini(&r);
        }
        struct rows odd;
        rows_init(&odd, 7);
        for (int stored = 0; d && stored < 2; stored++) {
            odd.stored = stored;
            ASSERT_EQ(kern_run(d, true, 1, put, &odd),
                      kern_device() || i - KERN_PAGES < KERN_PAGES_BF16 ? 0 : -ENOTSUP);
        }
        rows_fini(&odd);
        kn_dev_destroy(d);
    }
}
