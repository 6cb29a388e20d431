/* Each diagnosis speaks on a snapshot that provokes it, and only it; a healthy one is silent. */
#include "tests/test.h"

#include "base/buf.h"
#include "policy/doctor.h"

#include <math.h>

#define GIB (1ull << 30)

static struct pol_doc_tier a_tier(const char *name)
{
    return (struct pol_doc_tier){.name = name,
                                 .degraded = "",
                                 .capacity_bytes = 64 * GIB,
                                 .used_bytes = 10 * GIB,
                                 .bytes_per_s = 2e9,
                                 .first_ms = 0.5,
                                 .record_bytes = 64 << 20,
                                 .hits = 1000};
}

static struct pol_doc_worker healthy(void)
{
    return (struct pol_doc_worker){
        .model = "m.gguf",
        .ram_bytes = 16 * GIB,
        .ram_max_bytes = 64 * GIB,
        .machine_bytes = 256 * GIB,
        .look_ups = 10000,
        .n_points = 4,
        .point = {{4 * GIB, 0.4}, {8 * GIB, 0.7}, {16 * GIB, 0.88}, {32 * GIB, 0.9}},
        .ms_per_token = 1,
        .n_prompts = 500,
        .prompt_tokens = 500 * 3000,
        .head_tokens = 500 * 300,
        .head_found_tokens = 500 * 290,
        .chunks_known = 3000,
        .chunks_recut = 100,
        .blend_error = "",
        .guard_top = 4,
        .n_shadows = 300,
        .ratio = 0.15,
        .kl = 0.2,
        .kl_high = 0.3,
        .kl_limit = 0.5};
}

static struct pol_doctor d;

/* The one thing that is found, "" for none, or "several". */
static const char *found(const struct pol_doc_worker *s)
{
    pol_doctor_worker(s, &d);
    return d.n == 0 ? "" : d.n == 1 ? d.finding[0].id : "several";
}

#define ASSERT_SAYS(text, part)                                                                    \
    do {                                                                                           \
        if (!strstr((text), (part)))                                                               \
            test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", (text), (part));           \
    } while (0)

TEST(a_healthy_worker_has_nothing_to_hear)
{
    struct pol_doc_worker s = healthy();
    ASSERT_STREQ(found(&s), "");
    s.tier[s.n_tiers++] = a_tier("nvme");
    s.tier[s.n_tiers] = a_tier("redis");
    s.tier[s.n_tiers++].shared = true;
    ASSERT_STREQ(found(&s), "");
}

TEST(what_is_not_known_yet_says_nothing)
{
    struct pol_doc_worker s = {
        .model = "", .blend_error = "", .kl = NAN, .kl_high = NAN, .kl_limit = NAN};
    ASSERT_STREQ(found(&s), "");
    s.tier[s.n_tiers++] = (struct pol_doc_tier){.name = "redis", .degraded = "", .shared = true};
    ASSERT_STREQ(found(&s), "");
    s = healthy(); /* just started, with far too little RAM */
    s.ram_bytes = GIB;
    s.look_ups = 100;
    ASSERT_STREQ(found(&s), "");
}

TEST(ram_is_judged_by_the_curve)
{
    struct pol_doc_worker s = healthy();
    s.ram_bytes = 4 * GIB;
    ASSERT_STREQ(found(&s), "ram_small");
    ASSERT_SAYS(d.finding[0].what, "RAM of 4GiB finds 40 %");
    ASSERT_SAYS(d.finding[0].what,
                "16GiB would find 88 %"); /* nine tenths of what there is to gain */
    ASSERT_SAYS(d.finding[0].fix, "kvblendctl resize ram 16GiB");
    ASSERT_NEAR(d.finding[0].worth, 0.5, 1e-9);
    s.ram_max_bytes = 12 * GIB;
    ASSERT_STREQ(found(&s), "ram_small");
    ASSERT_SAYS(d.finding[0].fix, "--ram 16GiB, and start it anew");
    s.machine_bytes = 20 * GIB;
    ASSERT_STREQ(found(&s), "ram_small");
    ASSERT_SAYS(d.finding[0].fix, "--nvme PATH:16GiB");
    s.ram_bytes = 15 * GIB; /* between two points: nearly as good as the next */
    ASSERT_STREQ(found(&s), "");
    s.ram_bytes = GIB / 4; /* below the first point, and no whole GiB */
    ASSERT_STREQ(found(&s), "ram_small");
    ASSERT_SAYS(d.finding[0].what, "RAM of 256MiB finds 0 %");
}

TEST(the_tier_below_counts_as_room)
{
    struct pol_doc_worker s = healthy();
    s.ram_bytes = GIB;
    s.tier[s.n_tiers++] = a_tier("nvme");
    ASSERT_STREQ(found(&s), "");
    s.tier[0].capacity_bytes = 8 * GIB;
    ASSERT_STREQ(found(&s), "tier_small");
    ASSERT_SAYS(d.finding[0].fix, "kvblendctl resize nvme 16GiB");
    s.tier[0].on_device = true; /* a GPU's are copies of RAM's */
    ASSERT_STREQ(found(&s), "ram_small");
    s.tier[0].on_device = false;
    s.tier[s.n_tiers] = a_tier("redis");
    s.tier[s.n_tiers].shared = true;
    s.tier[s.n_tiers++].capacity_bytes = 0; /* without maxmemory: as much as it likes */
    ASSERT_STREQ(found(&s), "");
    s.tier[1].capacity_bytes = 12 * GIB;
    ASSERT_STREQ(found(&s), "tier_small");
    ASSERT_SAYS(d.finding[0].fix, "maxmemory 34359738368");
}

TEST(loads_slower_than_computing)
{
    struct pol_doc_worker s = healthy();
    s.tier[s.n_tiers++] = a_tier("nvme");
    s.tier[0].bytes_per_s = 1e8; /* 671 ms for what is computed in 512 */
    s.tier[0].misses_by_speed = 1000;
    ASSERT_STREQ(found(&s), "tier_slow");
    ASSERT_SAYS(d.finding[0].what, "nvme takes 671.6 ms for 512 tokens");
    ASSERT_SAYS(d.finding[0].what, "1000 of 2000 look-ups");
    ASSERT_SAYS(d.finding[0].fix, "a faster device");
    ASSERT_NEAR(d.finding[0].worth, 0.35, 1e-9);
    s.tier[0] = a_tier("redis");
    s.tier[0].shared = true;
    s.tier[0].first_ms = 600;
    ASSERT_STREQ(found(&s), "tier_slow");
    ASSERT_SAYS(d.finding[0].fix, "nearer by");
    s.tier[0].first_ms = 1;
    s.tier[0].bytes_per_s = 1e8;
    ASSERT_STREQ(found(&s), "tier_slow");
    ASSERT_SAYS(d.finding[0].fix, "faster network");
    s.tier[0].hits = 10; /* hardly asked */
    ASSERT_STREQ(found(&s), "");
}

TEST(tiers_that_refuse_or_work_otherwise_than_asked)
{
    static const struct {
        const char *degraded, *fix;
    } cases[] = {{"no io_uring (EPERM): thread pool", "io_uring_disabled=0"},
                 {"buffers not registered: needs ulimit -l 65536", "LimitMEMLOCK"},
                 {"no O_DIRECT: buffered", "ext4"},
                 {"a transfer hangs", "kvblendctl tiers"}};
    struct pol_doc_worker s = healthy();
    s.tier[s.n_tiers++] = a_tier("nvme");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.tier[0].degraded = cases[i].degraded;
        ASSERT_STREQ(found(&s), "tier_degraded");
        ASSERT_SAYS(d.finding[0].what, cases[i].degraded);
        ASSERT_SAYS(d.finding[0].fix, cases[i].fix);
    }
    s.tier[0].refuses = true;
    ASSERT_STREQ(found(&s), "tier_refuses");
    ASSERT_SAYS(d.finding[0].what, "a transfer hangs");
    s.tier[0].degraded = "";
    ASSERT_STREQ(found(&s), "tier_refuses");
    ASSERT_SAYS(d.finding[0].what, "does not answer");
}

TEST(a_redis_that_is_full)
{
    struct pol_doc_worker s = healthy();
    s.tier[s.n_tiers] = a_tier("redis");
    s.tier[s.n_tiers++].shared = true;
    s.tier[0].used_bytes = 59 * GIB;
    ASSERT_STREQ(found(&s), ""); /* as it should be, as long as nothing is put out */
    s.tier[0].evictions = 7;
    ASSERT_STREQ(found(&s), "redis_full");
    ASSERT_SAYS(d.finding[0].fix, "maxmemory 137438953472 (now 64GiB)");
    s.tier[0].used_bytes = 0;
    ASSERT_STREQ(found(&s), "");
    s.tier[0].refused_full = 3;
    ASSERT_STREQ(found(&s), "redis_full");
    s.tier[0].capacity_bytes = 0;
    ASSERT_STREQ(found(&s), "redis_full");
    ASSERT_STREQ(d.finding[0].fix, "another server beside it");
    s.tier[0].shared = false; /* NVMe evicts what is coldest: that is its work */
    ASSERT_STREQ(found(&s), "");
}

TEST(heads_that_change_and_cuts_that_move)
{
    struct pol_doc_worker s = healthy();
    s.head_found_tokens = 500 * 64;
    ASSERT_STREQ(found(&s), "head_volatile");
    ASSERT_SAYS(d.finding[0].what, "of 300 tokens a prompt 64 are found");
    ASSERT_NEAR(d.finding[0].worth, 236.0 / 3000, 1e-9);
    s.head_tokens = 500 * 20; /* hardly worth a word */
    s.head_found_tokens = 0;
    ASSERT_STREQ(found(&s), "");
    s = healthy();
    s.chunks_recut = 2000;
    ASSERT_STREQ(found(&s), "cuts_flip");
    ASSERT_SAYS(d.finding[0].what, "67 %");
    s.chunks_known = s.chunks_recut = 40;
    ASSERT_STREQ(found(&s), "");
}

TEST(quality_and_what_it_costs)
{
    struct pol_doc_worker s = healthy();
    s.guard_level = 2;
    ASSERT_STREQ(found(&s), "ratio_low");
    ASSERT_SAYS(d.finding[0].what, "level 2 of 4");
    ASSERT_SAYS(d.finding[0].fix, "calibrate --model m.gguf");
    s.guard_level = 4;
    ASSERT_STREQ(found(&s), "ratio_low");
    ASSERT_SAYS(d.finding[0].what, "switched blending off");
    s = healthy();
    s.kl_high = 0.1;
    ASSERT_STREQ(found(&s), "ratio_high");
    ASSERT_SAYS(d.finding[0].fix, "--ratio 0.075 instead of 0.15");
    s.n_shadows = 10;
    ASSERT_STREQ(found(&s), "");
    s = healthy();
    s.profile_missing = true;
    ASSERT_STREQ(found(&s), "profile_missing");
    s.blend_error = "layer 3 differs"; /* a profile would not help */
    ASSERT_STREQ(found(&s), "blend_off");
    ASSERT_SAYS(d.finding[0].what, "layer 3 differs");
    ASSERT_NEAR(d.finding[0].worth, 1, 0);
}

TEST(pages_of_the_system)
{
    struct pol_doc_worker s = healthy();
    s.huge_pages_off = true;
    ASSERT_STREQ(found(&s), "huge_pages_off");
    s.ram_bytes = GIB / 2; /* too little to matter */
    s.n_points = 0;
    ASSERT_STREQ(found(&s), "");
}

TEST(what_is_worth_most_comes_first_and_there_is_room_for_all)
{
    struct pol_doc_worker s = healthy();
    s.ram_bytes = 4 * GIB;
    s.head_found_tokens = 0;
    s.chunks_recut = 2900;
    s.huge_pages_off = s.profile_missing = true;
    s.guard_level = 1;
    for (; s.n_tiers < POL_DOC_TIERS; s.n_tiers++) {
        s.tier[s.n_tiers] = a_tier("redis");
        s.tier[s.n_tiers].shared = true;
        s.tier[s.n_tiers].capacity_bytes = 10 * GIB;
        s.tier[s.n_tiers].evictions = 1;
        s.tier[s.n_tiers].degraded = "late";
        s.tier[s.n_tiers].bytes_per_s = 1e6;
    }
    pol_doctor_worker(&s, &d);
    ASSERT_EQ(d.n, 6 + 3 * POL_DOC_TIERS);
    for (size_t i = 0; i < d.n; i++) {
        ASSERT_TRUE(d.finding[i].worth > 0 && d.finding[i].worth <= 1);
        ASSERT_TRUE(d.finding[i].what[0] && d.finding[i].fix[0]);
        if (i > 0) ASSERT_TRUE(d.finding[i].worth <= d.finding[i - 1].worth);
    }
}

static const char *gateway_found(const struct pol_doc_gateway *s)
{
    pol_doctor_gateway(s, &d);
    return d.n == 0 ? "" : d.n == 1 ? d.finding[0].id : "several";
}

TEST(gateways)
{
    const struct pol_doc_gateway good = {.n_keys = 2,
                                         .conns_max = 30000,
                                         .requests_max = 320,
                                         .n_workers = 1,
                                         .open_address = "0.0.0.0:80"};
    struct pol_doc_gateway s = good;
    ASSERT_STREQ(gateway_found(&s), "");
    s.n_keys = 0;
    ASSERT_STREQ(gateway_found(&s), "keys_open");
    ASSERT_SAYS(d.finding[0].what, "0.0.0.0:80");
    s.open_address = NULL;
    ASSERT_STREQ(gateway_found(&s), "");
    s = good;
    s.n_unlimited = 1;
    s.unlimited = "batch";
    ASSERT_STREQ(gateway_found(&s), "keys_unlimited");
    ASSERT_SAYS(d.finding[0].what, "1 of 2 API keys (batch");
    s.n_keys = 1; /* one client: nobody to protect from it */
    ASSERT_STREQ(gateway_found(&s), "");
    s = good;
    s.conns_max = 400;
    ASSERT_STREQ(gateway_found(&s), "file_limit");
    s.conns_max = 600;
    ASSERT_STREQ(gateway_found(&s), "");
    s.requests_max = 4000;
    ASSERT_STREQ(gateway_found(&s), "file_limit");
    ASSERT_SAYS(d.finding[0].what, "600 connections; 4000 requests");
    s = good;
    s.skewed = "http://b:8020";
    s.skew_s = -4;
    ASSERT_STREQ(gateway_found(&s), "");
    s.skew_s = -61;
    ASSERT_STREQ(gateway_found(&s), "clock_skew");
    ASSERT_SAYS(d.finding[0].what, "61 s behind");
    s = good;
    s.n_silent = 1;
    ASSERT_STREQ(gateway_found(&s), "worker_silent");
}

TEST(as_json)
{
    struct pol_doc_worker s = healthy();
    struct buf b = BUF_INIT;
    pol_doctor_worker(&s, &d);
    pol_doctor_put(&d, &b);
    ASSERT_STREQ(buf_cstr(&b), "[]");
    buf_clear(&b);
    s.blend_error = "a \"quote\"";
    s.huge_pages_off = true;
    pol_doctor_worker(&s, &d);
    pol_doctor_put(&d, &b);
    ASSERT_SAYS(buf_cstr(&b), "[{\"id\":\"blend_off\",\"worth\":1.000,\"what\":\"");
    ASSERT_SAYS(buf_cstr(&b), "a \\\"quote\\\"");
    ASSERT_SAYS(buf_cstr(&b), "},{\"id\":\"huge_pages_off\"");
    buf_fini(&b);
}
