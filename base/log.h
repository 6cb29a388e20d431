/* log: one line per event: `ts level event key=value …` on stderr.
 *
 * Only gateway/, worker/, tools/ and the thread of base/otlp log; library code returns codes.
 * Control characters are replaced, so no input can forge a line. Warn and above are rate-limited
 * per call site. Never log prompts, keys or KV contents. Thread: any. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_NOTICE, LOG_INFO, LOG_DEBUG };
void log_set_level(enum log_level l);
int log_parse_level(const char *s, enum log_level *ret); /* 1 known, 0 not */
void log_set_name(const char *program);
/* fmt gives the "key=value …" part; values with spaces: use %s inside quotes. */
void log_event(enum log_level l, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
