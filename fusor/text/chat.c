/* Formatters by family, written by hand rather than interpreted: a formatter that emits pieces
 * keeps user text and control tokens apart by construction, knows where each message's content
 * landed, and runs no program that came with a model file.
 *
 * A template is recognised on a canonical form of its source (canon()): comments and layout gone,
 * quotes and subscripts in one spelling, so that the copies that circulate compare equal. What
 * differs within a family (a default system text, the spaces around [INST]) is read from that form.
 * A source that fits no family is refused; guessing would give prompts that are silently wrong. */
#include "fusor/text/chat.h"

#include "base/assert.h"
#include "base/mem.h"
#include "fusor/text/chat_int.h"

#include <string.h>

#define NL "\n"

/* ---- the families' names -----------------------------------------------------------------------
 */

#define SMOLLM "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define QWEN2 "You are a helpful assistant."
#define QWEN25 "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

/* system, user, assistant */
#define TURNS(t)                                                                                   \
    {                                                                                              \
        t, t, t                                                                                    \
    }
#define CHATML                                                                                     \
    .render = chat_turns, .turn = TURNS("{<|im_start|>}%r\n%c{<|im_end|>}\n"),                     \
    .gen = "{<|im_start|>}assistant\n"
#define LLAMA3_HEADER(role) "{<|start_header_id|>}" role "{<|end_header_id|>}\n\n"
#define LLAMA3                                                                                     \
    .render = chat_turns, .bos = "<|begin_of_text|>", .start = "%b",                               \
    .turn = TURNS(LLAMA3_HEADER("%r") "%t{<|eot_id|>}"), .gen = LLAMA3_HEADER("assistant")
#define LLAMA3_SYSTEM(date, text)                                                                  \
    LLAMA3_HEADER("system")                                                                        \
    "Cutting Knowledge Date: December 2023\nToday Date: " date "\n\n" text "{<|eot_id|>}"
#define LLAMA3_DATED(date)                                                                         \
    LLAMA3, .without_system = LLAMA3_SYSTEM(date, ""), .with_system = LLAMA3_SYSTEM(date, "%t")
#define PHI3(role) "{<|" role "|>}\n%c{<|end|>}\n"

static const struct chat chats[] = {
    /* what --chat-template NAME gives; recognition starts from these, too */
    {.name = "smollm2", CHATML, .default_system = SMOLLM},
    {.name = "qwen2", CHATML, .default_system = QWEN2},
    {.name = "qwen2.5", CHATML, .default_system = QWEN25, .tools = true},
    {.name = "qwen3", CHATML, .tools = true, .think = true},
    {.name = "chatml", CHATML},
    /* The system text stands bare before the first turn; every user turn opens the answer. */
    {.name = "yi",
     .render = chat_turns,
     .with_system = "%c",
     .turn = {NULL, "{<|im_start|>}user\n%c{<|im_end|>}\n{<|im_start|>}assistant\n",
              "%c{<|im_end|>}\n"}},
    {.name = "llama2", .render = chat_llama2, .bos = "<s>", .eos = "</s>"},
    {.name = "llama3", LLAMA3},
    {.name = "llama3.1", LLAMA3_DATED("26 Jul 2024")},
    {.name = "llama3.2", LLAMA3_DATED("%d")},
    {.name = "mistral-v0.1",
     .render = chat_mistral,
     .bos = "<s>",
     .eos = "</s>",
     .mistral = {.open = "[INST] ", .close = " [/INST]", .after_eos = " "}},
    {.name = "mistral-v1",
     .render = chat_mistral,
     .bos = "<s>",
     .eos = "</s>",
     .mistral =
         {.open = " [INST] ", .close = " [/INST]", .lead = " ", .system = CHAT_SYSTEM_FIRST}},
    {.name = "mistral-v3",
     .render = chat_mistral,
     .bos = "<s>",
     .eos = "</s>",
     .mistral = {.open = "[INST] ",
                 .close = "[/INST]",
                 .lead = " ",
                 .system = CHAT_SYSTEM_LAST,
                 .trim = true,
                 .control = true}},
    {.name = "mistral-tekken",
     .render = chat_mistral,
     .bos = "<s>",
     .eos = "</s>",
     .mistral =
         {.open = "[INST]", .close = "[/INST]", .system = CHAT_SYSTEM_LAST, .control = true}},
    /* The role names are ordinary text to Zephyr's tokenizer; only the end of a turn is a token. */
    {.name = "zephyr",
     .render = chat_turns,
     .eos = "</s>",
     .turn = TURNS("<|%r|>\n%c%e\n"),
     .gen = "<|assistant|>\n"},
    {.name = "phi3",
     .render = chat_turns,
     .eos = "<|endoftext|>",
     .turn = {PHI3("system"), PHI3("user"), PHI3("assistant")},
     .gen = "{<|assistant|>}\n",
     .end = "%e"},
    /* The first release: no system turn, and every question opens its answer. */
    {.name = "phi3-v1",
     .render = chat_turns,
     .bos = "<s>",
     .start = "%b",
     .turn = {NULL, PHI3("user") "{<|assistant|>}\n", "%c{<|end|>}\n"}},
};
enum { N_CHATS = sizeof chats / sizeof chats[0] };

/* Kept out of line: gcc 12 unrolls the loop for a constant name and then warns about the strings
 * that differ. */
__attribute__((noinline)) static const struct chat *chat_named(const char *name)
{
    for (size_t i = 0; i < N_CHATS; i++)
        if (strcmp(chats[i].name, name) == 0) return &chats[i];
    return NULL;
}

static int refuse_template(struct err *err, const char *why)
{
    struct buf names = BUF_INIT;
    for (size_t i = 0; i < N_CHATS; i++)
        (void)buf_addf(&names, "%s%s", i ? " " : "", chats[i].name);
    const char *list = buf_cstr(&names);
    (void)err_set(err, -ENOTSUP, "%s; --chat-template NAME overrides: %s", why, list ? list : "");
    buf_fini(&names);
    return -ENOTSUP;
}

/* ---- recognition -------------------------------------------------------------------------------
 */

/* One string literal from s (at its quote) to `out`, with ' as its quote and real line breaks.
 * Returns the length read. */
static size_t canon_literal(struct buf *out, const char *s)
{
    char quote = s[0];
    size_t i = 1;
    (void)buf_addc(out, '\'');
    while (s[i] && s[i] != quote) {
        if (s[i] == '\\' && s[i + 1]) {
            (void)buf_addc(out, s[i + 1] == 'n' ? '\n' : s[i + 1]);
            i += 2;
        } else {
            (void)buf_addc(out, s[i++]);
        }
    }
    (void)buf_addc(out, '\'');
    return s[i] ? i + 1 : i;
}

static size_t canon_tag(struct buf *out, const char *s)
{
    static const struct {
        const char *from, *to;
    } spell[] = {{"['role']", ".role"},
                 {"[\"role\"]", ".role"},
                 {"['content']", ".content"},
                 {"[\"content\"]", ".content"}};
    size_t i = 2;
    if (s[i] == '-') i++;
    (void)buf_add(out, s, 2);
    while (s[i] && !((s[i] == '%' || s[i] == '}') && s[i + 1] == '}')) {
        size_t k = 0, n = sizeof spell / sizeof spell[0];
        while (k < n && strncmp(s + i, spell[k].from, strlen(spell[k].from)) != 0)
            k++;
        if (k < n) {
            (void)buf_adds(out, spell[k].to);
            i += strlen(spell[k].from);
        } else if (s[i] == '\'' || s[i] == '"') {
            i += canon_literal(out, s + i);
        } else {
            bool dash = s[i] == '-' && (s[i + 1] == '%' || s[i + 1] == '}') && s[i + 2] == '}';
            if (!strchr(" \t\r\n", s[i]) && !dash) (void)buf_addc(out, s[i]);
            i++;
        }
    }
    if (!s[i]) return i;
    (void)buf_add(out, s + i, 2);
    return i + 2;
}

/* The canonical form, or NULL when out of memory. mem_free() it. Text outside of tags loses its
 * white space, comments vanish, tags lose theirs outside of string literals. */
static char *canon(const char *s)
{
    struct buf out = BUF_INIT;
    int r = buf_reserve(&out, 2 * strlen(s) + 16); /* it never grows by more: no append fails */
    while (r == 0 && *s) {
        if (s[0] == '{' && s[1] == '#') {
            const char *end = strstr(s, "#}");
            s = end ? end + 2 : s + strlen(s);
        } else if (s[0] == '{' && (s[1] == '%' || s[1] == '{')) {
            s += canon_tag(&out, s);
        } else {
            if (!strchr(" \t\r\n", *s)) (void)buf_addc(&out, *s);
            s++;
        }
    }
    if (r < 0 || !buf_cstr(&out)) {
        buf_fini(&out);
        return NULL;
    }
    return buf_take(&out, NULL);
}

static bool has(const char *s, const char *part)
{
    return strstr(s, part) != NULL;
}

/* The default system text of a chatml template: a literal of the form
 * '<|im_start|>system\nTEXT<|im_end|>\n'. 1 found, 0 none, -ENOMEM. */
static int default_system(const char *src, char **ret)
{
    static const char head[] = "'<|im_start|>system" NL, tail[] = "<|im_end|>" NL "'";
    for (const char *p = strstr(src, head); p; p = strstr(p + 1, head)) {
        const char *text = p + sizeof head - 1, *quote = strchr(text, '\''),
                   *end = strstr(text, tail);
        if (!end || end == text || (quote && quote < end)) continue;
        *ret = mem_strndup(text, (size_t)(end - text));
        return *ret ? 1 : -ENOMEM;
    }
    return 0;
}

static int recognise_chatml(const char *s, struct chat *c)
{
    bool think = has(s, "ns.last_query_index") && has(s, "<think>");
    bool tools = has(s, NL "<tool_response>" NL);
    bool plain =
        has(s, "'<|im_start|>'+message.role+'" NL "'+message.content+'<|im_end|>'+'" NL "'") ||
        has(s, "'<|im_start|>'+message.role+'" NL "'+message.content+'<|im_end|>" NL "'");
    if (think && tools && has(s, "add_generation_prompt") &&
        !has(s, "'<|im_start|>assistant" NL "<think>" NL)) {
        *c = *chat_named("qwen3");
        return 1;
    }
    /* Qwen3's later releases, which do not think, put the text in a variable first. */
    if (tools && has(s, "content=message.content") &&
        has(s, "'<|im_start|>'+message.role+'" NL "'+content+'<|im_end|>'+'" NL "'") &&
        has(s, "'<|im_start|>'+message.role+'" NL "'+content}}"))
        plain = true;
    if (!plain || has(s, "<think>") || has(s, "raise_exception")) return 0;
    *c = *chat_named(tools ? "qwen2.5" : "chatml");
    c->default_system = NULL;
    int r = default_system(s, &c->system_copy);
    if (r < 0) return r;
    if (r == 1) {
        c->default_system = c->system_copy;
        for (size_t i = 0; i < N_CHATS; i++)
            if (chats[i].default_system && strcmp(chats[i].default_system, c->system_copy) == 0)
                c->name = chats[i].name;
    } else if (tools) {
        c->name = "chatml";
    }
    c->gen_always = !has(s, "add_generation_prompt") && has(s, "'<|im_start|>assistant" NL "'");
    return 1;
}

static int recognise_mistral(const char *s, struct chat *c)
{
    bool first = has(s, "loop.firstandsystem_message") || has(s, "loop.index0==0andsystem_message");
    bool last = has(s, "loop.lastandsystem_message");
    bool v1 = has(s, "' [INST] '"), v3 = has(s, "'[INST] '"), tekken = has(s, "'[INST]'");
    if (!v1 && !v3 && !tekken) return 0;
    bool close = has(s, "' [/INST]'");
    if (!close && !has(s, "'[/INST]'")) return 0;
    const char *name = tekken  ? "mistral-tekken"
                       : v1    ? "mistral-v1"
                       : close ? "mistral-v0.1"
                               : "mistral-v3";
    *c = *chat_named(name);
    struct chat_mistral *m = &c->mistral;
    m->open = v1 ? " [INST] " : v3 ? "[INST] " : "[INST]";
    m->close = close ? " [/INST]" : "[/INST]";
    m->lead = has(s, "' '+message.content") ? " " : NULL;
    m->trim = has(s, "message.content|trim+eos_token");
    m->after_eos = has(s, "eos_token+' '") ? " " : NULL;
    m->system = last ? CHAT_SYSTEM_LAST : first ? CHAT_SYSTEM_FIRST : CHAT_SYSTEM_NONE;
    return has(s, "eos_token") && has(s, "bos_token");
}

static int recognise_others(const char *s, const char *jinja, struct chat *c)
{
    const char *name = NULL;
    if (has(s, "'<|im_start|>user" NL "'+content+'<|im_end|>" NL "<|im_start|>assistant" NL "'"))
        name = "yi";
    else if (has(s, "<|start_header_id|>") && has(s, "Cutting Knowledge Date: December 2023"))
        name = has(s, "strftime_now") ? "llama3.2" : "llama3.1";
    else if (has(s, "'<|start_header_id|>'+message.role+'<|end_header_id|>" NL NL
                    "'+message.content|trim+'<|eot_id|>'"))
        name = "llama3";
    else if (has(s, "<<SYS>>" NL) && (has(s, "bos_token+'[INST] '+content.strip()+' [/INST]'") ||
                                      has(s, "bos_token+'[INST] '+content|trim+' [/INST]'")))
        name = "llama2";
    else if (has(s, "'<|end|>'+'" NL "'+'<|assistant|>'"))
        name = "phi3-v1";
    else if (has(s, "'<|system|>" NL "'+message.content+'<|end|>" NL "'"))
        name = "phi3";
    else if (has(s, "'<|user|>" NL "'+message.content+eos_token") && has(jinja, "eos_token }}\n"))
        name = "zephyr";
    if (!name) return 0;
    *c = *chat_named(name);
    if (strcmp(name, "llama3") == 0) c->gen_always = !has(s, "add_generation_prompt");
    return 1;
}

static int recognise(const char *jinja, struct chat *c, struct err *err)
{
    char *s = canon(jinja);
    if (!s) return err_set(err, -ENOMEM, "out of memory");
    int r = recognise_others(s, jinja, c);
    if (r == 0 && has(s, "<|im_start|>")) r = recognise_chatml(s, c);
    if (r == 0 && has(s, "[INST]") && !has(s, "[SYSTEM_PROMPT]") && !has(s, "<<SYS>>"))
        r = recognise_mistral(s, c);
    mem_free(s);
    if (r < 0) return err_set(err, r, "out of memory");
    return r ? 0 : refuse_template(err, "the model's chat template is of no known family");
}

int chat_open(const char *jinja, const char *name, struct chat **ret, struct err *err)
{
    struct chat c;
    if (name) {
        const struct chat *known = chat_named(name);
        if (!known) return refuse_template(err, "no chat template has that name");
        c = *known;
    } else if (jinja) {
        int r = recognise(jinja, &c, err);
        if (r < 0) return r;
    } else {
        return refuse_template(err, "the model brings no chat template");
    }
    struct chat *copy = mem_alloc(sizeof *copy);
    if (!copy) {
        mem_free(c.system_copy);
        return err_set(err, -ENOMEM, "out of memory");
    }
    *copy = c;
    *ret = copy;
    return 0;
}

void chat_close(struct chat *c)
{
    if (!c) return;
    mem_free(c->system_copy);
    mem_free(c);
}

const char *chat_name(const struct chat *c)
{
    return c->name;
}

/* ---- rendering ---------------------------------------------------------------------------------
 */

static int role_of(const char *role, enum chat_role *ret)
{
    if (strcmp(role, "developer") == 0) role = chat_role_names[CHAT_SYSTEM];
    for (unsigned i = 0; i < CHAT_ROLES; i++) {
        if (strcmp(chat_role_names[i], role) != 0) continue;
        *ret = (enum chat_role)i;
        return 1;
    }
    return 0;
}

/* A token's text, or the family's own spelling without a tokenizer. */
static struct chat_str token_text(const struct tok *t, int32_t id, const char *fallback)
{
    struct chat_str s = {"", 0};
    if (!t && fallback) s = (struct chat_str){fallback, strlen(fallback)};
    if (t && id >= 0) (void)tok_bytes(t, id, true, &s.s, &s.len);
    return s;
}

int chat_render(const struct chat *c, const struct tok *t, const struct chat_thread *thread,
                struct chat_out *out, struct err *err)
{
    const struct chat_msg *msgs = thread->msgs;
    const size_t n = thread->n;
    if (n == 0) return err_set(err, -EINVAL, "messages must not be empty");
    enum chat_role *role = mem_alloc(n * sizeof *role);
    if (!role) return err_set(err, -ENOMEM, "out of memory");
    struct chat_out fresh = {0};
    struct chat_job j = {.c = c,
                         .msgs = msgs,
                         .n = n,
                         .role = role,
                         .gen = thread->add_generation_prompt || c->gen_always,
                         .out = &fresh,
                         .err = err,
                         .bos = token_text(t, t ? tok_bos(t) : -1, c->bos),
                         .eos = token_text(t, t ? tok_eos(t) : -1, c->eos)};
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        if (!role_of(msgs[i].role, &role[i]))
            r = err_set(err, -EINVAL, "messages[%zu]: unknown role '%.40s'", i, msgs[i].role);
    if (r == 0) r = c->render(&j);
    if (r == 0) r = j.status;
    mem_free(role);
    if (r < 0) {
        if (r == -ENOMEM) (void)err_set(err, r, "out of memory");
        chat_out_fini(&fresh);
        return r;
    }
    size_t at = 0; /* the text does not move any more */
    for (size_t i = 0; i < fresh.n_pieces; i++) {
        fresh.pieces[i].text = fresh.text.data + at;
        at += fresh.pieces[i].len;
    }
    ASSERT(at == fresh.text.len);
    chat_out_fini(out);
    *out = fresh;
    return 0;
}

void chat_out_fini(struct chat_out *out)
{
    buf_fini(&out->text);
    mem_free(out->pieces);
    mem_free(out->spans);
    *out = (struct chat_out){0};
}

int32_t chat_sink(const struct chat *c, const struct tok *t)
{
    const struct chat_msg m = {"user", "x", 1};
    const struct chat_thread thread = {&m, 1, true};
    struct chat_out out = {0};
    struct tok_ids ids = {0};
    int32_t sink = tok_bos(t);

    if (c && chat_render(c, t, &thread, &out, NULL) == 0 &&
        tok_encode(t, out.pieces, out.n_pieces, 0, &ids) == 0 && ids.n > 0)
        sink = ids.id[0];
    tok_ids_fini(&ids);
    chat_out_fini(&out);
    return sink;
}
