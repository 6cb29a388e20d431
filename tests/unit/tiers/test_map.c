/* The map of keys against an array of flags, with chains long enough to matter. */
#include "tests/test.h"
#include "tiers/map.h"

enum { IDS = 300 };

static struct key_node node_of(uint64_t id)
{
    return (struct key_node){.key = {.hi = id % 3, .lo = id}};
}

TEST(a_zeroed_map_is_empty)
{
    struct key_map m = {0};
    struct key_node n = node_of(1);
    ASSERT_TRUE(!key_map_find(&m, &n.key));
    key_map_fini(&m);
}

TEST(random_inserts_and_removals)
{
    struct key_map m;
    struct key_node node[IDS];
    bool in[IDS] = {0};
    uint64_t rng = 1, n = 0;
    ASSERT_OK(key_map_init(&m, 17));
    ASSERT_EQ(m.mask, 31);
    for (int i = 0; i < IDS; i++)
        node[i] = node_of((uint64_t)i);
    for (int step = 0; step < 20000; step++) {
        size_t i = test_rand(&rng) % IDS;
        ASSERT_TRUE(key_map_find(&m, &node[i].key) == (in[i] ? &node[i] : NULL));
        if (in[i])
            key_map_remove(&m, &node[i]);
        else
            key_map_insert(&m, &node[i]);
        in[i] = !in[i];
        n = in[i] ? n + 1 : n - 1;
        ASSERT_EQ(m.n, n);
    }
    key_map_fini(&m);
}
