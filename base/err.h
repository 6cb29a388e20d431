/* Errors: negative errno codes everywhere, plus one sentence at the edges.
 *
 * Fallible functions return 0 or positive on success and a negative errno on failure; outputs are
 * untouched on failure. Functions that talk to a human (configuration, model load, admin, request
 * parsing) take a trailing `struct err *` as well; everything else returns the code alone.
 * Fixed meanings: -EINVAL bad input, -ENOMEM memory or budget, -ENOSPC tier full, -EAGAIN queue
 * full, -EBADMSG checksum or parse, -ESTALE other model or layout, -ETIMEDOUT, -ECANCELED, -EIO
 * device, -ENOTSUP not built in or refused, -ERANGE limit exceeded.
 * Thread: any. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <errno.h>

struct err {
    int code;      /* negative errno, 0 = none */
    char msg[240]; /* one sentence, no trailing period or newline */
};

/* Fill `e` (may be NULL) and return `code`, so that callers can `return err_set(e, -EINVAL, …)`. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* "EINVAL" for -EINVAL; "?" when unknown. */
const char *err_name(int code);

#endif
