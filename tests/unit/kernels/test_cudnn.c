/* cuDNN itself, without a GPU: it is given what a GPU is as JSON, compiles its kernel for our graph
 * and makes a plan. What the emulation cannot know: whether the library takes the graph for
 * attention at all. Skipped where the library, or NVRTC, is not there. */
#include "tests/test.h"

#include "kernels/cuda/sdpa.c"

/* What sdpa.c does on a device, which no test here gets to. */
void cu_use(const struct cu *c)
{
}
struct gpu_stream *cu_stream(struct cu *c)
{
    return NULL;
}
int cu_gather_fits(const struct cu *c, const struct cu_attn *a, size_t n_keys)
{
    return 0;
}
int cu_gather_heads(struct cu *c, const struct cu_attn *a, size_t n_keys,
                    const struct cu_gathered *to)
{
    return -ENOTSUP;
}

struct gpu {
    unsigned arch, multiprocessors, shared_bytes;
};
static const struct gpu a100 = {80, 108, 166912}, h100 = {90, 132, 232448},
                        b200 = {100, 148, 232448};

static void describe(const struct gpu *g, char *ret, size_t size)
{
    snprintf(ret, size,
             "{\"deviceVer\":%u,\"multiProcessorCount\":%u,\"maxSharedMemoryPerBlockOptin\":%u,"
             "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
             "\"regsPerBlock\":65536,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
             "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
             "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
             "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
             "\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,"
             "\"deviceName\":\"a GPU\",\"totalGlobalMem\":80000000000,\"driverVer\":13000,"
             "\"cudaDeviceId\":0}",
             10 * g->arch, g->multiprocessors, g->shared_bytes);
}

/* The driver that a GPU would have is loaded before: the library asks for it by this name. */
static struct sdpa *open_for(const struct gpu *g, const struct sdpa_shape *shape)
{
    char like[1000];
    const char *driver = getenv("KVBLEND_TEST_DRIVER");
    struct sdpa *s = NULL;
    if (!dlopen("libnvrtc.so.13", RTLD_NOW) && !dlopen("libnvrtc.so.12", RTLD_NOW))
        SKIP("no NVRTC");
    if (!driver || !dlopen(driver, RTLD_NOW | RTLD_GLOBAL)) SKIP("no driver to stand in");
    describe(g, like, sizeof like);
    const int r = sdpa_open(NULL, getenv("KVBLEND_CUDNN"), like, shape, &s);
    if (r == -ENOTSUP) SKIP("no cuDNN of version 9.10.2 or later");
    ASSERT_OK(r);
    return s;
}

static void assert_plans(const struct gpu *g, struct sdpa_shape shape)
{
    struct sdpa *s = open_for(g, &shape);
    ASSERT_OK(sdpa_prepare(s, 4096));
    ASSERT_EQ(sdpa_plans(s), 1);
    ASSERT_TRUE(s->plan[0]->workspace < 1 << 20);
    sdpa_close(s);
}

TEST(it_makes_a_plan_of_the_graph_for_every_architecture)
{
    assert_plans(&h100, (struct sdpa_shape){32, 8, 128});
    assert_plans(&a100, (struct sdpa_shape){32, 8, 128});
    assert_plans(&b200, (struct sdpa_shape){32, 8, 128});
}

TEST(it_makes_a_plan_for_every_size_of_head)
{
    assert_plans(&h100, (struct sdpa_shape){16, 1, 64});
    assert_plans(&h100, (struct sdpa_shape){32, 32, 96});
    assert_plans(&h100, (struct sdpa_shape){8, 4, 256});
}

TEST(it_refuses_a_graph_that_is_no_attention)
{
    struct sdpa *s = open_for(&h100, &(struct sdpa_shape){32, 5, 128});
    ASSERT_EQ(sdpa_prepare(s, 4096), -ENOTSUP);
    ASSERT_EQ(sdpa_plans(s), 0);
    sdpa_close(s);
}
