/* What is looked at while it changes: --sort and --limit, --watch; top and history. */
#include "tools/ctl/ctl.h"

#include "base/opt.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { INTERVAL_MS = 2000, ROWS = 24, KEY_END = 3 /* ^C */, ESCAPE = 27 };

/* ---- order ---- */

/* json_t *list's elements, in an array that can be sorted in place. */
struct row {
    const json_t *value; /* of the field; NULL: it has none */
    json_t *row;
    size_t place;
};

static int compare_rows(const void *x, const void *y)
{
    const struct row *a = x, *b = y;
    const char *s = json_string_value(a->value), *t = json_string_value(b->value);
    const double m = json_number_value(a->value), n = json_number_value(b->value);
    int order = 0;
    if (s && t)
        order = strcmp(s, t);
    else if (!s != !t)
        order = s ? 1 : -1; /* numbers first */
    else
        order = m > n ? -1 : m < n;
    return order ? order : a->place < b->place ? -1 : 1;
}

/* Where the field stands in the list "a b c"; NULL: nowhere. */
static const char *find_field(const char *names, const char *field)
{
    const size_t len = strlen(field);
    for (const char *p = names; *p; p += strcspn(p, " ")) {
        p += strspn(p, " ");
        if (len > 0 && strcspn(p, " ") == len && strncmp(p, field, len) == 0) return p;
    }
    return NULL;
}

static int sort_list(const struct ctl_args *a, json_t *list, const char *field, bool turned)
{
    const size_t n = json_array_size(list);
    struct buf b = BUF_INIT;
    json_t *sorted = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *row = json_array_get(list, i);
        const struct row r = {json_object_get(row, field), row, i};
        (void)buf_add(&b, &r, sizeof r);
    }
    int rc = buf_status(&b) < 0 || !sorted ? ctl_fail(a, CTL_REFUSED, "out of memory") : CTL_OK;
    struct row *rows = (struct row *)(void *)b.data;
    if (rc == CTL_OK && n > 1) qsort(rows, n, sizeof *rows, compare_rows);
    for (size_t i = 0; rc == CTL_OK && i < n; i++)
        (void)json_array_append(sorted, rows[turned ? n - 1 - i : i].row);
    if (rc == CTL_OK) {
        (void)json_array_clear(list);
        (void)json_array_extend(list, sorted);
    }
    json_decref(sorted);
    buf_fini(&b);
    return rc;
}

int ctl_arrange(const struct ctl_args *a, const struct ctl_command *c, json_t *answer)
{
    json_t *list = json_object_get(answer, c->list);
    int64_t limit = INT64_MAX;
    int rc = CTL_OK;
    if (a->limit && (opt_parse_int(a->limit, &limit) < 0 || limit <= 0))
        return ctl_fail(a, CTL_USAGE, "--limit: \"%.40s\" is no number above 0", a->limit);
    if (a->sort) {
        const bool turned = *a->sort == '-';
        const char *field = a->sort + turned;
        if (!find_field(c->sorts, field))
            return ctl_fail(a, CTL_USAGE, "--sort: \"%.40s\" is none of %s", field, c->sorts);
        rc = sort_list(a, list, field, turned);
    }
    while (rc == CTL_OK && json_array_size(list) > (size_t)limit)
        (void)json_array_remove(list, json_array_size(list) - 1);
    return rc;
}

/* ---- the screen ---- */

struct screen {
    struct termios was;
    char sort[64]; /* the field in force, '-' in front; "": as it comes */
};

/* As many lines of the text as there are rows, longer ones cut by the terminal. */
static void put_lines(const char *text)
{
    struct winsize w = {.ws_row = ROWS};
    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    (void)fputs("\033[H", stdout);
    for (int row = 1; *text && (row < w.ws_row || w.ws_row == 0); row++) {
        const size_t n = strcspn(text, "\n");
        (void)printf("%.*s\033[K\r\n", (int)n, text);
        text += n + (text[n] == '\n');
    }
    (void)fputs("\033[J", stdout);
    (void)fflush(stdout);
}

static ssize_t to_buf(void *cookie, const char *data, size_t len)
{
    return buf_add(cookie, data, len) < 0 ? 0 : (ssize_t)len;
}

/* What the command prints goes to memory first, so that the screen never flickers. */
static int draw_screen(const struct ctl_args *a, const struct ctl_command *c,
                       int (*draw)(const struct ctl_args *a, const struct ctl_command *c))
{
    struct buf text = BUF_INIT;
    FILE *screen = stdout,
         *memory = fopencookie(&text, "w", (cookie_io_functions_t){.write = to_buf});
    if (!memory) return ctl_fail(a, CTL_REFUSED, "out of memory");
    stdout = memory;
    const int rc = draw(a, c);
    stdout = screen;
    (void)fclose(memory);
    if (text.len > 0 && buf_cstr(&text)) put_lines(text.data);
    buf_fini(&text);
    return rc;
}

static void next_sort(struct screen *s, const char *sorts)
{
    const char *at = find_field(sorts, s->sort + (*s->sort == '-'));
    const char *next = at ? at + strcspn(at, " ") : sorts;
    next += *next == ' ';
    if (!*next) next = sorts;
    (void)snprintf(s->sort, sizeof s->sort, "%.*s", (int)strcspn(next, " "), next);
}

static void turn_round(struct screen *s)
{
    char was[sizeof s->sort];
    (void)snprintf(was, sizeof was, "%s", s->sort);
    if (*was == '-')
        (void)snprintf(s->sort, sizeof s->sort, "%s", was + 1);
    else if (*was)
        (void)snprintf(s->sort, sizeof s->sort, "-%.62s", was);
}

static volatile sig_atomic_t ended; /* by a signal: the terminal is given back first */

static void end(int number)
{
    ended = number;
}

/* False: it is to end. */
static bool take_key(struct screen *s, const struct ctl_command *c)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char key;
    if (poll(&p, 1, INTERVAL_MS) <= 0) return !ended;
    if (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == KEY_END || key == ESCAPE)
        return false;
    if (key == 's' && c->sorts) next_sort(s, c->sorts);
    if (key == 'r') turn_round(s);
    return true;
}

/* Keys come one by one and unseen; ^C, too, so that the terminal is given back as it was. */
static bool open_screen(struct screen *s)
{
    if (tcgetattr(STDIN_FILENO, &s->was) < 0) return false;
    struct termios raw = s->was;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) < 0) return false;
    (void)fputs("\033[?1049h\033[?7l\033[?25l", stdout); /* other page, no wrapping, no cursor */
    return true;
}

static void close_screen(const struct screen *s)
{
    (void)fputs("\033[?25h\033[?7h\033[?1049l", stdout);
    (void)fflush(stdout);
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &s->was);
}

int ctl_watch(const struct ctl_args *a, const struct ctl_command *c,
              int (*draw)(const struct ctl_args *a, const struct ctl_command *c))
{
    struct screen s = {.sort = ""};
    struct ctl_args now = *a;
    int rc;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !open_screen(&s)) return draw(a, c);
    (void)snprintf(s.sort, sizeof s.sort, "%s", a->sort ? a->sort : "");
    (void)signal(SIGTERM, end);
    (void)signal(SIGHUP, end);
    do {
        now.sort = *s.sort ? s.sort : NULL;
        rc = draw_screen(&now, c, draw);
    } while (rc != CTL_USAGE && !ended && take_key(&s, c));
    close_screen(&s);
    return rc == CTL_UNREACHABLE ? rc : CTL_OK;
}

/* ---- top ---- */

static const char head_view[] =
    "<gateway:{in_flight} of {in_flight_max} running, {waiting} of {waiting_max} waiting, "
    "up {uptime_s:time}\n>"
    "<workers:worker {index}: {state}<status:[{?engine}, {engine.running} running, "
    "{engine.waiting} "
    "waiting, {builds.pending} builds]<store:, {ram_bytes:bytes} of {ram_budget_bytes:bytes}, "
    "{hits} "
    "hits>>\n>\n";
static const char top_view[] =
    "REQUEST\tSTAGE\t^AGE\tMODEL\tCLIENT\t^WORKER\t^CHUNKS\t^OUT\t^RETRIES\n"
    "<requests:{id}\t{stage}\t{age_ms:.0} ms\t{model:.30}\t{client:.30}\t"
    "[{?worker>-1}{worker}|-]\t{segments}\t{bytes_out:bytes}\t{retries}\n>";

#define TOP_SORTS "age_ms bytes_out segments retries stage model client id"
static const struct ctl_command top_list = {.name = "top", .list = "requests", .sorts = TOP_SORTS};

static int draw_top(const struct ctl_args *a, const struct ctl_command *c)
{
    struct ctl_reply status, requests;
    struct ctl_args by = *a;
    int rc = ctl_request(a, "GET /admin/status", "", &status);
    if (rc != CTL_OK) return rc;
    rc = ctl_request(a, "GET /admin/requests", "", &requests);
    if (rc == CTL_OK) {
        if (!by.sort) by.sort = "age_ms";
        rc = ctl_arrange(&by, &top_list, requests.json);
        if (rc == CTL_OK && !a->json) ctl_say(status.json, head_view);
        if (rc == CTL_OK) ctl_print(a, requests.json, top_view);
        ctl_reply_fini(&requests);
    }
    ctl_reply_fini(&status);
    return rc;
}

static int top(const struct ctl_args *a)
{
    return a->json ? draw_top(a, &top_list) : ctl_watch(a, &top_list, draw_top);
}

/* ---- history ---- */

static const char history_view[] =
    "[{?requests.0}^TOTAL\t^FIRST\t^QUEUE\t^STATUS\tEND\t^PROMPT\t^ANSWER\t^CHUNKS\tMODEL\tKEY\t"
    "TARGET\tREQUEST\tENDED\n|no completion ended in the last hour\n]"
    "<requests:{dur_ms:.0} ms\t[{?ttft_ms}{ttft_ms:.0} ms|-]\t{queue_ms:.0} ms\t{status}\t{end}\t"
    "[{?prompt_tokens}{prompt_tokens}|-]\t[{?completion_tokens}{completion_tokens}|-]\t{segments}\t"
    "{model:.30}\t[{?key_id}{key_id}|-]\t{target:.30}\t{request_id}\t{ts}\n>";

const struct ctl_command ctl_live[] = {
    {"top", NULL, CTL_ORDER, "what runs now, live on a terminal (keys: see --watch)", .run = top,
     .sorts = TOP_SORTS},
    {"history", NULL, CTL_ORDER | CTL_WATCH,
     "the slowest completions of the last hour; explain tells more of one", "GET /admin/history",
     history_view, NULL, "requests",
     "dur_ms ttft_ms queue_ms prompt_tokens completion_tokens segments retries status end model "
     "key_id target ts request_id"},
    {0}};
