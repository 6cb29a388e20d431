#include "tools/ctl/ctl.h"

#include <getopt.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct ctl_command *const command_lists[] = {
    ctl_views, ctl_records, ctl_texts, ctl_orders, ctl_live, ctl_doctor, ctl_demo};
enum { N_LISTS = sizeof command_lists / sizeof command_lists[0] };

#define AT(field) offsetof(struct ctl_args, field)
static const struct {
    const char *name, *value; /* value: what it is called; NULL: none */
    unsigned bit;             /* 0: of every command */
    size_t offset;            /* of the value or of a bool */
    const char *help;
} options[] = {
    {"admin", "ADDRESS", 0, AT(admin),
     "unix:/path or HOST:PORT (default: KVBLEND_ADMIN, else the run folder); for HOST:PORT the "
     "variable KVBLEND_ADMIN_KEY is its key"},
    {"json", NULL, 0, AT(json), "the answer as JSON"},
    {"worker", "N", 0, AT(worker), "of several the one of that index; else all of them"},
    {"tier", "NAME", CTL_TIER, AT(tier), "there alone: ram, nvme, redis or gpu"},
    {"namespace", "NAME", CTL_NAMESPACE, AT(name_space),
     "of it or in it alone: KEY (an API key's), KEY/BODY or /BODY"},
    {"chunks", NULL, CTL_CHUNKS, AT(chunks_only), "without prefix blocks"},
    {"all", NULL, CTL_ALL, AT(all), "pinned ones, too"},
    {"no-wait", NULL, CTL_NO_WAIT, AT(no_wait), "do not wait for the builds"},
    {"yes", NULL, CTL_YES, AT(yes), "do not ask whether records may go"},
    {"rounds", "N", CTL_ROUNDS, AT(rounds), "times that it is measured (1); medians are shown"},
    {"sort", "FIELD", CTL_SORT, AT(sort), "largest first, texts from a to z; -FIELD: the reverse"},
    {"limit", "N", CTL_LIMIT, AT(limit), "no more than so many"},
    {"watch", NULL, CTL_WATCH, AT(watch),
     "on a terminal: again every two seconds; q ends it, s sorts by the next field, r turns round"},
    {"dry-run", NULL, CTL_DRY_RUN, AT(dry_run), "say what would go, and change nothing"},
};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

#define EXIT_CODES                                                                                 \
    "exit codes: 0 done, 1 not found or refused, 2 usage, 3 nobody answers; of doctor 0 nothing "  \
    "to change, 1 something, 2 nobody answers"

static void print_option(FILE *f, size_t k)
{
    (void)fprintf(f, "  --%-9s %-7s %s\n", options[k].name,
                  options[k].value ? options[k].value : "", options[k].help);
}

static void print_command(FILE *f, const struct ctl_command *c)
{
    const char *before = " (";
    (void)fprintf(f, "  %-8s %-13s %s", c->name, c->operands ? c->operands : "", c->help);
    for (size_t k = 0; k < N_OPTIONS; k++) {
        if (!(options[k].bit & c->options)) continue;
        (void)fprintf(f, "%s--%s", before, options[k].name);
        before = ", ";
    }
    (void)fprintf(f, "%s\n", c->options ? ")" : "");
}

static int usage(FILE *f, int status)
{
    (void)fprintf(f, "usage: kvblendctl [--admin ADDRESS] [--json] COMMAND …\n\n");
    for (size_t i = 0; i < N_LISTS; i++)
        for (const struct ctl_command *c = command_lists[i]; c->name; c++)
            print_command(f, c);
    (void)fputc('\n', f);
    for (size_t k = 0; k < N_OPTIONS; k++)
        print_option(f, k);
    (void)fprintf(f, "\nkvblendctl COMMAND --help: that command's options alone\n" EXIT_CODES "\n");
    return status;
}

static int help_of(const struct ctl_command *c)
{
    (void)printf("usage: kvblendctl %s%s%s [options]\n\n%s\n\n", c->name, c->operands ? " " : "",
                 c->operands ? c->operands : "", c->help);
    for (size_t k = 0; k < N_OPTIONS; k++)
        if (options[k].bit == 0 || options[k].bit & c->options) print_option(stdout, k);
    if (c->sorts) (void)printf("\nFIELD: %s\n", c->sorts);
    return CTL_OK;
}

static int complain(const struct ctl_args *a, const char *why, const char *what)
{
    return ctl_fail(a, CTL_USAGE, "%s \"%.60s\"; see --help", why, what);
}

static int check_operands(const struct ctl_args *a, const struct ctl_command *c)
{
    const char *given[] = {a->operand, a->second}, *spec = c->operands ? c->operands : "";
    for (size_t i = 0; i < 2; i++) {
        spec += strspn(spec, " ");
        size_t n = strcspn(spec, " ");
        if (n == 0 && given[i]) return complain(a, "unexpected argument", given[i]);
        if (n > 0 && *spec != '[' && !given[i])
            return ctl_fail(a, CTL_USAGE, "%.*s is missing after \"%s\"; see --help", (int)n, spec,
                            c->name);
        spec += n;
    }
    return CTL_OK;
}

/* Sends the command's request, about the operand, and prints the answer. */
static int ask(const struct ctl_args *a, const struct ctl_command *c)
{
    struct ctl_reply r;
    const char *operand = a->operand, *kind = c->operands ? c->operands : "";
    char id[33];
    int rc = CTL_OK;
    if (strcmp(kind, "ID") == 0) {
        rc = ctl_resolve(a, id);
        operand = id;
    } else if (strcmp(kind, "REQUEST_ID") == 0 &&
               (strlen(operand) > 128 || strpbrk(operand, "/?#% "))) {
        rc = ctl_fail(a, CTL_USAGE, "\"%.40s\" is no request id", operand);
    }
    if (rc == CTL_OK) rc = ctl_request(a, c->request, operand, &r);
    if (rc != CTL_OK) return rc;
    if (a->sort || a->limit) rc = ctl_arrange(a, c, r.json);
    if (rc == CTL_OK && !a->json && c->prepare) c->prepare(r.json);
    if (rc == CTL_OK && (a->sort || a->limit)) ctl_print(a, r.json, c->view);
    if (rc == CTL_OK && !a->sort && !a->limit) {
        ctl_show(a, &r, c->view);
        return CTL_OK;
    }
    ctl_reply_fini(&r);
    return rc;
}

static int once(const struct ctl_args *a, const struct ctl_command *c)
{
    return c->run ? c->run(a) : ask(a, c);
}

static int run(const struct ctl_args *a, const struct ctl_command *c, unsigned given)
{
    for (size_t k = 0; k < N_OPTIONS; k++)
        if (options[k].bit & given & ~c->options)
            return ctl_fail(a, CTL_USAGE, "--%s does not go with \"%s\"; see --help",
                            options[k].name, c->name);
    if (a->help) return help_of(c);
    int rc = check_operands(a, c);
    if (rc != CTL_OK) return rc;
    return a->watch && !a->json ? ctl_watch(a, c, once) : once(a, c);
}

/* The tables as JSON, for tools/describe.py. */
static int dump_options(void)
{
    json_t *commands = json_array(), *all = json_array();
    for (size_t k = 0; k < N_OPTIONS; k++)
        (void)json_array_append_new(
            all, json_pack("{s:s,s:s?,s:s,s:b,s:b}", "flag", options[k].name, "value",
                           options[k].value, "help", options[k].help, "global", options[k].bit == 0,
                           "switch", options[k].value == NULL));
    for (size_t i = 0; i < N_LISTS; i++)
        for (const struct ctl_command *c = command_lists[i]; c->name; c++) {
            json_t *mine = json_array();
            for (size_t k = 0; k < N_OPTIONS; k++)
                if (options[k].bit & c->options)
                    (void)json_array_append_new(mine, json_string(options[k].name));
            (void)json_array_append_new(commands,
                                        json_pack("{s:s,s:s?,s:s,s:s?,s:o}", "name", c->name,
                                                  "operands", c->operands, "help", c->help,
                                                  "fields", c->sorts, "options", mine));
        }
    json_t *o = json_pack(
        "{s:s,s:s,s:o,s:o}", "program", "kvblendctl", "about",
        "Shows and steers what a running kvblend gateway and its workers do.\n" EXIT_CODES,
        "options", all, "commands", commands);
    const int rc = !o || json_dumpf(o, stdout, JSON_COMPACT) < 0 ? CTL_REFUSED : CTL_OK;
    (void)putchar('\n');
    json_decref(o);
    return rc;
}

/* The options into a, and the bits of those given; an exit code, or -1: on with argv[optind]. */
static int read_options(int argc, char **argv, struct ctl_args *a, unsigned *ret_given)
{
    struct option known[N_OPTIONS + 4] = {{0}};
    int letter, k = 0;
    for (; k < N_OPTIONS; k++)
        known[k] = (struct option){options[k].name, options[k].value != NULL, NULL, 'o'};
    known[k++] = (struct option){"help", no_argument, NULL, 'h'};
    known[k++] = (struct option){"dump-options", no_argument, NULL, 'd'};
    known[k] = (struct option){"version", no_argument, NULL, 'v'};
    opterr = 0;
    while ((letter = getopt_long(argc, argv, "h", known, &k)) >= 0) {
        if (letter == 'h') {
            a->help = true;
            continue;
        }
        if (letter == 'd') return dump_options();
        if (letter == 'v') return printf("kvblendctl %s\n", KV_VERSION) < 0;
        if (letter != 'o')
            return complain(a, "unknown flag, or one without its value:", argv[optind - 1]);
        void *field = (char *)a + options[k].offset;
        if (options[k].value)
            *(const char **)field = optarg;
        else
            *(bool *)field = true;
        *ret_given |= options[k].bit;
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct ctl_args a = {0};
    unsigned given = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    int rc = read_options(argc, argv, &a, &given);
    if (rc >= 0) return rc;
    if (optind == argc) return a.help ? usage(stdout, CTL_OK) : usage(stderr, CTL_USAGE);
    const char *name = argv[optind++];
    if (optind < argc) a.operand = argv[optind++];
    if (optind < argc) a.second = argv[optind++];
    if (optind < argc) return complain(&a, "unexpected argument", argv[optind]);
    for (size_t i = 0; i < N_LISTS; i++)
        for (const struct ctl_command *c = command_lists[i]; c->name; c++)
            if (strcmp(c->name, name) == 0) return run(&a, c, given);
    return complain(&a, "unknown command", name);
}
