/* opts_table: what a worker can be told about its model, its records and its answers.
 *
 * The worker reads it from flags and KVBLEND_WORKER_* variables; the gateway takes the same options
 * as its section `worker:` and hands to its own workers what was given. What is about one process
 * (its address, its keys) stands in opts.c. Thread: any; constant. */
#ifndef WORKER_OPTS_TABLE_H
#define WORKER_OPTS_TABLE_H

#include "base/opt.h"
#include "policy/strategy.h"

struct buf;
extern const struct opt_def wk_opts_table[]; /* ended by {0} */

/* ---- the inner forms of some of its texts; 0 or -EINVAL ---- */
struct
    wk_nvme { /* "PATH:SIZE" (the last colon counts) or "PATH" of a device; ":SIZE/d" may follow */
    size_t path_len;
    uint64_t bytes;               /* 0: all of a device */
    uint64_t write_bytes_per_day; /* 0: not said */
};
int wk_parse_nvme(const char *text, struct wk_nvme *ret);
/* As worker `number` has it: PATH.number, its sizes divided; a device as it stands. */
void wk_share_nvme(const char *text, unsigned number, unsigned n_shares, struct buf *out);
struct wk_limits {
    const char *ns;
    size_t ns_len;                  /* of what ns points to; 0: of all namespaces, no sizes */
    uint64_t ram_bytes, nvme_bytes; /* 0: not said */
    uint64_t ttl_ms;                /* 0: for ever */
    bool has_ttl, contexts_off;     /* off: no record is merged, within the namespace either */
};
int wk_parse_limits(const char *text, struct wk_limits *ret);
enum { WK_DEVICES_MAX = 64, WK_GPUS_MAX = 1000 };
struct wk_devices {
    const char *kind; /* "cuda"; "hostcuda": its emulation; NULL: "cpu", "auto" */
    unsigned n;       /* those that are named */
    struct {
        const char *at; /* "0", or "0+1": GPUs as one; of the text that was parsed */
        int len;
    } name[WK_DEVICES_MAX];
    bool several; /* more than one, or "auto" */
};
/* "…{document}…{query}…", these two once each in either order, {instruction} once at most. */
enum { WK_TEMPLATE_PARTS_MAX = 7 };
struct wk_template {
    struct wk_template_part {
        enum { WK_PART_TEXT, WK_PART_DOCUMENT, WK_PART_QUERY, WK_PART_INSTRUCTION } what;
        const char *text; /* borrowed of the template; WK_PART_TEXT alone has any */
        size_t len;
    } part[WK_TEMPLATE_PARTS_MAX];
    size_t n;
    bool document_first;
};
int wk_parse_template(const char *text, struct wk_template *ret);
int wk_parse_devices(const char *text, struct wk_devices *ret);
int wk_parse_kv_pages(const char *text, uint64_t *ret_bytes, uint64_t *ret_reserve); /* 0: auto */
int wk_parse_guard(const char *text, double *ret_share, double *ret_kl); /* kl 0: by the profile */
/* *ret_strategy POL_AUTO: the profile's; always: without the controller. */
int wk_parse_strategy(const char *text, bool *ret_always, enum pol_strategy *ret_strategy);

#endif
