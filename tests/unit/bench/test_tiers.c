/* What kvblend-bench measures tiers with, and tiny runs of the program itself ($KVBLEND_BENCH). */
#include "tests/test.h"
#include "tools/bench/places.h"
#include "tools/bench/tiers_set.h"

#include <jansson.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct tier_ident ident = {.dtype = KN_F16, .L = 4, .G = 2, .K = 64, .sink_token = 1};
static const struct opt_def defs[] = {
    {.name = "nvme", .type = OPT_STR}, {.name = "redis", .type = OPT_STR}, {0}};
enum { RECORDS = BENCH_INFLIGHT, TOKENS = 700 };

static void make(struct bench_set *s)
{
    ASSERT_OK(bench_set_create(&ident, TOKENS, 0, NULL, s));
    ASSERT_EQ(s->n, RECORDS);
    ASSERT_EQ(s->bytes, RECORDS * s->layout.record_bytes);
}

TEST(a_set_verifies_what_arrived_and_nothing_else)
{
    struct bench_set s;
    struct bench_way *copy;
    struct bench_cost cost;
    make(&s);
    ASSERT_ERR(bench_set_same(&s, true), -EBADMSG); /* nothing has */
    ASSERT_ERR(bench_set_same(&s, false), -EBADMSG);
    ASSERT_OK(bench_way_memcpy(&s, &copy));
    ASSERT_OK(bench_way_run(copy, true, &cost));
    ASSERT_OK(bench_set_same(&s, true));
    s.dst[0] ^= 4; /* a header */
    ASSERT_ERR(bench_set_same(&s, true), -EBADMSG);
    ASSERT_OK(bench_set_same(&s, false));
    s.dst[s.bytes - s.layout.group_stride / 2] ^= 4;
    ASSERT_ERR(bench_set_same(&s, false), -EBADMSG);
    ASSERT_OK(bench_way_run(copy, true, &cost));
    memcpy(s.dst, s.src + s.layout.record_bytes, s.layout.record_bytes); /* sound, another's */
    ASSERT_ERR(bench_set_same(&s, true), -EBADMSG);
    ASSERT_ERR(bench_set_same(&s, false), -EBADMSG);
    bench_way_destroy(copy);
    bench_set_fini(&s);
}

/* What was written comes back, also one by one, in order of time; what was not does not. */
static void through(struct bench_set *s, struct bench_way *w)
{
    struct bench_cost cost;
    struct bench_load load;
    ASSERT_OK(bench_way_run(w, true, &cost));
    ASSERT_OK(bench_way_run(w, false, &cost));
    ASSERT_TRUE(cost.wall_s > 0);
    for (size_t i = 0; i < s->n; i++) {
        ASSERT_OK(bench_way_load(w, i, &load));
        ASSERT_TRUE(load.begin_ns < load.first_ns);
        ASSERT_TRUE(load.first_ns <= load.all_ns);
        ASSERT_TRUE(load.all_ns <= load.verified_ns);
    }
    ASSERT_OK(bench_set_same(s, false));
    s->key[1].lo ^= 1; /* not there */
    ASSERT_TRUE(bench_way_run(w, false, &cost) < 0);
    ASSERT_TRUE(bench_way_load(w, 1, &load) < 0);
    bench_way_destroy(w);
}

static struct opts *no_options(void)
{
    struct opts *o;
    ASSERT_OK(opts_create(defs, &o));
    return o;
}

static void one_place(const char *name, const char *secret)
{
    struct places p;
    struct bench_set s;
    struct bench_way *w;
    struct tier *t;
    struct err err = {0};
    struct opts *o = no_options();
    struct stat st;
    char dir[CHILD_PATH_MAX];
    ASSERT_OK(bench_set_create(&ident, TOKENS, 0, secret, &s));
    places_init(&p, o);
    int r = place_open(&p, name, 64 << 20, s.layout.record_bytes, &t, &err);
    if (r == 0) MISSING(p.note);
    ASSERT_EQ(r, 1);
    ASSERT_OK(bench_way_tier(&s, t, &w));
    through(&s, w);
    (void)snprintf(dir, sizeof dir, "%s", p.dir);
    places_fini(&p);
    if (dir[0]) ASSERT_TRUE(stat(dir, &st) < 0); /* nothing is left behind */
    (void)snprintf(dir, sizeof dir, "kvblend-bench-%d.nvme", (int)getpid());
    ASSERT_TRUE(stat(dir, &st) < 0);
    bench_set_fini(&s);
    opts_destroy(o);
}

TEST(moves_through_ram)
{
    struct bench_set s;
    struct bench_way *w;
    struct err err = {0};
    make(&s);
    ASSERT_OK(bench_way_ram(&s, &w, &err));
    through(&s, w);
    bench_set_fini(&s);
}

TEST(moves_through_gpu_memory)
{
    one_place("gpu", NULL);
}

TEST(moves_through_nvme)
{
    one_place("nvme", "a secret");
}

TEST(moves_through_redis)
{
    one_place("redis", NULL);
}

TEST(moves_through_redis_at_a_unix_socket)
{
    one_place("redis-unix", NULL);
}

TEST(file_reference_moves_the_same_bytes)
{
    struct places p;
    struct bench_set s;
    struct bench_way *w = NULL;
    struct bench_cost cost;
    struct err err = {0};
    struct opts *o = no_options();
    make(&s);
    places_init(&p, o);
    int r = place_reference(&p, "nvme", &s, &w, &err);
    if (r == -ENOTSUP) {
        bench_set_fini(&s);
        opts_destroy(o);
        SKIP(err.msg);
    }
    ASSERT_OK(r);
    ASSERT_OK(bench_way_run(w, true, &cost));
    ASSERT_OK(bench_way_run(w, false, &cost));
    s.src[BENCH_OP_BYTES] ^= 1;
    ASSERT_ERR(bench_way_run(w, false, &cost), -EBADMSG);
    bench_way_destroy(w);
    places_fini(&p);
    bench_set_fini(&s);
    opts_destroy(o);
}

TEST(hiredis_reference_knows_wrong_bytes)
{
    static const char *const name[] = {"redis", "redis-unix"};
    struct places p;
    struct bench_set s;
    struct tier *t;
    struct bench_way *w;
    struct bench_cost cost;
    struct err err = {0};
    struct opts *o = no_options();
    places_init(&p, o);
    int r = place_open(&p, "redis", 0, 0, &t, &err);
    if (r == 0) MISSING(p.note);
    ASSERT_EQ(r, 1);
    make(&s);
    for (size_t i = 0; i < 2; i++) {
        ASSERT_OK(place_reference(&p, name[i], &s, &w, &err));
        ASSERT_OK(bench_way_run(w, true, &cost));
        ASSERT_OK(bench_way_run(w, false, &cost));
        s.src[BENCH_OP_BYTES] ^= 1;
        ASSERT_ERR(bench_way_run(w, false, &cost), -EBADMSG);
        s.src[BENCH_OP_BYTES] ^= 1;
        bench_way_destroy(w);
    }
    t->ops->destroy(t);
    places_fini(&p);
    bench_set_fini(&s);
    opts_destroy(o);
}

/* ---- the program ---- */

/* Its report; the caller decrefs. */
static json_t *run(const char *args, ...) __attribute__((sentinel));
static json_t *run(const char *args, ...)
{
    const char *program = getenv("KVBLEND_BENCH");
    char *argv[48] = {(char *)program};
    char json[64] = "/tmp/kvblend-test-XXXXXX";
    size_t n = 1;
    va_list ap;
    if (!program) MISSING("KVBLEND_BENCH names no program");
    int fd = mkstemp(json), status = -1;
    ASSERT_TRUE(fd >= 0);
    (void)close(fd);
    va_start(ap, args);
    for (const char *a = args; a && n < 44; a = va_arg(ap, const char *))
        argv[n++] = (char *)a;
    va_end(ap);
    argv[n++] = "--json";
    argv[n++] = json;
    pid_t pid = fork();
    ASSERT_TRUE(pid >= 0);
    if (pid == 0) {
        (void)execv(program, argv);
        _exit(127);
    }
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    json_t *j = json_load_file(json, 0, NULL);
    (void)unlink(json);
    ASSERT_EQ(status, 0);
    ASSERT_TRUE(j != NULL);
    return j;
}

static double number(const json_t *row, const char *field)
{
    const json_t *v = json_object_get(row, field);
    if (!json_is_number(v)) test_fail(__FILE__, __LINE__, "%s is no number", field);
    return json_number_value(v);
}

TEST(tiers_reports_every_tier_and_direction)
{
    json_t *all = run("tiers", "--chunk-tokens", "64", "--ram", "4MiB", "--seconds", "0", NULL);
    json_t *rows = json_object_get(all, "rows"), *row;
    size_t i, n_slow = 0;
    ASSERT_TRUE(json_is_object(json_object_get(all, "meta")));
    json_array_foreach(rows, i, row) {
        const char *tier = json_string_value(json_object_get(row, "tier"));
        bool ram = strcmp(tier, "ram") == 0, gpu = strcmp(tier, "gpu") == 0;
        const char *direction = json_string_value(json_object_get(row, "direction"));
        ASSERT_STREQ(direction, i % 2 ? "write" : "read");
        ASSERT_TRUE(number(row, "gbps") > 0);
        ASSERT_TRUE(number(row, "cpu_s_per_gb") >= 0);
        ASSERT_TRUE(number(row, "share_of_memcpy") > 0);
        if (i % 2 == 0) ASSERT_TRUE(number(row, "first_group_share") > 0);
        if (i % 2 == 0) ASSERT_TRUE(number(row, "checksum_share") >= 0);
        ASSERT_TRUE(json_object_get(row, "share_of_reference") != NULL);
        if (ram || gpu) continue;
        ASSERT_TRUE(number(row, "reference_gbps") > 0);
        ASSERT_TRUE(number(row, "share_of_reference") > 0);
        n_slow++;
    }
    ASSERT_TRUE(json_array_size(rows) >= 6); /* ram, gpu, nvme; redis where there is a server */
    ASSERT_TRUE(n_slow >= 2);
    json_decref(all);
}

TEST(ttft_names_the_tier_of_each_row)
{
    char model[512];
    (void)snprintf(model, sizeof model, "%s", test_data("models/smollm2.F32.gguf"));
    json_t *all =
        run("ttft", "--model", model, "--tiers", "ram,nvme", "--chunks", "3", "--chunk-tokens",
            "32", "--query-tokens", "6", "--reps", "2", "--no-gate", NULL);
    json_t *rows = json_object_get(all, "rows"), *row;
    size_t i, n_nvme = 0;
    ASSERT_EQ(json_array_size(rows), 5); /* full, and two methods from two tiers */
    json_array_foreach(rows, i, row) {
        ASSERT_TRUE(number(row, "ttft_ms_median") > 0);
        n_nvme += strcmp(json_string_value(json_object_get(row, "tier")), "nvme") == 0;
        if (i > 0) (void)number(row, "share_from_tier"); /* a tiny chunk may not be worth loading */
    }
    ASSERT_STREQ(json_string_value(json_object_get(json_array_get(rows, 0), "tier")), "none");
    ASSERT_EQ(n_nvme, 2);
    json_decref(all);
}
