/* stats: the gateway's own metrics and its access log.
 *
 * The access log is one JSON object per line and request; it never holds prompt text or keys. Lines
 * are written by a helper thread of its own, so that a slow disk or pipe cannot stop the loop; when
 * its queue is full lines are dropped and counted.
 * Thread: any. */
#ifndef GATEWAY_PROCESS_STATS_H
#define GATEWAY_PROCESS_STATS_H

#include <stdbool.h>
#include <stdint.h>

enum gw_end { /* why a request ended: access log */
              GW_END_OK,
              GW_END_CLIENT_ABORT,
              GW_END_REFUSED,
              GW_END_SHED,
              GW_END_UPSTREAM,
              GW_END_TIMEOUT,
              GW_END_DRAIN,
};
enum gw_shed_reason {                    /* why a completion was sent away */
                      GW_SHED_OBJECTIVE, /* its predicted wait */
                      GW_SHED_SHARE,     /* the same, for what its own key has waiting */
                      GW_SHED_FULL,      /* the queue */
                      GW_SHED_TIMEOUT,   /* it waited too long */
                      GW_SHED_COUNT,
};
enum gw_fallback_end { /* what became of a request that the workers cannot serve */
                       GW_FALLBACK_ASKED,     /* the fallback */
                       GW_FALLBACK_FAILED,    /* ... which gave no answer */
                       GW_FALLBACK_FORBIDDEN, /* its key may not */
                       GW_FALLBACK_UNSET,     /* there is no fallback */
};
struct gw_req;
struct buf;
struct gw_stats;
/* access_log: "stdout" or "-", "off", or a path; lives as long. */
int gw_stats_create(const char *access_log, struct gw_stats **ret);
/* Open the file anew, as after its rotation: lines already taken still go to the old one. 0, or an
 * error and the old file stays. */
int gw_stats_reopen(struct gw_stats *s);
void gw_stats_destroy(struct gw_stats *s);
/* It ends. aborted: the client left. */
void gw_stats_request(struct gw_stats *s, const struct gw_req *q, bool aborted);
struct gw_recent;
struct gw_recent *gw_stats_recent(const struct gw_stats *s); /* of clients' requests; borrow */

#define GW_METRIC_TABLE(X)                                                                         \
    X(ACTIVE, GAUGE, "kvblend_requests_active", "Requests being served.")                          \
    X(WAITING, GAUGE, "kvblend_gateway_queue_length", "Completions waiting for their turn.")       \
    X(READY, GAUGE, "kvblend_gateway_workers_ready", "Workers and upstreams that can serve.")      \
    X(RELAYED, COUNTER, "kvblend_gateway_relay_bytes_total",                                       \
      "Bytes of answers relayed from workers.")                                                    \
    X(SEGMENTS, COUNTER, "kvblend_gateway_segments_total", "Chunks found in message texts.")       \
    X(RESTARTS, COUNTER, "kvblend_gateway_worker_restarts_total", "Restarts of the own worker.")   \
    X(RETRIES, COUNTER, "kvblend_gateway_retries_total",                                           \
      "Requests sent again after a worker was lost.")                                              \
    X(FAILOVERS, COUNTER, "kvblend_gateway_failovers_total",                                       \
      "Retries that went to another backend.")                                                     \
    X(ABORTS, COUNTER, "kvblend_gateway_client_aborts_total",                                      \
      "Clients that left before their answer.")                                                    \
    X(LOG_LOST, COUNTER, "kvblend_gateway_log_lines_lost_total",                                   \
      "Access log lines that were dropped.")                                                       \
    X(BODY_BYTES, GAUGE, "kvblend_gateway_body_bytes", "Request bodies in memory.")                \
    X(BODY_REFUSED, COUNTER, "kvblend_gateway_bodies_refused_total",                               \
      "Request bodies refused because limits.body_memory was used up.")                            \
    X(EVICTED, COUNTER, "kvblend_gateway_connections_evicted_total",                               \
      "Idle connections of clients that were closed to make room for others.")                     \
    X(DIRECTORY, GAUGE, "kvblend_gateway_directory_texts",                                         \
      "Texts that workers are known to hold, counted per worker.")
enum gw_metric {
#define X(name, ...) GW_M_##name,
    GW_METRIC_TABLE(X)
#undef X
        GW_M_COUNT
};
void gw_stats_add(enum gw_metric m, double v);
void gw_stats_set(enum gw_metric m, double v);
void gw_stats_detected(const char *detector, unsigned n_segments);
/* A target was chosen for policy/route's reason; of prompts with chunks: their tokens, and those of
 * them that it holds. */
void gw_stats_routed(const char *reason, uint64_t prompt_tokens, uint64_t resident_tokens);
void gw_stats_fallback(enum gw_fallback_end what);
void gw_stats_shed(enum gw_shed_reason why);
void gw_stats_put_shed(struct buf *b); /* "REASON":N,… */
/* The slowest completions of the last hour (slow.h): lines of the access log, commas between. */
void gw_stats_put_slow(struct gw_stats *s, struct buf *b);

#endif
