/* Bodies and replies of /v1/rerank and /v1/score; prompts of pairs, and which blocks of them are
 * kept. What scores are worth shows tests/e2e/test_rerank.py. */
#include "base/mem.h"
#include "segment/segment.h"
#include "tests/test.h"
#include "worker/fleet/residency.h"
#include "worker/opts_table.h"
#include "worker/request/rerank.h"
#include "worker/request/request.h"
#include "worker/worker.h"

/* ---- bodies ---- */
static int parse(const char *body, bool score, struct api_rank *q, struct api_err *e)
{
    *e = (struct api_err){0};
    return api_rank_parse(body, strlen(body), score, q, e);
}

TEST(pairs_of_a_body)
{
    struct api_rank q;
    struct api_err e;

    ASSERT_OK(parse("{\"query\":\"q\",\"documents\":[\"a\",{\"text\":\"b\",\"title\":\"t\"}],"
                    "\"top_n\":9,\"max_tokens_per_doc\":7,\"truncation\":true,"
                    "\"kvblend\":{\"order\":\"document_first\",\"mode\":\"blend\"}}",
                    false, &q, &e));
    ASSERT_TRUE(q.n == 2 && q.top_n == 2 && q.doc_tokens_max == 7 && q.truncate);
    ASSERT_TRUE(!q.return_documents && !q.instruction.text);
    ASSERT_STREQ(q.query[1].text, "q");
    ASSERT_STREQ(q.doc[0].text, "a");
    ASSERT_STREQ(q.doc[1].text, "t\nb");
    ASSERT_TRUE(q.r.kv.order == API_DOCUMENT_FIRST && q.r.kv.mode == POL_BLEND);
    api_rank_fini(&q);
    ASSERT_OK(parse("{\"text_1\":[\"q\",\"r\"],\"text_2\":[\"a\",\"\"]}", true, &q, &e));
    ASSERT_TRUE(q.n == 2 && q.top_n == 2 && q.doc[1].len == 0);
    ASSERT_STREQ(q.query[1].text, "r");
    ASSERT_TRUE(q.r.kv.order == API_ORDER_OPEN && q.r.kv.store);
    api_rank_fini(&q);
}

TEST(what_is_wrong_is_named)
{
    static const struct {
        const char *body, *param;
        bool score;
    } t[] = {{"{\"documents\":[\"a\"]}", "query", false},
             {"{\"query\":\"\",\"documents\":[\"a\"]}", "query", false},
             {"{\"query\":{},\"documents\":[\"a\"]}", "query", false},
             {"{\"query\":\"q\"}", "documents", false},
             {"{\"query\":\"q\",\"documents\":{}}", "documents", false},
             {"{\"query\":\"q\",\"documents\":[]}", "documents", false},
             {"{\"query\":\"q\",\"documents\":[{}]}", "documents", false},
             {"{\"query\":\"q\",\"documents\":[\"a\"],\"top_n\":0}", "top_n", false},
             {"{\"query\":\"q\",\"documents\":[\"a\"],\"top_n\":1.5}", "top_n", false},
             {"{\"query\":\"q\",\"documents\":[\"a\"],\"top_n\":1e10}", "top_n", false},
             {"{\"query\":\"q\",\"documents\":[\"a\"],\"truncation\":1}", "truncation", false},
             {"{\"query\":\"q\",\"documents\":[\"a\"],\"rank_fields\":[]}", "rank_fields", false},
             {"{\"query\":\"q\",\"documents\":[\"a\"],\"kvblend\":1}", "kvblend", false},
             {"{}", "text_1", true},
             {"{\"queries\":[\"q\"]}", "documents", true},
             {"{\"text_1\":[\"q\",\"\"],\"text_2\":[\"a\",\"b\"]}", "text_1", true},
             {"{\"text_1\":[\"q\",\"r\"],\"text_2\":[\"a\"]}", "text_2", true},
             {"{\"text_1\":\"q\",\"text_2\":[[]]}", "text_2", true}};

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct api_rank q;
        struct api_err e;
        ASSERT_ERR(parse(t[i].body, t[i].score, &q, &e), -EINVAL);
        ASSERT_EQ(e.status, 400);
        ASSERT_STREQ(e.param, t[i].param);
        api_rank_fini(&q);
    }
}

TEST(a_body_without_memory)
{
    for (unsigned n = 1; n < 100; n++) {
        struct api_rank q;
        struct api_err e;
        mem_fail_nth(n);
        int rc = parse("{\"query\":\"q\",\"documents\":[{\"title\":\"t\",\"text\":\"a\"}]}", false,
                       &q, &e);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        api_rank_fini(&q);
        if (!fired) {
            ASSERT_OK(rc);
            return;
        }
        ASSERT_TRUE(rc < 0 && e.status == 500);
    }
    test_fail(__FILE__, __LINE__, "allocations never ended");
}

/* ---- replies ---- */
static void check_reply(const char *body, bool score, const char *want)
{
    static const double scores[] = {0.25, 0.5, 0.25, 0.75};
    const struct api_rank_head h = {"x-1", "m", 7};
    const struct api_usage u = {.prompt = 9};
    struct buf out = BUF_INIT, extra = BUF_INIT;
    struct api_rank q;
    struct api_err e;

    ASSERT_OK(parse(body, score, &q, &e));
    ASSERT_EQ(q.n, 4);
    ASSERT_OK(api_put_rank(&out, &q, &h, scores, &u, &extra));
    const char *usage = strstr(buf_cstr(&out), ",\"usage\":{\"prompt_tokens\":9,");
    ASSERT_TRUE(usage != NULL);
    out.data[usage - out.data] = '\0';
    ASSERT_STREQ(out.data, want);
    api_rank_fini(&q);
    buf_fini(&out);
}

TEST(replies)
{
    check_reply("{\"query\":\"q\",\"documents\":[\"a\",\"b\",\"c\",\"d\"],\"top_n\":3,"
                "\"return_documents\":true}",
                false,
                "{\"id\":\"x-1\",\"meta\":{\"tokens\":{\"input_tokens\":9,\"output_tokens\":0}},"
                "\"model\":\"m\",\"results\":["
                "{\"index\":3,\"relevance_score\":0.75,\"document\":{\"text\":\"d\"}},"
                "{\"index\":1,\"relevance_score\":0.5,\"document\":{\"text\":\"b\"}},"
                "{\"index\":0,\"relevance_score\":0.25,\"document\":{\"text\":\"a\"}}]");
    check_reply("{\"text_1\":\"q\",\"text_2\":[\"a\",\"b\",\"c\",\"d\"]}", true,
                "{\"id\":\"x-1\",\"object\":\"list\",\"created\":7,\"model\":\"m\",\"data\":["
                "{\"index\":0,\"object\":\"score\",\"score\":0.25},"
                "{\"index\":1,\"object\":\"score\",\"score\":0.5},"
                "{\"index\":2,\"object\":\"score\",\"score\":0.25},"
                "{\"index\":3,\"object\":\"score\",\"score\":0.75}]");
}

/* ---- templates ---- */
TEST(forms_of_templates)
{
    static const struct {
        const char *text;
        size_t n; /* 0: it is none */
        bool document_first;
    } t[] = {{"{document}{query}", 2, true},
             {"a{query}b{document}c{instruction}d", 7, false},
             {"{instruction}{document}{{query}}", 5, true},
             {"{doc} {document} {query", 0, false},
             {"{document}", 0, false},
             {"{query} {query} {document}", 0, false},
             {"a{document}b{query}c{instruction}d{document}", 0, false},
             {"", 0, false}};

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct wk_template f;
        ASSERT_EQ(wk_parse_template(t[i].text, &f), t[i].n ? 0 : -EINVAL);
        if (t[i].n) ASSERT_TRUE(f.n == t[i].n && f.document_first == t[i].document_first);
    }
}

/* ---- prompts ---- */
struct kit {
    struct worker w;
    struct api_rank q;
    struct api_err e;
};

static void kit_open(struct kit *k)
{
    struct err err = {0};

    memset(k, 0, sizeof *k);
    ASSERT_OK(model_open(test_data("models/qwen3-reranker"), &k->w.model, &err));
    ASSERT_OK(tok_open(k->w.model, &k->w.tok, &err));
    ASSERT_OK(residency_create(64, 1, &k->w.fleet.residency));
    k->w.ident = (struct tier_ident){.model = {1, 2}, .dtype = KN_F16, .L = 3, .G = 2, .K = 4};
    k->w.ctx_max = 2048;
    k->w.o.rerank_order = "auto";
    k->w.o.rerank_answers = "yes no";
    (void)snprintf(k->w.model_base, sizeof k->w.model_base, "Qwen3-Reranker-0.6B");
    ASSERT_OK(wk_reranker_open(&k->w, &err));
}

static void kit_close(struct kit *k)
{
    api_rank_fini(&k->q);
    wk_reranker_close(&k->w);
    residency_destroy(k->w.fleet.residency);
    tok_close(k->w.tok);
    model_close(k->w.model);
}

static void settle(struct kit *k)
{
    if (!k->q.r.kv.ns) k->q.r.kv.ns = ""; /* as wk_settings() does */
    ASSERT_OK(wk_reranker_settle(&k->w, &k->q, &k->e));
}

static void ask(struct kit *k, const char *order, const char *ns, const char *query)
{
    struct buf b = BUF_INIT;

    api_rank_fini(&k->q);
    ASSERT_OK(
        buf_addf(&b,
                 "{\"query\":\"%s\",\"documents\":[\"The mill of Arden is old.\",\"The mill of "
                 "Brill burnt down.\"],\"kvblend\":{\"order\":\"%s\",\"namespace\":\"%s\"}}",
                 query, order, ns));
    ASSERT_OK(parse(buf_cstr(&b), false, &k->q, &k->e));
    buf_fini(&b);
    settle(k);
    ASSERT_EQ(k->q.r.kv.strategy, POL_PREFIX);
}

static void prompt(struct kit *k, size_t i, struct wk_prompt *ret)
{
    bool cut;

    if (wk_reranker_prompt(&k->w, &k->q, i, ret, &cut, &k->e) < 0)
        test_fail(__FILE__, __LINE__, "%s", k->e.msg);
    ASSERT_TRUE(!cut && ret->n_block == 2 && ret->n_cut == 0);
    const struct wk_block *b = ret->block;
    ASSERT_TRUE(b[0].tok0 == 0 && b[1].tok0 == b[0].n && b[1].tok0 + b[1].n < ret->n_tok);
}

/* With the document first its block is the same whatever is asked; with the query first what stands
 * in front of the document is the same for all of them. */
TEST(blocks_are_what_prompts_have_in_common)
{
    struct wk_prompt a, b, other, again;
    struct kit k;

    kit_open(&k);
    for (int doc_first = 0; doc_first < 2; doc_first++) {
        const char *order = doc_first ? "document_first" : "query_first";
        ask(&k, order, "n", "Which mill is old?");
        prompt(&k, 0, &a);
        prompt(&k, 1, &b);
        ASSERT_TRUE(tier_key_same(&a.block[0].key, &b.block[0].key));
        ASSERT_EQ(tier_key_same(&a.block[1].key, &b.block[1].key), !doc_first);
        ask(&k, order, "n", "Which one burnt?");
        prompt(&k, 0, &again);
        ASSERT_TRUE(tier_key_same(&a.block[0].key, &again.block[0].key));
        ASSERT_EQ(tier_key_same(&a.block[1].key, &again.block[1].key), doc_first);
        ask(&k, order, "m", "Which mill is old?");
        prompt(&k, 0, &other);
        ASSERT_TRUE(!tier_key_same(&a.block[0].key, &other.block[0].key));
        wk_prompt_fini(&a);
        wk_prompt_fini(&b);
        wk_prompt_fini(&again);
        wk_prompt_fini(&other);
    }
    kit_close(&k);
}

TEST(a_blend_has_the_document_as_its_chunk)
{
    struct wk_prompt p;
    struct kit k;
    bool cut;

    kit_open(&k);
    ASSERT_OK(parse("{\"query\":\"q\",\"documents\":[\"The mill of Arden is old.\"],"
                    "\"kvblend\":{\"mode\":\"blend\",\"strategy\":\"hkvd\"}}",
                    false, &k.q, &k.e));
    settle(&k);
    ASSERT_EQ(k.q.r.kv.order, API_QUERY_FIRST); /* as published */
    ASSERT_OK(wk_reranker_prompt(&k.w, &k.q, 0, &p, &cut, &k.e));
    ASSERT_EQ(p.n_cut, 1);
    const struct wk_block *last = &p.block[p.n_block - 1];
    ASSERT_TRUE(p.cut[0].tok0 >= last->tok0 + last->n && p.cut[0].n > WK_CHUNK_TOKENS_MIN);
    wk_prompt_fini(&p);
    kit_close(&k);
}

/* Whatever the texts and the limit: no more tokens than it allows, or the document as it is. */
TEST(cut_documents)
{
    static const char *const pieces[] = {"the", " and ", "\\u00e4", "\\u20ac",        "ing",
                                         " ",   "no",    "yes",     "\\ud83d\\ude00", "x"};
    struct kit k;
    uint64_t seed = 5;

    kit_open(&k);
    for (int round = 0; round < 200; round++) {
        const unsigned n = (unsigned)(test_rand(&seed) % 60), most = 1 + test_rand(&seed) % 40;
        struct buf b = BUF_INIT;
        struct wk_prompt whole, less;
        bool cut;
        ASSERT_OK(buf_adds(&b, "{\"query\":\"q\",\"documents\":[\""));
        for (unsigned i = 0; i < n; i++)
            ASSERT_OK(buf_adds(&b, pieces[test_rand(&seed) % 10]));
        ASSERT_OK(buf_adds(&b, "\"]}"));
        api_rank_fini(&k.q);
        ASSERT_OK(parse(buf_cstr(&b), false, &k.q, &k.e));
        buf_fini(&b);
        settle(&k);
        ASSERT_OK(wk_reranker_prompt(&k.w, &k.q, 0, &whole, &cut, &k.e));
        ASSERT_TRUE(!cut);
        k.q.doc_tokens_max = (int32_t)most;
        ASSERT_OK(wk_reranker_prompt(&k.w, &k.q, 0, &less, &cut, &k.e));
        ASSERT_TRUE(less.n_tok <= whole.n_tok && (cut || less.n_tok == whole.n_tok));
        struct api_rank none = k.q;
        struct api_text empty = {"", 0};
        struct wk_prompt bare;
        none.doc = &empty;
        ASSERT_OK(wk_reranker_prompt(&k.w, &none, 0, &bare, &cut, &k.e));
        ASSERT_TRUE(less.n_tok <= bare.n_tok + most + 1); /* and one that straddles its beginning */
        wk_prompt_fini(&whole);
        wk_prompt_fini(&less);
        wk_prompt_fini(&bare);
    }
    kit_close(&k);
}

TEST(a_prompt_without_memory)
{
    struct kit k;

    kit_open(&k);
    ask(&k, "document_first", "n", "Which mill is old?");
    for (unsigned n = 1;; n++) {
        struct wk_prompt p;
        bool cut;
        k.e = (struct api_err){0};
        mem_fail_nth(n);
        int rc = wk_reranker_prompt(&k.w, &k.q, 0, &p, &cut, &k.e);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        wk_prompt_fini(&p);
        if (!fired) {
            ASSERT_OK(rc);
            break;
        }
        ASSERT_TRUE(rc == -ENOMEM && k.e.status == 500);
        ASSERT_TRUE(n < 1000);
    }
    kit_close(&k);
}

/* ---- scores ---- */
TEST(the_score_is_the_chance_of_yes)
{
    float logits[280] = {0};
    struct tok_ids yes = {0}, no = {0};
    struct kit k;

    kit_open(&k);
    ASSERT_OK(tok_encode(k.w.tok, &(struct tok_piece){"yes", 3, false}, 1, 0, &yes));
    ASSERT_OK(tok_encode(k.w.tok, &(struct tok_piece){"no", 2, false}, 1, 0, &no));
    ASSERT_TRUE(yes.n == 1 && no.n == 1);
    for (enum api_order o = API_DOCUMENT_FIRST; o <= API_QUERY_FIRST; o++) {
        logits[yes.id[0]] = logits[no.id[0]] = 3;
        ASSERT_NEAR(wk_reranker_score(&k.w, o, logits), 0.5, 0);
        logits[yes.id[0]] = 3 + logf(3);
        ASSERT_NEAR(wk_reranker_score(&k.w, o, logits), 0.75, 1e-7);
        logits[no.id[0]] = 1e30f;
        ASSERT_NEAR(wk_reranker_score(&k.w, o, logits), 0, 0);
        logits[no.id[0]] = -1e30f;
        ASSERT_NEAR(wk_reranker_score(&k.w, o, logits), 1, 0);
        logits[no.id[0]] = NAN;
        ASSERT_TRUE(isnan(wk_reranker_score(&k.w, o, logits)));
    }
    tok_ids_fini(&yes);
    tok_ids_fini(&no);
    kit_close(&k);
}

TEST(ids_of_ranked_texts_are_their_own)
{
    uint64_t plain = seg_text_id("n", "text", 4), ranked = seg_ranked_id("n", "text", 4);

    ASSERT_TRUE(plain != ranked && ranked != 0 && ranked == seg_ranked_id("n", "text", 4));
    ASSERT_TRUE(ranked != seg_ranked_id("m", "text", 4) && ranked != seg_ranked_id("n", "tex", 3));
}
