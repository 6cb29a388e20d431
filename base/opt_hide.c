/* Secrets on a command line: read, then overwritten. */
#include "base/opt_int.h"

#include <string.h>

/* "--name" or "--name=VALUE" of one of them; *ret_value: behind the '=', NULL: the next argument.
 */
static bool is_secret(const char *const *names, char *arg, char **ret_value)
{
    size_t n = strcspn(arg, "=");
    if (n < 3 || strncmp(arg, "--", 2) != 0) return false;
    for (; *names; names++)
        if (strlen(*names) == n - 2 && opt_same_name(arg + 2, *names, n - 2)) {
            *ret_value = arg[n] ? arg + n + 1 : NULL;
            return true;
        }
    return false;
}

/* Of URLs, what stands between the first "://" and the last '@', and the fields behind them; else
 * all of it. */
static void overwrite(char *v)
{
    char *url = v + strspn(v, " \t\r\n"), *fields = url + strcspn(url, " \t\r\n");
    char *from = strstr(url, "://");
    bool is_url = (from && from < fields) || strncmp(url, "unix:/", 6) == 0;
    if (is_url && strchr(fields, '=')) memset(fields, '*', strlen(fields));
    char *at = strrchr(url, '@');
    if (is_url && !at && !strstr(url, "password=")) return; /* a URL without a secret */
    if (from && at > from && !strstr(at, "password=")) {
        from += 3;
        memset(from, '*', (size_t)(at - from));
    } else {
        memset(v, '*', strlen(v));
    }
}

void opts_hide_argv(int argc, char **argv, const char *const *names)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        char *v;
        if (!is_secret(names, argv[i], &v)) continue;
        if (!v && i + 1 < argc) v = argv[++i];
        if (v) overwrite(v);
    }
}
