/* kvblend-bench start: what opening a model's file costs beside reading it.
 *
 * Every round reads the file (of a folder, model.safetensors) piece by piece, then as a whole into
 * new memory by two threads, and starts a process that opens it, packs its weights and runs the
 * self-test: first with the file out of the system's cache (posix_fadvise), then with it in there.
 * A process of its own, so that its memory is the model's: what is resident at the end, and the
 * most that ever was. The cache's clean pages can be had back any time; pages of the file that are
 * mapped are counted as the process's.
 *
 * Reading into memory is the least that a program can do which keeps the model. It goes first, and
 * once more, uncounted, before: a virtual machine's host may take back what a process freed, and
 * finding it anew can take longer than all else. */
#include "tools/bench/child.h"
#include "tools/bench/device.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/keyfile.h"
#include "base/mem.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COLD, WARM, STATES };
enum { PIECE = 1 << 20, REPS_MAX = 1000, COPIERS = 2 };

/* What the child says of itself: seconds; bytes. */
struct started {
    double open_s, test_s, own, file, most;
};
struct start;
typedef int (*child_fn)(const struct start *s, struct started *ret, struct err *err);
struct start {
    const char *path, *file; /* the model; what it is read from */
    const struct opts *opts;
    size_t n; /* rounds that are done */
    struct {
        double read_s[REPS_MAX], copy_s[REPS_MAX], open_s[REPS_MAX], share[REPS_MAX],
            test_s[REPS_MAX];
        struct started last;
    } of[STATES];
};

static double now_s(void)
{
    return (double)clock_ns() * 1e-9;
}

/* A line of /proc/self/status in bytes; 0: there is none. */
static double status_bytes(const char *name)
{
    char line[128];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0) kib = strtod(line + strlen(name), NULL);
    if (f) (void)fclose(f);
    return kib * 1024;
}

static int open_once(const struct start *s, struct started *ret, struct err *err)
{
    struct fus_core_opts o = {.dev = bench_device_opts(s->opts),
                              .ctx_max = (unsigned)opt_int(s->opts, "ctx")};
    char kept[KEYFILE_PATH_MAX]; /* as a worker does: what a first start measured */
    struct model *m = NULL;
    struct fus_core *c = NULL;
    const double t0 = now_s();
    int r = model_open(s->path, &m, err);
    if (r < 0) return r;
    o.dev.allow_bf16 = model_config(m)->file_bf16_or_less;
    o.dev.cache_dir = keyfile_dir("/kvblend", kept);
    r = fus_core_create(m, &o, &c, err);
    ret->open_s = now_s() - t0;
    ret->own = status_bytes("RssAnon:");
    ret->file = status_bytes("RssFile:");
    ret->most = status_bytes("VmHWM:");
    if (r == 0) r = fus_core_self_test(c, err);
    ret->test_s = now_s() - t0 - ret->open_s;
    fus_core_destroy(c);
    model_close(m);
    return r;
}

struct copy {
    int fd;
    char *to;
    size_t size_bytes;
    atomic_size_t at;
    atomic_bool failed;
};

static void *copy_pieces(void *arg)
{
    enum { LARGE_PAGE = 2 << 20 };
    struct copy *c = arg;
    for (size_t at; (at = atomic_fetch_add(&c->at, LARGE_PAGE)) < c->size_bytes;) {
        const size_t left = c->size_bytes - at, want = left < LARGE_PAGE ? left : LARGE_PAGE;
        for (size_t got = 0; got < want;) {
            const ssize_t n = pread(c->fd, c->to + at + got, want - got, (off_t)(at + got));
            if (n <= 0) {
                atomic_store(&c->failed, true);
                return NULL;
            }
            got += (size_t)n;
        }
    }
    return NULL;
}

/* The whole file into new memory on large pages; open_s is what it took. */
static int copy_once(const struct start *s, struct started *ret, struct err *err)
{
    struct stat st;
    struct copy c = {.fd = open(s->file, O_RDONLY | O_CLOEXEC), .to = MAP_FAILED};
    pthread_t thread[COPIERS];
    size_t n = 0;
    const double t0 = now_s();
    if (c.fd >= 0 && fstat(c.fd, &st) == 0) {
        c.size_bytes = (size_t)st.st_size;
        c.to = mmap(NULL, c.size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (c.to == MAP_FAILED) return err_set(err, -EIO, "%s: cannot be read at once", s->file);
    (void)madvise(c.to, c.size_bytes, MADV_HUGEPAGE);
    while (n < COPIERS && pthread_create(&thread[n], NULL, copy_pieces, &c) == 0)
        n++;
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(thread[i], NULL);
    ret->open_s = now_s() - t0;
    (void)munmap(c.to, c.size_bytes);
    (void)close(c.fd);
    if (n == 0 || c.failed) return err_set(err, -EIO, "%s: cannot be read at once", s->file);
    return 0;
}

static int in_child(const struct start *s, child_fn fn, struct started *ret, struct err *err)
{
    int way[2], status = 0;
    if (pipe2(way, O_CLOEXEC) < 0) return -errno;
    const pid_t pid = child_fork(-1);
    if (pid == 0) {
        struct err e = {0};
        const int r = fn(s, ret, &e);
        if (r < 0) (void)fprintf(stderr, "kvblend-bench: %s\n", e.msg);
        _exit(r == 0 && write(way[1], ret, sizeof *ret) == (ssize_t)sizeof *ret ? 0 : 1);
    }
    (void)close(way[1]);
    const bool whole = pid > 0 && read(way[0], ret, sizeof *ret) == (ssize_t)sizeof *ret;
    (void)close(way[0]);
    if (pid > 0) (void)waitpid(pid, &status, 0);
    return whole && status == 0 ? 0 : err_set(err, -EIO, "the model could not be read or started");
}

static void evict(const struct start *s)
{
    const int fd = open(s->file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)close(fd);
}

/* From one end to the other. */
static int read_file(const struct start *s, double *ret_s, struct err *err)
{
    const int fd = open(s->file, O_RDONLY | O_CLOEXEC);
    char *piece = mem_alloc(PIECE);
    ssize_t n = fd < 0 || !piece ? -1 : 1;
    const double t0 = now_s();
    while (n > 0)
        n = read(fd, piece, PIECE);
    *ret_s = now_s() - t0;
    mem_free(piece);
    if (fd >= 0) (void)close(fd);
    return n == 0 ? 0 : err_set(err, -EIO, "%s: cannot be read", s->file);
}

static int one_round(struct start *s, struct err *err)
{
    struct started copied = {0};
    int r = 0;
    for (int i = 0; r == 0 && i < STATES; i++) {
        if (i == COLD) evict(s);
        r = read_file(s, &s->of[i].read_s[s->n], err);
        if (r == 0) r = in_child(s, copy_once, &copied, err);
        if (i == COLD) evict(s);
        if (r == 0) r = in_child(s, copy_once, &copied, err);
        if (i == COLD) evict(s);
        if (r == 0) r = in_child(s, open_once, &s->of[i].last, err);
        s->of[i].copy_s[s->n] = copied.open_s;
        s->of[i].open_s[s->n] = s->of[i].last.open_s;
        s->of[i].test_s[s->n] = s->of[i].last.test_s;
        s->of[i].share[s->n] = s->of[i].last.open_s / copied.open_s;
    }
    return r;
}

static const struct bench_column columns[] = {
    {"file is", "state", -8, 0},     {"read s", "read_s", 8, 2},
    {"copy s", "copy_s", 8, 2},      {"open s", "open_s", 8, 2},
    {"of copy", "open_share", 8, 2}, {"test s", "test_s", 8, 2},
    {"own MiB", "own_mib", 9, 0},    {"file MiB", "file_mib", 9, 0},
    {"most MiB", "most_mib", 9, 0},  {0}};

static void report_start(struct start *s, json_t *rows)
{
    static const char *const names[] = {"cold", "cached"};
    const double MiB = 1 << 20;
    bench_print_head(columns);
    for (int i = 0; i < STATES; i++) {
        const struct started *last = &s->of[i].last;
        json_t *row =
            json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "state", names[i], "read_s",
                      bench_quantile(s->of[i].read_s, s->n, 0.5), "copy_s",
                      bench_quantile(s->of[i].copy_s, s->n, 0.5), "open_s",
                      bench_quantile(s->of[i].open_s, s->n, 0.5), "open_share",
                      bench_quantile(s->of[i].share, s->n, 0.5), "test_s",
                      bench_quantile(s->of[i].test_s, s->n, 0.5), "own_mib", last->own / MiB,
                      "file_mib", last->file / MiB, "most_mib", last->most / MiB);
        json_array_append_new(rows, row);
        bench_print_row(columns, row);
    }
}

static int run_start(const struct opts *opts, struct err *err)
{
    struct start *s = mem_zalloc(sizeof *s);
    struct buf in_folder = BUF_INIT;
    struct stat st;
    json_t *meta = bench_meta(), *rows = json_array();
    const char *path = opt_given(opts, "model") ? opt_str(opts, "model") : "";
    const size_t reps = (size_t)opt_int(opts, "reps");
    const char *file = path;
    int r = s ? 0 : -ENOMEM;
    if (r == 0 && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        r = buf_addf(&in_folder, "%s/model.safetensors", path);
        file = r == 0 ? buf_cstr(&in_folder) : path;
    }
    if (r == 0 && (stat(file, &st) < 0 || !S_ISREG(st.st_mode)))
        r = err_set(err, -EINVAL, "--model has to be a file, or a folder with model.safetensors");
    if (r == 0) {
        s->path = path;
        s->file = file;
        s->opts = opts;
    }
    bench_stop_watch();
    for (; r == 0 && s->n < reps && !bench_stopped(); s->n += r == 0) {
        r = one_round(s, err);
        bench_progress("round", s->n + 1, reps);
    }
    if (r == 0) {
        report_start(s, rows);
        json_object_set_new(meta, "file_bytes", json_integer((json_int_t)st.st_size));
        r = bench_write_json(opts, meta, rows, err);
    }
    json_decref(meta);
    json_decref(rows);
    buf_fini(&in_folder);
    mem_free(s);
    return r;
}

const struct bench_sub bench_start = {.name = "start",
                                      .about =
                                          "opening a model's file beside reading it: time, memory",
                                      .shared = BENCH_DEVICE_OPTIONS "model ctx reps",
                                      .run = run_start};
