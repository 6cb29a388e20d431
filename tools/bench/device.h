/* device: what the parts of `kvblend-bench kernels` share: a device and a model's shape by the
 * options, memory of random values, an operation that is repeated until it can be timed, and the
 * report.
 *
 * Life cycle: bench_device_open(), or _create() where its copies are not measured →
 * bench_device_random(), bench_device_time() → kn_mem_free() → bench_device_close().
 * Thread: main. */
#ifndef TOOLS_BENCH_DEVICE_H
#define TOOLS_BENCH_DEVICE_H

#include "base/err.h"
#include "base/opt.h"
#include "fusor/model/model.h"
#include "kernels/kn.h"

#include <jansson.h>

struct bench_device {
    struct kn_dev *dev;
    struct model_cfg cfg; /* of --shape */
    enum kn_weights weights;
    size_t reps;
    bool emulated; /* hostcuda: everything small, whose times say nothing */
    /* 0: not measured */
    double copy_gbps;   /* read and written, of the device's memory */
    double gemm_gflops; /* the best of this run */
};
int bench_device_create(const struct opts *opts, unsigned gpu_tune_ms, struct bench_device *ret,
                        struct err *err); /* gpu_tune_ms: what a GPU's tuning may take, about */
int bench_device_open(const struct opts *opts, struct bench_device *ret, struct err *err);
void bench_device_close(struct bench_device *b);
json_t *bench_device_meta(const struct bench_device *b); /* with what was measured by then */

float *bench_noise(size_t n, uint64_t seed); /* -1 … 1, in the host's memory: mem_free(); or NULL */
/* n values in the device's memory, `from` the host's unless it is NULL; NULL: no memory. */
float *bench_device_floats(const struct bench_device *b, enum kn_mem kind, const float *from,
                           size_t n);
float *bench_device_random(const struct bench_device *b, enum kn_mem kind, size_t n);
struct kn_mat *bench_device_mat(const struct bench_device *b, size_t n, size_t k, uint64_t seed);
size_t bench_operand_bytes(const struct bench_device *b); /* of one value that products read */

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
/* All rows, several times in one run; what each of them took. */
int bench_device_run(const struct bench_device *b, const struct bench_work *w, unsigned times,
                     double *ret_us);
/* All rows, --reps times. On a device of its own the operation is repeated in a run, so that the
 * way there does not count. */
int bench_device_time(const struct bench_device *b, const struct bench_work *w,
                      struct bench_time *ret);

/* The end of a part: writes the report, or says that measuring failed (r < 0), and closes the
 * device. rows and more (of meta; may be NULL) are taken over. Returns r or what writing gave. */
int bench_device_end(const struct opts *opts, struct bench_device *b, json_t *rows, json_t *more,
                     int r, struct err *err);

/* Row counts of --at-rows; -EINVAL with a sentence. */
enum { BENCH_ROWS_MAX = 32 };
int bench_at_rows(const struct opts *opts, size_t ret[BENCH_ROWS_MAX], struct err *err);

#endif
