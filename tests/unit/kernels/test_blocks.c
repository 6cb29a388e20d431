/* Memory that is kept, over a device of so many bytes. */
#include "base/assert.h"
#include "base/mem.h"
#include "kernels/cuda/blocks.h"
#include "tests/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };
static size_t left; /* of the device */
static int n_given_back;
static bool refuses_to_clear;

void *cu_alloc(struct cu *c, enum kn_mem kind, size_t bytes)
{
    if (bytes > left) return NULL;
    left -= bytes;
    size_t *p = calloc(1, 64 + bytes);
    ASSERT(p);
    *p = bytes;
    return (char *)p + 64;
}

void cu_free(struct cu *c, void *p, enum kn_mem kind)
{
    size_t *at = (void *)((char *)p - 64);
    left += *at;
    n_given_back++;
    free(at);
}

int cu_clear(struct cu *c, void *p, size_t bytes)
{
    if (!refuses_to_clear) memset(p, 0, bytes);
    return refuses_to_clear ? -EIO : 0;
}

static bool recording;

static void open_blocks(struct blocks *b, size_t pages)
{
    left = pages * PAGE;
    n_given_back = 0;
    blocks_init(b, NULL, &recording);
}

TEST(what_is_given_back_is_the_next_of_its_kind_and_about_its_size)
{
    struct blocks b;
    open_blocks(&b, 100);
    char *five = blocks_alloc(&b, KN_MEM_DEVICE, 5 * PAGE - 7),
         *six = blocks_alloc(&b, KN_MEM_DEVICE, 6 * PAGE);
    five[100] = six[100] = 1;
    blocks_free(&b, six);
    blocks_free(&b, five);
    ASSERT_EQ(b.held[KN_MEM_DEVICE], 11 * PAGE);
    char *other = blocks_alloc(&b, KN_MEM_HOST, 5 * PAGE),  /* of another kind */
        *small = blocks_alloc(&b, KN_MEM_DEVICE, 2 * PAGE); /* these are twice as large */
    ASSERT_TRUE(other != five && other != six && small != five && small != six);
    ASSERT_EQ(b.n_allocs, 4);
    ASSERT_TRUE(blocks_alloc(&b, KN_MEM_DEVICE, 4 * PAGE) == five); /* the smallest that will do */
    ASSERT_TRUE(blocks_alloc(&b, KN_MEM_DEVICE, 4 * PAGE) == six);
    ASSERT_EQ(b.n_allocs, 4);
    ASSERT_TRUE(five[100] == 0 && six[100] == 0);
    blocks_free(&b, five);
    refuses_to_clear = true; /* the device is lost */
    ASSERT_TRUE(!blocks_alloc(&b, KN_MEM_DEVICE, 5 * PAGE));
    refuses_to_clear = false;
    blocks_free(&b, six);
    blocks_free(&b, small);
    blocks_free(&b, other);
    blocks_fini(&b);
    ASSERT_EQ(left, 100 * PAGE);
    ASSERT_EQ(b.held[KN_MEM_DEVICE] + b.held[KN_MEM_HOST], 0);
}

/* It would wait for what is queued, which a recording cannot have. */
TEST(where_memory_is_short_all_that_is_spare_goes_but_not_in_a_recording)
{
    struct blocks b;
    open_blocks(&b, 10);
    void *used = blocks_alloc(&b, KN_MEM_DEVICE, PAGE), *spare[3];
    for (int i = 0; i < 3; i++)
        spare[i] = blocks_alloc(&b, KN_MEM_DEVICE, 2 * PAGE);
    for (int i = 0; i < 3; i++)
        blocks_free(&b, spare[i]);
    recording = true;
    ASSERT_TRUE(!blocks_take(&b, KN_MEM_DEVICE, 9 * PAGE));
    recording = false;
    ASSERT_EQ(n_given_back, 0);
    void *scratch = blocks_take(&b, KN_MEM_DEVICE, 9 * PAGE);
    ASSERT_TRUE(scratch != NULL);
    ASSERT_EQ(n_given_back, 3);
    ASSERT_EQ(b.held[KN_MEM_DEVICE], 10 * PAGE);
    ASSERT_TRUE(!blocks_alloc(&b, KN_MEM_DEVICE, 1));
    ASSERT_TRUE(!blocks_alloc(&b, KN_MEM_DEVICE, SIZE_MAX));
    blocks_drop(&b, scratch, KN_MEM_DEVICE, 9 * PAGE);
    ASSERT_EQ(b.held[KN_MEM_DEVICE], PAGE);
    blocks_free(&b, used);
    blocks_fini(&b);
    ASSERT_EQ(left, 10 * PAGE);
}

TEST(without_room_to_note_a_block_there_is_none)
{
    struct blocks b;
    open_blocks(&b, 10);
    mem_fail_nth(1);
    ASSERT_TRUE(!blocks_alloc(&b, KN_MEM_DEVICE, PAGE));
    ASSERT_TRUE(mem_fail_fired());
    mem_fail_nth(0);
    ASSERT_EQ(b.held[KN_MEM_DEVICE], 0);
    ASSERT_EQ(left, 10 * PAGE);
    blocks_fini(&b);
}
