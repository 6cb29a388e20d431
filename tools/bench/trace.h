/* trace: which records were asked for, request by request, read from a file of JSON lines.
 *
 * Two formats, told apart by their first line. Block traces (Mooncake's, FAST'25): {"hash_ids": [7,
 * …]} with blocks of equal size. The worker's own access log: {"records": [{"id": "32 hex",
 * "tokens": n, "bytes": n}, …]}. Other members are left alone. Records are numbered in the order of
 * their first appearance, so that a replay needs no hash table. Thread: one. */
#ifndef TOOLS_BENCH_TRACE_H
#define TOOLS_BENCH_TRACE_H

#include "base/err.h"
#include "tiers/key.h"

struct trace_record {
    struct tier_key key;
    uint64_t size_bytes; /* blocks: 1 */
    uint64_t n_tokens;   /* blocks: 0 */
};
struct trace_when {    /* zeros where the line does not say */
    double t_s;        /* "timestamp", which is in ms */
    uint64_t n_tokens; /* "input_length" */
};
struct trace {
    struct trace_record *record;
    uint32_t *access;        /* [n_accesses] indices into record[] */
    uint64_t *request;       /* [n_requests + 1] where in access[] a request begins */
    struct trace_when *when; /* [n_requests] */
    size_t n_records, n_accesses, n_requests;
    bool own_log;                                             /* bytes and tokens are known */
    bool same_size;                                           /* of all records */
    size_t cap_records, cap_accesses, cap_requests, cap_when; /* reading: memory taken */
    uint32_t *slot;                                           /* reading: hash table of records */
    size_t n_slots;
};
/* -EIO, -EBADMSG, -ERANGE with file and line; -ENOMEM. */
int trace_open(const char *path, struct trace *ret, struct err *err);
void trace_close(struct trace *t);
/* When the first n requests come, from 0 on: in the trace's rhythm, so much faster or slower that
 * `rate` come in a second. -EINVAL: fewer, all of one moment, or not in order. */
int trace_arrivals(const struct trace *t, size_t n, double rate, double *ret_s);

#endif
