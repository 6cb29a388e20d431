/* The wrappers of kernels/cuda/mma.h lane by lane, against the tables of the PTX ISA ("Matrix
 * fragments for mma.m16n8k16", "ldmatrix", "cp.async"): on a device what the instructions do, on
 * the emulation what their twins do. Both have to be the same for kernels to mean there what they
 * mean here. */
#include "tests/test.h"
#include "tests/unit/kernels/mma_lanes.h"

#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

enum { M = 16, N = 8, K = 16 };

/* The module for the device of KVBLEND_TEST_DEVICE, beside this program. */
static void run(struct mma_warp *w)
{
    const char *device = getenv("KVBLEND_TEST_DEVICE");
    char path[4096];
    mma_lanes_fn *fn;
    if (!device || !*device) SKIP("about a GPU (KVBLEND_TEST_DEVICE)");
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    ASSERT_TRUE(n > 0 && n < (ssize_t)sizeof path - 64);
    path[n] = 0;
    snprintf(strrchr(path, '/'), 64, "/libmma_lanes_%.*s.so", (int)strcspn(device, ":"), device);
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib) test_fail(__FILE__, __LINE__, "%s", dlerror());
    *(void **)&fn = dlsym(lib, "mma_lanes");
    ASSERT_TRUE(fn != NULL);
    const int r = fn(w);
    if (r == -ENODEV) SKIP("there is no GPU");
    ASSERT_OK(r);
}

/* Which row and column of its matrix a lane's value is: of A [M, K] word i, half h; of B [K, N];
 * of C [M, N] value i. */
struct place {
    unsigned row, col;
};

static struct place of_a(unsigned lane, unsigned i, unsigned h)
{
    return (struct place){lane / 4 + i % 2 * 8, lane % 4 * 2 + h + i / 2 * 8};
}

static struct place of_b(unsigned lane, unsigned i, unsigned h)
{
    return (struct place){lane % 4 * 2 + h + i * 8, lane / 4};
}

static struct place of_c(unsigned lane, unsigned i)
{
    return (struct place){lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}

static uint16_t bf16(float f) /* of few bits */
{
    uint32_t u;
    memcpy(&u, &f, 4);
    ASSERT_EQ(u & 0xffff, 0);
    return (uint16_t)(u >> 16);
}

static float whole(uint64_t *state, int most)
{
    return (float)((int)(test_rand(state) % (2 * (uint64_t)most + 1)) - most);
}

/* Whole numbers, whose sums no order of adding changes: a value that another lane's place has, or
 * another word's, makes another product. */
TEST(a_product_by_lane)
{
    uint64_t seed = 1;
    for (int round = 0; round < 16; round++) {
        float a[M][K], b[K][N], c[M][N];
        struct mma_warp w = {0};
        for (unsigned i = 0; i < M * K; i++)
            a[i / K][i % K] = whole(&seed, 127);
        for (unsigned i = 0; i < K * N; i++)
            b[i / N][i % N] = whole(&seed, 127);
        for (unsigned i = 0; i < M * N; i++)
            c[i / N][i % N] = whole(&seed, 1 << 20);
        for (unsigned l = 0; l < MMA_LANES; l++) {
            struct mma_given *g = &w.given[l];
            g->row = l;
            for (unsigned i = 0; i < 8; i++) {
                const struct place p = of_a(l, i / 2, i % 2), q = of_b(l, i / 2 % 2, i % 2);
                g->a[i / 2] |= (uint32_t)bf16(a[p.row][p.col]) << i % 2 * 16;
                if (i < 4) g->b[i / 2] |= (uint32_t)bf16(b[q.row][q.col]) << i % 2 * 16;
            }
            for (unsigned i = 0; i < 4; i++)
                g->c[i] = c[of_c(l, i).row][of_c(l, i).col];
        }
        run(&w);
        for (unsigned l = 0; l < MMA_LANES; l++)
            for (unsigned i = 0; i < 4; i++) {
                const struct place p = of_c(l, i);
                float want = c[p.row][p.col];
                for (unsigned k = 0; k < K; k++)
                    want += a[p.row][k] * b[k][p.col];
                ASSERT_EQ(w.got[l].c[i], want);
            }
    }
}

/* Lane 8 i + j says where row j of matrix i is: here the rows of the four stand mixed, each of a
 * matrix in banks of its own. */
TEST(rows_of_matrices_by_lane)
{
    struct mma_warp w = {0};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned j = 0; j < 8; j++) {
            const unsigned at = (3 * i + 1) % 4 * 8 + (5 * j + i) % 8;
            w.given[8 * i + j].row = at;
            for (unsigned x = 0; x < 8; x++)
                w.row[at][x] = (uint16_t)(i << 8 | j << 4 | x);
        }
    run(&w);
    for (unsigned l = 0; l < MMA_LANES; l++)
        for (unsigned i = 0; i < 4; i++) {
            const unsigned r = l / 4, c = l % 4 * 2;
            ASSERT_EQ(w.got[l].m[i], (i << 8 | r << 4 | (c + 1)) << 16 | (i << 8 | r << 4 | c));
            ASSERT_EQ(w.got[l].turned[i],
                      (i << 8 | (c + 1) << 4 | r) << 16 | (i << 8 | c << 4 | r));
        }
}

TEST(copies_arrive_with_their_group)
{
    struct mma_warp w = {0};
    for (unsigned l = 0; l < MMA_LANES; l++) {
        w.given[l].row = l;
        w.given[l].there = l % 3 == 0;
        w.given[l].first = l % 17;
        for (unsigned i = 0; i < MMA_COPIES * 4; i++)
            w.given[l].from[i / 4][i % 4] = 1 + (l << 8 | i);
    }
    run(&w);
    for (unsigned l = 0; l < MMA_LANES; l++) {
        memset((char *)w.given[l].from[2] + l % 17, 0, 16 - l % 17);
        if (l % 3) memset(w.given[l].from[1], 0, 16);
        ASSERT_MEMEQ(w.got[l].copied, w.given[l].from, sizeof w.got[l].copied);
    }
}

/* Every int8 as bf16, in words of the bytes with even numbers and with odd ones; halves; a word of
 * another lane's row. */
TEST(codes_become_whole_numbers)
{
    static const struct {
        uint16_t from;
        float to;
    } halves[] = {{0, 0},
                  {0x3c00, 1},
                  {0xbc00, -1},
                  {0x7bff, 65504},
                  {0x0001, 0x1p-24f},
                  {0x8001, -0x1p-24f},
                  {0x03ff, 1023 * 0x1p-24f},
                  {0x0400, 0x1p-14f}};
    enum { HALVES = sizeof halves / sizeof *halves };
    for (unsigned round = 0; round < 8; round++) {
        struct mma_warp w = {0};
        for (unsigned l = 0; l < MMA_LANES; l++) {
            struct mma_given *g = &w.given[l];
            g->row = (l + 8) % MMA_LANES;
            g->word = round % 4;
            g->half = halves[l % HALVES].from;
            for (unsigned i = 0; i < 4; i++)
                g->codes |= (round * MMA_LANES + l + 64 * i) % 256 << 8 * i;
            for (unsigned x = 0; x < 8; x++)
                w.row[l][x] = (uint16_t)(l << 8 | x);
        }
        run(&w);
        for (unsigned l = 0; l < MMA_LANES; l++) {
            const struct mma_got *g = &w.got[l];
            uint16_t code[4];
            for (unsigned i = 0; i < 4; i++)
                code[i] = bf16((float)(int8_t)(w.given[l].codes >> 8 * i));
            ASSERT_EQ(g->even, (uint32_t)code[2] << 16 | code[0]);
            ASSERT_EQ(g->odd, (uint32_t)code[3] << 16 | code[1]);
            ASSERT_EQ(g->half, halves[l % HALVES].to);
            ASSERT_MEMEQ(&g->word, &w.row[w.given[l].row][round % 4 * 2], 4);
        }
    }
}

/* Bits of an f32 and of the bf16 that it is rounded to: ties to even, up into the next power and
 * into infinity, down among the subnormal; then the same below zero. */
TEST(pairs_are_rounded_to_nearest_even)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } known[] = {
        {0x00000000, 0x0000}, {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80},
        {0x3f808001, 0x3f81}, {0x3f817fff, 0x3f81}, {0x3f818000, 0x3f82}, {0x3fffffff, 0x4000},
        {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80}, {0x7f800000, 0x7f80}, {0x00800000, 0x0080},
        {0x007fffff, 0x0080}, {0x00018000, 0x0002}, {0x00008001, 0x0001}, {0x00008000, 0x0000}};
    enum { KNOWN = sizeof known / sizeof *known };
    struct mma_warp w = {0};
    for (unsigned l = 0; l < MMA_LANES; l++) {
        const uint32_t sign = l / KNOWN ? 0x80000000 : 0, first = known[l % KNOWN].from | sign,
                       second = known[(l + 5) % KNOWN].from;
        w.given[l].row = l;
        memcpy(&w.given[l].pair[0], &first, 4);
        memcpy(&w.given[l].pair[1], &second, 4);
    }
    run(&w);
    for (unsigned l = 0; l < MMA_LANES; l++)
        ASSERT_EQ(w.got[l].pair, (uint32_t)known[(l + 5) % KNOWN].to << 16 | known[l % KNOWN].to |
                                     (l / KNOWN ? 0x8000 : 0));
}

/* Two units in the last place and a rounding; below the smallest normal number it may be 0. */
TEST(powers_of_two)
{
    static const float edge[] = {0, -INFINITY, INFINITY, -1, 1, -126, 127, -140, -149, -1000, 128};
    enum { EDGES = sizeof edge / sizeof *edge };
    struct mma_warp w = {0};
    uint64_t seed = 7;
    for (int round = 0; round < 32; round++) {
        for (unsigned l = 0; l < MMA_LANES; l++) {
            w.given[l].row = l;
            w.given[l].power[0] = edge[l % EDGES];
            w.given[l].power[1] = whole(&seed, 125 << 12) / (1 << 12);
        }
        run(&w);
        for (unsigned i = 0; i < 2 * MMA_LANES; i++) {
            const double x = (double)w.given[i / 2].power[i % 2], want = exp2(x);
            const double got = (double)w.got[i / 2].power[i % 2];
            if (x >= 128)
                ASSERT_TRUE(isinf(got) && got > 0);
            else if (x < -126)
                ASSERT_TRUE(got >= 0 && got <= want * 1.01);
            else
                ASSERT_NEAR(got, want, want * 3 * 0x1p-23);
        }
    }
}
