/* Errors as OpenAI's clients know them: what stands in the table of api.h, with a sentence. */
#include "worker/api/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int status;
    const char *type, *code;
    enum api_retry retry;
    unsigned retry_after_s;
} faults[] = {
#define X(name, status, type, code, retry, after) {status, type, code, API_RETRY_##retry, after},
    API_FAULTS(X)
#undef X
};

int api_err_setv(struct api_err *e, enum api_fault f, const char *param, const char *fmt,
                 va_list ap)
{
    *e = (struct api_err){.status = faults[f].status,
                          .type = faults[f].type,
                          .code = faults[f].code,
                          .retry = faults[f].retry,
                          .retry_after_s = faults[f].retry_after_s};
    if (param) (void)snprintf(e->param, sizeof e->param, "%s", param);
    (void)vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    return -EINVAL;
}

int api_err_set(struct api_err *e, enum api_fault f, const char *param, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int rc = api_err_setv(e, f, param, fmt, ap);
    va_end(ap);
    return rc;
}

int api_missing(struct api_err *e, const char *param, const char *what)
{
    return api_err_set(e, API_MISSING_PARAMETER, param, "Missing required parameter: '%s'%s.",
                       param, what);
}

int api_wrong_type(struct api_err *e, const char *param, const char *want)
{
    return api_err_set(e, API_INVALID_TYPE, param, "Invalid type for '%s': expected %s.", param,
                       want);
}

int api_no_memory(struct api_err *e)
{
    (void)api_err_set(e, API_INTERNAL_ERROR, NULL, "Out of memory.");
    return -ENOMEM;
}

bool api_err_is(const struct api_err *e, enum api_fault f)
{
    return e->code == faults[f].code;
}

enum api_fault api_fault_of(int status)
{
    static const enum api_fault http[] = {API_REQUEST_TIMEOUT,        API_REQUEST_TOO_LARGE,
                                          API_UNSUPPORTED_MEDIA_TYPE, API_HEADERS_TOO_LARGE,
                                          API_NOT_IMPLEMENTED,        API_SERVER_OVERLOADED};

    for (size_t i = 0; i < sizeof http / sizeof *http; i++)
        if (faults[http[i]].status == status) return http[i];
    return API_BAD_REQUEST;
}

void api_put_error(struct buf *out, const struct api_err *e)
{
    buf_adds(out, "{\"error\":{\"message\":");
    buf_add_json_str(out, e->msg, strlen(e->msg));
    buf_addf(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (e->param[0])
        buf_add_json_str(out, e->param, strlen(e->param));
    else
        buf_adds(out, "null");
    buf_addf(out, ",\"code\":\"%s\"}}", e->code);
}
