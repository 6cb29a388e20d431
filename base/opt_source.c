/* Flags and variables: reading them, hiding secrets among them, naming those that nothing reads. */
#include "base/opt_int.h"
#include "base/opt_removed.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- flags ---- */

static void set_positional(struct opts *o, const char *text, const struct opt_place *at)
{
    size_t i = o->n_positionals;
    for (struct opt_row *row = o->rows; row < o->rows + o->n_rows; row++) {
        if (!row->def->positional) continue;
        if (i > 0 && !row->def->repeatable) {
            i--;
            continue;
        }
        o->n_positionals++;
        opt_set(o, row, text, at);
        return;
    }
    opt_problem(o, at, "unexpected argument \"%.80s\"; see --help", text);
}

/* One "--…" argument; returns how many arguments it took. */
static int set_flag(struct opts *o, const char *arg, const char *next, const struct opt_place *at)
{
    char name[OPT_NAME_BYTES];
    size_t len = strcspn(arg, "=");
    const char *value = arg[len] ? arg + len + 1 : NULL;
    (void)snprintf(name, sizeof name, "%.*s", (int)len, arg);
    struct opt_row *row = opt_of_flag(o, name + 2);
    if (!row && strncmp(name, "--no-", 5) == 0 && !value) {
        row = opt_of_flag(o, name + 5);
        if (row && row->def->type != OPT_BOOL) row = NULL;
        if (row) value = "false";
    }
    if (!row) {
        opt_unknown(o, at, name, NULL);
        return !value && next && next[0] != '-' ? 2 : 1; /* what looks like its value is no news */
    }
    const bool is_switch = row->def->type == OPT_BOOL;
    const bool takes_next =
        !value && next && (!is_switch || strcmp(next, "on") == 0 || strcmp(next, "off") == 0);
    if (takes_next) value = next;
    if (!value && is_switch) value = "true";
    if (value)
        opt_set(o, row, value, at);
    else
        opt_problem(o, at, "--%s: needs a value", row->flag);
    return takes_next ? 2 : 1;
}

static bool has_flag(const struct opt_args *from, const char *flag)
{
    for (int i = 1; i < from->argc && strcmp(from->argv[i], "--") != 0; i++)
        if (strcmp(from->argv[i], flag) == 0) return true;
    return false;
}

static void read_argv(struct opts *o, const struct opt_args *from)
{
    const struct opt_place at = {OPT_FLAG, NULL, 0};
    bool flags = true;
    for (int i = 1; i < from->argc;) {
        const char *arg = from->argv[i], *next = i + 1 < from->argc ? from->argv[i + 1] : NULL;
        int used = 1;
        if (flags && strcmp(arg, "--") == 0)
            flags = false;
        else if (flags && strncmp(arg, "--", 2) == 0)
            used = set_flag(o, arg, next, &at);
        else if (flags && arg[0] == '-' && arg[1])
            opt_problem(o, &at, "%.80s: unknown flag; flags begin with two dashes", arg);
        else
            set_positional(o, arg, &at);
        i += used;
    }
}

/* "--name" or "--name=VALUE" of a secret; *ret_value: behind the '=', NULL: the next argument. */
static bool is_secret(const struct opts *o, char *arg, char **ret_value)
{
    char name[OPT_NAME_BYTES];
    size_t n = strcspn(arg, "=");
    if (n < 3 || n >= sizeof name || strncmp(arg, "--", 2) != 0) return false;
    (void)snprintf(name, sizeof name, "%.*s", (int)(n - 2), arg + 2);
    const struct opt_row *row = opt_of_flag(o, name);
    *ret_value = arg[n] ? arg + n + 1 : NULL;
    return row && (row->def->props & OPT_SECRET);
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

void opts_hide_argv(const struct opts *o, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        char *v;
        if (!is_secret(o, argv[i], &v)) continue;
        if (!v && i + 1 < argc) v = argv[++i];
        if (v) overwrite(v);
    }
}

/* ---- variables ---- */

bool opt_variable(const struct opt_row *row, const char *prefix, char ret[OPT_NAME_BYTES])
{
    int n = snprintf(ret, OPT_NAME_BYTES, "%s_%s", prefix, row->flag);
    if (n < 0 || n >= OPT_NAME_BYTES || (row->def->props & OPT_FLAG_ONLY) == OPT_FLAG_ONLY)
        return false;
    for (char *p = ret; *p; p++)
        *p = *p == '-' || *p == '.' ? '_' : (char)toupper((unsigned char)*p);
    return true;
}

static void read_env(struct opts *o, const struct opt_args *from)
{
    for (struct opt_row *row = o->rows; row < o->rows + o->n_rows; row++) {
        char name[OPT_NAME_BYTES];
        if (!opt_variable(row, from->prefix, name)) continue;
        const struct opt_place at = {OPT_ENV, name, 0};
        const size_t n = strlen(name);
        for (char *const *e = from->envp; *e; e++)
            if (strncmp(*e, name, n) == 0 && (*e)[n] == '=' && (*e)[n + 1])
                opt_set(o, row, *e + n + 1, &at);
    }
}

/* What other programs of ours read, or this one elsewhere. */
static bool is_read_elsewhere(const char *name)
{
    static const char *const others[] = {
        "KVBLEND_ADMIN",  "KVBLEND_ATTN",      "KVBLEND_CUDNN",      "KVBLEND_EXIT_ON_STDIN_EOF",
        "KVBLEND_GEMM",   "KVBLEND_INJECT",    "KVBLEND_ISA",        "KVBLEND_KERNELS_DIR",
        "KVBLEND_MODELS", "KVBLEND_TIER_WAIT", "KVBLEND_WORKER_BIN", "KVBLEND_WORKER_COUNT"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(name, others[i]) == 0) return true;
    return false;
}

/* ${NAME} in the file or a flag: the operator's own. */
static bool is_referred_to(const struct opts *o, const struct opt_args *from, const char *name)
{
    char spaced[OPT_NAME_BYTES + 2];
    int n = snprintf(spaced, sizeof spaced, " %s ", name);
    if (o->named.len > 0 && memmem(o->named.data, o->named.len, spaced, (size_t)n)) return true;
    for (int i = 1; i < from->argc; i++)
        if (strstr(from->argv[i], name)) return true;
    return false;
}

/* The name of a variable that may be meant for an option; what stands behind the prefix and its _,
 * or NULL. */
static const char *option_of(const struct opts *o, const struct opt_args *from, const char *e,
                             char ret[OPT_NAME_BYTES])
{
    const size_t n = strcspn(e, "="), n_prefix = strlen(from->prefix);
    if (n >= OPT_NAME_BYTES || strncmp(e, from->prefix, n_prefix) != 0 || e[n_prefix] != '_')
        return NULL;
    (void)snprintf(ret, OPT_NAME_BYTES, "%.*s", (int)n, e);
    return is_read_elsewhere(ret) || is_referred_to(o, from, ret) ? NULL : ret + n_prefix + 1;
}

/* As flags are: what a variable once closed, such as a secret's, must not stand open. */
static void refuse_removed(struct opts *o, const struct opt_args *from)
{
    char name[OPT_NAME_BYTES];
    for (char *const *e = from->envp; *e; e++) {
        const char *option = option_of(o, from, *e, name);
        const char *instead = option ? opt_removed(option, NULL) : NULL;
        if (instead)
            opt_problem(o, &(struct opt_place){OPT_ENV, name, 0}, "was removed; %s", instead);
    }
}

void opts_unknown_env(const struct opts *o, const struct opt_args *from, struct buf *out)
{
    static const char worker[] = "KVBLEND_WORKER_"; /* the gateway hands them down to it */
    const bool hands_down = strcmp(from->prefix, "KVBLEND") == 0;
    for (char *const *e = from->envp; *e; e++) {
        char name[OPT_NAME_BYTES], known[OPT_NAME_BYTES], near[OPT_NAME_BYTES] = "";
        const char *option = option_of(o, from, *e, name);
        if (!option || (hands_down && strncmp(name, worker, strlen(worker)) == 0)) continue;
        size_t best = strlen(option) / 3 + 2;
        for (size_t i = 0; i < o->n_rows; i++) {
            if (opt_variable(&o->rows[i], from->prefix, known) && opt_is_nearer(name, known, &best))
                memcpy(near, known, sizeof known);
        }
        if (strcmp(name, near) != 0)
            (void)buf_addf(out, "%s is unknown%s%s\n", name, *near ? "; expected one like " : "",
                           near);
    }
}

/* ---- all of them ---- */

int opts_read(struct opts *o, const struct opt_args *from, struct buf *problems)
{
    o->problems = problems;
    if (has_flag(from, "--dump-options")) o->dumped = from->prefix;
    if (o->dumped || has_flag(from, "--help") || has_flag(from, "-h")) return 1;
    read_argv(o, from);
    read_env(o, from);
    const struct opt_row *config = from->read_file ? opt_of_flag(o, "config") : NULL;
    if (config && config->n > 0) from->read_file(o, config->texts[0]);
    refuse_removed(o, from);
    o->problems = NULL;
    if (o->no_memory || buf_status(problems) < 0) return -ENOMEM;
    return o->n_problems > 0 ? -EINVAL : 0;
}
