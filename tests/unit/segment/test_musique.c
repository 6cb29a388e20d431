/* The learner on real passages: MuSiQue questions with ten passages each, joined in random orders
 * and random subsets, measured from the third request of a conversation on. */
#include "base/buf.h"
#include "segment/segment.h"
#include "tests/test.h"

#include <jansson.h>
#include <unistd.h>

enum { PASSAGES_MAX = 16, REQUESTS = 8 };

struct question {
    char *text;
    char *passage[PASSAGES_MAX];
    size_t len[PASSAGES_MAX];
    unsigned n;
};
struct set {
    struct question *q;
    size_t n;
};
struct score {
    size_t edges, found, cuts, wrong;
};

/* Every third sentence ends a paragraph, as if the passage had come with blank lines. */
static char *copy_of(const char *s, bool paragraphs, size_t *ret_len)
{
    struct buf b = BUF_INIT;
    unsigned n = 0;
    for (const char *p = s; *p; p++) {
        ASSERT_OK(buf_addc(&b, *p));
        if (paragraphs && p[0] == '.' && p[1] == ' ' && p[2] && ++n % 3 == 0) {
            ASSERT_OK(buf_adds(&b, "\n\n"));
            p++;
        }
    }
    *ret_len = b.len;
    ASSERT_TRUE(buf_cstr(&b));
    return buf_take(&b, NULL);
}

static struct set load(const char *path, bool paragraphs)
{
    struct set s = {0};
    json_error_t e;
    json_t *root = json_load_file(path, 0, &e), *v, *p;
    size_t i, k;
    if (!root) return s;
    s.q = calloc(json_array_size(root), sizeof *s.q);
    json_array_foreach(root, i, v) {
        struct question *q = &s.q[s.n++];
        const json_t *list = json_object_get(v, "passages");
        if (!list) list = json_object_get(v, "ctxs"); /* the whole file's form */
        q->text = strdup(json_string_value(json_object_get(v, "question")));
        json_array_foreach(list, k, p) {
            const char *t = json_string_value(json_is_string(p) ? p : json_object_get(p, "text"));
            bool twice = false;
            if (q->n == PASSAGES_MAX) break;
            q->passage[q->n] = copy_of(t, paragraphs, &q->len[q->n]);
            for (unsigned x = 0; x < q->n; x++)
                twice |= strcmp(q->passage[x], q->passage[q->n]) == 0;
            if (twice)
                free(q->passage[q->n]);
            else
                q->n++;
        }
    }
    json_decref(root);
    return s;
}

static void set_fini(struct set *s)
{
    for (size_t i = 0; i < s->n; i++) {
        for (unsigned k = 0; k < s->q[i].n; k++)
            free(s->q[i].passage[k]);
        free(s->q[i].text);
    }
    free(s->q);
}

static bool edge_at(const size_t *edge, unsigned n, size_t at)
{
    for (unsigned i = 0; i < n; i++)
        if (edge[i] == at) return true;
    return false;
}

struct ask {
    struct seg_learner *learner;
    const struct seg_presets *presets;
    const char *join, *space;
    uint64_t rng;
};

/* One request: six to ten passages in random order behind a system text, then the question. */
static void request(struct ask *a, const struct question *q, struct score *ret)
{
    unsigned order[PASSAGES_MAX], n = q->n, take = 0;
    size_t begin[PASSAGES_MAX], end[PASSAGES_MAX];
    struct buf b = BUF_INIT;
    for (unsigned i = 0; i < n; i++)
        order[i] = i;
    for (unsigned i = n; i > 1; i--) {
        unsigned k = (unsigned)(test_rand(&a->rng) % i), swap = order[k];
        order[k] = order[i - 1];
        order[i - 1] = swap;
    }
    take = n <= 6 ? n : 6 + (unsigned)(test_rand(&a->rng) % (n - 5));
    for (unsigned i = 0; i < take; i++) {
        begin[i] = b.len;
        ASSERT_OK(buf_add(&b, q->passage[order[i]], q->len[order[i]]));
        end[i] = b.len;
        ASSERT_OK(buf_adds(&b, a->join));
    }
    ASSERT_OK(buf_addf(&b, "%s (%u)?", q->text, (unsigned)(test_rand(&a->rng) % 1000)));
    static const char system_text[] = "You answer questions from the passages you are given. Be "
                                      "brief, and say so when the passages do not tell.";
    struct seg_text t[2] = {{"system", system_text, sizeof system_text - 1},
                            {"user", b.data, b.len}};
    struct seg_opts o = {.learner = a->learner, .space = a->space};
    struct seg_list l = {0};
    ASSERT_OK(seg_find(a->presets, &o, t, 2, &l));
    for (unsigned i = 0; i < take && ret; i++) {
        bool b_found = false, e_found = false;
        for (size_t k = 0; k < l.n; k++) {
            b_found |= l.seg[k].begin == begin[i];
            e_found |= l.seg[k].end == end[i];
        }
        ret->edges += 2;
        ret->found += (size_t)b_found + e_found;
    }
    for (size_t k = 0; k < l.n && ret; k++) {
        bool bw = !edge_at(begin, take, l.seg[k].begin), ew = !edge_at(end, take, l.seg[k].end);
        ret->cuts += 2;
        ret->wrong += (size_t)bw + ew;
    }
    seg_list_fini(&l);
    buf_fini(&b);
}

/* Conversations of REQUESTS requests about one question each, every one in a new namespace
 * (`shared`: all in one, so that most passages are known from nobody but this question). */
static struct score measure(const struct set *s, const struct seg_presets *p, const char *join,
                            bool shared)
{
    struct score sum = {0};
    struct ask a = {.presets = p, .join = join, .rng = 7};
    ASSERT_OK(seg_learner_create(SEG_LEARNER_BYTES, &a.learner));
    for (size_t i = 0; i < s->n; i++) {
        char space[32];
        (void)snprintf(space, sizeof space, "key/%zu", shared ? 0 : i);
        a.space = space;
        for (int k = 0; k < REQUESTS; k++)
            request(&a, &s->q[i], k >= 2 ? &sum : NULL);
    }
    seg_learner_free(a.learner);
    return sum;
}

static void report(const char *what, const struct score *c)
{
    printf("# %-44s %.4f of %zu boundaries found, %.4f of %zu cuts false\n", what,
           (double)c->found / (double)c->edges, c->edges, (double)c->wrong / (double)c->cuts,
           c->cuts);
}

static void check(const char *what, const struct score *c, double found_min, double wrong_max)
{
    report(what, c);
    ASSERT_TRUE((double)c->found >= found_min * (double)c->edges);
    ASSERT_TRUE((double)c->wrong <= wrong_max * (double)c->cuts);
}

static struct seg_presets *presets(void)
{
    struct seg_presets *p = NULL;
    struct err err = {0};
    if (seg_presets_load(NULL, &p, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    return p;
}

/* What is promised: [0] of passages as they are, [1] with blank lines of their own. A blank between
 * passages that have paragraphs is hopeless: the seam is inside a paragraph, too short to look
 * into. */
static const struct {
    const char *name, *join;
    double found_min[2], wrong_max[2];
} joins[] = {{"blank line", "\n\n", {0.99, 0.97}, {0.002, 0.015}},
             {"line break", "\n", {0.99, 0.97}, {0.002, 0.01}},
             {"blank", " ", {0.93, 0}, {0.10, 1}},
             {"rule", "\n---\n", {0.99, 0.99}, {0.002, 0.002}}};

/* `slack` widens what is promised: passages of many questions share more of their text. */
static void all_joins(const char *path, double slack)
{
    struct seg_presets *p = presets();
    for (int par = 0; par < 2; par++) {
        struct set s = load(path, par);
        if (s.n == 0) SKIP("no data file");
        for (size_t i = 0; i < sizeof joins / sizeof *joins; i++)
            for (int shared = 0; shared < 2; shared++) {
                char what[80];
                (void)snprintf(what, sizeof what, "%s%s%s", joins[i].name,
                               par ? ", passages with blank lines" : "",
                               shared ? ", one namespace" : "");
                struct score c = measure(&s, p, joins[i].join, shared);
                check(what, &c, joins[i].found_min[par] - slack, joins[i].wrong_max[par] + slack);
            }
        set_fini(&s);
    }
    seg_presets_free(p);
}

TEST(boundaries_from_the_third_request_on)
{
    all_joins(test_data("segment/musique.json"), 0);
}

TEST(whole_file)
{
    const char *path = getenv("KVBLEND_MUSIQUE");
    if (!path || access(path, R_OK) != 0) SKIP("KVBLEND_MUSIQUE names no file");
    all_joins(path, 0.02);
}
