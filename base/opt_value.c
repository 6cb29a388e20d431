/* The values of single options, from text. */
#include "base/opt.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int opt_parse_int(const char *text, int64_t *ret)
{
    char *end;
    if (!*text || isspace((unsigned char)*text)) return -EINVAL;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (*end || end == text) return -EINVAL;
    if (errno == ERANGE) return -ERANGE;
    *ret = v;
    return 0;
}

/* The number at the start of text; not hexadecimal, not "inf", no leading space. */
static int number_prefix(const char *text, double *ret, const char **ret_end)
{
    size_t n = strspn(text, "+-");
    char *end;
    if (n > 1 || (!isdigit((unsigned char)text[n]) && text[n] != '.')) return -EINVAL;
    if (text[n] == '0' && (text[n + 1] == 'x' || text[n + 1] == 'X')) return -EINVAL;
    double v = strtod(text, &end);
    if (end == text) return -EINVAL;
    if (!isfinite(v)) return -ERANGE;
    *ret = v;
    *ret_end = end;
    return 0;
}

int opt_parse_double(const char *text, double *ret)
{
    const char *end;
    double v;
    int r = number_prefix(text, &v, &end);
    if (r < 0) return r;
    if (*end) return -EINVAL;
    *ret = v;
    return 0;
}

int opt_parse_size(const char *text, uint64_t *ret_bytes)
{
    const char *end;
    double v;
    int r = number_prefix(text, &v, &end);
    if (r < 0) return r;
    while (*end == ' ')
        end++;
    static const char units[] = "kmgt";
    const char *u = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;
    if (u) {
        v *= (double)(1ull << (10 * (u - units + 1)));
        end++;
        if (*end == 'i' || *end == 'I') end++;
    }
    if (*end == 'b' || *end == 'B') end++;
    if (*end || v < 0 || v != floor(v)) return -EINVAL;
    if (v > 9007199254740992.0) return -ERANGE; /* 2^53: exact in a double */
    *ret_bytes = (uint64_t)v;
    return 0;
}

int opt_parse_duration_ms(const char *text, uint64_t *ret_ms)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
    const char *end;
    double v;
    int r = number_prefix(text, &v, &end);
    if (r < 0) return r;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        v *= units[i].ms;
        if (v < 0) return -EINVAL;
        if (v > 1e15) return -ERANGE;
        *ret_ms = (uint64_t)(v + 0.5);
        return 0;
    }
    return -EINVAL;
}

int opt_parse_bool(const char *text, bool *ret)
{
    static const char *const words[] = {"true", "yes", "on", "1", "false", "no", "off", "0"};
    for (size_t i = 0; i < 8; i++)
        if (strcasecmp(text, words[i]) == 0) {
            *ret = i < 4;
            return 0;
        }
    return -EINVAL;
}
