/* log: one line per event on stderr: `ts level program event key=value …`, or a JSON object with
 * ts, level, component, msg (the event) and the keys, where log_set_json() asks for that.
 *
 * Only gateway/, worker/, tools/ and the thread of base/otlp log; library code returns codes.
 * Control characters are replaced, so no input can forge a line. Warn and above are rate-limited
 * per call site. Never log prompts, keys or KV contents. Thread: any. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_NOTICE, LOG_INFO, LOG_DEBUG };
void log_set_level(enum log_level l);
int log_parse_level(const char *s, enum log_level *ret); /* 1 known, 0 not */
void log_set_name(const char *program);
void log_set_json(bool json); /* before other threads log */
bool log_is_json(void);
/* fmt gives the "key=value …" part; values with spaces: use %s inside quotes. Keys are plain, and
 * none of the four above. */
void log_event(enum log_level l, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
