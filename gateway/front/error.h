/* error: every refusal of the gateway in OpenAI's error shape, from one table.
 *
 * {"error":{"message","type","param","code"}} with the status, Retry-After and x-should-retry that
 * the official clients act on: retries are asked for only where waiting helps. Thread: any. */
#ifndef GATEWAY_FRONT_ERROR_H
#define GATEWAY_FRONT_ERROR_H

#include <stdint.h>

struct buf;

/*  name             status  type                     code                     retry after s (-1:
 * never) */
#define GW_ERROR_TABLE(X)                                                                          \
    X(INVALID_JSON, 400, "invalid_request_error", "invalid_json", -1)                              \
    X(INVALID_UTF8, 400, "invalid_request_error", "invalid_utf8", -1)                              \
    X(BAD_REQUEST, 400, "invalid_request_error", "bad_request", -1)                                \
    X(INVALID_KEY, 401, "invalid_request_error", "invalid_api_key", -1)                            \
    X(FOREIGN, 403, "permission_denied", "foreign_origin", -1)                                     \
    X(MODEL_NOT_ALLOWED, 403, "permission_denied", "model_not_allowed", -1)                        \
    X(NOT_PUBLIC, 403, "permission_denied", "not_public", -1)                                      \
    X(UNKNOWN_URL, 404, "invalid_request_error", "unknown_url", -1)                                \
    X(UNKNOWN_MODEL, 404, "invalid_request_error", "model_not_found", -1)                          \
    X(NO_RESPONSE, 404, "invalid_request_error", "previous_response_not_found", -1)                \
    X(UNKNOWN_TARGET, 404, "invalid_request_error", "target_not_found", -1)                        \
    X(METHOD, 405, "invalid_request_error", "method_not_allowed", -1)                              \
    X(TIMEOUT, 408, "timeout_error", "request_timeout", 1)                                         \
    X(TOO_LARGE, 413, "invalid_request_error", "request_too_large", -1)                            \
    X(MEDIA_TYPE, 415, "invalid_request_error", "unsupported_media_type", -1)                      \
    X(OVERLOADED, 429, "server_overloaded", "server_overloaded", 2)                                \
    X(CONNECTIONS, 429, "server_overloaded", "too_many_connections", 1)                            \
    X(RATE_REQUESTS, 429, "requests", "rate_limit_exceeded", 1)                                    \
    X(RATE_TOKENS, 429, "tokens", "rate_limit_exceeded", 1)                                        \
    X(RATE_SHARE, 429, "requests", "rate_limit_exceeded", 1)                                       \
    X(RATE_NEVER, 429, "tokens", "rate_limit_exceeded", -1)                                        \
    X(HEADERS, 431, "invalid_request_error", "request_headers_too_large", -1)                      \
    X(INTERNAL, 500, "server_error", "internal_error", -1)                                         \
    X(NOT_SUPPORTED, 501, "not_supported_error", "not_supported", -1)                              \
    X(UPSTREAM, 502, "upstream_error", "upstream_unreachable", 1)                                  \
    X(LOOP, 508, "upstream_error", "loop_detected", -1)                                            \
    X(UPSTREAM_TIMEOUT, 504, "upstream_error", "upstream_timeout", -1)                             \
    X(UNAVAILABLE, 503, "upstream_error", "upstream_unavailable", 2)                               \
    X(LOADING, 503, "server_error", "model_loading", 2)                                            \
    X(DRAINING, 503, "server_error", "draining", 2)                                                \
    X(SHED, 503, "server_overloaded", "server_overloaded", 2)

enum gw_error {
#define X(name, ...) GW_E_##name,
    GW_ERROR_TABLE(X)
#undef X
        GW_E_COUNT
};

int gw_error_status(enum gw_error e);
enum gw_error gw_error_of_status(int status); /* for refusals of the HTTP layer */
/* The JSON body; param may be NULL. 0 or -ENOMEM. */
int gw_error_body(enum gw_error e, const char *message, const char *param, struct buf *out);
/* Header lines that belong to the error: retry hints and, for 401, WWW-Authenticate. */
int gw_error_headers(enum gw_error e, struct buf *out);
/* The same where it is known when to come again. The clients do not wait longer than a minute; then
 * they are told not to try at all. */
int gw_error_headers_after(enum gw_error e, uint64_t after_ms, struct buf *out);
/* The frames that end a stream that had begun: the error, then [DONE]. */
int gw_error_frames(enum gw_error e, const char *message, struct buf *out);

#endif
