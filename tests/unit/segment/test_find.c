#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "segment/segment_int.h"
#include "tests/test.h"

#include <dirent.h>

enum { N_DOCS = 6 };

/* Document `d`: paragraphs of plain sentences that no other document has. */
static void document(int d, unsigned n_paragraphs, size_t paragraph_bytes, struct buf *out)
{
    static const char *const word[] = {"harbour", "granite", "signal",  "keeper",  "winter",
                                       "lantern", "railway", "orchard", "copper",  "meadow",
                                       "archive", "voyage",  "turbine", "glacier", "festival"};
    uint64_t rng = 1000 + (uint64_t)d;
    for (unsigned p = 0; p < n_paragraphs; p++) {
        size_t from = out->len;
        ASSERT_OK(buf_addf(out, "%sTopic %c%u", p ? "\n\n" : "", 'A' + d, p));
        while (out->len - from < paragraph_bytes)
            ASSERT_OK(buf_addf(out, " %s", word[test_rand(&rng) % 15]));
        ASSERT_OK(buf_adds(out, "."));
    }
}

struct shape { /* one framework's prompt */
    const char *preset, *role;
    const char *head, *open, *close, *join, *tail; /* %d in open and close: the position */
    bool per_paragraph;                            /* chunks are found inside documents */
};

#define D21 "---------------------"
#define D20 "--------------------"
static const struct shape shapes[] = {
    {"langchain-stuff", "user",
     "Use the following pieces of context to answer the question at the end. If you don't know the "
     "answer, just say that you don't know, don't try to make up an answer.\n\n",
     "", "", "\n\n", "\n\nQuestion: What lit the harbour?\nHelpful Answer:", true},
    {"langchain-tool", "tool", "", "Source: {'source': 'a.md', 'start_index': 7}\nContent: ", "",
     "\n\n", "", false},
    {"llamaindex-text-qa", "user", "Context information is below.\n" D21 "\n", "", "", "\n\n",
     "\n" D21 "\nGiven the context information and not prior knowledge, answer the query.\nQuery: "
     "Who?\nAnswer: ",
     true},
    {"llamaindex-chat", "system",
     "Use the context information below to assist the user.\n" D20 "\n", "", "", "\n\n",
     "\n" D20 "\n", true},
    {"llamaindex-citation", "user",
     "Please provide an answer based solely on the provided sources.\nBelow are several numbered "
     "sources of information:\n------\n",
     "Source %d:\n", "", "\n\n", "\n------\nQuery: What?\nAnswer: ", false},
    {"document-colon", "user", "Answer from the documents.\n\n", "Document %d: ", "", "\n\n",
     "\n\nQuestion: What lit the harbour?", false},
    {"document-heading", "user", "Answer from the documents.\n\n", "### Document %d\n", "", "\n\n",
     "\n\nWhat lit the harbour?", false},
    {"document-bracket", "user", "Answer from these.\n\n", "[Document %d] (Source: x.pdf)\n", "",
     "\n\n", "\n\nWhat lit the harbour?", false},
    {"dify", "system",
     "Use the following context as your learned knowledge, inside <context></context> XML "
     "tags.\n\n<context>\n",
     "", "", "\n", "\n</context>\n\nWhen answer to user:\n- Be brief.\n", true},
    {"ragflow", "system", "You are an assistant.\nHere is the knowledge base:\n------\n",
     "ID: %d\n├── Title: a.pdf\n└── Content:\n", "", "\n\n------\n\n", "", false},
    {"openwebui", "user", "### Task:\nRespond using the context.\n\n<context>\n",
     "<source id=\"%d\" name=\"a.pdf\">", "</source>", "\n", "\n</context>\n\nWhat?", false},
    {"openwebui", "user", "### Task:\nRespond using the context.\n\n<context>\n",
     "<source><source_id>%d</source_id><source_context>", "</source_context></source>", "\n",
     "\n</context>\n\nWhat?", false},
    {"anythingllm", "system", "Given the following conversation, respond. 2026-01-02\nContext:\n",
     "[CONTEXT %d]:\n", "\n[END CONTEXT %d]\n\n", "", "", false},
    {"privategpt", "system", "=====================\n", "Citation identifier ab%d\n---\n",
     "\n---\n", "\n", "=====================\n", false},
    {"langchain4j", "user", "What lit the harbour?\n\nAnswer using the following information:\n",
     "", "", "\n\n", "", true},
    {"langchain4j-metadata", "user",
     "What lit the harbour?\n\nAnswer using the following information:\n", "content: ", "", "\n\n",
     "", false},
    {"spring-ai", "user",
     "What lit the harbour?\n\nContext information is below, surrounded by " D21 "\n\n" D21 "\n",
     "", "", "\n", "\n" D21 "\n\nGiven the context and provided history information, reply.", true},
    {"lightrag", "system", "---Role---\nAssist.\n\nDocument Chunks:\n\n```json\n",
     "{\"reference_id\": \"%d\", \"content\": \"", "\"}", "\n", "\n```\n\nReference list\n", false},
    {"nano-graphrag", "system", "You're a helpful assistant\nBelow are the knowledge you know:\n",
     "", "", "--New Chunk--\n",
     "\n---\nIf you don't know the answer, just say so.\n---Target response length---\n", false},
    {"azure-search", "user", "What lit the harbour?\n\nSources:\n", "doc-%d.pdf#page=2: ", "", "\n",
     "", false},
    {"onyx", "user", "Use these.\n", "DOCUMENT %d: a title\n```\n", "\n```\n", "\n",
     "\nQUERY: What?", false},
    {"anthropic", "user", "<documents>\n",
     "<document index=\"%d\">\n<source>a.pdf</source>\n<document_content>\n",
     "\n</document_content>\n</document>\n", "", "</documents>\n\nWhat lit the harbour?", false},
    {"xml-document", "user", "Read:\n", "<doc id=%d>\n", "\n</doc>\n", "", "\nWhat?", false},
    {"numbered-bracket", "user", "Read the passages.\n\n", "[%d] ", "", "\n\n", "\n\nWhat?", false},
    {"passage", "user", "Read the passages.\n\n", "Passage %d: ", "", "\n", "\n\nWhat?", false},
    {"fence-dashes", "user", "Read the passages and answer.\n\n", "", "", "\n---\n",
     "\n---\nQuestion: What?", false},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void add_marker(struct buf *out, const char *s, int position)
{
    const char *at = strstr(s, "%d");
    ASSERT_OK(buf_add(out, s, at ? (size_t)(at - s) : strlen(s)));
    if (at) ASSERT_OK(buf_addf(out, "%d%s", position, at + 2));
}

static void prompt_of(const struct shape *s, const struct buf *doc, const int *order,
                      struct buf *out)
{
    ASSERT_OK(buf_adds(out, s->head));
    for (int i = 0; i < N_DOCS; i++) {
        if (i) ASSERT_OK(buf_adds(out, s->join));
        add_marker(out, s->open, i + 1);
        ASSERT_OK(buf_add(out, doc[order[i]].data, doc[order[i]].len));
        add_marker(out, s->close, i + 1);
    }
    ASSERT_OK(buf_adds(out, s->tail));
}

static struct seg_presets *presets(void)
{
    struct seg_presets *p = NULL;
    struct err err = {0};
    if (seg_presets_load(NULL, &p, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    return p;
}

static void check_list(const struct seg_list *l, const struct seg_text *t, size_t n)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct seg *s = &l->seg[i];
        ASSERT_TRUE(s->msg < n && s->begin < s->end && s->end <= t[s->msg].len);
        if (i == 0 || s[-1].msg < s->msg) continue;
        ASSERT_TRUE(s[-1].msg == s->msg && s[-1].end <= s->begin);
    }
}

/* The document, and next to it at most a blank (it opens the first token) or a JSON quote. */
static bool has_chunk(const struct seg_list *l, const char *text, const char *want, size_t len)
{
    for (size_t i = 0; i < l->n; i++) {
        size_t n = l->seg[i].end - l->seg[i].begin;
        if (n >= len && n <= len + 4 && memmem(text + l->seg[i].begin, n, want, len)) return true;
    }
    return false;
}

static size_t find_prompt(const struct seg_presets *p, const struct shape *s, const struct buf *b,
                          struct seg_list *out)
{
    struct seg_text t = {s->role, b->data, b->len};
    ASSERT_OK(seg_find(p, NULL, &t, 1, out));
    check_list(out, &t, 1);
    for (size_t i = 0; i < out->n; i++)
        ASSERT_STREQ(out->seg[i].detector, s->preset);
    return out->n;
}

/* Each framework's prompt gives its documents as chunks, whatever their order. */
TEST(every_preset_finds_every_document_in_any_order)
{
    static const int orders[3][N_DOCS] = {
        {0, 1, 2, 3, 4, 5}, {5, 3, 1, 0, 2, 4}, {2, 0, 4, 5, 1, 3}};
    struct seg_presets *p = presets();
    for (size_t k = 0; k < N_SHAPES; k++) {
        const struct shape *s = &shapes[k];
        printf("# %s\n", s->preset);
        struct buf doc[N_DOCS] = {0};
        for (int d = 0; d < N_DOCS; d++)
            document(d, 1, 1200, &doc[d]);
        for (int o = 0; o < 3; o++) {
            struct buf b = BUF_INIT;
            struct seg_list l = {0};
            prompt_of(s, doc, orders[o], &b);
            ASSERT_EQ(find_prompt(p, s, &b, &l), N_DOCS);
            for (int d = 0; d < N_DOCS; d++)
                ASSERT_TRUE(has_chunk(&l, b.data, doc[d].data, doc[d].len));
            seg_list_fini(&l);
            buf_fini(&b);
        }
        for (int d = 0; d < N_DOCS; d++)
            buf_fini(&doc[d]);
    }
    seg_presets_free(p);
}

/* Bytes of chunks of `b` whose very text is a chunk of `a` too. */
static size_t common_bytes(const struct seg_list *a, const char *ta, const struct seg_list *b,
                           const char *tb)
{
    size_t sum = 0;
    for (size_t i = 0; i < b->n; i++) {
        size_t n = b->seg[i].end - b->seg[i].begin;
        for (size_t j = 0; j < a->n; j++)
            if (a->seg[j].end - a->seg[j].begin == n &&
                memcmp(ta + a->seg[j].begin, tb + b->seg[i].begin, n) == 0) {
                sum += n;
                break;
            }
    }
    return sum;
}

/* A prompt without any marker: documents of several paragraphs, joined by blank lines. */
static void plain_stability(struct seg_presets *p, unsigned n_par, size_t par_bytes, double least)
{
    static const int orders[2][N_DOCS] = {{0, 1, 2, 3, 4, 5}, {4, 2, 5, 0, 3, 1}};
    struct buf doc[N_DOCS] = {0}, b[2] = {0};
    struct seg_list l[2] = {0};
    struct shape s = {NULL,
                      "user",
                      "You are a careful assistant.\n\nHere is what we know.\n\n",
                      "",
                      "",
                      "\n\n",
                      "\n\nWhat lit the harbour?",
                      true};
    size_t total = 0;
    for (int d = 0; d < N_DOCS; d++) {
        document(d, n_par, par_bytes, &doc[d]);
        total += doc[d].len;
    }
    for (int o = 0; o < 2; o++) {
        prompt_of(&s, doc, orders[o], &b[o]);
        struct seg_text t = {"user", b[o].data, b[o].len};
        ASSERT_OK(seg_find(p, NULL, &t, 1, &l[o]));
        check_list(&l[o], &t, 1);
        ASSERT_TRUE(l[o].n >= N_DOCS);
        ASSERT_TRUE(l[o].seg[0].begin >= strlen(s.head));
        ASSERT_TRUE(l[o].seg[l[o].n - 1].end <= b[o].len - strlen(s.tail));
        ASSERT_STREQ(l[o].seg[0].detector, "blocks");
    }
    double share = (double)common_bytes(&l[0], b[0].data, &l[1], b[1].data) / (double)total;
    printf("# %u paragraphs of %zu bytes: %.3f stable\n", n_par, par_bytes, share);
    ASSERT_TRUE(share >= least);
    for (int o = 0; o < 2; o++) {
        seg_list_fini(&l[o]);
        buf_fini(&b[o]);
    }
    for (int d = 0; d < N_DOCS; d++)
        buf_fini(&doc[d]);
}

TEST(plain_documents_are_stable_when_reordered)
{
    struct seg_presets *p = presets();
    plain_stability(p, 1, 2000, 0.99);
    plain_stability(p, 3, 700, 0.99);
    plain_stability(p, 12, 160, 0.75); /* short paragraphs: groups straddle two documents */
    plain_stability(p, 30, 60, 0.5);
    seg_presets_free(p);
}

/* The same prompt with CR LF everywhere has the same chunks, text for text. */
TEST(cr_lf_counts_as_a_newline)
{
    struct seg_presets *p = presets();
    static const int order[N_DOCS] = {0, 1, 2, 3, 4, 5};
    struct buf doc[N_DOCS] = {0};
    for (int d = 0; d < N_DOCS; d++)
        document(d, 1, 900, &doc[d]);
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct buf b = BUF_INIT, crlf = BUF_INIT;
        struct seg_list l = {0}, m = {0};
        prompt_of(&shapes[i], doc, order, &b);
        for (size_t k = 0; k < b.len; k++)
            ASSERT_OK(b.data[k] == '\n' ? buf_adds(&crlf, "\r\n") : buf_addc(&crlf, b.data[k]));
        struct seg_text t = {shapes[i].role, b.data, b.len};
        struct seg_text u = {shapes[i].role, crlf.data, crlf.len};
        ASSERT_OK(seg_find(p, NULL, &t, 1, &l));
        ASSERT_OK(seg_find(p, NULL, &u, 1, &m));
        if (l.n != m.n)
            test_fail(__FILE__, __LINE__, "%s: %zu chunks, %zu with CR LF", shapes[i].preset, l.n,
                      m.n);
        for (size_t k = 0; k < l.n; k++) {
            ASSERT_STREQ(l.seg[k].detector, m.seg[k].detector);
            ASSERT_EQ(l.seg[k].end - l.seg[k].begin, m.seg[k].end - m.seg[k].begin);
            ASSERT_MEMEQ(b.data + l.seg[k].begin, crlf.data + m.seg[k].begin,
                         l.seg[k].end - l.seg[k].begin);
        }
        seg_list_fini(&l);
        seg_list_fini(&m);
        buf_fini(&b);
        buf_fini(&crlf);
    }
    for (int d = 0; d < N_DOCS; d++)
        buf_fini(&doc[d]);
    seg_presets_free(p);
}

TEST(the_question_is_never_a_chunk)
{
    struct seg_presets *p = presets();
    struct buf b = BUF_INIT;
    struct seg_list l = {0};
    for (int d = 0; d < 3; d++) {
        document(d, 1, 900, &b);
        ASSERT_OK(buf_adds(&b, "\n\n"));
    }
    size_t q = b.len;
    document(9, 1, 900, &b); /* a long question is one all the same */
    struct seg_text t[3] = {
        {"system", "You are kind.", 13}, {"user", b.data, b.len}, {"assistant", b.data, b.len}};
    ASSERT_OK(seg_find(p, NULL, t, 3, &l));
    ASSERT_EQ(l.n, 3);
    for (size_t i = 0; i < l.n; i++)
        ASSERT_TRUE(l.seg[i].msg == 1 && l.seg[i].end <= q);
    seg_list_fini(&l);
    struct seg_opts off = {.no_blocks = true};
    ASSERT_OK(seg_find(p, &off, t, 3, &l));
    ASSERT_EQ(l.n, 0);
    buf_fini(&b);
    seg_presets_free(p);
}

TEST(separator_wins_over_everything)
{
    struct seg_presets *p = presets();
    const char *text =
        "Read. # # [1] the first document is here # # [2] and this is the second one "
        "# # What does it say?";
    struct seg_text t = {"user", text, strlen(text)};
    struct seg_opts o = {.separator = " # # "};
    struct seg_list l = {0};
    ASSERT_OK(seg_find(p, &o, &t, 1, &l));
    ASSERT_EQ(l.n, 2);
    ASSERT_STREQ(l.seg[0].detector, "separator");
    ASSERT_MEMEQ(text + l.seg[0].begin, "[1] the first", 13);
    ASSERT_MEMEQ(text + l.seg[1].begin, "[2] and this", 12);
    seg_list_fini(&l);
    seg_presets_free(p);
}

/* Documents that contain anchors of other frameworks: ranges stay sound, the list bounded. */
TEST(adversarial_anchors)
{
    struct seg_presets *p = presets();
    static const char *const evil[] = {"[END CONTEXT 0]\n",
                                       "[CONTEXT 1]:\n",
                                       "</source>",
                                       "<source id=\"1\">",
                                       "\n---\n",
                                       "--New Chunk--\n",
                                       "Question: ",
                                       "Document 9:",
                                       "```\n",
                                       "\n\n",
                                       "<document_content>",
                                       "{\"content\":",
                                       "Sources:\n",
                                       D21 "\n",
                                       "text that is a little longer, for a chunk "};
    uint64_t rng = 5;
    for (int round = 0; round < 300; round++) {
        struct buf b = BUF_INIT;
        struct seg_list l = {0};
        for (int i = 0; i < 200; i++)
            ASSERT_OK(buf_adds(&b, evil[test_rand(&rng) % (sizeof evil / sizeof *evil)]));
        struct seg_text t = {round % 2 ? "user" : "system", b.data, b.len};
        ASSERT_OK(seg_find(p, NULL, &t, 1, &l));
        check_list(&l, &t, 1);
        seg_list_fini(&l);
        buf_fini(&b);
    }
    seg_presets_free(p);
}

TEST(mutated_prompts)
{
    struct seg_presets *p = presets();
    struct buf doc[N_DOCS] = {0};
    static const int order[N_DOCS] = {0, 1, 2, 3, 4, 5};
    uint64_t rng = 11;
    for (int d = 0; d < N_DOCS; d++)
        document(d, 2, 150, &doc[d]);
    for (int round = 0; round < 2000; round++) {
        struct buf b = BUF_INIT;
        struct seg_list l = {0};
        prompt_of(&shapes[round % N_SHAPES], doc, order, &b);
        for (int i = 0; i < 20; i++)
            b.data[test_rand(&rng) % b.len] = (char)test_rand(&rng);
        size_t len = test_rand(&rng) % (b.len + 1);
        char *exact = mem_strndup(b.data, len); /* a block of its own: reads beyond are seen */
        struct seg_text t = {"user", exact, len};
        ASSERT_OK(seg_find(p, NULL, &t, 1, &l));
        check_list(&l, &t, 1);
        seg_list_fini(&l);
        mem_free(exact);
        buf_fini(&b);
    }
    for (int d = 0; d < N_DOCS; d++)
        buf_fini(&doc[d]);
    seg_presets_free(p);
}

TEST(empty_and_huge)
{
    struct seg_presets *p = presets();
    struct seg_list l = {0};
    struct seg_text none = {"user", "", 0};
    ASSERT_OK(seg_find(p, NULL, &none, 1, &l));
    ASSERT_OK(seg_find(p, NULL, NULL, 0, &l));
    ASSERT_OK(seg_find(NULL, NULL, &none, 1, &l));
    ASSERT_EQ(l.n, 0);
    static const char *const fill[] = {"[",      "[1] ",        "\n", "a", "<source id=\"",
                                       "word. ", "DOCUMENT 1:", " \n"};
    for (size_t k = 0; k < sizeof fill / sizeof *fill; k++) {
        struct buf b = BUF_INIT;
        while (b.len < (10 << 20))
            ASSERT_OK(buf_adds(&b, fill[k]));
        struct seg_text t = {"user", b.data, b.len};
        uint64_t t0 = clock_ns();
        int r = seg_find(p, NULL, &t, 1, &l);
        printf("# 10 MiB of \"%s\": %.0f ms, %zu chunks\n", fill[k][0] == '\n' ? "\\n" : fill[k],
               clock_ms_since(t0), l.n);
        ASSERT_OK(r);
        check_list(&l, &t, 1);
        seg_list_fini(&l);
        buf_fini(&b);
    }
    seg_presets_free(p);
}

/* The embedded presets are etc/presets, byte for byte and file for file. */
TEST(builtin_presets_equal_the_files)
{
    size_t n_files = 0;
    DIR *d = opendir(KV_SOURCE_DIR "/etc/presets");
    ASSERT_TRUE(d);
    for (const struct dirent *e; (e = readdir(d));)
        n_files += strstr(e->d_name, ".json") != NULL;
    closedir(d);
    ASSERT_EQ(seg_n_builtins, n_files);
    for (size_t i = 0; i < seg_n_builtins; i++) {
        struct buf path = BUF_INIT;
        static char text[1 << 16];
        ASSERT_OK(buf_addf(&path, KV_SOURCE_DIR "/etc/presets/%s", seg_builtins[i].file));
        FILE *f = fopen(buf_cstr(&path), "rb");
        ASSERT_TRUE(f);
        size_t n = fread(text, 1, sizeof text, f);
        fclose(f);
        ASSERT_EQ(n, strlen(seg_builtins[i].json));
        ASSERT_MEMEQ(text, seg_builtins[i].json, n);
        if (i) ASSERT_TRUE(strcmp(seg_builtins[i - 1].file, seg_builtins[i].file) < 0);
        buf_fini(&path);
    }
    struct seg_presets *a = NULL, *b = presets();
    struct err err;
    ASSERT_OK(seg_presets_load(KV_SOURCE_DIR "/etc/presets", &a, &err));
    ASSERT_EQ(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        ASSERT_STREQ(a->preset[i].name, b->preset[i].name);
    seg_presets_free(a);
    seg_presets_free(b);
}

/* Results of a tool as JSON: the long strings are looked into, their places are the text's own. */
TEST(tool_results_in_json)
{
    enum { DOCS = 3 };
    struct buf doc[DOCS] = {{NULL, 0, 0}}, text = BUF_INIT, whole = BUF_INIT;
    for (size_t i = 0; i < DOCS; i++) {
        ASSERT_OK(buf_addf(&doc[i], "Document %c says \"hello\":", (char)('A' + i)));
        for (int k = 0; k < 20; k++)
            ASSERT_OK(buf_addf(&doc[i], " the %c%d mill turns \xc3\xa4", (char)('A' + i), k));
    }
    ASSERT_OK(buf_adds(&text, " {\"query\": \"mills\", \"results\": ["));
    for (size_t i = 0; i < DOCS; i++) {
        ASSERT_OK(buf_addf(&text, "%s{\"id\":%zu,\"content\" : ", i ? ", " : "", i));
        ASSERT_OK(buf_add_json_str(&text, doc[i].data, doc[i].len));
        ASSERT_OK(buf_adds(&text, "}"));
    }
    ASSERT_OK(buf_adds(&text, "]}"));
    for (int envelope = 0; envelope < 2; envelope++) {
        struct seg_list l = {0};
        struct seg_text t = {"tool", text.data, text.len};
        if (envelope) { /* the same as a string in JSON */
            ASSERT_OK(buf_adds(&whole, "[{\"type\":\"text\",\"text\":"));
            ASSERT_OK(buf_add_json_str(&whole, text.data, text.len));
            ASSERT_OK(buf_adds(&whole, "}]"));
            t = (struct seg_text){"tool", whole.data, whole.len};
        }
        ASSERT_OK(seg_find(NULL, NULL, &t, 1, &l));
        ASSERT_EQ(l.n, DOCS);
        for (size_t i = 0; i < DOCS; i++) {
            const char *p = t.text + l.seg[i].begin;
            char first[16];
            (void)snprintf(first, sizeof first, "Document %c", (char)('A' + i));
            ASSERT_MEMEQ(p, first, 10);
            ASSERT_TRUE(t.text[l.seg[i].begin - 1] == '"');
            ASSERT_TRUE(t.text[l.seg[i].end] == (envelope ? '\\' : '"'));
        }
        seg_list_fini(&l);
        t.role = "user"; /* typed text is left as it is */
        ASSERT_OK(seg_find(NULL, NULL, &t, 1, &l));
        for (size_t i = 0; i < l.n; i++)
            ASSERT_TRUE(l.seg[i].end <= t.len);
        seg_list_fini(&l);
    }
    static const char *const odd[] = {"{", "[\"", "{\"a\":\"b\"}", "[1,2]", "{} x", "[\"\\u12\"]"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        struct seg_list l = {0};
        struct seg_text t = {"tool", odd[i], strlen(odd[i])};
        ASSERT_OK(seg_find(NULL, NULL, &t, 1, &l));
        ASSERT_EQ(l.n, 0);
        seg_list_fini(&l);
    }
    for (size_t i = 0; i < DOCS; i++)
        buf_fini(&doc[i]);
    buf_fini(&text);
    buf_fini(&whole);
}
