/* What the benches of single operations stand on: row counts, random data, repeated operations. */
#include "tests/test.h"
#include "tools/bench/device.h"
#include "tools/bench/figures.h"

/* The program's own, which come with all of it. */
json_t *bench_meta(void)
{
    return json_object();
}

static json_t *written; /* the report's meta */

int bench_write_json(const struct opts *opts, json_t *meta, json_t *rows, struct err *err)
{
    written = json_incref(meta);
    return 0;
}

TEST(lists_of_numbers_are_whole_or_refused)
{
    static const char *const bad[] = {"", "0", "1,", "1,,2", "a", "1;2", "-1", "1048577", "1.5"};
    double v[3] = {7, 7, 7};
    ASSERT_EQ(bench_numbers("3104", true, 1 << 20, v, 3), 1);
    ASSERT_TRUE(v[0] == 3104);
    ASSERT_EQ(bench_numbers("1,16,1048576", true, 1 << 20, v, 3), 3);
    ASSERT_TRUE(v[0] == 1 && v[2] == 1 << 20);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (bench_numbers(bad[i], true, 1 << 20, v, 3) != -EINVAL)
            test_fail(__FILE__, __LINE__, "\"%s\" was taken", bad[i]);
    ASSERT_ERR(bench_numbers("1,2,3,4", true, 9, v, 3), -EINVAL);
    ASSERT_TRUE(v[0] == 1 && v[2] == 1 << 20); /* untouched */
    ASSERT_EQ(bench_numbers("0.5,20", false, 100, v, 3), 2);
}

static int count_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    atomic_fetch_add((atomic_size_t *)arg, n);
    return 0;
}

static int fail_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    return -EIO;
}

static int try_device(struct bench_device *b, const struct opts *opts, struct err *err)
{
    struct bench_time t;
    atomic_size_t rows = 0;
    const struct bench_work good = {100, count_rows, &rows, BENCH_BY_SIZE},
                            bad = {100, fail_rows, NULL, BENCH_UNEVEN};
    ASSERT_TRUE(b->copy_gbps > 0 && b->gemm_gflops == 0 && !b->emulated);
    ASSERT_EQ(b->cfg.L, 1);
    ASSERT_EQ(bench_operand_bytes(b), sizeof(float));
    ASSERT_OK(bench_time(b, &good, 0, &t));
    ASSERT_EQ(rows, 100 * (2 + 4)); /* two to warm up; once a run where memory is the host's */
    ASSERT_TRUE(t.us > 0 && t.us_lo > 0 && t.us_hi > 0);
    ASSERT_OK(bench_time(b, &good, 3, &t));
    ASSERT_EQ(rows, 100 * (2 + 4) * (1 + 3));
    ASSERT_ERR(bench_time(b, &bad, 0, &t), -EIO);
    const float *x = bench_take_floats(b, 1000, 0, 1), *ones = bench_take_floats(b, 1000, 1, 0);
    float sum = 0;
    ASSERT_TRUE(x && ones);
    for (size_t i = 0; i < 1000; i++) {
        ASSERT_TRUE(x[i] != 0 && fabsf(x[i]) <= 1);
        ASSERT_TRUE(ones[i] == 1);
        sum += x[i];
    }
    ASSERT_TRUE(fabsf(sum) < 100); /* 5 standard deviations */
    struct kn_mat *w = bench_take_mat(b, 33, 40);
    ASSERT_TRUE(w && kn_mat_bytes(w) >= 33 * 40 * sizeof(float));
    return b->status;
}

TEST(operations_are_repeated_and_data_are_no_zeros)
{
    static const struct opt_def defs[] = {{"shape", OPT_STR, "smollm2:layers=1", 0, 0, NULL, ""},
                                          {"device", OPT_STR, "cpu", 0, 0, NULL, ""},
                                          {"threads", OPT_INT, "1", 0, 8, NULL, ""},
                                          {"isa", OPT_STR, "auto", 0, 0, NULL, ""},
                                          {"gemm", OPT_STR, "own-f32", 0, 0, NULL, ""},
                                          {"dtype", OPT_STR, "f32", 0, 0, NULL, ""},
                                          {"weights", OPT_STR, "auto", 0, 0, NULL, ""},
                                          {"kv-pages-dtype", OPT_STR, "auto", 0, 0, NULL, ""},
                                          {"reps", OPT_INT, "4", 1, 8, NULL, ""},
                                          {0}};
    struct opts *o;
    struct err e = {0};
    ASSERT_OK(opts_create(defs, &o));
    const struct bench_sub sub = {.name = "try", .run_device = try_device};
    if (bench_on_device(o, &sub, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    const json_t *ceilings = json_object_get(written, "ceilings");
    ASSERT_TRUE(json_number_value(json_object_get(ceilings, "copy_gbps")) > 0);
    json_decref(written);
    opts_destroy(o);
}
