#include "tools/ctl/ctl.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Options of single commands; those without a bit go with every one. */
enum {
    TIER = 1,
    NAMESPACE = 2,
    ALL = 4,
    CHUNKS = 8,
    NO_WAIT = 16,
    YES = 32,
    DRY_RUN = 64,
    ASKS = YES | DRY_RUN, /* of what drops records */
};

/* Operands: the needed ones, then those in brackets, which may be left out. */
static const struct {
    const char *name, *operands;
    unsigned options;
    const char *help;
    int (*run)(const struct ctl_args *a);
} commands[] = {
    {"status", "", 0, "gateway and workers at a glance", ctl_status},
    {"quality", "", 0,
     "how close blended answers are to a full prefill's, and what was done about it", ctl_quality},
    {"targets", "", 0, "every backend: health, breaker, load, models", ctl_targets},
    {"keys", "", 0, "every API key: what it may, has waiting and got of the work", ctl_keys},
    {"drain", "TARGET", 0, "send it no new requests", ctl_drain},
    {"enable", "TARGET", 0, "send it requests again", ctl_enable},
    {"reload", "", 0, "read the configuration file and the keys again", ctl_reload},
    {"profile", "", 0, "what calibration knows of the model: layers, losses, ratio", ctl_profile},
    {"tiers", "", 0, "what each tier holds, how fast it is and what it refuses", ctl_tiers},
    {"ls", "", CHUNKS | TIER | NAMESPACE, "stored records", ctl_ls},
    {"show", "ID", 0, "one record; an ID may be cut to its first digits", ctl_show},
    {"pin", "ID", 0, "keep a record from being evicted", ctl_pin},
    {"unpin", "ID", 0, "let it be evicted again", ctl_unpin},
    {"evict", "ID", TIER | ASKS, "drop one record, or all whose IDs begin so", ctl_evict},
    {"clear", "", ALL | TIER | NAMESPACE | ASKS, "drop all but pinned records", ctl_clear},
    {"warm", "FILE", NAMESPACE | NO_WAIT,
     "build chunks: .jsonl with \"text\", a JSON list, or one text", ctl_warm},
    {"segment", "FILE", NAMESPACE, "explain how a captured request would be cut and served",
     ctl_segment},
    {"explain", "REQUEST_ID", 0,
     "why a request was served as it was, and what else it could have been", ctl_explain},
    {"verify", "[ID]", TIER, "read records back and check every byte", ctl_verify},
    {"preload", "TIER [COUNT]", 0, "bring the most recently used records into RAM", ctl_preload},
    {"flush", "", 0, "wait until slower tiers have what is due to them", ctl_flush},
    {"resize", "TIER SIZE", ASKS, "change a tier's cap while it runs", ctl_resize},
    {"policy", "TIER NAME", 0, "order of eviction: lru or arc", ctl_policy},
    {"quota", "TIER SIZE", NAMESPACE, "cap a namespace within a tier; 0 lifts it", ctl_quota},
};
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
    {"--tier", "NAME", TIER, TEXT(tier), "there alone: ram, nvme, redis or gpu"},
    {"--namespace", "NAME", NAMESPACE, TEXT(name_space),
     "of it or in it alone: KEY (an API key's), KEY/BODY or /BODY"},
    {"--chunks", NULL, CHUNKS, FLAG(chunks_only), "without prefix blocks"},
    {"--all", NULL, ALL, FLAG(all), "pinned ones, too"},
    {"--no-wait", NULL, NO_WAIT, FLAG(no_wait), "do not wait for the builds"},
    {"--yes", NULL, YES, FLAG(yes), "do not ask whether records may go"},
    {"--dry-run", NULL, DRY_RUN, FLAG(dry_run), "say what would go, and change nothing"},
};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static int usage(FILE *f, int status)
{
    (void)fprintf(f, "usage: kvblendctl [--admin ADDRESS] [--json] COMMAND …\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        (void)fprintf(f, "  %-8s %-13s %s", commands[i].name, commands[i].operands,
                      commands[i].help);
        const char *before = " (";
        for (size_t k = 0; k < N_OPTIONS; k++) {
            if (!(options[k].bit & commands[i].options)) continue;
            (void)fprintf(f, "%s%s", before, options[k].name);
            before = ", ";
        }
        (void)fprintf(f, "%s\n", commands[i].options ? ")" : "");
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
        if (strcmp(commands[i].name, command) != 0) continue;
        for (size_t k = 0; k < N_OPTIONS; k++)
            if (options[k].bit & given & ~commands[i].options)
                return ctl_fail(a, CTL_USAGE, "%s does not go with \"%s\"; see --help",
                                options[k].name, command);
        int rc = check_operands(a, commands[i].operands, command);
        return rc != CTL_OK ? rc : commands[i].run(a);
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
