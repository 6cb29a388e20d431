#include "worker/opts_table.h"

#include "base/buf.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { NAMESPACE_BYTES = 500 }; /* of what wk_ns_parse() takes */

/* ---- texts with an inner form ---- */

/* A size of n characters, not 0. */
static int parse_size_of(const char *text, size_t n, uint64_t *ret_bytes)
{
    char copy[32];
    if (n == 0 || n >= sizeof copy) return -EINVAL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return opt_parse_size(copy, ret_bytes) < 0 || *ret_bytes == 0 ? -EINVAL : 0;
}

int wk_parse_nvme(const char *text, struct wk_nvme *ret)
{
    const char *end = text + strlen(text), *colon = strrchr(text, ':');
    *ret = (struct wk_nvme){0};
    if (colon && end > colon + 2 && strcmp(end - 2, "/d") == 0) {
        const size_t n = (size_t)(end - 2 - (colon + 1));
        if (parse_size_of(colon + 1, n, &ret->write_bytes_per_day) < 0) return -EINVAL;
        end = colon;
        colon = memrchr(text, ':', (size_t)(end - text));
    }
    if (colon && parse_size_of(colon + 1, (size_t)(end - colon - 1), &ret->bytes) < 0)
        return -EINVAL;
    ret->path_len = (size_t)((colon ? colon : end) - text);
    return ret->path_len > 0 ? 0 : -EINVAL;
}

void wk_share_nvme(const char *text, unsigned number, unsigned n_shares, struct buf *out)
{
    struct wk_nvme f = {0};
    if (wk_parse_nvme(text, &f) < 0 || !f.bytes) {
        (void)buf_adds(out, text);
        return;
    }
    const unsigned long long a_day = f.write_bytes_per_day / n_shares;
    (void)buf_addf(out, "%.*s.%u:%llu", (int)f.path_len, text, number,
                   (unsigned long long)f.bytes / n_shares);
    if (a_day) (void)buf_addf(out, ":%llu/d", a_day);
}

/* "ram:SIZE", "nvme:SIZE", "ttl:DURATION" or "contexts:off". */
static int parse_limit(char *field, struct wk_limits *ret)
{
    char *value = strchr(field, ':');
    uint64_t *bytes = NULL;

    if (!value) return -EINVAL;
    *value++ = '\0';
    if (strcmp(field, "ttl") == 0) {
        ret->has_ttl = true;
        return opt_parse_duration_ms(value, &ret->ttl_ms);
    }
    if (strcmp(field, "contexts") == 0) {
        ret->contexts_off = true;
        return strcmp(value, "off") == 0 ? 0 : -EINVAL;
    }
    if (strcmp(field, "ram") == 0) bytes = &ret->ram_bytes;
    if (strcmp(field, "nvme") == 0) bytes = &ret->nvme_bytes;
    return bytes ? parse_size_of(value, strlen(value), bytes) : -EINVAL;
}

int wk_parse_limits(const char *text, struct wk_limits *ret)
{
    char copy[256], *rest = copy, *field;
    const size_t n = strcspn(text, "="), len = strlen(text) - n;
    const bool all = n == 1 && text[0] == '*';

    if (n == 0 || !text[n] || len > sizeof copy) return -EINVAL;
    memcpy(copy, text + n + 1, len);
    *ret = (struct wk_limits){.ns = text, .ns_len = all ? 0 : n};
    while ((field = strsep(&rest, ",")) != NULL)
        if (parse_limit(field, ret) < 0) return -EINVAL;
    return all && (ret->ram_bytes || ret->nvme_bytes) ? -EINVAL : 0;
}

int wk_parse_kv_pages(const char *text, uint64_t *ret_bytes, uint64_t *ret_reserve)
{
    const size_t n = strcspn(text, ":");
    *ret_bytes = *ret_reserve = 0;
    const bool automatic = n == 4 && strncmp(text, "auto", 4) == 0;
    if (!automatic && parse_size_of(text, n, ret_bytes) < 0) return -EINVAL;
    return text[n] ? parse_size_of(text + n + 1, strlen(text + n + 1), ret_reserve) : 0;
}

int wk_parse_guard(const char *text, double *ret_share, double *ret_kl)
{
    char share[32];
    const size_t n = strcspn(text, ":");
    *ret_kl = 0;
    if (n >= sizeof share) return -EINVAL;
    memcpy(share, text, n);
    share[n] = '\0';
    if (opt_parse_double(share, ret_share) < 0 || !(*ret_share >= 0 && *ret_share <= 1))
        return -EINVAL;
    if (!text[n]) return 0;
    return opt_parse_double(text + n + 1, ret_kl) < 0 || !(*ret_kl > 0 && *ret_kl <= 100) ? -EINVAL
                                                                                          : 0;
}

int wk_parse_strategy(const char *text, bool *ret_always, enum pol_strategy *ret_strategy)
{
    static const char always[] = "always";
    const size_t n = strlen(always);
    const char *name = text;

    *ret_always = strncmp(text, always, n) == 0;
    *ret_strategy = POL_AUTO;
    if (strcmp(text, *ret_always ? always : "auto") == 0) return 0;
    if (*ret_always && text[n] != ':') return -EINVAL;
    if (*ret_always) name += n + 1;
    return pol_strategy_parse(name, ret_strategy) ? 0 : -EINVAL;
}

/* The next name in braces; len 0: there is none. */
static const char *next_name(const char *p, size_t *ret_len, int *ret_what)
{
    static const char *const names[] = {[WK_PART_DOCUMENT] = "{document}",
                                        [WK_PART_QUERY] = "{query}",
                                        [WK_PART_INSTRUCTION] = "{instruction}"};

    for (*ret_len = 0; *p; p++)
        for (int what = WK_PART_DOCUMENT; *p == '{' && what <= WK_PART_INSTRUCTION; what++) {
            const size_t n = strlen(names[what]);
            if (strncmp(p, names[what], n) != 0) continue;
            *ret_len = n;
            *ret_what = what;
            return p;
        }
    return p;
}

int wk_parse_template(const char *text, struct wk_template *ret)
{
    unsigned n_of[WK_PART_INSTRUCTION + 1] = {0};
    int what = WK_PART_TEXT;
    size_t len;

    *ret = (struct wk_template){0};
    for (const char *p = text, *name;; p = name + len) {
        name = next_name(p, &len, &what);
        if (name > p)
            ret->part[ret->n++] = (struct wk_template_part){WK_PART_TEXT, p, (size_t)(name - p)};
        if (len == 0) break;
        if (n_of[what]++ > 0) return -EINVAL;
        if (what == WK_PART_DOCUMENT) ret->document_first = n_of[WK_PART_QUERY] == 0;
        ret->part[ret->n++].what = what;
    }
    return n_of[WK_PART_DOCUMENT] && n_of[WK_PART_QUERY] ? 0 : -EINVAL;
}

/* "0" or "0+1", each number once; where it ends, NULL: it is none. */
static const char *device_end(const char *p, bool seen[WK_GPUS_MAX])
{
    for (;; p++) {
        unsigned v = 0, digits = 0;
        for (; *p >= '0' && *p <= '9' && digits < 3; digits++)
            v = v * 10 + (unsigned)(*p++ - '0');
        if (digits == 0 || seen[v]) return NULL;
        seen[v] = true;
        if (*p != '+') return p;
    }
}

int wk_parse_devices(const char *text, struct wk_devices *ret)
{
    bool seen[WK_GPUS_MAX] = {false};
    *ret = (struct wk_devices){.several = strcmp(text, "auto") == 0};
    if (ret->several || strcmp(text, "cpu") == 0) return 0;
    ret->kind = strncmp(text, "host", 4) == 0 ? "hostcuda" : "cuda";
    const size_t n = strlen(ret->kind);
    if (strncmp(text, ret->kind, n) != 0 || (text[n] && text[n] != ':')) return -EINVAL;
    for (const char *p = text + n; *p;) { /* at the colon, or at a comma */
        const char *at = p + 1;
        p = device_end(at, seen);
        if (!p || (*p && *p != ',') || ret->n == WK_DEVICES_MAX) return -EINVAL;
        ret->name[ret->n].at = at;
        ret->name[ret->n++].len = (int)(p - at);
    }
    ret->several = ret->n > 1;
    return 0;
}

/* ---- as checks of the table ---- */

/* A device has a size of its own. */
static bool is_nvme(const char *text)
{
    struct wk_nvme nvme;
    struct stat st;
    char path[4096];

    if (wk_parse_nvme(text, &nvme) < 0 || nvme.path_len >= sizeof path) return false;
    memcpy(path, text, nvme.path_len);
    path[nvme.path_len] = '\0';
    return nvme.bytes > 0 || (stat(path, &st) == 0 && S_ISBLK(st.st_mode));
}

static bool is_limits(const char *text)
{
    struct wk_limits limits;
    return wk_parse_limits(text, &limits) == 0;
}

static bool is_strategy(const char *text)
{
    enum pol_strategy strategy;
    bool always;
    return wk_parse_strategy(text, &always, &strategy) == 0;
}

static bool is_devices(const char *text)
{
    struct wk_devices devices;
    return wk_parse_devices(text, &devices) == 0;
}

static bool is_kv_pages(const char *text)
{
    uint64_t bytes, reserve;
    return wk_parse_kv_pages(text, &bytes, &reserve) == 0;
}

static bool is_template(const char *text)
{
    struct wk_template template;
    return wk_parse_template(text, &template) == 0;
}

static bool is_two_words(const char *text)
{
    const size_t n = strcspn(text, " ");
    return n > 0 && text[n] && text[n + 1] && !strchr(text + n + 1, ' ');
}

static bool is_guard(const char *text)
{
    double share, kl;
    return wk_parse_guard(text, &share, &kl) == 0;
}

static bool is_namespace(const char *text)
{
    return *text && strlen(text) < NAMESPACE_BYTES;
}

/* ---- the table ---- */

const struct opt_def wk_opts_table[] = {
    {"ram", OPT_SIZE, "1GiB", 1 << 20, 1e15, NULL, "Hard budget of the KV records kept in RAM."},
    {"nvme", OPT_STR, NULL, 0, 0, "PATH:SIZE[:SIZE/d]",
     "File or device for records that RAM has no room for; hard budget. A device needs no size. "
     "SIZE/d: bytes written a day; default: the size of the drive.",
     .check = is_nvme},
    {"redis", OPT_STR, NULL, 0, 0, NULL,
     "URL of a Redis shared by workers: redis://, rediss://, redis-cluster://, redis-sentinel://, "
     "unix://; in a variable spaces separate several.",
     .repeatable = true, .props = OPT_SECRET, .split = " "},
    {"policy", OPT_ENUM, "lru", 0, 0, "lru|arc", "Eviction from RAM and NVMe."},
    {"codec", OPT_ENUM, "none", 0, 0, "none|q8",
     "What sinks to NVMe and Redis: q8 = 8 bits, half of f16; Redis is shared by workers that say "
     "the same."},
    {"namespace", OPT_STR, NULL, 0, 0, "NS=ram:SIZE,nvme:SIZE,ttl:DURATION,contexts:off",
     "Hard caps of a namespace's records, how long they live (0: for ever), and whether none is "
     "encoded behind others; each or all of these. NS *: all records, without sizes. In a variable "
     "spaces separate several.",
     .repeatable = true, .split = " ", .check = is_limits},
    {"show-text", OPT_STR, NULL, 0, 0, "NS",
     "Namespace whose prompts the operator's page may show token by token (acme, acme/team; /: of "
     "no tenant; *: all). In a variable spaces separate several.",
     .repeatable = true, .split = " ", .check = is_namespace},
    {"secret", OPT_STR, NULL, 0, 0, NULL,
     "Text mixed into all keys of records: workers share records only when it agrees. Better given "
     "by a variable, or as file:PATH, which holds it.",
     .props = OPT_SECRET},
    {"access-log", OPT_STR, NULL, 0, 0, NULL,
     "File for one JSON line a request: which records it used, for tools/hit-rates, and of each "
     "prompt what was decided on, what was chosen and what came of it."},
    {"kv-pages", OPT_STR, "auto", 0, 0, "auto|SIZE[:RESERVE]",
     "KV memory of running requests; auto: eight full contexts, at most 2 GiB. With --device cuda "
     "of running requests and records together, auto: most of what the weights leave, RESERVE: "
     "kept for records whatever running requests need. With several GPUs as one, of running "
     "requests alone.",
     .check = is_kv_pages},
    {"dtype", OPT_ENUM, "auto", 0, 0, "auto|f32|bf16|fp8|int8|file",
     "Arithmetic; auto never goes below the file's own precision. fp8 (GPU), int8 (GPU, CPU with "
     "VNNI or AVX2, Arm with dotprod): products with weights of the layers in 8 bits; on a GPU "
     "half of the memory. "
     "file: what a model's file has in 4 to 8 bits stays so on a GPU, too, a third to a half of "
     "the memory (on a CPU it does in any case)."},
    {"kv-pages-dtype", OPT_ENUM, "auto", 0, 0, "auto|q8",
     "KV of running requests; auto: as the arithmetic; q8: 8 bits, half of bf16, a quarter of "
     "f32."},
    {"kv-dtype", OPT_ENUM, "auto", 0, 0, "auto|f32|f16|bf16|q8",
     "Stored KV; auto: f32 for F32 files, else f16; q8: 8 bits, half of f16."},
    {"threads", OPT_INT, "0", 0, 4096, NULL,
     "Compute threads; 0 = all cores that it may use (affinity, a container's CPU limit)."},
    {"device", OPT_STR, "cpu", 0, 0, "auto|cpu|cuda[:N[+N…],…]",
     "What computes: cpu, cuda (GPU 0), cuda:N, or cuda:0+1: the model in two GPUs (2 to 8: tensor "
     "parallelism). Of a gateway: cuda:0,1 starts a worker on each of these GPUs, cuda:0+1,2+3 one "
     "on each pair, auto one on each GPU that there is, else one on the CPU.",
     .check = is_devices},
    {"ctx", OPT_INT, "0", 0, 1 << 24, NULL, "Context in tokens; 0 = the model's."},
    {"embed", OPT_ENUM, "auto", 0, 0, "auto|cls|mean|last",
     "Serve /v1/embeddings instead of chats, and pool by the first token, the mean or the last "
     "one. auto: where the model is an encoder, or files of sentence-transformers stand beside it; "
     "as they say."},
    {"chat-template", OPT_STR, NULL, 0, 0, NULL, "Chat format by name instead of the file's."},
    {"rerank-order", OPT_ENUM, "auto", 0, 0, "auto|document_first|query_first",
     "Of a prompt that asks whether a document answers a query. document_first: a document's KV "
     "serves every query exactly; auto: as the model was trained, where that is known, else so."},
    {"rerank-template", OPT_STR, NULL, 0, 0, "…{document}…{query}…",
     "That prompt, also with {instruction}; it may name control tokens. Default: Qwen3-Reranker's "
     "own, else a question by the model's chat template.",
     .check = is_template},
    {"rerank-answers", OPT_STR, "yes no", 0, 0, "YES NO",
     "The two words, a token each, whose chances are the score.", .check = is_two_words},
    {"served-model-name", OPT_STR, NULL, 0, 0, NULL,
     "Name in the API; several are split by commas; default: the file's name."},
    {"max-running", OPT_INT, "16", 1, 4096, NULL, "Choices decoded together."},
    {"draft-rows", OPT_INT, "8", 0, 64, NULL,
     "Rows of a decode step up to which it also tries tokens that followed the answer's last ones "
     "in the prompt or the answer before (prompt look-up): more tokens a step where an answer "
     "quotes, the same answer. 0: never."},
    {"max-queue", OPT_INT, "64", 1, 65536, NULL, "Requests waiting before 429."},
    {"order", OPT_ENUM, "sjf", 0, 0, "fifo|sjf|edf",
     "Who goes first of waiting requests: as they come, the shortest (one may be overtaken for "
     "three times as long as it will run), or the earliest deadline (kvblend.max_ttft_ms)."},
    {"profile", OPT_STR, NULL, 0, 0, NULL,
     "What kvblend-bench quality calibrate has written for the model; default: the one it left in "
     "the cache folder, else shares of the depth."},
    {"strategy", OPT_STR, "auto", 0, 0,
     "auto|qs|query|side|hkvd|sink|reuse|prefix|full|always[:NAME]",
     "Of modes auto and blend. auto: the controller chooses for each request by predicted time "
     "what "
     "is reused from where, strategy and ratio; a name: it keeps to this one and exact prefills; "
     "always: this one (default: the profile's), at --ratio, whatever the time.",
     .check = is_strategy},
    {"ratio", OPT_DOUBLE, NULL, 0, 1, NULL,
     "Share of reused tokens to recompute; default: the profile's."},
    {"guard", OPT_STR, "0.01", 0, 0, "SHARE[:KL]",
     "Share of blended requests that the guard compares with a full prefill in idle time, 0: none, "
     "and no reaction; and the mean KL(full || blend) in nats that it lets pass, by default twice "
     "the profile's loss, as a share of what plain reuse loses on the same prompts.",
     .check = is_guard},
    {"presets", OPT_STR, NULL, 0, 0, NULL, "Folder of segment presets; default: built in."},
    {"sandbox", OPT_BOOL, "false", 0, 0, NULL,
     "Once the model is loaded give up all system calls that serving does not need, starting "
     "programs first of all. Not with --device cuda."},
    {0}};
