/* encode: against sentence-transformers on tiny models (tests/data/make/make_encoders.py): a BERT
 * by its first token, one by the mean, an XLM-RoBERTa, a Qwen3 by its last token, nomic, gte and
 * ModernBERT; rows of a batch against the same texts alone, bit for bit; and what is refused. */
#include "fusor/encode/encode_int.h"

#include "base/buf.h"
#include "base/mem.h"
#include "tests/test.h"

#include <ftw.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXTS_MAX = 32 };
static const char *const names[] = {"bert-cls",   "bert-mean", "xlmr-mean",      "qwen3-last",
                                    "nomic-mean", "gte-cls",   "modernbert-mean"};
enum { NAMES = sizeof names / sizeof *names };

static const char *folder_of(const char *name)
{
    char rel[96];
    (void)snprintf(rel, sizeof rel, "encoders/%s", name);
    return test_data(rel);
}

static struct enc *open_folder(const char *path, unsigned n_threads)
{
    const struct enc_opts o = {.dev = {.n_threads = n_threads, .arith = KN_ARITH_F32}};
    struct enc *e = NULL;
    struct err err = {0};
    if (enc_open(path, &o, &e, &err) < 0) test_fail(__FILE__, __LINE__, "%s: %s", path, err.msg);
    return e;
}

struct set { /* the golden texts of a model as tokens, and what they shall give */
    json_t *json;
    size_t n;
    unsigned D;
    struct tok_ids ids[TEXTS_MAX];
    struct enc_text text[TEXTS_MAX];
    const json_t *want[TEXTS_MAX];
};

static void set_open(struct set *s, const struct enc *e, const char *name)
{
    char rel[96];
    (void)snprintf(rel, sizeof rel, "encoders/%s.json", name);
    *s = (struct set){.json = json_load_file(test_data(rel), 0, NULL), .D = enc_info(e)->D};
    const json_t *texts = json_object_get(s->json, "texts");
    s->n = json_array_size(texts);
    ASSERT_TRUE(s->n >= 10 && s->n <= TEXTS_MAX);
    ASSERT_EQ(enc_info(e)->ctx_max,
              (unsigned)json_integer_value(json_object_get(s->json, "max_length")));
    bool cut = false;
    for (size_t i = 0; i < s->n; i++) {
        const json_t *one = json_array_get(texts, i), *t = json_object_get(one, "text");
        size_t whole, n;
        s->want[i] = json_object_get(one, "vector");
        ASSERT_OK(enc_tokens(e, json_string_value(t), json_string_length(t), true, &s->ids[i], &n));
        struct tok_ids all = {0};
        ASSERT_OK(enc_tokens(e, json_string_value(t), json_string_length(t), false, &all, &whole));
        cut |= whole > n;
        tok_ids_fini(&all);
        s->text[i] = (struct enc_text){s->ids[i].id, (uint32_t)n, calloc(s->D, sizeof(float))};
    }
    ASSERT_TRUE(cut); /* one of them is too long */
}

static void set_close(struct set *s)
{
    for (size_t i = 0; i < s->n; i++) {
        tok_ids_fini(&s->ids[i]);
        free(s->text[i].vec);
    }
    json_decref(s->json);
}

/* The project's bound for embeddings, of vectors that have length 1, or are as long as their width
 * allows. */
static void check_vectors(const struct set *s, const char *name)
{
    double worst = 0;
    for (size_t i = 0; i < s->n; i++) {
        ASSERT_EQ(json_array_size(s->want[i]), s->D);
        for (size_t d = 0; d < s->D; d++) {
            const double want = json_number_value(json_array_get(s->want[i], d));
            worst = fmax(worst, fabs(want - (double)s->text[i].vec[d]));
        }
    }
    printf("  %s: worst difference %.2e\n", name, worst);
    ASSERT_TRUE(worst < 1e-4);
}

TEST(vectors_are_those_of_sentence_transformers)
{
    for (size_t i = 0; i < NAMES; i++) {
        struct enc *e = open_folder(folder_of(names[i]), 2);
        struct set s;
        set_open(&s, e, names[i]);
        for (size_t k = 0; k < s.n; k++) /* a causal model needs a token */
            if (s.text[k].n) ASSERT_OK(enc_run(e, &s.text[k], 1, NULL));
        check_vectors(&s, names[i]);
        set_close(&s);
        enc_close(e);
    }
}

TEST(batches_and_threads_change_no_bit)
{
    for (size_t i = 0; i < NAMES; i++) {
        struct enc *one = open_folder(folder_of(names[i]), 1),
                   *e = open_folder(folder_of(names[i]), 3);
        struct set s, t;
        set_open(&s, one, names[i]);
        set_open(&t, e, names[i]);
        for (size_t k = s.n; k-- > 0;) /* the other way round: room that others left behind */
            ASSERT_OK(enc_run(one, &s.text[k], 1, NULL));
        ASSERT_OK(enc_run(e, t.text, t.n, NULL));
        for (size_t k = 0; k < s.n; k++)
            ASSERT_MEMEQ(s.text[k].vec, t.text[k].vec, s.D * sizeof(float));
        set_close(&s);
        set_close(&t);
        enc_close(one);
        enc_close(e);
    }
}

TEST(what_the_files_say_is_known)
{
    static const struct {
        const char *arch;
        enum enc_pool pool;
        bool normalize;
    } want[NAMES] = {{"bert", ENC_POOL_CLS, true},         {"bert", ENC_POOL_MEAN, false},
                     {"xlm-roberta", ENC_POOL_MEAN, true}, {"qwen3", ENC_POOL_LAST, true},
                     {"nomic-bert", ENC_POOL_MEAN, true},  {"gte", ENC_POOL_CLS, true},
                     {"modernbert", ENC_POOL_MEAN, false}};
    for (size_t i = 0; i < NAMES; i++) {
        ASSERT_TRUE(enc_fits(folder_of(names[i]), ENC_POOL_AUTO));
        struct enc *e = open_folder(folder_of(names[i]), 1);
        ASSERT_STREQ(enc_info(e)->arch, want[i].arch);
        ASSERT_EQ(enc_info(e)->pool, want[i].pool);
        ASSERT_EQ(enc_info(e)->normalize, want[i].normalize);
        enc_close(e);
    }
    ASSERT_TRUE(!enc_fits(test_data("models/qwen3"), ENC_POOL_AUTO));
    ASSERT_TRUE(enc_fits(test_data("models/qwen3"), ENC_POOL_LAST));
    ASSERT_TRUE(!enc_fits(test_data("models/qwen3.F32.gguf"), ENC_POOL_AUTO));
    ASSERT_TRUE(!enc_fits(test_data("no such folder"), ENC_POOL_AUTO));
}

/* Pooling by the caller's word, of a causal model whose folder says nothing. */
TEST(a_causal_model_by_its_mean_or_its_last)
{
    const int32_t tok[] = {5, 9, 77, 30, 2};
    float vec[3][48];
    for (int i = 0; i < 2; i++) {
        const struct enc_opts o = {.dev = {.n_threads = 2, .arith = KN_ARITH_F32},
                                   .pool = i ? ENC_POOL_MEAN : ENC_POOL_LAST,
                                   .ctx_max = 4};
        struct enc *e = NULL;
        /* A folder without a tokenizer cannot serve; qwen3-last has one. */
        ASSERT_OK(enc_open(folder_of("qwen3-last"), &o, &e, NULL));
        ASSERT_EQ(enc_info(e)->ctx_max, 4);
        struct enc_text t[3] = {{tok, 4, vec[0]}, {tok, 1, vec[1]}, {tok, 5, vec[2]}};
        ASSERT_ERR(enc_run(e, t, 3, NULL), -EINVAL);
        ASSERT_OK(enc_run(e, t, 2, NULL));
        double square = 0;
        for (unsigned d = 0; d < 48; d++)
            square += (double)vec[0][d] * (double)vec[0][d];
        ASSERT_NEAR(square, 1, 1e-6);
        memcpy(vec[2], vec[0], sizeof vec[0]);
        enc_shorten(e, vec[2], 8);
        square = 0;
        for (unsigned d = 0; d < 8; d++)
            square += (double)vec[2][d] * (double)vec[2][d];
        ASSERT_NEAR(square, 1, 1e-6);
        ASSERT_NEAR((double)vec[2][1] / (double)vec[2][0], (double)vec[0][1] / (double)vec[0][0],
                    1e-4);
        enc_close(e);
    }
}

TEST(bad_tokens_and_a_cancelled_run)
{
    struct enc *e = open_folder(folder_of("bert-cls"), 2);
    float vec[48];
    int32_t tok[] = {1, 2, 3};
    struct enc_text t = {tok, 3, vec};
    const atomic_bool cancel = true;
    ASSERT_ERR(enc_run(e, &t, 1, &cancel), -ECANCELED);
    ASSERT_OK(enc_run(e, &t, 1, NULL));
    ASSERT_OK(enc_run(e, &t, 0, NULL));
    t.n = 0;
    ASSERT_ERR(enc_run(e, &t, 1, NULL), -EINVAL);
    t.n = 3;
    tok[1] = -1;
    ASSERT_ERR(enc_run(e, &t, 1, NULL), -EINVAL);
    tok[1] = (int32_t)enc_info(e)->V;
    ASSERT_ERR(enc_run(e, &t, 1, NULL), -EINVAL);
    enc_close(e);
}

/* ---- folders that lie ---- */

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *text = calloc(1, 1 << 20);
    (void)!fread(text, 1, (1 << 20) - 1, f);
    (void)fclose(f);
    return text;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    return remove(path);
}

/* Makes dir, whose files are links to the model's, but one of them, in which `from` became `to`. */
static void folder_with(char *dir, const char *name, const char *file, const char *from,
                        const char *to)
{
    static const char *const files[] = {"config.json",    "model.safetensors",
                                        "modules.json",   "1_Pooling/config.json",
                                        "tokenizer.json", "sentence_bert_config.json"};
    char path[600], target[512];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    (void)snprintf(path, sizeof path, "%s/1_Pooling", dir);
    ASSERT_OK(mkdir(path, 0700));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)snprintf(target, sizeof target, "%s/%s", folder_of(name), files[i]);
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        if (strcmp(files[i], file) != 0) {
            ASSERT_OK(symlink(target, path));
            continue;
        }
        char *text = from ? slurp(target) : NULL, *at = text ? strstr(text, from) : NULL;
        FILE *f = fopen(path, "wb");
        ASSERT_TRUE((at != NULL || !from) && f != NULL);
        if (from)
            (void)fprintf(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
        else
            (void)fprintf(f, "%s", to);
        ASSERT_EQ(fclose(f), 0);
        free(text);
    }
}

static void expect_refused_of(const char *name, const char *file, const char *from, const char *to,
                              int rc, const char *says)
{
    const struct enc_opts o = {.dev = {.n_threads = 1}};
    char dir[] = "/tmp/test_encode.XXXXXX";
    struct enc *e = NULL;
    struct err err = {0};
    folder_with(dir, name, file, from, to);
    const int r = enc_open(dir, &o, &e, &err);
    ASSERT_OK(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS));
    ASSERT_TRUE(e == NULL);
    if (r != rc || !strstr(err.msg, says)) test_fail(__FILE__, __LINE__, "%s: %s", file, err.msg);
}

static void expect_refused(const char *file, const char *from, const char *to, int rc,
                           const char *says)
{
    expect_refused_of("bert-cls", file, from, to, rc, says);
}

TEST(folders_are_refused_by_name)
{
    expect_refused("config.json", "\"gelu\"", "\"relu\"", -ENOTSUP, "relu");
    expect_refused("config.json", "\"hidden_size\": 48", "\"hidden_size\": 50", -EBADMSG, "heads");
    expect_refused("config.json", "\"hidden_size\": 48", "\"hidden_size\": 4.5", -EBADMSG,
                   "hidden_size");
    expect_refused("config.json", "\"hidden_size\": 48", "\"hidden_size\": 96", -EBADMSG, "shape");
    expect_refused("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", -ENOTSUP,
                   "not known");
    expect_refused("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", -EBADMSG,
                   "missing");
    expect_refused("config.json", "\"vocab_size\": 900", "\"vocab_size\": 800", -EBADMSG, "shape");
    expect_refused("config.json", "\"max_position_embeddings\": 160",
                   "\"max_position_embeddings\": 4000000000", -EBADMSG, "max_position");
    expect_refused("config.json", "\"BertModel\"", "\"BertForTokenClassification\"", -ENOTSUP,
                   "BertForTokenClassification");
    expect_refused("modules.json", "models.Normalize", "models.Dense", -ENOTSUP, "Dense");
    expect_refused("modules.json", "1_Pooling", "../1_Pooling", -EBADMSG, "out of the folder");
    expect_refused("modules.json", NULL, "{}", -EBADMSG, "modules.json");
    expect_refused("modules.json", NULL, "[[[[[[", -EBADMSG, "modules.json");
    expect_refused("1_Pooling/config.json", "\"pooling_mode_max_tokens\": false",
                   "\"pooling_mode_max_tokens\": true", -ENOTSUP, "several");
    expect_refused("1_Pooling/config.json", "\"pooling_mode_cls_token\": true",
                   "\"pooling_mode_cls_token\": false", -EBADMSG, "no pooling");
    expect_refused("1_Pooling/config.json", "_dimension\": 48", "_dimension\": 64", -EBADMSG, "64");
    expect_refused("sentence_bert_config.json", "\"do_lower_case\": false",
                   "\"do_lower_case\": true", -ENOTSUP, "do_lower_case");
    expect_refused("model.safetensors", NULL, "short", -EBADMSG, "safetensors");
    expect_refused("tokenizer.json", NULL, "{}", -ENOTSUP, "tokenizer.json");
}

/* ---- cross-encoders ---- */

enum { PAIRS_MAX = 32 };
static const char *const crosses[] = {"cross-bert", "cross-xlmr", "cross-modernbert"};
enum { CROSSES = sizeof crosses / sizeof *crosses };

struct pairs { /* the golden pairs of a model as tokens, and their scores */
    json_t *json;
    size_t n;
    struct buf ids[PAIRS_MAX];
    struct enc_text text[PAIRS_MAX];
    float score[PAIRS_MAX];
    double want[PAIRS_MAX];
};

static void pairs_open(struct pairs *s, const struct enc *e, const char *name)
{
    char rel[96];
    (void)snprintf(rel, sizeof rel, "encoders/%s.json", name);
    *s = (struct pairs){.json = json_load_file(test_data(rel), 0, NULL)};
    const json_t *all = json_object_get(s->json, "pairs");
    s->n = json_array_size(all);
    ASSERT_TRUE(s->n >= 10 && s->n <= PAIRS_MAX);
    ASSERT_EQ(enc_info(e)->ctx_max,
              (unsigned)json_integer_value(json_object_get(s->json, "max_length")));
    bool cut = false;
    for (size_t i = 0; i < s->n; i++) {
        const json_t *one = json_array_get(all, i), *q = json_object_get(one, "query"),
                     *d = json_object_get(one, "document");
        const struct enc_pair p = {.query = json_string_value(q),
                                   .doc = json_string_value(d),
                                   .query_len = json_string_length(q),
                                   .doc_len = json_string_length(d),
                                   .cut = true};
        struct enc_pair_size z;
        ASSERT_OK(enc_pair(e, &p, &s->ids[i], &z));
        ASSERT_EQ(s->ids[i].len, z.n * sizeof(int32_t));
        cut |= z.n_kept < z.n_doc;
        s->text[i] = (struct enc_text){.tok = (const int32_t *)(const void *)s->ids[i].data,
                                       .n = z.n,
                                       .vec = &s->score[i],
                                       .second = z.second};
        s->want[i] = json_number_value(json_object_get(one, "score"));
    }
    ASSERT_TRUE(cut); /* one of the documents is too long */
}

static void pairs_close(struct pairs *s)
{
    for (size_t i = 0; i < s->n; i++)
        buf_fini(&s->ids[i]);
    json_decref(s->json);
}

TEST(scores_are_those_of_cross_encoder)
{
    for (size_t i = 0; i < CROSSES; i++) {
        struct enc *e = open_folder(folder_of(crosses[i]), 2);
        ASSERT_TRUE(enc_info(e)->scores);
        ASSERT_EQ(enc_info(e)->sigmoid, strcmp(crosses[i], "cross-modernbert") != 0);
        struct pairs s;
        pairs_open(&s, e, crosses[i]);
        double worst = 0, least = INFINITY, most = -INFINITY;
        for (size_t k = 0; k < s.n; k++) {
            ASSERT_OK(enc_run(e, &s.text[k], 1, NULL));
            worst = fmax(worst, fabs((double)s.score[k] - s.want[k]));
            least = fmin(least, s.want[k]);
            most = fmax(most, s.want[k]);
        }
        printf("  %s: worst difference %.2e\n", crosses[i], worst);
        ASSERT_TRUE(worst < 1e-4);
        ASSERT_TRUE(most - least > 0.1); /* they tell documents apart */
        pairs_close(&s);
        enc_close(e);
    }
}

TEST(batches_and_threads_change_no_bit_of_a_score)
{
    for (size_t i = 0; i < CROSSES; i++) {
        struct enc *one = open_folder(folder_of(crosses[i]), 1),
                   *e = open_folder(folder_of(crosses[i]), 3);
        struct pairs s, t;
        pairs_open(&s, one, crosses[i]);
        pairs_open(&t, e, crosses[i]);
        for (size_t k = s.n; k-- > 0;)
            ASSERT_OK(enc_run(one, &s.text[k], 1, NULL));
        ASSERT_OK(enc_run(e, t.text, t.n, NULL));
        ASSERT_MEMEQ(s.score, t.score, s.n * sizeof *s.score);
        pairs_close(&s);
        pairs_close(&t);
        enc_close(one);
        enc_close(e);
    }
}

TEST(pairs_are_cut_at_the_document)
{
    struct enc *e = open_folder(folder_of("cross-bert"), 1);
    const unsigned most = enc_info(e)->ctx_max;
    char text[1024];
    for (size_t i = 0; i < sizeof text; i += 2)
        memcpy(text + i, "a ", 2);
    struct buf ids = BUF_INIT;
    struct enc_pair_size z;
    struct enc_pair p = {.query = "a a", .query_len = 3, .doc = text, .doc_len = sizeof text};
    ASSERT_OK(enc_pair(e, &p, &ids, &z));
    ASSERT_EQ(z.n_doc, sizeof text / 2);
    ASSERT_EQ(z.n_kept, z.n_doc);
    ASSERT_EQ(z.n, z.n_doc + 2 + 3); /* [CLS] a a [SEP] … [SEP] */
    ASSERT_EQ(z.second, 4);
    p.doc_max = 7;
    ASSERT_OK(enc_pair(e, &p, &ids, &z));
    ASSERT_EQ(z.n, 7 + 2 + 3);
    p.doc_max = 500;
    p.cut = true;
    ASSERT_OK(enc_pair(e, &p, &ids, &z));
    ASSERT_EQ(z.n, most);
    p.query = text; /* which is never cut */
    p.query_len = sizeof text;
    ASSERT_OK(enc_pair(e, &p, &ids, &z));
    ASSERT_EQ(z.n_kept, 0);
    ASSERT_EQ(z.n, sizeof text / 2 + 3);
    buf_fini(&ids);
    enc_close(e);
    /* Between a pair RoBERTa has two control tokens, and one type. */
    const struct enc_opts o = {.dev = {.n_threads = 1}};
    char dir[] = "/tmp/test_encode.XXXXXX";
    folder_with(dir, "cross-bert", "tokenizer.json", "BertProcessing", "RobertaProcessing");
    const int r = enc_open(dir, &o, &e, NULL);
    ASSERT_OK(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS));
    ASSERT_OK(r);
    ASSERT_OK(enc_pair(e, &(struct enc_pair){"a", "a", 1, 1}, &ids, &z));
    ASSERT_EQ(z.n, 6);
    ASSERT_EQ(z.second, 0);
    buf_fini(&ids);
    enc_close(e);
}

TEST(cross_encoders_are_refused_by_name)
{
    static const char f[] = "config.json", bert[] = "cross-bert", modern[] = "cross-modernbert";
    static const struct {
        const char *name, *file, *from, *to;
        int rc;
        const char *says;
    } bad[] = {
        {bert, f, "\"LABEL_0\"", "\"no\", \"1\": \"yes\"", -ENOTSUP, "2 labels"},
        {bert, f, "\"id2label\"", "\"id_to_label\"", -ENOTSUP, "2 labels"},
        {bert, f, "\"hidden_act\"",
         "\"sbert_ce_default_activation_function\": "
         "\"torch.nn.modules.activation.ReLU\", \"hidden_act\"",
         -ENOTSUP, "ReLU"},
        {bert, f, "\"BertForSequenceClassification\"", "\"RobertaForSequenceClassification\"",
         -EBADMSG, "classifier.dense.weight"},
        {bert, "tokenizer.json", "BertProcessing", "ByteLevel", -ENOTSUP, "pair"},
        {modern, f, "\"mean\"", "\"last\"", -ENOTSUP, "last"},
        {modern, f, "\"classifier_activation\": \"gelu\"", "\"classifier_activation\": \"silu\"",
         -ENOTSUP, "silu"},
        {modern, f, "linear.Identity", "activation.Tanh", -ENOTSUP, "Tanh"},
        {modern, "tokenizer.json", "{\"Sequence\":{\"id\":\"B\"", "{\"Sequence\":{\"id\":\"A\"",
         -ENOTSUP, "pair"},
        {modern, "modules.json", NULL,
         "[{\"type\":\"a.Transformer\",\"path\":\"\"},{\"type\":\"a.Dense\",\"path\":\"2\"}]",
         -ENOTSUP, "modules.json"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refused_of(bad[i].name, bad[i].file, bad[i].from, bad[i].to, bad[i].rc, bad[i].says);
    const struct enc_opts o = {.dev = {.n_threads = 1}, .pool = ENC_POOL_MEAN};
    struct enc *e = NULL;
    struct err err = {0};
    ASSERT_ERR(enc_open(folder_of(bert), &o, &e, &err), -ENOTSUP);
    ASSERT_TRUE(strstr(err.msg, "pooling") != NULL);
}

/* Rotary positions, gates and windows come in more kinds than are computed. */
TEST(what_a_family_has_elsewhere_is_refused_by_name)
{
    static const char f[] = "config.json";
    static const struct {
        const char *name, *from, *to;
        int rc;
        const char *says;
    } bad[] = {
        {"nomic-mean", "\"silu\"", "\"gelu\"", -ENOTSUP, "gelu"},
        {"nomic-mean", "\"default\"", "\"dynamic\"", -ENOTSUP, "dynamic"},
        {"nomic-mean", "1000.0", "\"x\"", -EBADMSG, "rope_theta"},
        {"nomic-mean", "1000.0", "1e300", -EBADMSG, "rope_theta"},
        {"nomic-mean", "\"pad_token_id\": 0", "\"num_experts\": 8", -ENOTSUP, "num_experts"},
        {"nomic-mean", "\"pad_token_id\": 0", "\"prenorm\": true", -ENOTSUP, "prenorm"},
        {"nomic-mean", "\"pad_token_id\": 0", "\"rotary_scaling_factor\": 2", -ENOTSUP, "2"},
        {"nomic-mean", "\"pad_token_id\": 0", "\"mlp_fc1_bias\": true", -EBADMSG, "fc12.bias"},
        {"nomic-mean", "\"num_attention_heads\": 4", "\"num_attention_heads\": 16", -ENOTSUP,
         "heads of 3"},
        {"nomic-mean", "\"max_position_embeddings\": 160", "\"max_position_embeddings\": 1048576",
         -ENOTSUP, "1048576 rotary positions"},
        {"gte-cls", "\"gelu\"", "\"silu\"", -ENOTSUP, "silu"},
        {"gte-cls", "\"pad_token_id\": 1", "\"rope_scaling\": {\"type\": \"ntk\"}", -ENOTSUP,
         "rope_scaling"},
        {"gte-cls", "\"type_vocab_size\": 1", "\"type_vocab_size\": 0", -ENOTSUP, "token_type"},
        {"modernbert-mean", "\"full_attention\"", "\"strided\"", -ENOTSUP, "strided"},
        {"modernbert-mean", "\"full_attention\",", "", -EBADMSG, "layer_types"},
        {"modernbert-mean", "\"local_attention\": 16", "\"local_attention\": -1", -EBADMSG,
         "local_attention"},
        {"modernbert-mean", "\"hidden_activation\": \"gelu\"", "\"hidden_activation\": \"relu\"",
         -ENOTSUP, "relu"},
        {"modernbert-mean", "ModernBertForMaskedLM", "BertModel", -EBADMSG, "word_embeddings"},
        {"bert-cls", "\"BertModel\"", "\"ModernBertModel\"", -EBADMSG, "tok_embeddings"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refused_of(bad[i].name, f, bad[i].from, bad[i].to, bad[i].rc, bad[i].says);
}

/* The settings as the models' own authors publish them say the same. */
TEST(settings_as_published)
{
    static const char *const config[][2] = {
        {"nomic-mean",
         "{\"architectures\": [\"NomicBertModel\"], \"model_type\": \"nomic_bert\","
         " \"activation_function\": \"swiglu\", \"causal\": false, \"layer_norm_epsilon\": 1e-12,"
         " \"mlp_fc1_bias\": false, \"mlp_fc2_bias\": false, \"n_embd\": 48, \"n_head\": 4,"
         " \"n_inner\": 96, \"n_layer\": 2, \"n_positions\": 160, \"parallel_block\": false,"
         " \"prenorm\": false, \"qkv_proj_bias\": false, \"rotary_emb_base\": 1000,"
         " \"rotary_emb_fraction\": 1.0, \"rotary_emb_interleaved\": false,"
         " \"rotary_emb_scale_base\": null, \"rotary_scaling_factor\": null,"
         " \"scale_attn_weights\": true, \"type_vocab_size\": 2, \"use_rms_norm\": false,"
         " \"vocab_size\": 900}"},
        {"gte-cls",
         "{\"architectures\": [\"NewModel\"], \"model_type\": \"new\", \"hidden_act\": \"gelu\","
         " \"hidden_size\": 48, \"intermediate_size\": 96, \"layer_norm_eps\": 1e-12,"
         " \"layer_norm_type\": \"layer_norm\", \"logn_attention_scale\": false,"
         " \"max_position_embeddings\": 160, \"num_attention_heads\": 4, \"num_hidden_layers\": 2,"
         " \"pack_qkv\": true, \"pad_token_id\": 1, \"position_embedding_type\": \"rope\","
         " \"rope_scaling\": null, \"rope_theta\": 20000, \"type_vocab_size\": 1,"
         " \"vocab_size\": 902}"},
        {"modernbert-mean",
         "{\"architectures\": [\"ModernBertForMaskedLM\"], \"model_type\": \"modernbert\","
         " \"global_attn_every_n_layers\": 3, \"global_rope_theta\": 160000.0,"
         " \"hidden_activation\": \"gelu\", \"hidden_size\": 48, \"intermediate_size\": 40,"
         " \"layer_norm_eps\": 1e-05, \"local_attention\": 16, \"local_rope_theta\": 10000.0,"
         " \"max_position_embeddings\": 160, \"mlp_bias\": false, \"norm_bias\": false,"
         " \"num_attention_heads\": 4, \"num_hidden_layers\": 4, \"pad_token_id\": 0,"
         " \"position_embedding_type\": \"absolute\", \"vocab_size\": 900}"},
    };
    const struct enc_opts o = {.dev = {.n_threads = 1, .arith = KN_ARITH_F32}};
    int32_t tok[40];
    float vec[2][48];
    for (int i = 0; i < 40; i++)
        tok[i] = (37 * i + 5) % 900;
    for (size_t i = 0; i < sizeof config / sizeof *config; i++) {
        char dir[] = "/tmp/test_encode.XXXXXX";
        struct enc *e[2] = {open_folder(folder_of(config[i][0]), 1), NULL};
        folder_with(dir, config[i][0], "config.json", NULL, config[i][1]);
        const int r = enc_open(dir, &o, &e[1], NULL);
        ASSERT_OK(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS));
        ASSERT_OK(r);
        for (int k = 0; k < 2; k++) {
            const struct enc_text t = {tok, 40, vec[k]};
            ASSERT_OK(enc_run(e[k], &t, 1, NULL));
            enc_close(e[k]);
        }
        ASSERT_MEMEQ(vec[0], vec[1], sizeof vec[0]);
    }
}

/* The seeds of the fuzz target: their weights stand in an order of their own, not that of names. */
TEST(weights_stand_in_any_order)
{
    static const char *const seeds[] = {"bert", "cross_bert", "cross_modernbert",
                                        "gte",  "modernbert", "nomic"};
    static const char *const files[] = {"config.json", "modules.json", "model.safetensors"};
    const struct enc_opts o = {.dev = {.n_threads = 1, .arith = KN_ARITH_F32}};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        char dir[] = "/tmp/test_encode.XXXXXX", path[600], all[4096];
        (void)snprintf(path, sizeof path, "../fuzz/corpus/encoder/%s", seeds[i]);
        FILE *f = fopen(test_data(path), "rb");
        ASSERT_TRUE(f != NULL && mkdtemp(dir) != NULL);
        const size_t n = fread(all, 1, sizeof all, f);
        ASSERT_EQ(fclose(f), 0);
        for (size_t k = 0, at = 0; k < 3; k++) {
            const size_t len = k < 2 ? strlen(all + at) : n - at;
            (void)snprintf(path, sizeof path, "%s/%s", dir, files[k]);
            f = fopen(path, "wb");
            ASSERT_TRUE(f != NULL && fwrite(all + at, 1, len, f) == len && fclose(f) == 0);
            at += len + 1;
        }
        struct enc_bert *b = NULL;
        struct enc_cfg c;
        struct err err = {0};
        int r = enc_read_config(dir, &c, &err);
        if (r == 1) r = enc_bert_open(dir, &c, &o, &b, &err);
        ASSERT_OK(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS));
        if (r < 0) test_fail(__FILE__, __LINE__, "%s: %s", seeds[i], err.msg);
        enc_bert_close(b);
    }
}

/* n: values that a text gives. */
static void fails_cleanly(const char *name, size_t n)
{
    const struct enc_opts o = {.dev = {.n_threads = 1, .arith = KN_ARITH_F32}};
    const int32_t tok[] = {1, 2, 3};
    float vec[48], want[48];
    struct enc *e = open_folder(folder_of(name), 1);
    struct enc_text t = {tok, 3, want, 2};
    ASSERT_OK(enc_run(e, &t, 1, NULL));
    enc_close(e);
    t.vec = vec;
    unsigned n_failed = 0;
    bool fired = true;
    for (unsigned nth = 1; fired; nth += 1 + nth / 16) {
        e = NULL;
        mem_fail_nth(nth);
        int r = enc_open(folder_of(name), &o, &e, NULL);
        ASSERT_EQ(r < 0, e == NULL);
        if (r == 0) r = enc_run(e, &t, 1, NULL);
        fired = mem_fail_fired();
        mem_fail_nth(0);
        n_failed += r < 0;
        if (r == 0) ASSERT_MEMEQ(vec, want, n * sizeof *vec);
        enc_close(e);
    }
    ASSERT_TRUE(n_failed > 10);
}

TEST(opening_and_running_fail_cleanly_without_memory)
{
    fails_cleanly("bert-cls", 48);
    fails_cleanly("cross-bert", 1);
    fails_cleanly("cross-modernbert", 1);
}
