/* What a family's Jinja template writes (with trim_blocks and lstrip_blocks, as transformers runs
 * it): by the patterns of its turns, or by a function of its own; tests/data/chat holds the
 * templates and Python's renders. */
#include "base/clock.h"
#include "base/mem.h"
#include "fusor/text/chat_int.h"
#include "fusor/text/unicode.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- output ------------------------------------------------------------------------------------
 */

/* A list with room for one more: it doubles at powers of two. NULL: no memory, which sticks. */
static void *grown(struct chat_job *j, void *list, size_t n, size_t size)
{
    if (n & (n - 1)) return list;
    void *more = mem_realloc(list, (n ? 2 * n : 1) * size);
    if (!more) j->status = -ENOMEM;
    return more;
}

static void add_piece(struct chat_job *j, const char *s, size_t len, bool special)
{
    struct chat_out *o = j->out;
    if (j->status < 0 || len == 0) return;
    j->status = buf_add(&o->text, s, len);
    if (j->status < 0) return;
    struct tok_piece *last = o->n_pieces ? &o->pieces[o->n_pieces - 1] : NULL;
    if (last && !special && !last->special) {
        last->len += len;
        return;
    }
    struct tok_piece *p = grown(j, o->pieces, o->n_pieces, sizeof *p);
    if (!p) return;
    o->pieces = p;
    p[o->n_pieces++] = (struct tok_piece){NULL, len, special};
}

static void text(struct chat_job *j, const char *s)
{
    if (s) add_piece(j, s, strlen(s), false);
}

static void token(struct chat_job *j, struct chat_str s)
{
    add_piece(j, s.s, s.len, true);
}

/* Bytes [src, src + len) of message i. */
static void part(struct chat_job *j, size_t i, size_t src, size_t len)
{
    struct chat_out *o = j->out;
    if (j->status < 0 || len == 0) return;
    struct chat_span *s = grown(j, o->spans, o->n_spans, sizeof *s);
    if (!s) return;
    o->spans = s;
    s[o->n_spans++] = (struct chat_span){i, src, o->text.len, len};
    add_piece(j, j->msgs[i].text + src, len, false);
}

static void content(struct chat_job *j, size_t i)
{
    part(j, i, 0, j->msgs[i].len);
}

/* ---- trimming ----------------------------------------------------------------------------------
 */

struct range {
    size_t begin, end;
};

/* As Python's str.strip(). */
static struct range trim(const struct chat_msg *m, struct range r, bool left)
{
    r.end -= uni_space_tail(m->text + r.begin, r.end - r.begin, true);
    if (left) r.begin += uni_space_head(m->text + r.begin, r.end - r.begin, true);
    return r;
}

static void trimmed(struct chat_job *j, size_t i)
{
    const struct chat_msg *m = &j->msgs[i];
    struct range r = trim(m, (struct range){0, m->len}, true);
    part(j, i, r.begin, r.end - r.begin);
}

static struct range trim_newlines(const struct chat_msg *m, struct range r, bool left, bool right)
{
    while (left && r.begin < r.end && m->text[r.begin] == '\n')
        r.begin++;
    while (right && r.begin < r.end && m->text[r.end - 1] == '\n')
        r.end--;
    return r;
}

/* ---- patterns ----------------------------------------------------------------------------------
 */

/* Today, as the template's strftime_now gives it, or what it falls back to. */
static void date(struct chat_job *j)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    char s[32];
    if (!localtime_r(&now, &tm)) return text(j, "26 Jul 2024");
    (void)snprintf(s, sizeof s, "%02d %.3s %d", tm.tm_mday, months + 3 * tm.tm_mon,
                   tm.tm_year + 1900);
    text(j, s);
}

const char *const chat_role_names[CHAT_ROLES] = {"system", "user", "assistant", "tool"};

/* A pattern of chat_int.h, with message i. */
static void put(struct chat_job *j, const char *p, size_t i)
{
    while (p && *p) {
        size_t n = strcspn(p, "{%");
        add_piece(j, p, n, false);
        p += n;
        if (*p == '{') {
            n = strcspn(p, "}");
            add_piece(j, p + 1, n - 1, true);
            p += n + 1;
        } else if (*p == '%') {
            if (p[1] == 'c') content(j, i);
            if (p[1] == 't') trimmed(j, i);
            if (p[1] == 'r') text(j, chat_role_names[j->role[i]]);
            if (p[1] == 'b') token(j, j->bos);
            if (p[1] == 'e') token(j, j->eos);
            if (p[1] == 'd') date(j);
            p += 2;
        }
    }
}

/* ---- refusals ----------------------------------------------------------------------------------
 */

static int no_role(struct chat_job *j, size_t i)
{
    return err_set(
        j->err, -EINVAL, "messages[%zu]: the model's chat template (%s) takes no '%s' message%s", i,
        j->c->name, chat_role_names[j->role[i]], j->role[i] == CHAT_SYSTEM ? " at this place" : "");
}

/* From `first` on: user, assistant, user, … */
static int must_alternate(struct chat_job *j, size_t first)
{
    for (size_t i = first; i < j->n; i++) {
        if (j->role[i] == CHAT_SYSTEM || j->role[i] == CHAT_TOOL) return no_role(j, i);
        if ((j->role[i] == CHAT_USER) == ((i - first) % 2 == 0)) continue;
        return err_set(
            j->err, -EINVAL,
            "messages[%zu]: the model's chat template (%s) wants user and assistant messages "
            "in turns, user first",
            i, j->c->name);
    }
    return 0;
}

/* ---- chatml: SmolLM2, Qwen2, Qwen2.5, Qwen3 ----------------------------------------------------
 */

/* Runs of tool answers share one user turn. */
static void tool_turn(struct chat_job *j, size_t i)
{
    if (i == 0 || j->role[i - 1] != CHAT_TOOL) put(j, "{<|im_start|>}user", i);
    put(j, "\n<tool_response>\n%c\n</tool_response>", i);
    if (i + 1 == j->n || j->role[i + 1] != CHAT_TOOL) put(j, "{<|im_end|>}\n", i);
}

static const char *last_in(const struct chat_msg *m, size_t end, const char *what)
{
    size_t n = strlen(what);
    for (size_t p = end < n ? 0 : end - n + 1; p-- > 0;)
        if (memcmp(m->text + p, what, n) == 0) return m->text + p;
    return NULL;
}

/* The last message that is a question, not a tool's answer in a user's clothes. */
static size_t qwen3_last_query(const struct chat_job *j)
{
    static const char head[] = "<tool_response>", tail[] = "</tool_response>";
    enum { HEAD = sizeof head - 1, TAIL = sizeof tail - 1 };
    for (size_t i = j->n; i-- > 0;) {
        const struct chat_msg *m = &j->msgs[i];
        if (j->role[i] != CHAT_USER) continue;
        bool answer = m->len >= TAIL && memcmp(m->text, head, HEAD) == 0 &&
                      memcmp(m->text + m->len - TAIL, tail, TAIL) == 0;
        if (!answer) return i;
    }
    return j->n - 1;
}

/* Thoughts are dropped from earlier turns and spelled out in the current one. */
static void qwen3_assistant(struct chat_job *j, size_t i, bool current)
{
    static const char open[] = "<think>", close[] = "</think>";
    const struct chat_msg *m = &j->msgs[i];
    struct range thought = {0, 0}, rest = {0, m->len};
    const char *last = last_in(m, m->len, close);
    if (last) {
        const char *first = memmem(m->text, m->len, close, sizeof close - 1);
        thought.end = (size_t)(first - m->text);
        thought = trim_newlines(m, thought, false, true);
        const char *begin = last_in(m, thought.end, open);
        if (begin) thought.begin = (size_t)(begin - m->text) + sizeof open - 1;
        thought = trim_newlines(m, thought, true, true);
        rest.begin = (size_t)(last - m->text) + sizeof close - 1;
        rest = trim_newlines(m, rest, true, false);
    }
    put(j, "{<|im_start|>}assistant\n", i);
    if (current && (i + 1 == j->n || thought.end > thought.begin)) {
        text(j, "<think>\n");
        part(j, i, thought.begin, thought.end - thought.begin);
        text(j, "\n</think>\n\n");
        rest = trim_newlines(m, rest, true, false);
    }
    part(j, i, rest.begin, rest.end - rest.begin);
    put(j, "{<|im_end|>}\n", i);
}

/* ---- families of turns by role -----------------------------------------------------------------
 */

int chat_turns(struct chat_job *j)
{
    const struct chat *c = j->c;
    const bool system = j->role[0] == CHAT_SYSTEM;
    const size_t last_query = c->think ? qwen3_last_query(j) : 0;
    put(j, c->start, 0);
    if (!system) put(j, c->without_system, 0);
    if (!system && c->default_system) {
        put(j, "{<|im_start|>}system\n", 0);
        text(j, c->default_system);
        put(j, "{<|im_end|>}\n", 0);
    }
    for (size_t i = 0; i < j->n; i++) {
        const enum chat_role role = j->role[i];
        const bool first = i == 0 && system && c->with_system;
        if (role == CHAT_TOOL && c->tools)
            tool_turn(j, i);
        else if (role == CHAT_ASSISTANT && c->think)
            qwen3_assistant(j, i, i > last_query);
        else if (first || c->turn[role])
            put(j, first ? c->with_system : c->turn[role], i);
        else
            return no_role(j, i);
    }
    put(j, j->gen ? c->gen : c->end, 0);
    return 0;
}

/* ---- Llama 2 -----------------------------------------------------------------------------------
 */

int chat_llama2(struct chat_job *j)
{
    size_t first = j->role[0] == CHAT_SYSTEM;
    int r = must_alternate(j, first);
    if (r < 0) return r;
    for (size_t i = first; i < j->n; i++) {
        const struct chat_msg *m = &j->msgs[i];
        if (j->role[i] == CHAT_ASSISTANT) {
            text(j, " ");
            trimmed(j, i);
            text(j, " ");
            token(j, j->eos);
            continue;
        }
        token(j, j->bos);
        text(j, "[INST] ");
        /* The template trims the system block and the question as one string. */
        struct range q = trim(m, (struct range){0, m->len}, false);
        if (i == 1 && first == 1) {
            text(j, "<<SYS>>\n");
            content(j, 0);
            text(j, q.end ? "\n<</SYS>>\n\n" : "\n<</SYS>>");
        } else {
            q = trim(m, q, true);
        }
        part(j, i, q.begin, q.end - q.begin);
        text(j, " [/INST]");
    }
    return 0;
}

/* ---- Mistral -----------------------------------------------------------------------------------
 */

/* " [INST] ": the name is a control token from v3 on, its spaces never are. */
static void inst(struct chat_job *j, const char *s)
{
    const char *open = strchr(s, '['), *close = strchr(s, ']') + 1;
    add_piece(j, s, (size_t)(open - s), false);
    add_piece(j, open, (size_t)(close - open), j->c->mistral.control);
    text(j, close);
}

int chat_mistral(struct chat_job *j)
{
    const struct chat_mistral *m = &j->c->mistral;
    bool system = j->role[0] == CHAT_SYSTEM;
    if (system && m->system == CHAT_SYSTEM_NONE) return no_role(j, 0);
    int r = must_alternate(j, system);
    if (r < 0) return r;
    token(j, j->bos);
    for (size_t i = system; i < j->n; i++) {
        if (j->role[i] == CHAT_USER) {
            inst(j, m->open);
            if (system && i == (m->system == CHAT_SYSTEM_FIRST ? 1 : j->n - 1)) {
                content(j, 0);
                text(j, "\n\n");
            }
            content(j, i);
            inst(j, m->close);
        } else {
            text(j, m->lead);
            if (m->trim)
                trimmed(j, i);
            else
                content(j, i);
            token(j, j->eos);
            text(j, m->after_eos);
        }
    }
    return 0;
}
