/* api_error: every error that this server answers with, in one table, and its JSON shape.
 *
 * A function that can fail for the client's reasons fills an api_err and returns -EINVAL; call.h
 * replies with it. Pure. Thread: any. */
#ifndef WORKER_API_API_ERROR_H
#define WORKER_API_API_ERROR_H

#include "base/buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>

enum api_retry { API_RETRY_DEFAULT, API_RETRY_NO, API_RETRY_YES }; /* x-should-retry */
#define API_INVALID "invalid_request_error"
#define API_SERVER "server_error"
/* Name, HTTP status, OpenAI's type and code, x-should-retry, Retry-After in seconds (0: none). */
#define API_FAULTS(X)                                                                              \
    X(INVALID_JSON, 400, API_INVALID, "invalid_json", DEFAULT, 0)                                  \
    X(INVALID_TYPE, 400, API_INVALID, "invalid_type", DEFAULT, 0)                                  \
    X(INVALID_VALUE, 400, API_INVALID, "invalid_value", DEFAULT, 0)                                \
    X(MISSING_PARAMETER, 400, API_INVALID, "missing_required_parameter", DEFAULT, 0)               \
    X(UNKNOWN_PARAMETER, 400, API_INVALID, "unknown_parameter", DEFAULT, 0)                        \
    X(UNSUPPORTED_PARAMETER, 400, API_INVALID, "unsupported_parameter", DEFAULT, 0)                \
    X(EMPTY_ARRAY, 400, API_INVALID, "empty_array", DEFAULT, 0)                                    \
    X(ARRAY_TOO_LONG, 400, API_INVALID, "array_above_max_length", DEFAULT, 0)                      \
    X(STRING_TOO_LONG, 400, API_INVALID, "string_above_max_length", DEFAULT, 0)                    \
    X(OBJECT_TOO_LARGE, 400, API_INVALID, "object_above_max_properties", DEFAULT, 0)               \
    X(INTEGER_TOO_SMALL, 400, API_INVALID, "integer_below_min_value", DEFAULT, 0)                  \
    X(INTEGER_TOO_LARGE, 400, API_INVALID, "integer_above_max_value", DEFAULT, 0)                  \
    X(DECIMAL_TOO_SMALL, 400, API_INVALID, "decimal_below_min_value", DEFAULT, 0)                  \
    X(DECIMAL_TOO_LARGE, 400, API_INVALID, "decimal_above_max_value", DEFAULT, 0)                  \
    X(CONTEXT_EXCEEDED, 400, API_INVALID, "context_length_exceeded", DEFAULT, 0)                   \
    X(NO_CHAT_TEMPLATE, 400, API_INVALID, "no_chat_template", DEFAULT, 0)                          \
    X(NOT_SUPPORTED, 400, API_INVALID, "not_supported", DEFAULT, 0)                                \
    X(SIZE_TOO_LARGE, 400, API_INVALID, "no_room", DEFAULT, 0)                                     \
    X(BAD_REQUEST, 400, API_INVALID, "bad_request", DEFAULT, 0)                                    \
    X(INVALID_API_KEY, 401, API_INVALID, "invalid_api_key", DEFAULT, 0)                            \
    X(ADMIN_CLOSED, 403, "permission_denied", "admin_closed", DEFAULT, 0)                          \
    X(NAMESPACE_CLOSED, 403, "permission_denied", "namespace_closed", DEFAULT, 0)                  \
    X(MODEL_NOT_FOUND, 404, API_INVALID, "model_not_found", DEFAULT, 0)                            \
    X(EMBEDDINGS_ONLY, 404, API_INVALID, "embeddings_only", DEFAULT, 0)                            \
    X(NO_EMBEDDINGS, 404, API_INVALID, "no_embeddings", DEFAULT, 0)                                \
    X(SCORES_ONLY, 404, API_INVALID, "scores_only", DEFAULT, 0)                                    \
    X(SEGMENT_NOT_FOUND, 404, API_INVALID, "segment_not_found", DEFAULT, 0)                        \
    X(DECISION_NOT_FOUND, 404, API_INVALID, "decision_not_found", DEFAULT, 0)                      \
    X(TIER_NOT_FOUND, 404, API_INVALID, "tier_not_found", DEFAULT, 0)                              \
    X(UNKNOWN_URL, 404, API_INVALID, "unknown_url", DEFAULT, 0)                                    \
    X(METHOD_NOT_ALLOWED, 405, API_INVALID, "method_not_allowed", DEFAULT, 0)                      \
    X(REQUEST_TIMEOUT, 408, "timeout_error", "request_timeout", DEFAULT, 0)                        \
    X(NO_ROOM, 409, API_INVALID, "no_room", DEFAULT, 0)                                            \
    X(PINS_FULL, 409, API_INVALID, "pins_full", NO, 0)                                             \
    X(SEGMENT_PINNED, 409, API_INVALID, "segment_pinned", NO, 0)                                   \
    X(REQUEST_TOO_LARGE, 413, API_INVALID, "request_too_large", DEFAULT, 0)                        \
    X(UNSUPPORTED_MEDIA_TYPE, 415, API_INVALID, "unsupported_media_type", DEFAULT, 0)              \
    X(QUEUE_FULL, 429, "server_overloaded", "queue_full", YES, 1)                                  \
    X(HEADERS_TOO_LARGE, 431, API_INVALID, "headers_too_large", DEFAULT, 0)                        \
    X(INTERNAL_ERROR, 500, API_SERVER, "internal_error", DEFAULT, 0)                               \
    X(OUT_OF_MEMORY, 500, API_SERVER, "out_of_memory", NO, 0)                                      \
    X(NOT_IMPLEMENTED, 501, "not_supported_error", "not_supported", DEFAULT, 0)                    \
    X(DEVICE_LOST, 503, API_SERVER, "device_lost", YES, 2)                                         \
    X(DRAINING, 503, API_SERVER, "draining", YES, 2)                                               \
    X(MODEL_LOADING, 503, API_SERVER, "model_loading", YES, 2)                                     \
    X(SERVER_OVERLOADED, 503, API_SERVER, "server_overloaded", YES, 1)                             \
    X(TIER_FAILED, 503, API_SERVER, "tier_failed", DEFAULT, 0)                                     \
    X(TIMEOUT, 503, API_SERVER, "timeout", DEFAULT, 0)
enum api_fault {
#define X(name, status, type, code, retry, after) API_##name,
    API_FAULTS(X)
#undef X
};
struct api_err {
    int status; /* HTTP; 0 = none */
    const char *type, *code;
    char param[64]; /* "" = null */
    char msg[320];
    unsigned retry_after_s; /* 0 = no header */
    enum api_retry retry;
};
/* Fill e and return -EINVAL, so that callers can return it. */
int api_err_set(struct api_err *e, enum api_fault f, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int api_err_setv(struct api_err *e, enum api_fault f, const char *param, const char *fmt,
                 va_list ap);
int api_missing(struct api_err *e, const char *param, const char *what); /* what: behind the name */
/* want: what is expected instead. */
int api_wrong_type(struct api_err *e, const char *param, const char *want);
int api_no_memory(struct api_err *e); /* 500; returns -ENOMEM */
bool api_err_is(const struct api_err *e, enum api_fault f);
enum api_fault api_fault_of(int status); /* that the HTTP layer answers with */
/* {"error":{"message","type","param","code"}} */
void api_put_error(struct buf *out, const struct api_err *e);

#endif
