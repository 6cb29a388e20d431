/* How deep the self-test goes: what it finds is tested in test_core.c. */
#include "fusor/core/selftest.c"
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

static unsigned depth_of(const struct tiny_opts *o)
{
    struct kit k;
    struct err err = {0};
    kit_open(&k, o, 512);
    const unsigned depth = trial_depth(k.c);
    for (unsigned l = depth; l < k.c->cfg.L; l++) {
        unsigned seen = 0;
        while (seen < depth && !same_kind(k.c, seen, l))
            seen++;
        ASSERT_TRUE(seen < depth);
    }
    ASSERT_OK(fus_core_self_test(k.c, &err));
    ASSERT_EQ(k.c->cfg.L, o->L); /* as it was */
    kit_close(&k);
    return depth;
}

TEST(layers_of_one_kind_are_tested_by_a_few)
{
    ASSERT_EQ(depth_of(&(struct tiny_opts){.L = 2}), 2);
    ASSERT_EQ(depth_of(&(struct tiny_opts){.L = 12}), 4);
    ASSERT_EQ(depth_of(&(struct tiny_opts){.L = 12, .q4 = true}), 4);
}

/* Every sixth layer sees all keys, where the others have a window. */
TEST(the_last_kind_of_layer_is_tested_too)
{
    ASSERT_EQ(depth_of(&(struct tiny_opts){.L = 12, .window = 5, .local_every = 6}), 6);
    ASSERT_EQ(depth_of(&(struct tiny_opts){.L = 12, .nope_every = 8}), 8);
}
