/* One formatter per family. Each writes what the family's Jinja template writes (with trim_blocks
 * and lstrip_blocks, as transformers runs it); tests/data/chat holds the templates and Python's
 * renders. */
#include "base/clock.h"
#include "base/mem.h"
#include "fusor/text/chat_int.h"
#include "fusor/text/unicode.h"

#include <string.h>
#include <time.h>

/* ---- output ------------------------------------------------------------------------------------
 */

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
    if ((o->n_pieces & (o->n_pieces - 1)) == 0) { /* room doubles at powers of two */
        size_t cap = o->n_pieces ? o->n_pieces * 2 : 1;
        struct tok_piece *p = mem_realloc(o->pieces, cap * sizeof *p);
        if (!p) {
            j->status = -ENOMEM;
            return;
        }
        o->pieces = p;
    }
    o->pieces[o->n_pieces++] = (struct tok_piece){NULL, len, special};
}

static void special(struct chat_job *j, const char *s)
{
    add_piece(j, s, strlen(s), true);
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
    if ((o->n_spans & (o->n_spans - 1)) == 0) {
        size_t cap = o->n_spans ? o->n_spans * 2 : 1;
        struct chat_span *s = mem_realloc(o->spans, cap * sizeof *s);
        if (!s) {
            j->status = -ENOMEM;
            return;
        }
        o->spans = s;
    }
    o->spans[o->n_spans++] = (struct chat_span){i, src, o->text.len, len};
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

/* Python's str.isspace() for the character at s: White_Space and U+001C–001F. 0 = no. */
static size_t py_space(const char *s, size_t n)
{
    unsigned len;
    uint32_t cp = uni_decode((const uint8_t *)s, n, &len);
    return (cp >= 0x1C && cp <= 0x1F) || uni_is_space(cp) ? len : 0;
}

static struct range trim_left(const struct chat_msg *m, struct range r)
{
    size_t len;
    while (r.begin < r.end && (len = py_space(m->text + r.begin, r.end - r.begin)))
        r.begin += len;
    return r;
}

static struct range trim_right(const struct chat_msg *m, struct range r)
{
    while (r.end > r.begin) {
        size_t p = r.end - 1;
        while (p > r.begin && r.end - p < 4 && ((unsigned char)m->text[p] & 0xC0) == 0x80)
            p--;
        if (py_space(m->text + p, r.end - p) != r.end - p) break;
        r.end = p;
    }
    return r;
}

static void trimmed(struct chat_job *j, size_t i)
{
    const struct chat_msg *m = &j->msgs[i];
    struct range r = trim_right(m, trim_left(m, (struct range){0, m->len}));
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

/* ---- refusals ----------------------------------------------------------------------------------
 */

static const char *const role_names[] = {"system", "user", "assistant", "tool"};

static int no_role(struct chat_job *j, size_t i)
{
    return err_set(
        j->err, -EINVAL, "messages[%zu]: the model's chat template (%s) takes no '%s' message%s", i,
        j->c->name, role_names[j->role[i]], j->role[i] == CHAT_SYSTEM ? " at this place" : "");
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

static void im_open(struct chat_job *j, const char *role)
{
    special(j, "<|im_start|>");
    text(j, role);
}

static void im_close(struct chat_job *j)
{
    special(j, "<|im_end|>");
    text(j, "\n");
}

/* Runs of tool answers share one user turn. */
static void chatml_tool(struct chat_job *j, size_t i)
{
    if (i == 0 || j->role[i - 1] != CHAT_TOOL) im_open(j, "user");
    text(j, "\n<tool_response>\n");
    content(j, i);
    text(j, "\n</tool_response>");
    if (i + 1 == j->n || j->role[i + 1] != CHAT_TOOL) im_close(j);
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
    im_open(j, "assistant\n");
    if (current && (i + 1 == j->n || thought.end > thought.begin)) {
        text(j, "<think>\n");
        part(j, i, thought.begin, thought.end - thought.begin);
        text(j, "\n</think>\n\n");
        rest = trim_newlines(m, rest, true, false);
    }
    part(j, i, rest.begin, rest.end - rest.begin);
    im_close(j);
}

int chat_chatml(struct chat_job *j)
{
    const struct chat *c = j->c;
    size_t last_query = c->think ? qwen3_last_query(j) : 0;
    if (c->default_system && j->role[0] != CHAT_SYSTEM) {
        im_open(j, "system\n");
        text(j, c->default_system);
        im_close(j);
    }
    for (size_t i = 0; i < j->n; i++) {
        if (j->role[i] == CHAT_TOOL && !c->tools) return no_role(j, i);
        if (j->role[i] == CHAT_TOOL) {
            chatml_tool(j, i);
        } else if (j->role[i] == CHAT_ASSISTANT && c->think) {
            qwen3_assistant(j, i, i > last_query);
        } else {
            im_open(j, role_names[j->role[i]]);
            text(j, "\n");
            content(j, i);
            im_close(j);
        }
    }
    if (j->gen) im_open(j, "assistant\n");
    return 0;
}

/* Yi 1.5: the system text stands bare before the first turn; every user turn opens the answer. */
int chat_yi(struct chat_job *j)
{
    for (size_t i = 0; i < j->n; i++) {
        if (j->role[i] == CHAT_USER) {
            im_open(j, "user\n");
            content(j, i);
            im_close(j);
            im_open(j, "assistant\n");
        } else if (j->role[i] == CHAT_ASSISTANT) {
            content(j, i);
            im_close(j);
        } else if (j->role[i] == CHAT_SYSTEM && i == 0) {
            content(j, i);
        } else {
            return no_role(j, i);
        }
    }
    return 0;
}

/* ---- Llama -------------------------------------------------------------------------------------
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
        struct range q = trim_right(m, (struct range){0, m->len});
        if (i == 1 && first == 1) {
            text(j, "<<SYS>>\n");
            content(j, 0);
            text(j, q.end ? "\n<</SYS>>\n\n" : "\n<</SYS>>");
        } else {
            q = trim_left(m, q);
        }
        part(j, i, q.begin, q.end - q.begin);
        text(j, " [/INST]");
    }
    return 0;
}

static void header(struct chat_job *j, const char *role)
{
    special(j, "<|start_header_id|>");
    text(j, role);
    special(j, "<|end_header_id|>");
    text(j, "\n\n");
}

/* "26 Jul 2024": what the template falls back to, or today as strftime_now gives it. */
static void date(struct chat_job *j)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char s[32] = "26 Jul 2024";
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    if (j->c->date == CHAT_DATE_TODAY && localtime_r(&now, &tm)) {
        struct buf b = BUF_INIT;
        j->status =
            buf_addf(&b, "%02d %.3s %d", tm.tm_mday, months + 3 * tm.tm_mon, tm.tm_year + 1900);
        if (j->status == 0) add_piece(j, b.data, b.len, false);
        buf_fini(&b);
        return;
    }
    text(j, s);
}

int chat_llama3(struct chat_job *j)
{
    size_t i = 0;
    token(j, j->bos);
    if (j->c->date != CHAT_DATE_NONE) {
        header(j, "system");
        text(j, "Cutting Knowledge Date: December 2023\nToday Date: ");
        date(j);
        text(j, "\n\n");
        if (j->role[0] == CHAT_SYSTEM) trimmed(j, i++);
        special(j, "<|eot_id|>");
    }
    for (; i < j->n; i++) {
        if (j->role[i] == CHAT_TOOL) return no_role(j, i);
        header(j, role_names[j->role[i]]);
        trimmed(j, i);
        special(j, "<|eot_id|>");
    }
    if (j->gen) header(j, "assistant");
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

/* ---- Zephyr, phi-3 -----------------------------------------------------------------------------
 */

/* The role names are ordinary text to Zephyr's tokenizer; only the end of a turn is a token. */
int chat_zephyr(struct chat_job *j)
{
    for (size_t i = 0; i < j->n; i++) {
        if (j->role[i] == CHAT_TOOL) return no_role(j, i);
        text(j, "<|");
        text(j, role_names[j->role[i]]);
        text(j, "|>\n");
        content(j, i);
        token(j, j->eos);
        text(j, "\n");
    }
    if (j->gen) text(j, "<|assistant|>\n");
    return 0;
}

static void phi3_turn(struct chat_job *j, const char *role, size_t i)
{
    special(j, role);
    text(j, "\n");
    content(j, i);
    special(j, "<|end|>");
    text(j, "\n");
}

int chat_phi3(struct chat_job *j)
{
    static const char *const roles[] = {"<|system|>", "<|user|>", "<|assistant|>"};
    for (size_t i = 0; i < j->n; i++) {
        if (j->role[i] == CHAT_TOOL) return no_role(j, i);
        phi3_turn(j, roles[j->role[i]], i);
    }
    if (j->gen) {
        special(j, "<|assistant|>");
        text(j, "\n");
    } else {
        token(j, j->eos);
    }
    return 0;
}

/* The first release: no system turn, and every question opens its answer. */
int chat_phi3_v1(struct chat_job *j)
{
    token(j, j->bos);
    for (size_t i = 0; i < j->n; i++) {
        if (j->role[i] == CHAT_USER) {
            phi3_turn(j, "<|user|>", i);
            special(j, "<|assistant|>");
            text(j, "\n");
        } else if (j->role[i] == CHAT_ASSISTANT) {
            content(j, i);
            special(j, "<|end|>");
            text(j, "\n");
        } else {
            return no_role(j, i);
        }
    }
    return 0;
}
