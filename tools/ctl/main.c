#include "tools/ctl/ctl.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct ctl_command *const commands[] = {
    &ctl_status, &ctl_quality, &ctl_targets, &ctl_keys,   &ctl_drain,   &ctl_enable,
    &ctl_reload, &ctl_profile, &ctl_tiers,   &ctl_ls,     &ctl_show,    &ctl_pin,
    &ctl_unpin,  &ctl_evict,   &ctl_clear,   &ctl_warm,   &ctl_segment, &ctl_explain,
    &ctl_verify, &ctl_preload, &ctl_flush,   &ctl_resize, &ctl_policy,  &ctl_quota};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

#define TEXT(field) offsetof(struct ctl_args, field), false
#define FLAG(field) offsetof(struct ctl_args, field), true
static const struct option {
    const char *name, *value; /* value: what it is called; NULL: none */
    unsigned bit;             /* 0: of every command */
    size_t offset;
    bool is_flag;
    const char *help;
} options[] = {
    {"--admin", "ADDRESS", 0, TEXT(admin),
     "unix:/path or HOST:PORT (default: KVBLEND_ADMIN, else the run folder); for HOST:PORT the "
     "variable KVBLEND_ADMIN_KEY is its key"},
    {"--json", NULL, 0, FLAG(json), "the answer as JSON"},
    {"--tier", "NAME", CTL_TIER, TEXT(tier), "there alone: ram, nvme, redis or gpu"},
    {"--namespace", "NAME", CTL_NAMESPACE, TEXT(name_space),
     "of it or in it alone: KEY (an API key's), KEY/BODY or /BODY"},
    {"--chunks", NULL, CTL_CHUNKS, FLAG(chunks_only), "without prefix blocks"},
    {"--all", NULL, CTL_ALL, FLAG(all), "pinned ones, too"},
    {"--no-wait", NULL, CTL_NO_WAIT, FLAG(no_wait), "do not wait for the builds"},
    {"--yes", NULL, CTL_YES, FLAG(yes), "do not ask whether records may go"},
    {"--dry-run", NULL, CTL_DRY_RUN, FLAG(dry_run), "say what would go, and change nothing"},
};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static int usage(FILE *f, int status)
{
    (void)fprintf(f, "usage: kvblendctl [--admin ADDRESS] [--json] COMMAND …\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        (void)fprintf(f, "  %-8s %-13s %s", commands[i]->name,
                      commands[i]->operands ? commands[i]->operands : "", commands[i]->help);
        const char *before = " (";
        for (size_t k = 0; k < N_OPTIONS; k++) {
            if (!(options[k].bit & commands[i]->options)) continue;
            (void)fprintf(f, "%s%s", before, options[k].name);
            before = ", ";
        }
        (void)fprintf(f, "%s\n", commands[i]->options ? ")" : "");
    }
    (void)fputc('\n', f);
    for (size_t k = 0; k < N_OPTIONS; k++)
        (void)fprintf(f, "  %-11s %-7s %s\n", options[k].name,
                      options[k].value ? options[k].value : "", options[k].help);
    (void)fprintf(f, "\nexit codes: 0 done, 1 not found or refused, 2 usage, 3 nobody answers\n");
    return status;
}

static int complain(const struct ctl_args *a, const char *why, const char *what)
{
    return ctl_fail(a, CTL_USAGE, "%s \"%.60s\"; see --help", why, what);
}

/* argv[*i] as an option: "--name", "--name VALUE" or "--name=VALUE". NULL: it is none, or has no
 * value where it needs one. */
static const struct option *take_option(struct ctl_args *a, int argc, char **argv, int *i)
{
    for (size_t k = 0; k < N_OPTIONS; k++) {
        const struct option *o = &options[k];
        size_t n = strlen(o->name);
        void *field = (char *)a + o->offset;
        if (strncmp(argv[*i], o->name, n) != 0) continue;
        if (o->is_flag && !argv[*i][n])
            *(bool *)field = true;
        else if (!o->is_flag && argv[*i][n] == '=')
            *(const char **)field = argv[*i] + n + 1;
        else if (!o->is_flag && !argv[*i][n] && *i + 1 < argc)
            *(const char **)field = argv[++*i];
        else
            continue;
        return o;
    }
    return NULL;
}

static int check_operands(const struct ctl_args *a, const char *spec, const char *command)
{
    const char *given[] = {a->operand, a->second};
    for (size_t i = 0; i < 2; i++) {
        spec += strspn(spec, " ");
        size_t n = strcspn(spec, " ");
        if (n == 0 && given[i]) return complain(a, "unexpected argument", given[i]);
        if (n > 0 && *spec != '[' && !given[i])
            return ctl_fail(a, CTL_USAGE, "%.*s is missing after \"%s\"; see --help", (int)n, spec,
                            command);
        spec += n;
    }
    return CTL_OK;
}

static int run_command(const struct ctl_args *a, const char *command, unsigned given)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i]->name, command) != 0) continue;
        for (size_t k = 0; k < N_OPTIONS; k++)
            if (options[k].bit & given & ~commands[i]->options)
                return ctl_fail(a, CTL_USAGE, "%s does not go with \"%s\"; see --help",
                                options[k].name, command);
        const struct ctl_command *c = commands[i];
        int rc = check_operands(a, c->operands ? c->operands : "", command);
        if (rc != CTL_OK) return rc;
        return c->run ? c->run(a)
                      : ctl_print(a, c->method ? c->method : "GET", c->target, c->print);
    }
    return complain(a, "unknown command", command);
}

int main(int argc, char **argv)
{
    struct ctl_args a = {0};
    const char *command = NULL;
    unsigned given = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        const struct option *o = take_option(&a, argc, argv, &i);
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return usage(stdout, CTL_OK);
        if (strcmp(argv[i], "--version") == 0) return printf("kvblendctl %s\n", KV_VERSION) < 0;
        if (o)
            given |= o->bit;
        else if (argv[i][0] == '-' && argv[i][1])
            return complain(&a, "unknown flag, or one without its value:", argv[i]);
        else if (!command)
            command = argv[i];
        else if (!a.operand)
            a.operand = argv[i];
        else if (!a.second)
            a.second = argv[i];
        else
            return complain(&a, "unexpected argument", argv[i]);
    }
    return command ? run_command(&a, command, given) : usage(stderr, CTL_USAGE);
}
