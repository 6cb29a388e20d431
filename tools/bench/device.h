/* device: what the modes of `kvblend-bench kernels` share: a device and a model's shape by the
 * options, data in its memory, an operation that is repeated until it can be timed, and the report.
 *
 * bench_on_device() opens, calls the mode, writes the report and closes; all that was taken goes
 * with the device. Thread: main. */
#ifndef TOOLS_BENCH_DEVICE_H
#define TOOLS_BENCH_DEVICE_H

#include "kernels/kn.h"
#include "tools/bench/bench.h"

#include <jansson.h>

enum { BENCH_MEMORY_MAX = 32, BENCH_MATS_MAX = 320, BENCH_WEIGHTS = 5, BENCH_ROWS_MAX = 32 };
struct bench_device {
    struct kn_dev *dev;
    struct model_cfg cfg;                  /* of --shape */
    struct kn_shape weight[BENCH_WEIGHTS]; /* of a layer: kv, q, o, gate_up, down */
    enum kn_weights weights;
    size_t reps;
    bool emulated;       /* hostcuda: everything small, whose times say nothing */
    double copy_gbps;    /* read and written, of the device's memory */
    double gemm_gflops;  /* the best of this run; 0: not measured */
    json_t *meta, *rows; /* the report */
    int status;          /* 0, or -ENOMEM: not all could be taken */
    void *memory[BENCH_MEMORY_MAX];
    struct kn_mat *mat[BENCH_MATS_MAX];
    size_t n_memory, n_mats;
};
int bench_on_device(const struct opts *opts, const struct bench_sub *sub, struct err *err);
void bench_device_close(struct bench_device *b); /* and all that was taken of it */
/* What the options say of a device; allow_bf16 where f32 is not asked for. */
struct kn_dev_opts bench_device_opts(const struct opts *opts);

/* ---- data: random, never zeros, products of which take less power ---- */
void *bench_take(struct bench_device *b, enum kn_mem kind, size_t bytes); /* NULL: see status */
/* n values of mean - spread … mean + spread in the device's memory. */
float *bench_take_floats(struct bench_device *b, size_t n, float mean, float spread);
struct kn_mat *bench_take_mat(struct bench_device *b, size_t n, size_t k);
/* Of codes of 4 bits (Q4_0). NULL: the device has its weights its own way, or see status. */
struct kn_mat *bench_take_codes(struct bench_device *b, size_t n, size_t k);
/* Pages for n tokens of each of some sequences, none of one next to each other; ret [n_seqs]. */
int bench_take_pages(struct bench_device *b, size_t n, size_t n_seqs, struct kn_kv *ret);
size_t bench_operand_bytes(const struct bench_device *b); /* of one value that products read */

/* ---- time ---- */
struct bench_work { /* an operation */
    size_t rows;
    kn_rows_fn fn;
    void *arg;
    enum {
        BENCH_BY_SIZE,
        BENCH_AT_ONCE,
        BENCH_UNEVEN
    } how; /* rows are cut; uneven: as a prefill */
};
struct bench_time {
    double us, us_lo, us_hi; /* of one operation: the median, the least, the most */
};
/* All rows, --reps times. times: how often in a run; 0: on a device of its own so often that the
 * way there does not count. */
int bench_time(const struct bench_device *b, const struct bench_work *w, unsigned times,
               struct bench_time *ret);

struct bench_rows {
    size_t m[BENCH_ROWS_MAX], n, most;
};
/* What --at-rows says; -EINVAL with a sentence. */
int bench_at_rows(const struct opts *opts, struct bench_rows *ret, struct err *err);

#endif
