/* doctor: what an operator should change, from a snapshot of numbers.
 *
 * Each diagnosis is a small function over the snapshot that adds a finding or stays silent; a
 * number that is not known is 0 and none relies on it. What a finding is worth orders it: 1 is
 * "nothing of what this was installed for happens", and where tokens can be counted it is the share
 * of all prompt tokens that would be saved. Texts name figures, `fix` a command or a line of the
 * configuration. Pure. Thread: any. */
#ifndef POLICY_DOCTOR_H
#define POLICY_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { POL_DOC_TEXT = 320, POL_DOC_FINDINGS = 24, POL_DOC_TIERS = 4, POL_DOC_POINTS = 64 };
struct pol_finding {
    const char *id; /* for programs: "ram_small" */
    double worth;   /* (0, 1] */
    char what[POL_DOC_TEXT], fix[POL_DOC_TEXT];
};
struct pol_doctor {
    struct pol_finding finding[POL_DOC_FINDINGS]; /* what is worth most comes first */
    size_t n;
};

struct pol_doc_tier {
    const char *name;                /* "nvme", "redis", "gpu" */
    const char *degraded;            /* "" or what it does instead of what was asked for */
    bool shared, refuses, on_device; /* on_device: its records are copies of RAM's */
    uint64_t capacity_bytes, used_bytes, evictions, refused_full;
    double bytes_per_s, first_ms;   /* of loads */
    uint64_t record_bytes;          /* of 512 tokens there */
    uint64_t hits, misses_by_speed; /* look-ups: served; given up, or not asked, as too slow */
};
struct pol_doc_worker {
    const char *model; /* path, for commands */
    /* room */
    uint64_t ram_bytes, ram_max_bytes; /* now; that it can be resized to while it runs */
    uint64_t machine_bytes;            /* RAM of the machine, or of the control group */
    uint64_t look_ups;
    size_t n_points;
    struct {
        uint64_t bytes;
        double found;
    } point[POL_DOC_POINTS]; /* of the miss-ratio curve, ascending */
    size_t n_tiers;
    struct pol_doc_tier tier[POL_DOC_TIERS];
    double ms_per_token; /* of computing */
    /* prompts of late */
    unsigned n_prompts;                                   /* with chunks */
    double prompt_tokens, head_tokens, head_found_tokens; /* sums; head: before the first chunk */
    uint64_t chunks_known, chunks_recut; /* that share text with an earlier one; of them cut anew */
    /* quality */
    const char *blend_error; /* "" where blending works */
    bool profile_missing;
    unsigned guard_level, guard_top, n_shadows;
    double ratio, kl, kl_high, kl_limit;
    bool huge_pages_off; /* of the system */
};
void pol_doctor_worker(const struct pol_doc_worker *s, struct pol_doctor *ret);

struct pol_doc_gateway {
    const char *open_address; /* one that others than this host reach, without keys; NULL: none */
    size_t n_keys, n_unlimited;
    const char *unlimited; /* the id of one of these */
    unsigned conns_max;    /* by the limit of open files; each takes two */
    unsigned requests_max; /* that may run and wait */
    size_t n_workers, n_silent;
    double skew_s; /* of the worker whose clock is off most; its address: */
    const char *skewed;
};
void pol_doctor_gateway(const struct pol_doc_gateway *s, struct pol_doctor *ret);

/* [{"id","worth","what","fix"}] appended; buf_status() says whether. */
struct buf;
void pol_doctor_put(const struct pol_doctor *d, struct buf *out);

#endif
