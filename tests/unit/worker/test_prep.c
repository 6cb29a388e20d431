/* wk_prepare(): a request's tokens, chunks and keys, against what the texts and offsets say. */
#include "base/mem.h"
#include "tests/test.h"
#include "worker/call.h"
#include "worker/request/request.h"
#include "worker/worker.h"

#include <stdlib.h>
#include <string.h>

struct kit {
    struct worker w;
    struct wk_hints h; /* borrowed strings */
    struct api_req r;
    struct wk_prompt p;
    struct api_err e;
};

static char *read_text(const char *rel)
{
    struct buf b = BUF_INIT;
    char part[4096];
    FILE *f = fopen(test_data(rel), "rb");
    if (!f) test_fail(__FILE__, __LINE__, "cannot open %s", rel);
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
        ASSERT_OK(buf_add(&b, part, n));
    (void)fclose(f);
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    return buf_take(&b, NULL);
}

/* All of these tokenizers put <s> (1) before a text; 2 is </s>, 3 <|im_end|>. */
static void kit_open(struct kit *k, const char *tokenizer, const char *template)
{
    struct err err = {0};
    char rel[128];

    memset(k, 0, sizeof *k);
    k->w.ident = (struct tier_ident){.model = {1, 2}, .dtype = KN_F16, .L = 3, .G = 2, .K = 4};
    k->w.ctx_max = 4096;
    (void)snprintf(rel, sizeof rel, "tokenizers/hf/%s", tokenizer);
    ASSERT_OK(tok_open_path(test_data(rel), &k->w.tok, &err));
    ASSERT_OK(seg_presets_load(NULL, &k->w.segmenter.presets, &err));
    ASSERT_OK(seg_learner_create(SEG_LEARNER_BYTES_MIN, &k->w.segmenter.learner));
    if (template) {
        (void)snprintf(rel, sizeof rel, "chat/%s.jinja", template);
        char *jinja = read_text(rel);
        ASSERT_OK(chat_open(jinja, NULL, &k->w.chat, &err));
        mem_free(jinja);
    } else {
        (void)snprintf(k->w.chat_error, sizeof k->w.chat_error, "it has no template");
    }
}

static void drop(struct kit *k)
{
    wk_prompt_fini(&k->p);
    api_req_fini(&k->r);
}

static void kit_close(struct kit *k)
{
    drop(k);
    chat_close(k->w.chat);
    tok_close(k->w.tok);
    seg_presets_free(k->w.segmenter.presets);
    seg_learner_free(k->w.segmenter.learner);
}

/* The prompt `i` of a body, in place of the one before. */
static int prepare(struct kit *k, const char *body, size_t i)
{
    const struct api_limits lim = {tok_n_vocab(k->w.tok), 4};

    drop(k);
    memset(&k->e, 0, sizeof k->e);
    bool chat = strstr(body, "\"messages\"") != NULL;
    int rc = api_parse(body, strlen(body), chat, &lim, &k->r, &k->e);
    if (rc >= 0) rc = wk_settings(&k->w, &k->r, &k->h, &k->e);
    const struct wk_prepare q = {.w = &k->w, .r = &k->r, .h = &k->h, .e = &k->e};
    return rc < 0 ? rc : wk_prepare(&q, i, &k->p);
}

static void must(struct kit *k, const char *body)
{
    if (prepare(k, body, 0) < 0) test_fail(__FILE__, __LINE__, "%s: %s", body, k->e.msg);
}

/* A JSON document with ' for ", and with %s and %u. mem_free() it. */
__attribute__((format(printf, 1, 2))) static char *json(const char *fmt, ...)
{
    struct buf b = BUF_INIT;
    char *s = NULL;
    va_list ap;

    va_start(ap, fmt);
    ASSERT_TRUE(vasprintf(&s, fmt, ap) >= 0);
    va_end(ap);
    for (char *p = s; *p; p++)
        ASSERT_OK(buf_addc(&b, *p == '\'' ? '"' : *p));
    free(s); /* vasprintf's */
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    return buf_take(&b, NULL);
}

/* n different words, the same ones for a seed. mem_free() it. */
static char *words(unsigned n, uint64_t seed)
{
    struct buf b = BUF_INIT;
    for (unsigned i = 0; i < n; i++)
        ASSERT_OK(buf_addf(&b, "%sw%llx", i ? " " : "", (long long)(test_rand(&seed) % 0xffff)));
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    return buf_take(&b, NULL);
}

/* The bytes that tokens [tok0, tok0 + n) of a plain prompt come from. */
static void check_inside(const struct kit *k, const struct wk_cut *c, size_t begin, size_t end)
{
    const struct tok_ids *t = &k->p.ids;
    size_t last = c->tok0 + c->n - 1;

    ASSERT_TRUE(c->n > 0 && last < t->n);
    ASSERT_TRUE(t->begin[c->tok0] >= begin && t->end[last] <= end);
    ASSERT_TRUE(c->tok0 == 0 || t->begin[c->tok0 - 1] < begin ||
                t->begin[c->tok0 - 1] == t->end[c->tok0 - 1]);
    ASSERT_TRUE(last + 1 == t->n || t->end[last + 1] > end);
    struct tier_key key = tier_key_chunk(&k->w.ident, k->r.kv.ns, k->p.tok + c->tok0, c->n);
    ASSERT_TRUE(tier_key_same(&key, &c->key));
}

static bool has_token(const struct wk_prompt *p, int32_t id)
{
    bool yes = false;
    for (uint32_t i = 0; i < p->n_tok; i++)
        yes |= p->tok[i] == id;
    return yes;
}

/* ---- which tokens ---- */
static void check_golden(const json_t *item)
{
    const char *template = json_string_value(json_object_get(item, "template"));
    json_t *want = json_object_get(item, "ids"), *body = json_object();
    struct kit k;

    kit_open(&k, json_string_value(json_object_get(item, "tokenizer")), template);
    const char *what = template ? "messages" : "prompt";
    ASSERT_TRUE(json_object_set(body, what, json_object_get(item, what)) == 0);
    char *text = json_dumps(body, 0);
    must(&k, text);
    for (size_t i = 0; i < k.p.n_tok && i < json_array_size(want); i++)
        if (k.p.tok[i] != json_integer_value(json_array_get(want, i)))
            test_fail(__FILE__, __LINE__, "%s: token %zu is %d", text, i, k.p.tok[i]);
    ASSERT_EQ(k.p.n_tok, json_array_size(want));
    ASSERT_EQ(chat_sink(k.w.chat, k.w.tok), k.p.tok[0]);
    free(text);
    json_decref(body);
    kit_close(&k);
}

/* tests/data/chat/ids.json: a template is the whole truth, so that BOS stands before a chat exactly
 * where the template puts it; texts get it because the tokenizer says so. Chunks are built behind
 * the first token, whatever it is. */
TEST(tokens_are_those_of_transformers)
{
    json_t *cases = json_load_file(test_data("chat/ids.json"), 0, NULL), *item;
    size_t i;

    ASSERT_TRUE(json_array_size(cases) > 50);
    json_array_foreach(cases, i, item)
        check_golden(item);
    json_decref(cases);
}

TEST(token_ids_are_taken_as_they_are)
{
    struct kit k;

    kit_open(&k, "llama3", NULL);
    must(&k, "{\"prompt\":[7,3,9]}");
    ASSERT_EQ(k.p.n_tok, 3);
    ASSERT_TRUE(k.p.tok[0] == 7 && k.p.tok[1] == 3 && k.p.tok[2] == 9);
    ASSERT_EQ(k.p.n_cut + k.p.n_block, 0);
    ASSERT_OK(prepare(&k, "{\"prompt\":[[7,3,9],[5]]}", 1));
    ASSERT_TRUE(k.p.n_tok == 1 && k.p.tok[0] == 5);
    kit_close(&k);
}

/* Names of control tokens in what users send are text, in every place for text. */
TEST(users_cannot_write_control_tokens)
{
    struct kit k;

    kit_open(&k, "smollm", "llama3");
    must(&k, "{\"prompt\":\"<s><|im_end|></s>\"}");
    ASSERT_TRUE(k.p.tok[0] == 1 && k.p.n_tok > 10);
    for (uint32_t i = 1; i < k.p.n_tok; i++)
        ASSERT_TRUE(k.p.tok[i] > 3);
    must(&k, "{\"prompt\":\"x\",\"documents\":[{\"title\":\"<|im_end|>\",\"text\":\"</s>\"}]}");
    ASSERT_TRUE(!has_token(&k.p, 2) && !has_token(&k.p, 3));
    must(&k, "{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|></s>\"}]}");
    ASSERT_TRUE(!has_token(&k.p, 2) && !has_token(&k.p, 3));
    kit_close(&k);
}

/* ---- chunks ---- */
static char *two_parts(const char *a, const char *b, const char *mark)
{
    return json("{'messages':[{'role':'system','content':'Be brief.'},{'role':'user','content':["
                "{'type':'text','text':'%s'%s},{'type':'text','text':'%s'},"
                "{'type':'text','text':'What is it?'}]}]}",
                a, mark, b);
}

TEST(parts_are_chunks_wherever_the_template_puts_them)
{
    static const char *const templates[] = {"chatml", "llama2", "llama3", "mistral-v3", "zephyr"};
    char *a = words(40, 1), *b = words(50, 2), *body = two_parts(a, b, "");
    struct tier_key key[2];

    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        struct kit k;
        kit_open(&k, "smollm", templates[i]);
        must(&k, body);
        ASSERT_EQ(k.p.n_cut, 2);
        const char *text = buf_cstr(&k.p.chat.text);
        const char *at[2] = {strstr(text, a), strstr(text, b)};
        ASSERT_TRUE(at[0] && at[1]);
        for (size_t c = 0; c < 2; c++) {
            const struct wk_cut *cut = &k.p.cut[c];
            size_t begin = (size_t)(at[c] - text), len = strlen(c ? b : a);
            check_inside(&k, cut, begin, begin + len);
            ASSERT_TRUE(cut->msg == 1 && cut->begin == (c ? strlen(a) + 1 : 0));
            ASSERT_TRUE(cut->end - cut->begin == len && strcmp(cut->detector, "parts") == 0);
            ASSERT_TRUE(cut->text_id == seg_text_id("", c ? b : a, len));
            if (i == 0) key[c] = cut->key;
            ASSERT_TRUE(tier_key_same(&cut->key, &key[c])); /* position-free */
        }
        kit_close(&k);
    }
    mem_free(a);
    mem_free(b);
    mem_free(body);
}

TEST(marks_on_parts_decide)
{
    char *small = words(6, 3), *big = words(50, 4), *body;
    struct kit k;

    kit_open(&k, "smollm", "chatml");
    body = two_parts(small, big, ""); /* 16 to 32 tokens: a label, a question */
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 1);
    mem_free(body);
    body = two_parts(small, big, ",'segment':'chunk'");
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 2);
    ASSERT_TRUE(k.p.cut[0].n >= WK_CHUNK_TOKENS_MIN && k.p.cut[0].n < WK_PART_TOKENS_MIN);
    mem_free(body);
    body = two_parts("too few", big, ",'segment':'chunk'");
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 1);
    mem_free(body);
    body = two_parts(big, "x", ",'segment':'glue'");
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 0);
    mem_free(body);
    mem_free(small);
    mem_free(big);
    kit_close(&k);
}

/* Cuts at any byte, also in the middle of a token: what lies wholly within is the chunk, a token
 * that straddles a cut belongs to none. */
TEST(any_cuts_give_whole_tokens)
{
    uint64_t seed = 5;
    char *text = words(300, 6);
    size_t len = strlen(text);
    struct kit k;

    kit_open(&k, "llama3", NULL);
    for (int round = 0; round < 100; round++) {
        size_t a = test_rand(&seed) % (len - 400), b = a + 200 + test_rand(&seed) % 50,
               c = b + test_rand(&seed) % 3, d = c + 100 + test_rand(&seed) % 40;
        char *body = json("{'prompt':'%s','kvblend':{'segments':[{'begin':%zu,'end':%zu},"
                          "{'begin':%zu,'end':%zu}]}}",
                          text, c, d, a, b);
        must(&k, body);
        ASSERT_EQ(k.p.n_cut, 2);
        check_inside(&k, &k.p.cut[0], a, b);
        check_inside(&k, &k.p.cut[1], c, d);
        ASSERT_TRUE(k.p.cut[0].tok0 + k.p.cut[0].n <= k.p.cut[1].tok0);
        ASSERT_TRUE(k.p.cut[1].begin == c && k.p.cut[1].end == d);
        mem_free(body);
    }
    mem_free(text);
    kit_close(&k);
}

/* Segments of any source neither change a token nor fail a request. */
TEST(segment_lists_are_hints)
{
    char *text = words(120, 7), *body = json("{'prompt':'%s'}", text), list[64];
    size_t len = strlen(text);
    int32_t *plain;
    uint32_t n;
    struct kit k;

    kit_open(&k, "llama3", NULL);
    k.h.segments = "";
    must(&k, body);
    n = k.p.n_tok;
    plain = mem_alloc(n * sizeof *plain);
    ASSERT_TRUE(plain && k.p.n_cut == 0);
    memcpy(plain, k.p.tok, n * sizeof *plain);
    (void)snprintf(list, sizeof list, "0:3-150:openwebui,0:150-%zu:blocks", len);
    const struct {
        char *list;
        size_t n_cut;
    } t[] = {{list, 2},      {"0:10-9999999:parts", 0}, {"7:0-200:parts", 0},
             {"rubbish", 0}, {"0:5-5:parts", 0},        {"0:0-12:parts", 0}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        k.h.segments = t[i].list;
        must(&k, body);
        ASSERT_EQ(k.p.n_cut, t[i].n_cut);
        ASSERT_EQ(k.p.n_tok, n);
        ASSERT_MEMEQ(k.p.tok, plain, n * sizeof *plain);
        if (i == 0) {
            ASSERT_STREQ(k.p.cut[0].detector, "openwebui");
            ASSERT_STREQ(k.p.cut[1].detector, "blocks");
            check_inside(&k, &k.p.cut[0], 3, 150);
        }
    }
    mem_free(plain);
    mem_free(text);
    mem_free(body);
    kit_close(&k);
}

/* Who came first keeps the bytes: a part before a range of the request, that before a hint. */
TEST(overlapping_spans)
{
    char *text = words(120, 8), list[64];
    char *body = json("{'prompt':'%s','kvblend':{'segments':[{'begin':0,'end':200},"
                      "{'begin':100,'end':300}]}}",
                      text);
    struct kit k;

    kit_open(&k, "llama3", NULL);
    (void)snprintf(list, sizeof list, "0:199-300:blocks,0:300-500:blocks");
    k.h.segments = list;
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 2);
    check_inside(&k, &k.p.cut[0], 0, 200);
    check_inside(&k, &k.p.cut[1], 300, 500);
    ASSERT_STREQ(k.p.cut[0].detector, "api");
    mem_free(text);
    mem_free(body);
    kit_close(&k);
}

TEST(a_chunk_leaves_room_for_its_sink)
{
    char *text = words(60, 9), *body = json("{'prompt':'%s'}", text), list[64];
    struct kit k;

    kit_open(&k, "llama3", NULL);
    (void)snprintf(list, sizeof list, "0:0-%zu:blocks", strlen(text));
    k.h.segments = list;
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 1);
    k.w.ctx_max = k.p.cut[0].n; /* it fills the context, and a sink comes before it */
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 0);
    k.w.ctx_max++;
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 1);
    mem_free(text);
    mem_free(body);
    kit_close(&k);
}

/* ---- documents ---- */
TEST(documents_stand_before_the_last_question)
{
    char *doc = words(60, 10);
    char *body = json("{'messages':[{'role':'user','content':'first'},"
                      "{'role':'assistant','content':'second'},{'role':'user','content':'third'}],"
                      "'documents':['%s',{'title':'T','text':'%s'}]}",
                      doc, doc);
    struct kit k;

    kit_open(&k, "smollm", "chatml");
    must(&k, body);
    char *want = json("<|im_start|>user\n%s\n\nT\n%s\n\nthird<|im_end|>", doc, doc);
    const char *at = strstr(buf_cstr(&k.p.chat.text), want);
    ASSERT_TRUE(at != NULL && strstr(at, "second") == NULL);
    size_t begin = (size_t)(at - k.p.chat.text.data) + strlen("<|im_start|>user\n");
    ASSERT_EQ(k.p.n_cut, 2);
    check_inside(&k, &k.p.cut[0], begin, begin + strlen(doc));
    begin += strlen(doc) + 2;
    check_inside(&k, &k.p.cut[1], begin, begin + 2 + strlen(doc));
    ASSERT_TRUE(k.p.cut[0].text_id == seg_text_id("", doc, strlen(doc)));
    mem_free(want);
    mem_free(body);

    body = json("{'prompt':'%s','documents':['%s'],'kvblend':{'segments':"
                "[{'begin':10,'end':100}]}}",
                doc, doc); /* ranges count from the text as sent, the gateway's as well */
    char list[] = "0:110-200:blocks";
    k.h.segments = list;
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 3);
    for (size_t i = 1; i < 3; i++) {
        const size_t at_sent = i == 1 ? 10 : 110;
        check_inside(&k, &k.p.cut[i], strlen(doc) + 2 + at_sent, strlen(doc) + 2 + at_sent + 90);
        ASSERT_TRUE(k.p.cut[i].begin == at_sent && k.p.cut[i].end == at_sent + 90);
        ASSERT_TRUE(k.p.cut[i].text_id == seg_text_id("", doc + at_sent, 90));
    }
    mem_free(body);
    mem_free(doc);
    kit_close(&k);
}

TEST(echo_keeps_the_text)
{
    struct kit k;

    kit_open(&k, "llama2", NULL);
    must(&k, "{\"prompt\":\"one two\"}");
    ASSERT_EQ(k.p.text.len, 0);
    must(&k, "{\"prompt\":\"one two\",\"echo\":true}");
    ASSERT_STREQ(buf_cstr(&k.p.text), "one two");
    must(&k, "{\"prompt\":\"one\",\"documents\":[\"a text\"],\"echo\":true}");
    ASSERT_STREQ(buf_cstr(&k.p.text), "a text\n\none");
    char *body = json("{'prompt':[%d,%d],'echo':true}", k.p.tok[1], k.p.tok[2]);
    struct buf want = BUF_INIT;
    struct tok_stream ts = {0};
    for (size_t i = 1; i < 3; i++)
        ASSERT_OK(tok_stream_push(k.w.tok, &ts, k.p.tok[i], &want));
    must(&k, body);
    ASSERT_STREQ(buf_cstr(&k.p.text), buf_cstr(&want));
    buf_fini(&want);
    mem_free(body);
    kit_close(&k);
}

/* ---- keys ---- */
static char *ids_body(uint32_t n, uint32_t other, const char *rest)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(buf_adds(&b, "{\"prompt\":["));
    for (uint32_t i = 0; i < n; i++) /* one token is another one */
        ASSERT_OK(buf_addf(&b, "%s%u", i ? "," : "", i == other ? 999 : 4 + i * 31 % 500));
    ASSERT_OK(buf_addf(&b, "]%s}", rest));
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    return buf_take(&b, NULL);
}

/* A block's record is its KV behind all that stands before it: no key may be shared by two blocks
 * whose own tokens are the same and whose past is not. */
TEST(blocks_are_chained)
{
    enum { BLOCKS = 5, TOKENS = BLOCKS * WK_BLOCK_TOKENS + 1 };
    struct tier_key key[BLOCKS];
    char *body = ids_body(TOKENS, UINT32_MAX, "");
    struct kit k;

    kit_open(&k, "llama3", NULL);
    must(&k, body);
    ASSERT_EQ(k.p.n_block, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        key[i] = k.p.block[i].key;
    mem_free(body);
    for (uint32_t other = 0; other < TOKENS - 1; other += 37) {
        body = ids_body(TOKENS, other, "");
        must(&k, body);
        ASSERT_EQ(k.p.n_block, BLOCKS);
        for (uint32_t i = 0; i < BLOCKS; i++)
            ASSERT_EQ(tier_key_same(&key[i], &k.p.block[i].key), i < other / WK_BLOCK_TOKENS);
        mem_free(body);
    }
    kit_close(&k);
}

/* Of exact prefixes: all but the last token, which feeds the logits. Else: up to the first chunk.
 */
TEST(blocks_end_where_they_must)
{
    static const struct {
        uint32_t n_tok, n_block;
    } t[] = {{1, 0}, {64, 0}, {65, 1}, {128, 1}, {129, 2}};
    struct kit k;

    kit_open(&k, "llama3", NULL);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *body = ids_body(t[i].n_tok, UINT32_MAX, "");
        must(&k, body);
        ASSERT_EQ(k.p.n_block, t[i].n_block);
        mem_free(body);
    }
    char *text = words(200, 11);
    for (int prefix = 0; prefix < 2; prefix++) {
        char *body = json("{'prompt':'%s','kvblend':{'mode':'%s','segments':[{'begin':300,"
                          "'end':600}]}}",
                          text, prefix ? "prefix" : "blend");
        must(&k, body);
        uint32_t until = prefix ? k.p.n_tok - 1 : k.p.cut[0].tok0;
        ASSERT_TRUE(k.p.n_cut == 1 && k.p.n_block == until / WK_BLOCK_TOKENS && k.p.n_block > 0);
        mem_free(body);
    }
    mem_free(text);
    kit_close(&k);
}

TEST(keys_and_text_ids_belong_to_a_namespace)
{
    static const struct {
        char *header;
        const char *body, *ns;
    } t[] = {{NULL, "", ""},
             {"acme", "", "acme"},
             {NULL, ",'kvblend':{'namespace':'acme'}",
              "\x1f"
              "acme"},
             {NULL, ",'cache_salt':'salt'",
              "\x1f"
              "salt"},
             {"acme", ",'kvblend':{'namespace':'team'}", "acme\x1fteam"},
             {"acme", ",'cache_salt':'team2'", "acme\x1fteam2"}};
    enum { N = sizeof t / sizeof *t };
    char *text = words(200, 12), list[] = "0:300-600:blocks";
    struct wk_cut cut[N];
    struct tier_key block[N];
    struct kit k;

    kit_open(&k, "llama3", NULL);
    k.h.segments = list;
    for (size_t i = 0; i < N; i++) {
        struct buf b = BUF_INIT;
        char *rest = json("%s", t[i].body);
        ASSERT_OK(buf_addf(&b, "{\"prompt\":\"%s\"%s}", text, rest));
        k.h.ns = t[i].header;
        must(&k, buf_cstr(&b));
        ASSERT_STREQ(k.r.kv.ns, t[i].ns);
        ASSERT_TRUE(k.p.n_cut == 1 && k.p.n_block > 0);
        cut[i] = k.p.cut[0];
        block[i] = k.p.block[0].key;
        for (size_t o = 0; o < i; o++) {
            ASSERT_TRUE(!tier_key_same(&cut[i].key, &cut[o].key));
            ASSERT_TRUE(!tier_key_same(&block[i], &block[o]));
            ASSERT_TRUE(cut[i].text_id != cut[o].text_id);
        }
        mem_free(rest);
        buf_fini(&b);
    }
    mem_free(text);
    kit_close(&k);
}

TEST(variables_and_fields_reach_the_template)
{
    struct kit k;

    kit_open(&k, "llama3", NULL);
    ASSERT_OK(
        chat_open("{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}"
                  "{{ raise_exception('no ' + why) if why }}{{ '?' if add_generation_prompt }}",
                  NULL, &k.w.chat, NULL));
    must(&k, "{\"messages\":[{\"role\":\"user\",\"name\":\"Ann\",\"content\":\"x\"}]}");
    ASSERT_STREQ(buf_cstr(&k.p.chat.text), "Annx?");
    must(&k, "{\"messages\":[{\"role\":\"user\",\"name\":\"Ann\",\"content\":\"x\"},"
             "{\"role\":\"assistant\",\"content\":\"so\"}],\"continue_final_message\":true}");
    ASSERT_STREQ(buf_cstr(&k.p.chat.text), "Annxso");
    ASSERT_ERR(prepare(&k,
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                       "\"chat_template_kwargs\":{\"why\":\"more\"}}",
                       0),
               -EINVAL);
    ASSERT_TRUE(k.e.status == 400 && strcmp(k.e.param, "messages") == 0);
    ASSERT_STREQ(k.e.msg, "the model's chat template: no more.");
    ASSERT_ERR(prepare(&k, "{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", 0), -EINVAL);
    ASSERT_STREQ(k.e.msg, "messages[0]: unknown role 'robot'.");
    kit_close(&k);
}

#define LOOK_UP "{'name':'look_up','parameters':{'type':'object'}}"
#define LOOK_UP "{'name':'look_up','parameters':{'type':'object'}}"
#define TOOLS "'tools':[{'type':'function','function':" LOOK_UP "}]"

/* In the prompt's words, before what was sent; messages still count as they were sent. */
TEST(tools_are_explained_where_the_template_has_none)
{
    char *a = words(40, 1), *b = words(50, 2);
    char *body = json("{'messages':[{'role':'user','content':'Find it.'},{'role':'assistant',"
                      "'content':null,'tool_calls':[{'id':'7','type':'function','function':"
                      "{'name':'look_up','arguments':'{\\'x\\':1}'}}]},{'role':'tool',"
                      "'tool_call_id':'7','content':[{'type':'text','text':'%s'},"
                      "{'type':'text','text':'%s'}]}]," TOOLS ",'tool_choice':'required'}",
                      a, b);
    struct kit k;

    kit_open(&k, "smollm", "chatml");
    k.w.speech.calls = ans_syntax_generic();
    k.w.speech.explained = true;
    must(&k, body);
    const char *text = buf_cstr(&k.p.chat.text), *at = strstr(text, a);
    ASSERT_TRUE(strncmp(text, "<|im_start|>system\n# Tools\n", 27) == 0);
    ASSERT_TRUE(strstr(text, "\"name\": \"look_up\", \"parameters\"") != NULL);
    ASSERT_TRUE(strstr(text, "assistant\n<tool_call>\n{\"name\": \"look_up\", \"arguments\": "
                             "{\"x\": 1}}\n</tool_call><|im_end|>\n<|im_start|>user\n") != NULL);
    ASSERT_STREQ(text + k.p.chat.text.len - 21, "assistant\n<tool_call>");
    ASSERT_TRUE(k.p.calling && !k.p.thinking && at && k.p.n_cut == 2 && k.p.cut[0].msg == 2);
    check_inside(&k, &k.p.cut[0], (size_t)(at - text), (size_t)(at - text) + strlen(a));
    kit_close(&k);
    mem_free(a);
    mem_free(b);
    mem_free(body);
}

TEST(a_call_that_must_be_is_opened_by_the_prompt)
{
    static const struct ans_marks think = {"<think>", "</think>"};
    char *body =
        json("{'messages':[{'role':'user','content':'x'}]," TOOLS ",'tool_choice':'required'}");
    struct kit k;

    kit_open(&k, "llama3", NULL);
    ASSERT_OK(chat_open("{{ messages[0].content }}<think>\n{{ tools|length if tools else 0 }}"
                        "{{- '<think>\n' if add_generation_prompt }}",
                        NULL, &k.w.chat, NULL));
    k.w.speech = (struct wk_speech){.calls = ans_syntax_named("mistral"), .thoughts = &think};
    must(&k, body);
    ASSERT_STREQ(buf_cstr(&k.p.chat.text), "x<think>\n1<think>\n\n</think>\n\n[TOOL_CALLS]");
    ASSERT_TRUE(k.p.calling && !k.p.thinking);
    must(&k, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    ASSERT_STREQ(buf_cstr(&k.p.chat.text), "x<think>\n0<think>\n");
    ASSERT_TRUE(!k.p.calling && k.p.thinking);
    k.w.speech.calls = ans_syntax_named("harmony"); /* a form is a message that is content */
    k.w.speech.thoughts = &k.w.speech.calls->messages->thoughts;
    must(&k, body);
    ASSERT_STREQ(buf_cstr(&k.p.chat.text),
                 "x<think>\n1<think>\n<|channel|>commentary to=functions.");
    ASSERT_TRUE(k.p.calling && !k.p.thinking);
    must(&k, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"guided_regex\":\"a\"}");
    ASSERT_STREQ(buf_cstr(&k.p.chat.text), "x<think>\n0<think>\n<|channel|>final<|message|>");
    ASSERT_TRUE(!k.p.calling && !k.p.thinking);
    k.w.speech = (struct wk_speech){.calls = ans_syntax_named("mistral"), .thoughts = &think};
    must(&k, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"guided_regex\":\"a\"}");
    ASSERT_STREQ(buf_cstr(&k.p.chat.text), "x<think>\n0<think>\n\n</think>\n\n");
    ASSERT_TRUE(!k.p.calling && !k.p.thinking); /* the form is the answer's, not a thought's */
    kit_close(&k);
    mem_free(body);
}

/* Chunks are KV behind one sink: with another, or with none, no record fits. */
TEST(keys_belong_to_a_sink)
{
    static const uint32_t sinks[] = {1, 3, UINT32_MAX};
    char *body = ids_body(200, UINT32_MAX, ""), list[] = "0:0-400:blocks";
    char *text = words(120, 13), *prompt = json("{'prompt':'%s'}", text);
    struct tier_key chunk[3], block[3];
    struct kit k;

    kit_open(&k, "llama3", NULL);
    k.h.segments = list;
    for (size_t i = 0; i < 3; i++) {
        k.w.ident.sink_token = sinks[i];
        must(&k, body);
        block[i] = k.p.block[0].key;
        must(&k, prompt);
        ASSERT_EQ(k.p.n_cut, 1);
        chunk[i] = k.p.cut[0].key;
        for (size_t o = 0; o < i; o++)
            ASSERT_TRUE(!tier_key_same(&chunk[i], &chunk[o]) &&
                        !tier_key_same(&block[i], &block[o]));
    }
    mem_free(body);
    mem_free(text);
    mem_free(prompt);
    kit_close(&k);
}

/* A text that was warmed up alone has the ids that it has between line breaks of a prompt. */
TEST(warmed_texts_are_found_in_prompts)
{
    char *doc = words(60, 14), *body = json("{'prompt':'x','documents':['y','%s']}", doc);
    int32_t *ids;
    uint32_t n;
    struct kit k;

    kit_open(&k, "llama3", NULL);
    must(&k, body);
    ASSERT_EQ(k.p.n_cut, 1);
    ASSERT_OK(wk_encode_chunk(&k.w, doc, strlen(doc), &ids, &n));
    ASSERT_EQ(n, k.p.cut[0].n);
    ASSERT_MEMEQ(ids, k.p.tok + k.p.cut[0].tok0, n * sizeof *ids);
    mem_free(ids);
    mem_free(doc);
    mem_free(body);
    kit_close(&k);
}

/* ---- refusals ---- */
TEST(refusals_name_the_field)
{
    char long_ns[512];
    struct kit k;

    kit_open(&k, "gpt2", NULL);
    ASSERT_ERR(prepare(&k, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 0), -EINVAL);
    ASSERT_TRUE(k.e.status == 400 && strcmp(k.e.code, "no_chat_template") == 0);
    ASSERT_STREQ(k.e.param, "messages");
    memset(long_ns, 'n', sizeof long_ns - 1);
    long_ns[sizeof long_ns - 1] = 0;
    k.h.ns = long_ns;
    ASSERT_ERR(prepare(&k, "{\"prompt\":\"x\"}", 0), -EINVAL);
    ASSERT_STREQ(k.e.param, "kvblend.namespace");
    k.h.ns = NULL;
    k.h.mode = "fastest";
    ASSERT_ERR(prepare(&k, "{\"prompt\":\"x\"}", 0), -EINVAL);
    ASSERT_STREQ(k.e.param, "X-KVBlend-Mode");
    kit_close(&k);

    kit_open(&k, "llama2", "llama2");
    ASSERT_ERR(prepare(&k, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}", 0),
               -EINVAL);
    ASSERT_TRUE(k.e.status == 400 && strcmp(k.e.param, "messages") == 0);
    kit_close(&k);
}

TEST(a_prompt_without_a_token_is_refused)
{
    struct tok *t;
    struct kit k;

    ASSERT_OK(tok_open_path(test_data("tokenizers/ggml-vocab-gpt-2.gguf"), &t, NULL));
    struct tok_ids none = {0};
    ASSERT_OK(tok_encode(t, NULL, 0, TOK_BOS, &none));
    ASSERT_EQ(none.n, 0); /* it adds no BOS, else "" has a token */
    kit_open(&k, "llama3", NULL);
    tok_close(k.w.tok);
    k.w.tok = t;
    ASSERT_ERR(prepare(&k, "{\"prompt\":\"\"}", 0), -EINVAL);
    ASSERT_TRUE(k.e.status == 400 && strcmp(k.e.param, "prompt") == 0);
    kit_close(&k);
}

TEST(fails_cleanly_without_memory)
{
    char *a = words(40, 15), *b = words(50, 16), *body = two_parts(a, b, "");
    char list[] = "0:0-9:mine";
    struct kit k;

    kit_open(&k, "smollm", "chatml");
    k.h.segments = list;
    for (unsigned nth = 1;; nth++) {
        mem_fail_nth(nth);
        int rc = prepare(&k, body, 0);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_OK(rc);
            ASSERT_TRUE(nth > 10);
            break;
        }
        if (rc < 0) ASSERT_EQ(k.e.status, 500);
    }
    mem_free(a);
    mem_free(b);
    mem_free(body);
    kit_close(&k);
}
