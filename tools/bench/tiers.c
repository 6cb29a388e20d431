/* kvblend-bench tiers: what each tier moves, at which cost, next to plain loops over the same bytes
 * in the same run.
 *
 * Every round runs the tier, its reference and memcpy over one set of random records, the first two
 * in changing order; shares are medians of per-round ratios, so that a slow moment of the machine
 * hits both sides. Rates come from the whole set with several records under way, as the chunks of a
 * request; first_group_share and checksum_share from records loaded alone, with a reader that
 * checks each layer group as it arrives: how much of the load's time passes before the first layers
 * are there, and how much the checksums add to it. CPU is that of this process: all threads of the
 * tier, not the Redis server. */
#include "tools/bench/bench.h"
#include "tools/bench/figures.h"
#include "tools/bench/places.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

enum {
    ROUNDS_MIN = 5,
    ROUNDS_MAX = 512,
    LOADS_PER_ROUND = 8,
    WARM_UPS = 2, /* a tier that writes elsewhere each time has then been everywhere */
    SPARE_BYTES = 64 << 20
};

enum { OWN, REFERENCE, COPY, N_WAYS };
enum { GBPS, CPU, OF_MEMCPY, OF_REF, REF_GBPS, REF_CPU, CHECK, FIRST, N_FIGURES };
static const char *const keys[N_FIGURES] = {
    "gbps",           "cpu_s_per_gb",           "share_of_memcpy", "share_of_reference",
    "reference_gbps", "reference_cpu_s_per_gb", "checksum_share",  "first_group_share"};
static const struct bench_column columns[] = {{"tier", "tier", -6, 0},
                                              {"", "transport", -4, 0},
                                              {"dir", "direction", -6, 0},
                                              {"GB/s", "gbps", 8, 2},
                                              {"CPU s/GB", "cpu_s_per_gb", 9, 4},
                                              {"x memcpy", "share_of_memcpy", 9, 3},
                                              {"x reference", "share_of_reference", 12, 3},
                                              {"ref GB/s", "reference_gbps", 9, 2},
                                              {"ref CPU", "reference_cpu_s_per_gb", 9, 4},
                                              {"checksum", "checksum_share", 9, 4},
                                              {"1st group", "first_group_share", 9, 4},
                                              {0}};

struct row { /* of a direction */
    size_t n[N_FIGURES];
    double v[N_FIGURES][ROUNDS_MAX * LOADS_PER_ROUND];
};
struct lab {
    struct bench_set set;
    struct places places;
    json_t *meta, *rows, *notes;
    double seconds;
    struct bench_way *way[N_WAYS]; /* REFERENCE may be NULL */
    struct row row[2];             /* read, write */
};

static void add(struct row *w, int figure, double v)
{
    w->v[figure][w->n[figure]++] = v;
}

static void report(struct lab *lab, const char *name, bool write)
{
    struct row *w = &lab->row[write];
    const bool redis = strncmp(name, "redis", 5) == 0;
    json_t *j = json_pack("{s:s, s:s, s:I}", "tier", redis ? "redis" : name, "direction",
                          write ? "write" : "read", "rounds", (json_int_t)w->n[GBPS]);
    if (redis) json_object_set_new(j, "transport", json_string(name[5] ? "unix" : "tcp"));
    for (size_t f = 0; f < N_FIGURES; f++)
        json_object_set_new(j, keys[f], bench_number(bench_quantile(w->v[f], w->n[f], 0.5)));
    bench_print_row(columns, j);
    json_array_append_new(lab->rows, j);
}

/* ---- measuring ---- */

static int run_round(struct lab *lab, bool write, size_t round, bool counts)
{
    struct bench_cost cost[N_WAYS] = {0};
    const double gb = (double)lab->set.bytes / 1e9;
    struct row *w = &lab->row[write];
    int r = 0;
    for (unsigned turn = 0; turn < 2 && r == 0; turn++) {
        const size_t who = (round + turn) & 1;
        if (lab->way[who]) r = bench_way_run(lab->way[who], write, &cost[who]);
    }
    if (r == 0) r = bench_way_run(lab->way[COPY], true, &cost[COPY]);
    if (r < 0 || !counts) return r;
    add(w, GBPS, gb / cost[OWN].wall_s);
    add(w, CPU, cost[OWN].cpu_s / gb);
    add(w, OF_MEMCPY, cost[COPY].wall_s / cost[OWN].wall_s);
    if (!lab->way[REFERENCE]) return 0;
    add(w, OF_REF, cost[REFERENCE].wall_s / cost[OWN].wall_s);
    add(w, REF_GBPS, gb / cost[REFERENCE].wall_s);
    add(w, REF_CPU, cost[REFERENCE].cpu_s / gb);
    return 0;
}

static int run_loads(struct lab *lab, size_t round)
{
    struct bench_load load;
    for (size_t i = 0; i < LOADS_PER_ROUND; i++) {
        const size_t at = (round * LOADS_PER_ROUND + i) * 7 % lab->set.n;
        const int r = bench_way_load(lab->way[OWN], at, &load);
        if (r < 0) return r;
        const double all_ns = (double)(load.all_ns - load.begin_ns);
        add(&lab->row[0], FIRST, (double)(load.first_ns - load.begin_ns) / all_ns);
        add(&lab->row[0], CHECK, (double)(load.verified_ns - load.all_ns) / all_ns);
    }
    return 0;
}

static int run_rounds(struct lab *lab)
{
    uint64_t t0 = 0;
    int r = 0;
    memset(lab->row, 0, sizeof lab->row);
    for (size_t i = 0; r == 0 && i < ROUNDS_MAX; i++) {
        const bool counts = i >= WARM_UPS;
        if (i == WARM_UPS) t0 = clock_ns();
        if (i >= WARM_UPS + ROUNDS_MIN && clock_ms_since(t0) > 2e3 * lab->seconds) break;
        r = run_round(lab, true, i, counts);
        if (r == 0) r = run_round(lab, false, i, counts);
        if (r == 0 && counts) r = run_loads(lab, i);
    }
    return r;
}

/* 1, 0 there is no such tier here, <0. */
static int open_ways(struct lab *lab, const char *name, struct err *err)
{
    const uint64_t capacity = lab->set.bytes / 2 * 5 + SPARE_BYTES;
    struct err none = {0};
    struct tier *t;
    char key[32];
    int r = bench_way_memcpy(&lab->set, &lab->way[COPY]);
    if (r == 0 && strcmp(name, "ram") == 0) r = bench_way_ram(&lab->set, &lab->way[OWN], err);
    if (r < 0 || lab->way[OWN]) return r < 0 ? r : 1;
    r = place_open(&lab->places, name, capacity, lab->set.layout.record_bytes, &t, err);
    json_object_set_new(lab->notes, name, json_string(lab->places.note));
    if (r <= 0) return r;
    r = bench_way_tier(&lab->set, t, &lab->way[OWN]);
    if (r < 0) t->ops->destroy(t);
    if (r < 0) return r;
    if (place_reference(&lab->places, name, &lab->set, &lab->way[REFERENCE], &none) < 0) {
        (void)snprintf(key, sizeof key, "%s_reference", name);
        json_object_set_new(lab->notes, key, json_string(none.msg));
    }
    return 1;
}

static int measure_tier(struct lab *lab, const char *name, struct err *err)
{
    int r = open_ways(lab, name, err);
    if (r > 0) {
        r = run_rounds(lab);
        if (r < 0) (void)err_set(err, r, "%s: %s", name, err_name(r));
        for (int write = 0; write < 2 && r == 0; write++)
            report(lab, name, write);
    }
    for (size_t i = 0; i < N_WAYS; i++) {
        bench_way_destroy(lab->way[i]);
        lab->way[i] = NULL;
    }
    return r;
}

/* ---- the run ---- */

static int lab_open(struct lab *lab, const struct opts *opts, struct err *err)
{
    static const struct tier_ident smollm2 = {
        .model = {1, 1}, .dtype = KN_F16, .L = 30, .G = 3, .K = 64, .sink_token = 1};
    static const struct tier_ident of_7b = {
        .model = {1, 1}, .dtype = KN_BF16, .L = 32, .G = 8, .K = 128, .sink_token = 1};
    const char *geometry = opt_str(opts, "geometry");
    const uint64_t bytes = opt_given(opts, "ram") ? opt_size(opts, "ram") : 512u << 20;
    const char *secret = opt_given(opts, "secret") ? opt_str(opts, "secret") : NULL;
    places_init(&lab->places, opts);
    lab->seconds = opt_double(opts, "seconds");
    const int r =
        bench_set_create(strcmp(geometry, "7b") == 0 ? &of_7b : &smollm2,
                         (uint32_t)opt_int(opts, "chunk-tokens"), bytes, secret, &lab->set);
    if (r < 0) return err_set(err, r, "no memory for the records");
    lab->meta = bench_meta();
    lab->rows = json_array();
    lab->notes = json_object();
    json_t *own = json_pack("{s:s, s:I, s:I, s:I, s:I, s:O}", "geometry", geometry, "record_bytes",
                            (json_int_t)lab->set.layout.record_bytes, "part_bytes",
                            (json_int_t)record_part_bytes(&lab->set.layout, 1), "tokens",
                            (json_int_t)lab->set.n_tokens, "records", (json_int_t)lab->set.n,
                            "notes", lab->notes);
    json_object_update(lab->meta, own);
    json_decref(own);
    return 0;
}

static int measure_tiers(const struct opts *opts, struct err *err)
{
    struct lab *lab = mem_zalloc(sizeof *lab);
    char list[128], *rest = list, *name;
    if (!lab) return -ENOMEM;
    (void)snprintf(list, sizeof list, "%s",
                   opt_given(opts, "tiers") ? opt_str(opts, "tiers")
                                            : "ram,gpu,nvme,redis,redis-unix");
    int r = lab_open(lab, opts, err);
    if (r == 0) bench_print_head(columns);
    while (r >= 0 && (name = strtok_r(rest, ",", &rest)))
        r = measure_tier(lab, name, err);
    if (r >= 0) r = bench_write_json(opts, lab->meta, lab->rows, err);
    places_fini(&lab->places);
    bench_set_fini(&lab->set);
    json_decref(lab->meta);
    json_decref(lab->rows);
    json_decref(lab->notes);
    mem_free(lab);
    return r;
}

static const struct opt_def measure_tiers_options[] = {
    {"secret", OPT_STR, NULL, 0, 0, NULL,
     "records carry tags under that secret, and are checked by them"},
    {0}};

const struct bench_sub bench_tiers = {
    .name = "tiers",
    .about = "records read and written by tier, beside memcpy, io_uring and hiredis",
    .shared = "chunk-tokens ram tiers nvme redis geometry seconds",
    .options = measure_tiers_options,
    .run = measure_tiers};
