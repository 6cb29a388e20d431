#include "tools/ctl/ctl.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Operands: the needed ones, then those in brackets, which may be left out. */
static const struct {
    const char *name, *operands, *help;
    int (*run)(const struct ctl_args *a);
} commands[] = {
    {"status", "", "gateway and workers at a glance", ctl_status},
    {"quality", "", "how close blended answers are to a full prefill's, and what was done about it",
     ctl_quality},
    {"targets", "", "every backend: health, breaker, load, models", ctl_targets},
    {"keys", "", "every API key: what it may, has waiting and got of the work", ctl_keys},
    {"drain", "TARGET", "send it no new requests", ctl_drain},
    {"enable", "TARGET", "send it requests again", ctl_enable},
    {"reload", "", "read the configuration file and the keys again", ctl_reload},
    {"profile", "", "what calibration knows of the model: layers, losses, ratio", ctl_profile},
    {"tiers", "", "what each tier holds, how fast it is and what it refuses", ctl_tiers},
    {"ls", "", "stored records (--chunks: without prefix blocks; --tier)", ctl_ls},
    {"show", "ID", "one record; an ID may be cut to its first digits", ctl_show},
    {"pin", "ID", "keep a record from being evicted", ctl_pin},
    {"unpin", "ID", "let it be evicted again", ctl_unpin},
    {"evict", "ID", "drop one record (--tier: from that tier only)", ctl_evict},
    {"clear", "", "drop all but pinned records (--all, --tier, --namespace)", ctl_clear},
    {"warm", "FILE", "build chunks: .jsonl with \"text\", a JSON list, or one text", ctl_warm},
    {"segment", "FILE", "explain how a captured request would be cut and served", ctl_segment},
    {"explain", "REQUEST_ID",
     "why a request was served as it was, and what else it could have been", ctl_explain},
    {"verify", "[ID]", "read records back and check every byte (--tier)", ctl_verify},
    {"preload", "TIER [COUNT]", "bring the most recently used records into RAM", ctl_preload},
    {"flush", "", "wait until slower tiers have what is due to them", ctl_flush},
    {"resize", "TIER SIZE", "change a tier's cap while it runs", ctl_resize},
    {"policy", "TIER NAME", "order of eviction: lru, clock, s3fifo, arc or gdsf", ctl_policy},
    {"quota", "TIER SIZE", "cap a --namespace within a tier; 0 lifts it", ctl_quota},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static int usage(FILE *f, int status)
{
    (void)fprintf(f, "usage: kvblendctl [--admin ADDRESS] [--json] COMMAND …\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        (void)fprintf(f, "  %-8s %-13s %s\n", commands[i].name, commands[i].operands,
                      commands[i].help);
    (void)fprintf(
        f, "\n  --admin ADDRESS   unix:/path or HOST:PORT (default: KVBLEND_ADMIN, else the "
           "run folder)\n"
           "  --json            the answer as JSON\n"
           "  --tier NAME       ram, nvme, redis or gpu\n"
           "  --namespace NAME  for warm: the body's; for segment: KEY/NAMESPACE; else KEY, /BODY\n"
           "                    or KEY/BODY\n"
           "  --no-wait         for warm: do not wait for the builds\n"
           "\nexit codes: 0 done, 1 not found or refused, 2 usage, 3 nobody answers\n");
    return status;
}

static int complain(const struct ctl_args *a, const char *why, const char *what)
{
    return ctl_fail(a, CTL_USAGE, "%s \"%.60s\"; see --help", why, what);
}

/* Value of "--name VALUE" or "--name=VALUE"; NULL when argv[*i] is another flag. */
static const char *value_of(const char *name, int argc, char **argv, int *i)
{
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n) != 0) return NULL;
    if (argv[*i][n] == '=') return argv[*i] + n + 1;
    if (argv[*i][n] == '\0' && *i + 1 < argc) return argv[++*i];
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

int main(int argc, char **argv)
{
    struct ctl_args a = {0};
    const char *command = NULL, *v;
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {{"--json", &a.json},
                 {"--all", &a.all},
                 {"--chunks", &a.chunks_only},
                 {"--no-wait", &a.no_wait}};
    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        size_t f = 0;
        while (f < 4 && strcmp(argv[i], flags[f].name) != 0)
            f++;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return usage(stdout, CTL_OK);
        if (strcmp(argv[i], "--version") == 0) return printf("kvblendctl %s\n", KV_VERSION) < 0;
        if (f < 4)
            *flags[f].flag = true;
        else if ((v = value_of("--admin", argc, argv, &i)))
            a.admin = v;
        else if ((v = value_of("--namespace", argc, argv, &i)))
            a.name_space = v;
        else if ((v = value_of("--tier", argc, argv, &i)))
            a.tier = v;
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
    if (!command) return usage(stderr, CTL_USAGE);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, command) != 0) continue;
        int rc = check_operands(&a, commands[i].operands, command);
        if (rc != CTL_OK) return rc;
        return commands[i].run(&a);
    }
    return complain(&a, "unknown command", command);
}
