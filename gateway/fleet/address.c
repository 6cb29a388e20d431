#include "gateway/fleet/address.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

int gw_parse_address(const char *s, struct buf *out)
{
    if (strncmp(s, "http://", 7) == 0) s += 7;
    if (strncmp(s, "unix:", 5) == 0) return s[5] ? buf_adds(out, s) : -EINVAL;
    size_t len = strlen(s);
    while (len > 0 && s[len - 1] == '/')
        len--;
    const char *colon = NULL;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == ':') colon = s + i;
        if (s[i] == '/' || s[i] == ' ' || s[i] == '@') return -EINVAL;
    }
    if (!colon) return -EINVAL;
    if (*s != '[' && memchr(s, ':', (size_t)(colon - s)))
        return -EINVAL; /* IPv6 without brackets */
    if (*s == '[' && colon[-1] != ']') return -EINVAL;
    unsigned port = 0;
    const char *p = colon + 1;
    if (p == s + len) return -EINVAL;
    for (; p < s + len; p++) {
        if (!isdigit((unsigned char)*p)) return -EINVAL;
        port = port * 10 + (unsigned)(*p - '0');
        if (port > 65535) return -EINVAL;
    }
    return buf_add(out, s, len);
}

bool gw_secret_is_exposed(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & (S_IRWXG | S_IRWXO));
}
