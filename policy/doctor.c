#include "policy/doctor.h"

#include "base/buf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* All chosen, on the side of silence: who is told something each time looks no more. */
enum {
    LOOK_UPS_MIN = 200,
    PROMPTS_MIN = 20,
    CHUNKS_MIN = 50,
    SHADOWS_MIN = 64,
    TOKENS = 512, /* of the record that loading is judged by */
    CONNS_MIN = 512,
};
static const double gain_min = 0.05, skew_max_s = 5;

/* ---- findings ---- */

/* The place for a finding of that worth; NULL where there is no room for it. */
static struct pol_finding *place(struct pol_doctor *d, const char *id, double worth)
{
    size_t i = d->n;
    if (i == POL_DOC_FINDINGS) return NULL;
    while (i > 0 && d->finding[i - 1].worth < worth)
        i--;
    memmove(&d->finding[i + 1], &d->finding[i], (d->n - i) * sizeof *d->finding);
    d->n++;
    d->finding[i] = (struct pol_finding){.id = id, .worth = worth > 1 ? 1 : worth};
    return &d->finding[i];
}

__attribute__((format(printf, 2, 3))) static void say(char *text, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, POL_DOC_TEXT, fmt, ap);
    va_end(ap);
}

static const char *size_text(uint64_t bytes, char ret[32])
{
    const bool whole = bytes >= 1u << 30 && bytes % (1u << 30) == 0;
    if (bytes < 1u << 20)
        (void)snprintf(ret, 32, "%llu", (unsigned long long)bytes);
    else
        (void)snprintf(ret, 32, whole ? "%lluGiB" : "%lluMiB",
                       (unsigned long long)(whole ? bytes >> 30 : bytes >> 20));
    return ret;
}

/* ---- room ---- */

static double found_with(const struct pol_doc_worker *s, uint64_t bytes)
{
    size_t i = 0;
    while (i < s->n_points && s->point[i].bytes <= bytes)
        i++;
    if (i == 0 || i == s->n_points) return i == 0 ? 0 : s->point[i - 1].found;
    const double below = (double)s->point[i - 1].bytes, above = (double)s->point[i].bytes;
    return s->point[i - 1].found +
           (s->point[i].found - s->point[i - 1].found) * ((double)bytes - below) / (above - below);
}

/* The least size that has nine tenths of all that more room could find. */
static uint64_t size_worth(const struct pol_doc_worker *s, double found_now)
{
    const double most = s->point[s->n_points - 1].found;
    size_t i = 0;
    while (s->point[i].found < found_now + 0.9 * (most - found_now))
        i++;
    return s->point[i].bytes;
}

/* Tiers below RAM hold what RAM has, too, so the largest counts; a shared one whose size is not
 * known may hold everything. NULL: that is RAM. */
static const struct pol_doc_tier *largest(const struct pol_doc_worker *s, uint64_t *ret_bytes)
{
    const struct pol_doc_tier *most = NULL;
    *ret_bytes = s->ram_bytes;
    for (size_t i = 0; i < s->n_tiers; i++) {
        const struct pol_doc_tier *t = &s->tier[i];
        const uint64_t bytes = t->capacity_bytes ? t->capacity_bytes : UINT64_MAX;
        if (t->on_device || t->refuses || bytes <= *ret_bytes) continue;
        *ret_bytes = bytes;
        most = t;
    }
    return most;
}

static void fix_room(const struct pol_doc_worker *s, const struct pol_doc_tier *t, uint64_t bytes,
                     char *fix)
{
    char want[32];
    (void)size_text(bytes, want);
    if (t && t->shared)
        say(fix, "redis-cli config set maxmemory %llu, or one more server",
            (unsigned long long)bytes);
    else if (t)
        say(fix, "kvblendctl resize %s %s, and --%s PATH:%s for the next start", t->name, want,
            t->name, want);
    else if (bytes > s->machine_bytes / 4 * 3)
        say(fix, "--nvme PATH:%s: this machine has not that much RAM to spare", want);
    else if (bytes > s->ram_max_bytes)
        say(fix, "--ram %s, and start it anew", want);
    else
        say(fix, "kvblendctl resize ram %s, and --ram %s for the next start", want, want);
}

static void room_small(const struct pol_doc_worker *s, struct pol_doctor *d)
{
    char have[32], want[32];
    uint64_t bytes;
    const struct pol_doc_tier *t = largest(s, &bytes);
    if (s->look_ups < LOOK_UPS_MIN || s->n_points == 0) return;
    const double now = found_with(s, bytes), gain = s->point[s->n_points - 1].found - now;
    if (gain < gain_min) return;
    const uint64_t worth = size_worth(s, now);
    struct pol_finding *f = place(d, t ? "tier_small" : "ram_small", gain);
    if (!f) return;
    say(f->what,
        "%s of %s finds %.0f %% of the tokens looked up; %s would find %.0f %% (kvblendctl mrc).",
        t ? t->name : "RAM", size_text(bytes, have), 100 * now, size_text(worth, want),
        100 * found_with(s, worth));
    fix_room(s, t, worth, f->fix);
}

/* ---- tiers ---- */

static void tier_slow(const struct pol_doc_worker *s, const struct pol_doc_tier *t,
                      struct pol_doctor *d)
{
    const uint64_t asked = t->hits + t->misses_by_speed;
    if (t->bytes_per_s <= 0 || s->ms_per_token <= 0 || asked < LOOK_UPS_MIN) return;
    const double load_ms = t->first_ms + 1e3 * (double)t->record_bytes / t->bytes_per_s;
    const double compute_ms = TOKENS * s->ms_per_token;
    if (load_ms < compute_ms) return;
    struct pol_finding *f =
        place(d, "tier_slow", 0.1 + 0.5 * (double)t->misses_by_speed / (double)asked);
    if (!f) return;
    const bool far = t->shared && t->first_ms > load_ms / 2;
    say(f->what,
        "%s takes %.1f ms for %d tokens, %.1f of them until the first byte; computing them takes "
        "%.1f ms: %llu of %llu look-ups there were computed instead.",
        t->name, load_ms, TOKENS, t->first_ms, compute_ms, (unsigned long long)t->misses_by_speed,
        (unsigned long long)asked);
    say(f->fix, "%s, --codec q8 (half of the bytes), or no --%s",
        far         ? "a Redis that is nearer by"
        : t->shared ? "more Redis servers, or a faster network"
                    : "a faster device",
        t->name);
}

static void tier_refuses(const struct pol_doc_tier *t, struct pol_doctor *d)
{
    struct pol_finding *f = t->refuses ? place(d, "tier_refuses", 0.9) : NULL;
    if (!f) return;
    say(f->what, "%s gives and takes no records: %s.", t->name,
        t->degraded[0] ? t->degraded : "it fails or does not answer in time");
    say(f->fix, "kvblendctl tiers says how often; the worker's log since when");
}

static void tier_degraded(const struct pol_doc_tier *t, struct pol_doctor *d)
{
    struct pol_finding *f = t->refuses || !t->degraded[0] ? NULL : place(d, "tier_degraded", 0.2);
    if (!f) return;
    say(f->what, "%s works, but not as it was asked to: %s.", t->name, t->degraded);
    if (strstr(t->degraded, "io_uring"))
        say(f->fix, "sysctl kernel.io_uring_disabled=0, and a seccomp profile of the container "
                    "that allows io_uring_setup");
    else if (strstr(t->degraded, "ulimit -l"))
        say(f->fix, "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited before the start");
    else if (strstr(t->degraded, "O_DIRECT"))
        say(f->fix, "--nvme on a file system with O_DIRECT (ext4, xfs), not on tmpfs or overlayfs");
    else
        say(f->fix, "kvblendctl tiers has the figures");
}

static void tier_full(const struct pol_doc_tier *t, struct pol_doctor *d)
{
    /* A server puts records out for its clients' buffers too, and is below its cap when they go. */
    const bool full = t->capacity_bytes > 0 &&
                      (double)t->used_bytes > 0.9 * (double)t->capacity_bytes && t->evictions > 0;
    char size[32];
    if (!t->shared || (!full && t->refused_full == 0)) return;
    struct pol_finding *f = place(d, "redis_full", 0.3);
    if (!f) return;
    say(f->what, "%s is full: %llu records were put out for others, %llu refused.", t->name,
        (unsigned long long)t->evictions, (unsigned long long)t->refused_full);
    if (t->capacity_bytes > 0)
        say(f->fix, "redis-cli config set maxmemory %llu (now %s), or another server beside it",
            (unsigned long long)(2 * t->capacity_bytes), size_text(t->capacity_bytes, size));
    else
        say(f->fix, "another server beside it");
}

/* ---- prompts ---- */

static void head_volatile(const struct pol_doc_worker *s, struct pol_doctor *d)
{
    const double missed = s->head_tokens - s->head_found_tokens;
    if (s->n_prompts < PROMPTS_MIN || s->head_tokens <= 0 || s->prompt_tokens <= 0) return;
    const double worth = missed / s->prompt_tokens;
    if (worth < gain_min || s->head_found_tokens > 0.3 * s->head_tokens) return;
    struct pol_finding *f = place(d, "head_volatile", worth);
    if (!f) return;
    say(f->what,
        "What stands before the first document is new nearly each time: of %.0f tokens a prompt "
        "%.0f are found as an exact prefix.",
        s->head_tokens / s->n_prompts, s->head_found_tokens / s->n_prompts);
    say(f->fix, "in the application, put what changes (dates, names, ids) behind the documents; "
                "kvblendctl segment FILE shows a captured request as it is cut");
}

static void cuts_flip(const struct pol_doc_worker *s, struct pol_doctor *d)
{
    const double share =
        s->chunks_known > 0 ? (double)s->chunks_recut / (double)s->chunks_known : 0;
    if (s->chunks_recut < CHUNKS_MIN || share < 0.3) return;
    struct pol_finding *f = place(d, "cuts_flip", 0.5 * share);
    if (!f) return;
    say(f->what,
        "%.0f %% of the chunks whose text was seen before are cut elsewhere than before, so their "
        "KV is not found.",
        100 * share);
    say(f->fix, "say where the chunks are: several parts in one message's content, documents, or "
                "kvblend.segments (docs/api.md); kvblendctl segment FILE tells why it cuts so");
}

/* ---- quality ---- */

static void blend_off(const struct pol_doc_worker *s, struct pol_doctor *d)
{
    struct pol_finding *f = s->blend_error[0] ? place(d, "blend_off", 1) : NULL;
    if (!f) return;
    say(f->what, "Blending is off, as the self-test of this model failed: %s.", s->blend_error);
    say(f->fix, "another --dtype or --device, or a model of a family that README.md names");
}

static void ratio_low(const struct pol_doc_worker *s, struct pol_doctor *d)
{
    const bool exact = s->guard_level > 0 && s->guard_level >= s->guard_top;
    struct pol_finding *f = s->guard_level > 0 ? place(d, "ratio_low", exact ? 0.8 : 0.3) : NULL;
    if (!f) return;
    say(f->what,
        exact ? "The guard has switched blending off: answers lost more than allowed at "
                "every setting (level %u of %u)."
              : "Answers lost more than allowed, so the guard recomputes more than is "
                "configured (level %u of %u).",
        s->guard_level, s->guard_top);
    say(f->fix, "kvblend-bench quality calibrate --model %.200s, or a larger --ratio than %.3g",
        s->model, s->ratio);
}

static void ratio_high(const struct pol_doc_worker *s, struct pol_doctor *d)
{
    if (s->guard_level > 0 || s->n_shadows < SHADOWS_MIN || s->ratio < 0.1 || s->kl_limit <= 0)
        return;
    if (!(s->kl_high < s->kl_limit / 4)) return;
    struct pol_finding *f = place(d, "ratio_high", s->ratio / 2);
    if (!f) return;
    say(f->what,
        "Answers are closer to a full prefill than they need be: KL %.3f nats (at most %.3f) of "
        "%.3f that are allowed, over %u requests.",
        s->kl, s->kl_high, s->kl_limit, s->n_shadows);
    say(f->fix, "--ratio %.3g instead of %.3g", s->ratio / 2, s->ratio);
}

static void profile_missing(const struct pol_doc_worker *s, struct pol_doctor *d)
{
    struct pol_finding *f =
        s->profile_missing && !s->blend_error[0] ? place(d, "profile_missing", 0.15) : NULL;
    if (!f) return;
    say(f->what, "The model has no profile: layers, strategy and ratio are guessed from another "
                 "model's measurements.");
    say(f->fix, "kvblend-bench quality calibrate --model %.200s, once; the next start finds it",
        s->model);
}

/* ---- the machine ---- */

static void huge_pages(const struct pol_doc_worker *s, struct pol_doctor *d)
{
    struct pol_finding *f =
        s->huge_pages_off && s->ram_bytes >= 1u << 30 ? place(d, "huge_pages_off", 0.08) : NULL;
    if (!f) return;
    say(f->what, "The system gives no huge pages, so weights and records are read through pages "
                 "of 4 KiB.");
    say(f->fix, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

void pol_doctor_worker(const struct pol_doc_worker *s, struct pol_doctor *ret)
{
    ret->n = 0;
    room_small(s, ret);
    for (size_t i = 0; i < s->n_tiers; i++) {
        tier_slow(s, &s->tier[i], ret);
        tier_refuses(&s->tier[i], ret);
        tier_degraded(&s->tier[i], ret);
        tier_full(&s->tier[i], ret);
    }
    head_volatile(s, ret);
    cuts_flip(s, ret);
    blend_off(s, ret);
    ratio_low(s, ret);
    ratio_high(s, ret);
    profile_missing(s, ret);
    huge_pages(s, ret);
}

/* ---- the gateway ---- */

static void keys_open(const struct pol_doc_gateway *s, struct pol_doctor *d)
{
    struct pol_finding *f = s->open_address && s->n_keys == 0 ? place(d, "keys_open", 0.7) : NULL;
    if (!f) return;
    say(f->what, "%.100s is open to whoever reaches it: no API key is asked for.", s->open_address);
    say(f->fix, "keys: {list: [{key: \"${KEY}\", id: NAME, rpm: 60}]}, or --listen 127.0.0.1:8010");
}

static void keys_unlimited(const struct pol_doc_gateway *s, struct pol_doctor *d)
{
    struct pol_finding *f =
        s->n_unlimited > 0 && s->n_keys > 1 ? place(d, "keys_unlimited", 0.12) : NULL;
    if (!f) return;
    say(f->what,
        "%zu of %zu API keys (%.64s for one) have no limit: no requests or tokens a minute, no "
        "requests at once.",
        s->n_unlimited, s->n_keys, s->unlimited);
    say(f->fix, "limits: {key_concurrency: 16} for all that say nothing, or rpm=, tpm=, "
                "concurrency= of the key");
}

static void file_limit(const struct pol_doc_gateway *s, struct pol_doctor *d)
{
    const unsigned want = s->requests_max > CONNS_MIN ? s->requests_max : CONNS_MIN;
    struct pol_finding *f = s->conns_max < want ? place(d, "file_limit", 0.4) : NULL;
    if (!f) return;
    say(f->what,
        "The limit of open files leaves room for %u connections; %u requests may run and wait at "
        "once.",
        s->conns_max, s->requests_max);
    say(f->fix, "LimitNOFILE=65536 in the unit, or ulimit -n 65536 before the start");
}

static void clock_skew(const struct pol_doc_gateway *s, struct pol_doctor *d)
{
    struct pol_finding *f =
        s->skewed && fabs(s->skew_s) > skew_max_s ? place(d, "clock_skew", 0.25) : NULL;
    if (!f) return;
    say(f->what,
        "The clock of %.100s is %.0f s %s of this host's: records live longer or shorter than "
        "they should, and announcements of workers look old.",
        s->skewed, fabs(s->skew_s), s->skew_s > 0 ? "ahead" : "behind");
    say(f->fix, "timedatectl set-ntp true on both");
}

static void workers_silent(const struct pol_doc_gateway *s, struct pol_doctor *d)
{
    struct pol_finding *f = s->n_silent > 0 ? place(d, "worker_silent", 0.95) : NULL;
    if (!f) return;
    say(f->what, "%zu of %zu workers do not answer, or are not ready.", s->n_silent, s->n_workers);
    say(f->fix, "kvblendctl status says which and why");
}

void pol_doctor_gateway(const struct pol_doc_gateway *s, struct pol_doctor *ret)
{
    ret->n = 0;
    keys_open(s, ret);
    keys_unlimited(s, ret);
    file_limit(s, ret);
    clock_skew(s, ret);
    workers_silent(s, ret);
}

void pol_doctor_put(const struct pol_doctor *d, struct buf *out)
{
    (void)buf_addc(out, '[');
    for (size_t i = 0; i < d->n; i++) {
        const struct pol_finding *f = &d->finding[i];
        (void)buf_addf(out, "%s{\"id\":\"%s\",\"worth\":%.3f,\"what\":", i ? "," : "", f->id,
                       f->worth);
        (void)buf_add_json_str(out, f->what, strlen(f->what));
        (void)buf_adds(out, ",\"fix\":");
        (void)buf_add_json_str(out, f->fix, strlen(f->fix));
        (void)buf_addc(out, '}');
    }
    (void)buf_addc(out, ']');
}
