/* kvblend-bench tiers: what each tier moves, at which cost, next to plain loops over the same bytes
 * in the same run.
 *
 * Every round runs memcpy, the reference and the tier over one set of random records, in changing
 * order; shares are medians of per-round ratios, so that a slow moment of the machine hits both
 * sides. Rates come from the whole set with `inflight` records under way, as the chunks of a
 * request; first_group_share and checksum_share from records loaded alone, with a reader that
 * checks each layer group as it arrives: how much of the load's time passes before the first layers
 * are there, and how much the checksums add to it. checksum_cpu_share is the same work done after
 * the load instead, as a share of it. Nothing counts that did not verify. CPU is that of this
 * process: all threads of the tier, not the Redis server. */
#include "tools/bench/bench.h"
#include "tools/bench/figures.h"
#include "tools/bench/places.h"
#include "tools/bench/tiers_ref.h"
#include "tools/bench/tiers_set.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tiers/store_admin.h"
#include "tiers/store_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ROUNDS_MIN = 5,
    ROUNDS_MAX = 512,
    LOADS_PER_ROUND = 8,
    LOADS_MAX = ROUNDS_MAX * LOADS_PER_ROUND,
    WARM_UPS = 2, /* a tier that writes elsewhere each time has then been everywhere */
    SEED = 1
};

struct series {
    size_t n;
    double v[LOADS_MAX];
};
/* A tier's direction and what it is compared with. */
struct row {
    struct series gbps, cpu, of_memcpy, of_ref, ref_gbps, ref_cpu, check, check_cpu, first, store;
};
struct reference {
    int (*move)(void *ctx, bool write, struct bench_cost *ret); /* reads into dst */
    int (*clear)(void *ctx);                                    /* may be NULL */
    void *ctx;
};
struct lab {
    const struct opts *opts;
    struct bench_set set;
    struct places places;
    json_t *meta, *rows, *notes;
    size_t inflight;
    double seconds;
    struct row row[2]; /* read, write */
};

static void add(struct series *s, double v)
{
    if (s->n < LOADS_MAX) s->v[s->n++] = v;
}

static double median(struct series *s)
{
    return s->n ? bench_quantile(s->v, s->n, 0.5) : NAN;
}

/* ---- report ---- */

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

static void report(struct lab *lab, const char *tier, const char *transport, bool write)
{
    struct row *w = &lab->row[write];
    const struct {
        const char *key;
        struct series *of;
    } field[] = {{"gbps", &w->gbps},
                 {"cpu_s_per_gb", &w->cpu},
                 {"share_of_memcpy", &w->of_memcpy},
                 {"share_of_reference", &w->of_ref},
                 {"checksum_share", &w->check},
                 {"first_group_share", &w->first},
                 {"reference_gbps", &w->ref_gbps},
                 {"reference_cpu_s_per_gb", &w->ref_cpu},
                 {"checksum_cpu_share", &w->check_cpu},
                 {"store_gbps", &w->store}};
    json_t *j = json_pack(
        "{s:s, s:s, s:o, s:o, s:I}", "tier", tier, "direction", write ? "write" : "read",
        "gbps_p10", bench_number(bench_quantile(w->gbps.v, w->gbps.n, 0.1)), "gbps_p90",
        bench_number(bench_quantile(w->gbps.v, w->gbps.n, 0.9)), "rounds", (json_int_t)w->gbps.n);
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        json_object_set_new(j, field[i].key, bench_number(median(field[i].of)));
    if (transport[0]) json_object_set_new(j, "transport", json_string(transport));
    bench_print_row(columns, j);
    json_array_append_new(lab->rows, j);
}

static void note(struct lab *lab, const char *what, const char *text)
{
    if (text[0]) json_object_set_new(lab->notes, what, json_string(text));
}

/* ---- a tier ---- */

static double gb_of(const struct lab *lab)
{
    return (double)lab->set.bytes / 1e9;
}

static int run_reference(struct lab *lab, const struct reference *ref, bool write,
                         struct bench_cost *ret)
{
    int r = write && ref->clear ? ref->clear(ref->ctx) : 0;
    if (!write) bench_set_poison(&lab->set);
    if (r == 0) r = ref->move(ref->ctx, write, ret);
    return r == 0 && !write ? bench_set_same(&lab->set) : r;
}

/* Ends what is under way for other reasons, such as removals. */
static void settle(struct tier *t)
{
    (void)t->ops->drain(t, clock_ns() + 10000000000ull);
}

/* Records are immutable and written once, so what is measured is writing new ones. */
static void remove_all(struct lab *lab, struct tier *t)
{
    for (size_t i = 0; i < lab->set.n; i++)
        (void)t->ops->remove(t, &lab->set.key[i], true);
    settle(t);
}

/* Once the tier and once the reference, in changing order. */
static int run_round(struct lab *lab, struct tier *t, const struct reference *ref, bool write,
                     size_t round, bool counts)
{
    struct bench_cost own = {0}, other = {0}, copy;
    double gb = gb_of(lab), check_s = 0;
    int r = 0;
    for (unsigned turn = 0; turn < 2 && r == 0; turn++) {
        if (((round + turn) & 1) == 0) {
            if (ref->move) r = run_reference(lab, ref, write, &other);
            continue;
        }
        if (write)
            remove_all(lab, t);
        else
            bench_set_poison(&lab->set);
        r = bench_set_move(&lab->set, t, write, lab->inflight, &own);
        if (r == 0 && !write) r = bench_set_verify(&lab->set, &check_s);
    }
    if (r < 0 || !counts) return r;
    copy = ref_memcpy(&lab->set);
    struct row *w = &lab->row[write];
    add(&w->gbps, gb / own.wall_s);
    add(&w->cpu, own.cpu_s / gb);
    add(&w->of_memcpy, copy.wall_s / own.wall_s);
    if (!write) add(&w->check_cpu, check_s / own.wall_s);
    if (!ref->move) return 0;
    add(&w->of_ref, other.wall_s / own.wall_s);
    add(&w->ref_gbps, gb / other.wall_s);
    add(&w->ref_cpu, other.cpu_s / gb);
    return 0;
}

static int run_loads(struct lab *lab, struct tier *t, size_t round)
{
    struct row *w = &lab->row[0];
    for (size_t i = 0; i < LOADS_PER_ROUND; i++) {
        struct bench_load load;
        size_t at = (round * LOADS_PER_ROUND + i) * 7 % lab->set.n;
        int r = bench_set_load(&lab->set, t, at, &load);
        if (r < 0) return r;
        add(&w->first, load.first_s / load.all_s);
        add(&w->check, (load.verified_s - load.all_s) / load.all_s);
    }
    return 0;
}

static int measure_tier(struct lab *lab, struct tier *t, const struct reference *ref)
{
    int r = 0;
    memset(lab->row, 0, sizeof lab->row);
    (void)t->ops->add_memory(t, lab->set.src, lab->set.bytes);
    (void)t->ops->add_memory(t, lab->set.dst, lab->set.bytes);
    for (size_t i = 0; i < WARM_UPS && r == 0; i++)
        r = run_round(lab, t, ref, true, i, false);
    if (r == 0) r = run_round(lab, t, ref, false, 0, false);
    uint64_t t0 = clock_ns();
    for (size_t i = 0; r == 0 && i < ROUNDS_MAX; i++) {
        if (i >= ROUNDS_MIN && clock_ms_since(t0) > 2e3 * lab->seconds) break;
        r = run_round(lab, t, ref, true, i, true);
        settle(t);
        if (r == 0) r = run_round(lab, t, ref, false, i, true);
        if (r == 0) r = run_loads(lab, t, i);
    }
    return r;
}

/* ---- through the store ---- */

static int open_store(struct lab *lab, struct tier *t, struct store **ret, struct err *err)
{
    struct store_opts o = {.ram_bytes = lab->set.bytes + lab->set.bytes / 8 + (64u << 20),
                           .ident = lab->set.ident};
    if (t) o.tier[o.n_tiers++] = (struct store_tier_opts){.tier = t};
    return store_create(&o, ret, err);
}

/* Every layer of a record into dst, which it verifies. */
static int copy_out(struct lab *lab, struct store_pin *p, size_t i, uint64_t *ret_first_ns)
{
    const struct record_layout *l = &lab->set.layout;
    uint8_t *const *part = lab->set.dst_part + i * l->n_parts;
    for (uint32_t g = 0; g < l->n_groups; g++) {
        const void *k, *v;
        int r = store_pin_layer(p, g + 1, &k, &v);
        if (r < 0) return r;
        memcpy(record_group(part, l, g), k, l->group_bytes / 2);
        memcpy(record_group(part, l, g) + l->group_bytes / 2, v, l->group_bytes / 2);
        if (g == 0) *ret_first_ns = clock_ns();
    }
    return 0;
}

/* The payload; headers were not copied. */
static int verify_groups(struct lab *lab)
{
    const struct bench_set *s = &lab->set;
    for (size_t i = 0; i < s->n; i++)
        for (uint32_t g = 0; g < s->layout.n_groups; g++)
            if (memcmp(record_group(s->dst_part + i * s->layout.n_parts, &s->layout, g),
                       record_group(s->src_part + i * s->layout.n_parts, &s->layout, g),
                       s->layout.group_bytes) != 0)
                return -EBADMSG;
    return 0;
}

/* All records, `inflight` look-ups at a time, every layer waited for, checked and handed out. */
static int read_through(struct lab *lab, struct store *s, bool copy, struct bench_cost *ret)
{
    struct store_pin *pin[BENCH_CHUNKS_MAX];
    const struct bench_set *set = &lab->set;
    enum store_miss why = STORE_MISS_NEVER;
    struct bench_watch w;
    int r = 1;
    bench_watch_start(&w);
    for (size_t i = 0; i < set->n && r >= 0; i += lab->inflight) {
        size_t n = 0, k = 0;
        for (; n < lab->inflight && i + n < set->n && r >= 0; n++) {
            struct store_ask a = {set->key[i + n], set->tok + (i + n) * set->n_tokens,
                                  set->n_tokens, 0};
            r = store_ask(s, &a, &pin[n], &why);
            if (r == 0) r = -ENOENT;
            if (r < 0) break;
        }
        for (; k < n && r >= 0; k++) {
            uint64_t first_ns;
            const void *key, *value;
            int got = store_pin_settle(pin[k], 0, &why);
            if (got != 1) {
                r = -ENOENT; /* the pin is gone */
                k++;
                break;
            }
            if (copy) r = copy_out(lab, pin[k], i + k, &first_ns);
            for (unsigned g = 1; !copy && g < set->ident.L && r >= 0; g++)
                r = store_pin_layer(pin[k], g, &key, &value);
            store_pin_release(pin[k]);
        }
        for (; k < n; k++)
            if (store_pin_settle(pin[k], 0, &why) == 1) store_pin_release(pin[k]);
    }
    if (r < 0) return r;
    *ret = bench_watch_stop(&w);
    return 0;
}

/* Takes the tier. What the store fails to read is said, and the tier's own figures stay. */
static void measure_store(struct lab *lab, struct tier *t, const char *name)
{
    struct store *s;
    struct bench_cost cost;
    struct err err = {0};
    int r = open_store(lab, t, &s, &err);
    if (r < 0) {
        t->ops->destroy(t);
        note(lab, "store", err.msg);
        return;
    }
    for (size_t i = 0; r == 0 && i < ROUNDS_MIN; i++) {
        (void)store_clear(s, "ram", NULL, true);
        r = read_through(lab, s, false, &cost);
        if (r == 0) add(&lab->row[0].store, gb_of(lab) / cost.wall_s);
    }
    store_destroy(s);
    if (r == 0) return;
    (void)err_set(&err, r, "%s through the store: %s", name, err_name(r));
    (void)fprintf(stderr, "%s\n", err.msg);
    note(lab, "store", err.msg);
}

/* ---- RAM ---- */

static int fill_ram(struct lab *lab, struct store *s, struct bench_cost *ret)
{
    const struct bench_set *set = &lab->set;
    struct bench_watch w;
    int r = 1;
    bench_watch_start(&w);
    for (size_t i = 0; i < set->n && r >= 0; i++) {
        struct store_writer *writer;
        r = store_claim(s,
                        &(struct store_new){TIER_CHUNK, set->key[i], "",
                                            set->tok + i * set->n_tokens, set->n_tokens},
                        &writer);
        if (r == 0) r = -EEXIST;
        for (uint32_t g = 0; g < set->layout.n_groups && r > 0; g++) {
            void *k, *v;
            const uint8_t *row =
                record_group(set->src_part + i * set->layout.n_parts, &set->layout, g);
            store_writer_layer(writer, g + 1, &k, &v);
            memcpy(k, row, set->layout.group_bytes / 2);
            memcpy(v, row + set->layout.group_bytes / 2, set->layout.group_bytes / 2);
        }
        if (r > 0) r = store_commit(writer);
    }
    if (r < 0) return r;
    *ret = bench_watch_stop(&w);
    return 0;
}

/* Time to the first layer and to the last, of records that are in RAM and checked. */
static int load_ram(struct lab *lab, struct store *s, size_t round)
{
    const struct bench_set *set = &lab->set;
    for (size_t i = 0; i < LOADS_PER_ROUND; i++) {
        size_t at = (round * LOADS_PER_ROUND + i) * 7 % set->n;
        struct store_pin *pin;
        enum store_miss why;
        uint64_t t0 = clock_ns(), first_ns = 0;
        int r = store_lookup(s, &set->key[at], set->tok + at * set->n_tokens, set->n_tokens, &pin,
                             &why);
        if (r <= 0) return r < 0 ? r : -ENOENT;
        r = copy_out(lab, pin, at, &first_ns);
        double all_ns = (double)(clock_ns() - t0);
        store_pin_release(pin);
        if (r < 0) return r;
        add(&lab->row[0].first, (double)(first_ns - t0) / all_ns);
    }
    return 0;
}

/* Write: claim, fill, commit with its checksums. Read: look up and copy every layer out; a group is
 * checked at its first read after the commit only, which is timed apart. */
static int measure_ram(struct lab *lab, struct err *err)
{
    struct store *s;
    double gb = gb_of(lab);
    int r = open_store(lab, NULL, &s, err);
    if (r < 0) return r;
    memset(lab->row, 0, sizeof lab->row);
    struct row *rd = &lab->row[0], *wr = &lab->row[1];
    uint64_t t0 = clock_ns();
    for (size_t i = 0; r == 0 && i < ROUNDS_MAX; i++) {
        struct bench_cost put, first, again, copy;
        if (i > ROUNDS_MIN && clock_ms_since(t0) > 2e3 * lab->seconds) break;
        (void)store_clear(s, NULL, NULL, true);
        r = fill_ram(lab, s, &put);
        if (r == 0) r = read_through(lab, s, true, &first);
        bench_set_poison(&lab->set);
        if (r == 0) r = read_through(lab, s, true, &again);
        if (r == 0) r = verify_groups(lab);
        copy = ref_memcpy(&lab->set);
        if (r < 0 || i == 0) continue; /* round 0 warms up */
        add(&wr->gbps, gb / put.wall_s);
        add(&wr->cpu, put.cpu_s / gb);
        add(&wr->of_memcpy, copy.wall_s / put.wall_s);
        add(&rd->gbps, gb / again.wall_s);
        add(&rd->cpu, again.cpu_s / gb);
        add(&rd->of_memcpy, copy.wall_s / again.wall_s);
        add(&rd->check_cpu, (first.wall_s - again.wall_s) / first.wall_s);
        add(&rd->check, 0);
        add(&rd->store, gb / first.wall_s);
        r = load_ram(lab, s, i);
    }
    store_destroy(s);
    if (r < 0) return err_set(err, r, "ram: %s", err_name(r));
    report(lab, "ram", "", false);
    report(lab, "ram", "", true);
    note(lab, "ram",
         "read: look-up and a copy of every layer; checksums are made at commit and checked "
         "when a record was not for a second (store_gbps; checksum_cpu_share is their part of it)");
    return 0;
}

/* ---- references ---- */

static int file_move(void *ctx, bool write, struct bench_cost *ret)
{
    return ref_file_move(ctx, write, ret);
}

static int redis_move(void *ctx, bool write, struct bench_cost *ret)
{
    return ref_redis_move(ctx, write, ret);
}

static int redis_clear(void *ctx)
{
    return ref_redis_clear(ctx);
}

static int measure_place(struct lab *lab, const char *name, struct err *err)
{
    struct place_want want = {.name = name,
                              .ident = &lab->set.ident,
                              .capacity_bytes = lab->set.bytes / 2 * 5 + (64u << 20),
                              .record_bytes = lab->set.layout.record_bytes};
    bool redis = strncmp(name, "redis", 5) == 0;
    struct reference ref = {0};
    struct ref_file *file = NULL;
    struct ref_redis *client = NULL;
    struct err no_ref = {0};
    struct tier *t;
    char text[256] = "", path[PLACE_PATH_MAX];
    int r = place_open(&lab->places, &want, &t, text, err);
    note(lab, name, text);
    if (r <= 0) return r;
    if (strcmp(name, "nvme") == 0 && place_reference_path(&lab->places, path, &no_ref) == 0 &&
        ref_file_create(path, &lab->set, &file, &no_ref) == 0)
        ref = (struct reference){file_move, NULL, file};
    if (redis && place_reference_redis(&lab->places, name, 1, &lab->set, &client, &no_ref) == 0)
        ref = (struct reference){redis_move, redis_clear, client};
    if (no_ref.code < 0) note(lab, redis ? "redis_reference" : "nvme_reference", no_ref.msg);
    r = measure_tier(lab, t, &ref);
    if (r < 0) (void)err_set(err, r, "%s: %s", name, err_name(r));
    ref_file_destroy(file);
    ref_redis_destroy(client);
    if (r < 0) {
        t->ops->destroy(t);
        return r;
    }
    measure_store(lab, t, name);
    const char *transport = !redis ? "" : strcmp(name, "redis") == 0 ? "tcp" : "unix";
    report(lab, redis ? "redis" : name, transport, false);
    report(lab, redis ? "redis" : name, transport, true);
    return 0;
}

/* ---- the run ---- */

static struct tier_ident geometry(const struct opts *opts)
{
    struct tier_ident id = {.model = {SEED, SEED}, .sink_token = 1};
    if (strcmp(opt_str(opts, "geometry"), "7b") == 0) {
        id.dtype = KN_BF16;
        id.L = 32;
        id.G = 8;
        id.K = 128;
    } else {
        id.dtype = KN_F16;
        id.L = 30;
        id.G = 3;
        id.K = 64;
    }
    return id;
}

static uint32_t tokens_of(const struct opts *opts, const struct tier_ident *id)
{
    uint64_t token_bytes = (uint64_t)(id->L - 1) * 2 * id->G * id->K * 2;
    uint64_t want = (uint64_t)opt_int(opts, "record-mb") * 1000000;
    return want ? (uint32_t)(want / token_bytes + 1) : (uint32_t)opt_int(opts, "chunk-tokens");
}

static int lab_open(struct lab *lab, const struct opts *opts, struct err *err)
{
    struct tier_ident id = geometry(opts);
    uint64_t bytes = opt_given(opts, "ram") ? opt_size(opts, "ram") : 512u << 20;
    lab->opts = opts;
    lab->inflight = (size_t)opt_int(opts, "inflight");
    lab->seconds = opt_double(opts, "seconds");
    places_init(&lab->places, opts);
    int r = bench_set_create(&id, tokens_of(opts, &id), bytes, lab->inflight, SEED, &lab->set);
    if (r == 0 && opt_given(opts, "secret")) r = bench_set_sign(&lab->set, opt_str(opts, "secret"));
    if (r < 0) return err_set(err, r, "no memory for the records");
    lab->meta = bench_meta();
    lab->rows = json_array();
    lab->notes = json_object();
    const struct record_layout *l = &lab->set.layout;
    json_t *own =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "geometry", opt_str(opts, "geometry"),
                  "record_bytes", (json_int_t)l->record_bytes, "group_bytes",
                  (json_int_t)l->group_bytes, "part_bytes", (json_int_t)record_part_bytes(l, 1),
                  "n_parts", (json_int_t)l->n_parts, "tokens", (json_int_t)lab->set.n_tokens,
                  "records", (json_int_t)lab->set.n, "inflight", (json_int_t)lab->inflight);
    json_object_update(lab->meta, own);
    json_decref(own);
    json_object_set(lab->meta, "notes", lab->notes);
    return 0;
}

static void lab_close(struct lab *lab)
{
    places_fini(&lab->places);
    bench_set_fini(&lab->set);
    json_decref(lab->meta);
    json_decref(lab->rows);
    json_decref(lab->notes);
    mem_free(lab);
}

/* "ram,nvme": is `name` in the list? "redis" stands for both transports. */
static bool wanted(const char *list, const char *name)
{
    size_t len = strcspn(name, "-");
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        if (n == len && strncmp(p, name, n) == 0) return true;
        p += n + (p[n] == ',');
    }
    return list[0] == 0;
}

static int measure_tiers(const struct opts *opts, struct err *err)
{
    static const char *const name[] = {"gpu", "nvme", "redis", "redis-unix"};
    struct lab *lab = mem_zalloc(sizeof *lab);
    if (!lab) return -ENOMEM;
    int r = lab_open(lab, opts, err);
    if (r == 0) bench_print_head(columns);
    if (r == 0 && wanted(opt_str(opts, "tiers"), "ram")) r = measure_ram(lab, err);
    for (size_t i = 0; i < sizeof name / sizeof *name && r >= 0; i++)
        if (wanted(opt_str(opts, "tiers"), name[i])) r = measure_place(lab, name[i], err);
    if (r >= 0) r = bench_write_json(opts, lab->meta, lab->rows, err);
    lab_close(lab);
    return r < 0 ? r : 0;
}

static const struct opt_def measure_tiers_options[] = {
    {"secret", OPT_STR, NULL, 0, 0, NULL,
     "records carry tags under that secret, and are checked by them"},
    {"record-mb", OPT_INT, "0", 0, 4096, NULL,
     "size of a record in MB, 0 = that of --chunk-tokens"},
    {"inflight", OPT_INT, "6", 1, 64, NULL,
     "records under way at once, as the chunks of a request"},
    {0}};

const struct bench_sub bench_tiers = {
    .name = "tiers",
    .about = "records read and written by tier, beside memcpy, io_uring and hiredis",
    .shared = "chunk-tokens ram tiers nvme redis geometry seconds",
    .options = measure_tiers_options,
    .run = measure_tiers};
