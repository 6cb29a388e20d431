/* A bit flips anywhere in any tier's bytes: never a wrong answer, and the record comes back.
 *
 * Each try looks a record up through the store after one bit of one copy was changed where it lies
 * (RAM, device memory, the NVMe file, a hash in Redis) or on its way, reads every layer and the
 * scores, and compares them with the truth. Between flips the record is built again where it was
 * found damaged, and every fourth try reads it once more before the next flip: it must be whole,
 * and served by the tier. */
#include "base/clock.h"
#include "base/mem.h"
#include "tests/doubles/fault.h"
#include "tests/doubles/gpu_host.h"
#include "tests/test.h"
#include "tests/unit/tiers/redis_server.h"
#include "tiers/gpu/gpu_int.h"
#include "tiers/nvme/nvme_int.h"
#include "tiers/redis/redis.h"
#include "tiers/store_admin.h"
#include "tiers/store_write.h"
#include "tiers/store_entry.h"

#include <fcntl.h>
#include <unistd.h>

enum { L = 5, G = 2, K = 8, TOKENS = 64, ROW = TOKENS * G * K, RECORDS = 6 };
static const uint64_t second = 1000000000u;

static struct {
    int32_t tok[TOKENS];
    float kv[L - 1][2][ROW], score[TOKENS];
    struct tier_key key;
} truth[RECORDS];
static const struct tier_ident ident = {
    .model = {1, 2}, .tokenizer = {3, 4}, .dtype = KN_F32, .sink_token = 1, .L = L, .G = G, .K = K};
static unsigned all_tries, sections;

__attribute__((constructor)) static void make_truth(void)
{
    uint64_t seed = 42;
    for (int id = 0; id < RECORDS; id++) {
        for (int i = 0; i < TOKENS; i++) {
            truth[id].tok[i] = (int32_t)(test_rand(&seed) % 50000);
            truth[id].score[i] = (float)(test_rand(&seed) % 1000) / 1000;
        }
        for (int l = 0; l < L - 1; l++)
            for (int v = 0; v < 2; v++)
                for (int i = 0; i < ROW; i++)
                    truth[id].kv[l][v][i] = (float)(test_rand(&seed) % 100000) / 1000;
        truth[id].key = tier_key_chunk(&ident, "t", truth[id].tok, TOKENS);
    }
}

struct flips {
    struct store *s;
    char tier[16]; /* that must serve it */
    /* Change one bit of the record's bytes; false: there is no such copy. */
    bool (*flip)(struct flips *f, int id);
    void (*before_read)(struct flips *f), (*after_read)(struct flips *f);
    struct tier *t, *outer;
    struct gpu *g;
    struct redis_server *server;
    redisContext *raw;
    int fd;
    uint64_t seed;
    unsigned tries, hits, misses, layers_refused, noticed, wrong;
    unsigned reads_clean, not_healed;
};

static void open_store(struct flips *f)
{
    struct store_opts o = {.ram_bytes = 4 << 20, .ident = ident};
    struct err err = {0};
    if (f->outer) {
        o.tier[0] = (struct store_tier_opts){f->outer};
        o.n_tiers = 1;
    }
    (void)snprintf(f->tier, sizeof f->tier, "%s", f->outer ? f->outer->name : "ram");
    ASSERT_OK(store_create(&o, &f->s, &err));
    f->s->checks.every_ns = 0; /* flips come faster than any memory rots */
}

static void flush(struct flips *f)
{
    ASSERT_OK(store_flush(f->s, clock_ns() + 60 * second));
}

/* All parts of a record may be here before its tier has said that it is done. */
static uint64_t n_loads(struct flips *f)
{
    struct store_stats s;
    store_get_stats(f->s, &s);
    return s.inflight;
}

/* What is missing of it, in RAM and behind. */
static void build(struct flips *f, int id)
{
    struct store_writer *w = NULL;
    int r = store_claim(
        f->s, &(struct store_new){TIER_CHUNK, truth[id].key, "t", truth[id].tok, TOKENS}, &w);
    ASSERT_OK(r);
    for (unsigned l = 1; r == 1 && l < L; l++) {
        void *k, *v;
        store_writer_layer(w, l, &k, &v);
        memcpy(k, truth[id].kv[l - 1][0], sizeof truth[id].kv[0][0]);
        memcpy(v, truth[id].kv[l - 1][1], sizeof truth[id].kv[0][1]);
    }
    if (r == 1) {
        memcpy(store_writer_scores(w), truth[id].score, sizeof truth[id].score);
        store_writer_behind(w, 1, TOKENS);
        ASSERT_OK(store_commit(w));
    }
    flush(f);
    WAIT_FOR(n_loads(f) == 0);
}

static void leave_ram(struct flips *f, int id)
{
    if (!f->outer) return;
    WAIT_FOR(store_evict(f->s, &truth[id].key, "ram") >= 0);
}

/* True: a hit, and every layer and the scores as they should be. */
static bool look(struct flips *f, int id)
{
    struct store_pin *p = NULL;
    enum store_miss why;
    int r = store_lookup(f->s, &truth[id].key, truth[id].tok, TOKENS, &p, &why);
    ASSERT_OK(r);
    if (r == 0) {
        f->misses++;
        return false;
    }
    f->hits++;
    bool whole = strcmp(store_pin_tier(p), f->tier) == 0;
    for (unsigned l = 1; l < L; l++) {
        const void *k, *v;
        if (store_pin_layer(p, l, &k, &v) < 0) {
            f->layers_refused++;
            whole = false;
            continue;
        }
        f->wrong += memcmp(k, truth[id].kv[l - 1][0], sizeof truth[id].kv[0][0]) != 0;
        f->wrong += memcmp(v, truth[id].kv[l - 1][1], sizeof truth[id].kv[0][1]) != 0;
    }
    float score[TOKENS];
    f->wrong += store_pin_scores(p, score) != 1;
    f->wrong += memcmp(score, truth[id].score, sizeof score) != 0;
    store_pin_release(p);
    return whole;
}

static void one_try(struct flips *f)
{
    int id = (int)(test_rand(&f->seed) % RECORDS);
    build(f, id); /* what an earlier flip has damaged */
    leave_ram(f, id);
    if (f->tries % 4 == 0) {
        f->reads_clean++;
        bool whole = look(f, id);
        /* What the last flip did is found out now at the latest. */
        for (int i = 0; i < 2 && !whole; i++) {
            build(f, id);
            leave_ram(f, id);
            whole = look(f, id);
        }
        f->not_healed += !whole;
        leave_ram(f, id);
    }
    if (f->flip && !f->flip(f, id)) return;
    if (f->before_read) f->before_read(f);
    bool whole = look(f, id);
    if (f->after_read) f->after_read(f);
    f->tries++;
    f->noticed += !whole;
    if (!f->outer) (void)store_evict(f->s, &truth[id].key, NULL);
}

/* `n` tries, fewer if they take long (sanitizers, a loaded machine), never less than a tenth. */
static void run(struct flips *f, const char *what, unsigned n, double s_max, double noticed_min)
{
    uint64_t end = clock_ns() + (uint64_t)(s_max * 1e9);
    unsigned rounds = 0;
    f->seed = n;
    open_store(f);
    while (f->tries < n && (f->tries < n / 10 || clock_ns() < end) && rounds++ < 4 * n)
        one_try(f);
    store_destroy(f->s);
    (void)printf("%-10s %5u tries: %u noticed (%u misses, %u layers refused), %u wrong, "
                 "%u of %u not healed\n",
                 what, f->tries, f->noticed, f->misses, f->layers_refused, f->wrong, f->not_healed,
                 f->reads_clean);
    all_tries += f->tries;
    sections++;
    ASSERT_EQ(f->wrong, 0);
    ASSERT_EQ(f->not_healed, 0);
    ASSERT_TRUE(f->tries >= n / 10);
    ASSERT_TRUE((double)f->noticed >= noticed_min * f->tries);
}

static void flip_byte(struct flips *f, uint8_t *at)
{
    *at ^= (uint8_t)(1u << test_rand(&f->seed) % 8);
}

/* ---- where it lies ---- */

static uint64_t pick_part(struct flips *f, const struct record_layout *l, uint32_t *ret_part)
{
    uint64_t off = test_rand(&f->seed) % l->record_bytes;
    uint32_t i = 0;
    while (off >= record_part_bytes(l, i))
        off -= record_part_bytes(l, i++);
    *ret_part = i;
    return off;
}

static bool checks_done(struct flips *f)
{
    pthread_mutex_lock(&f->s->m);
    bool done = link_alone(&f->s->checks.queue);
    pthread_mutex_unlock(&f->s->m);
    return done;
}

/* What nobody has read yet its reader checks. What somebody has is rot: a use has it looked at, and
 * that is what finds it. */
static bool flip_ram(struct flips *f, int id)
{
    struct store_pin *p;
    enum store_miss why;
    uint32_t part;
    WAIT_FOR(checks_done(f));
    pthread_mutex_lock(&f->s->m);
    struct entry *e = entry_find(f->s, &truth[id].key);
    pthread_mutex_unlock(&f->s->m);
    if (!e || e->write.under_way) return false;
    uint64_t off = pick_part(f, &e->layout, &part);
    flip_byte(f, e->part[part] + off);
    if (store_lookup(f->s, &truth[id].key, truth[id].tok, TOKENS, &p, &why) == 1)
        store_pin_release(p);
    WAIT_FOR(checks_done(f));
    return true;
}

TEST(ram)
{
    struct flips f = {.flip = flip_ram};
    run(&f, "RAM", 4000, 4, 0.8);
}

static void open_gpu(struct flips *f)
{
    struct err err = {0};
    ASSERT_OK(gpu_host_open(0, &f->g, &err));
    ASSERT_OK(tier_gpu_create(&(struct tier_gpu_opts){f->g, 1 << 20, EVICT_LRU}, &f->t, &err));
}

static bool flip_gpu(struct flips *f, int id)
{
    struct gpu_tier *t = (struct gpu_tier *)f->t;
    uint32_t part;
    pthread_mutex_lock(&t->m);
    struct gpu_entry *e = gpu_find_entry(t, &truth[id].key);
    if (e) {
        uint64_t off = pick_part(f, &e->layout, &part);
        uint8_t *at = e->part[part]; /* the header is the host's */
        flip_byte(f, (part ? gpu_host_view(f->g, at) : at) + off);
    }
    pthread_mutex_unlock(&t->m);
    return e != NULL;
}

TEST(gpu)
{
    struct flips f = {.flip = flip_gpu};
    open_gpu(&f);
    f.outer = f.t;
    run(&f, "GPU", 2500, 3, 0.8);
    gpu_close(f.g);
}

/* ---- on its way ---- */

static void flips_on_reads(struct flips *f)
{
    ASSERT_OK(tier_fault_set(f->outer, &(struct tier_fault_opts){.flip_read = 1}));
}

static void flips_off(struct flips *f)
{
    ASSERT_OK(tier_fault_set(f->outer, &(struct tier_fault_opts){0}));
}

TEST(read_in_transit)
{
    struct flips f = {.before_read = flips_on_reads, .after_read = flips_off};
    open_gpu(&f);
    ASSERT_OK(tier_fault_create(f.t, &(struct tier_fault_opts){.seed = 1}, &f.outer));
    run(&f, "reads", 1500, 3, 0.8);
    gpu_close(f.g);
}

/* A fresh copy whose write is damaged; a damaged header may be refused, then none is there. */
static bool write_damaged(struct flips *f, int id)
{
    (void)store_evict(f->s, &truth[id].key, NULL);
    ASSERT_OK(tier_fault_set(f->outer, &(struct tier_fault_opts){.flip_write = 1}));
    build(f, id);
    flips_off(f);
    leave_ram(f, id);
    return true;
}

TEST(write_in_transit)
{
    struct flips f = {.flip = write_damaged};
    open_gpu(&f);
    ASSERT_OK(tier_fault_create(f.t, &(struct tier_fault_opts){.seed = 2}, &f.outer));
    run(&f, "writes", 1000, 3, 0.8);
    gpu_close(f.g);
}

/* ---- NVMe ---- */

static bool flip_file(struct flips *f, int id)
{
    struct nvme *n = (struct nvme *)f->t;
    uint64_t off = 0, bytes = 0;
    pthread_mutex_lock(&n->m);
    struct nvme_slot *slot = nvme_space_find(&n->space, &truth[id].key);
    if (slot) {
        off = nvme_slot_off(&n->space, slot);
        bytes = NVME_PAGE + slot->record_bytes;
    }
    pthread_mutex_unlock(&n->m);
    if (!slot) return false;
    off += test_rand(&f->seed) % bytes;
    uint8_t *page = mem_aligned(NVME_PAGE, NVME_PAGE);
    uint64_t page_off = off / NVME_PAGE * NVME_PAGE;
    ASSERT_EQ(pread(f->fd, page, NVME_PAGE, (off_t)page_off), NVME_PAGE);
    flip_byte(f, page + (off - page_off));
    ASSERT_EQ(pwrite(f->fd, page, NVME_PAGE, (off_t)page_off), NVME_PAGE);
    mem_free(page);
    return true;
}

static void open_nvme(struct flips *f, const char *path)
{
    struct tier_nvme_opts o = {.path = path,
                               .capacity_bytes = 16 << 20,
                               .write_bytes_per_day = TIER_NVME_NO_BUDGET,
                               .scrub_bytes_per_s = TIER_NVME_NO_SCRUB,
                               .corrupt_max = UINT32_MAX};
    struct err err = {0};
    int r = tier_nvme_create(&o, &f->t, &err);
    if (r < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    f->outer = f->t;
}

TEST(nvme)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256], path[300];
    struct flips f = {.flip = flip_file};
    (void)snprintf(dir, sizeof dir, "%s/kvblend-flips-XXXXXX", tmp ? tmp : "/tmp");
    ASSERT_TRUE(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/records", dir);
    open_nvme(&f, path);
    f.fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (f.fd < 0) f.fd = open(path, O_RDWR | O_CLOEXEC);
    ASSERT_OK(f.fd);
    run(&f, "NVMe", 700, 4, 0.6); /* the slot header is read at recovery only */

    /* Anything in front of the records or of the record itself, while nobody has it open. */
    unsigned tries = 0;
    for (uint64_t end = clock_ns() + 2 * second; tries < 200 && (tries < 20 || clock_ns() < end);
         tries++) {
        struct flips r = {.flip = flip_file, .fd = f.fd, .seed = tries};
        int id = (int)(tries % RECORDS);
        open_nvme(&r, path);
        open_store(&r);
        build(&r, id);
        flush(&r);
        ASSERT_TRUE(flip_file(&r, id));
        store_destroy(r.s);
        open_nvme(&r, path);
        open_store(&r);
        (void)look(&r, id);
        build(&r, id);
        leave_ram(&r, id);
        ASSERT_TRUE(look(&r, id));
        store_destroy(r.s);
        ASSERT_EQ(r.wrong, 0);
    }
    (void)printf("restart    %5u tries over a restart\n", tries);
    all_tries += tries;
    (void)close(f.fd);
    (void)unlink(path);
    (void)rmdir(dir);
}

/* ---- Redis ---- */

static redisReply *command(struct flips *f, int argc, const char **argv, const size_t *len)
{
    redisReply *r = redisCommandArgv(f->raw, argc, argv, len);
    ASSERT_TRUE(r && r->type != REDIS_REPLY_ERROR);
    return r;
}

static bool flip_hash(struct flips *f, int id)
{
    char hex[33], key[64];
    tier_key_hex(&truth[id].key, hex);
    (void)snprintf(key, sizeof key, "kvblend:1:%s", hex);
    const char *all[] = {"HGETALL", key};
    redisReply *r = command(f, 2, all, NULL);
    size_t n = r->elements / 2, total = 0;
    for (size_t i = 0; i < n; i++)
        total += r->element[2 * i + 1]->len;
    uint64_t at = total ? test_rand(&f->seed) % total : 0;
    size_t i = 0;
    while (i < n && at >= r->element[2 * i + 1]->len)
        at -= r->element[2 * i++ + 1]->len;
    if (i < n) {
        redisReply *field = r->element[2 * i], *value = r->element[2 * i + 1];
        flip_byte(f, (uint8_t *)value->str + at);
        const char *set[] = {"HSET", key, field->str, value->str};
        size_t len[] = {4, strlen(key), field->len, value->len};
        freeReplyObject(command(f, 4, set, len));
    }
    freeReplyObject(r);
    return n > 0;
}

TEST(redis)
{
    struct flips f = {.flip = flip_hash};
    f.server = redis_server_start(NULL);
    char text[512];
    struct redis_url url;
    struct err err = {0};
    redis_server_url(f.server, text);
    const char *urls[] = {text};
    ASSERT_OK(redis_url_parse(urls, 1, &url, &err));
    ASSERT_OK(tier_redis_create(&(struct tier_redis_opts){.url = &url}, &f.t, &err));
    f.outer = f.t;
    f.raw = redisConnectUnix(f.server->socket);
    ASSERT_TRUE(f.raw && !f.raw->err);
    WAIT_FOR(f.t->ops->find(f.t, &truth[0].key) != 0);
    run(&f, "Redis", 400, 4, 0.7);
    redisFree(f.raw);
    redis_url_fini(&url);
    redis_server_stop(f.server);
}

TEST(tries_in_all)
{
    if (sections < 5) SKIP("not all of them have run");
    (void)printf("%u tries in all\n", all_tries);
    ASSERT_TRUE(all_tries >= 1000);
}
