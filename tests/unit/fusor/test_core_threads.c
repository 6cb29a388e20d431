/* The core gives the same bits on any number of threads. */
#include "tests/unit/fusor/prompt_kit.h"

#include "tests/test.h"

TEST(any_number_of_threads_gives_the_same_bits)
{
    static const unsigned threads[] = {1, 4, 16}; /* more than cores, too */
    static const struct {
        enum pol_strategy s;
        float ratio;
    } ways[] = {{POL_FULL, 0}, {POL_QS, 0.3f}, {POL_HKVD, 1}};
    const struct tiny_opts plain = {.L = 5, .qkv_bias = true};
    struct kit k;
    struct prompt p;
    kit_open(&k, &plain, 64 * 64);
    prompt_init(&p, &k, "SBgmgAq");
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct result want, got;
        run(&p, ways[i].s, ways[i].ratio, &want);
        for (size_t j = 0; j < sizeof(threads) / sizeof(threads[0]); j++) {
            struct kit other = k;
            const struct fus_core_opts o = {
                .dev = {.n_threads = threads[j], .gemm = "own-f32", .arith = KN_ARITH_F32}};
            ASSERT_OK(fus_core_create(k.m, &o, &other.c, NULL));
            p.k = &other;
            run(&p, ways[i].s, ways[i].ratio, &got);
            same_logits(&other, &got, &want);
            p.k = &k;
            fus_core_destroy(other.c);
        }
    }
    prompt_fini(&p);
    kit_close(&k);
}
