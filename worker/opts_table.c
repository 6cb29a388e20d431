#include "worker/opts_table.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* ---- texts with an inner form ---- */

/* A size of n characters, not 0. */
static int parse_size_of(const char *text, size_t n, uint64_t *ret)
{
    char copy[32];
    if (n == 0 || n >= sizeof copy) return -EINVAL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return opt_parse_size(copy, ret) < 0 || *ret == 0 ? -EINVAL : 0;
}

int wk_parse_quota(const char *text, size_t *ret_ns_len, uint64_t *ret_ram, uint64_t *ret_nvme)
{
    const char *eq = strchr(text, '='), *p = eq ? eq + 1 : text;
    if (!eq || eq == text || !*p) return -EINVAL;
    *ret_ns_len = (size_t)(eq - text);
    *ret_ram = *ret_nvme = 0;
    while (*p) {
        const bool ram = strncmp(p, "ram:", 4) == 0;
        if (!ram && strncmp(p, "nvme:", 5) != 0) return -EINVAL;
        p += ram ? 4 : 5;
        const size_t n = strcspn(p, ",");
        if (parse_size_of(p, n, ram ? ret_ram : ret_nvme) < 0) return -EINVAL;
        p += n + (p[n] == ',');
    }
    return 0;
}

int wk_parse_ttl(const char *text, size_t *ret_ns_len, uint64_t *ret_ms)
{
    const char *eq = strchr(text, '=');
    *ret_ns_len = eq ? (size_t)(eq - text) : 0;
    return eq == text ? -EINVAL : opt_parse_duration_ms(eq ? eq + 1 : text, ret_ms);
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

/* A device has a size of its own. */
static bool is_nvme(const char *text)
{
    const char *colon = strrchr(text, ':');
    uint64_t bytes;
    struct stat st;
    if (!colon) return stat(text, &st) == 0 && S_ISBLK(st.st_mode);
    return colon > text && opt_parse_size(colon + 1, &bytes) == 0 && bytes > 0;
}

static bool is_quota(const char *text)
{
    size_t n;
    uint64_t ram, nvme;
    return wk_parse_quota(text, &n, &ram, &nvme) == 0;
}

static bool is_ttl(const char *text)
{
    size_t n;
    uint64_t ms;
    return wk_parse_ttl(text, &n, &ms) == 0;
}

static bool is_kv_pages(const char *text)
{
    uint64_t bytes, reserve;
    return wk_parse_kv_pages(text, &bytes, &reserve) == 0;
}

static bool is_guard(const char *text)
{
    double share, kl;
    return wk_parse_guard(text, &share, &kl) == 0;
}

/* ---- the table ---- */

const struct opt_def wk_opts_table[] = {
    {"ram", OPT_SIZE, "1GiB", 1 << 20, 1e15, NULL, "Hard budget of the KV records kept in RAM."},
    {"nvme", OPT_STR, NULL, 0, 0, "PATH:SIZE",
     "File or device for records that RAM has no room for; hard budget. A device needs no size.",
     .check = is_nvme},
    {"redis", OPT_STR, NULL, 0, 0, NULL,
     "URL of a Redis shared by workers: redis://, rediss://, redis-cluster://, redis-sentinel://, "
     "unix://; in a variable spaces separate several.",
     .repeatable = true, .props = OPT_SECRET, .split = " "},
    {"policy", OPT_ENUM, "lru", 0, 0, "lru|arc", "Eviction from RAM and NVMe."},
    {"codec", OPT_ENUM, "none", 0, 0, "none|q8",
     "What sinks to NVMe and Redis: q8 = 8 bits, half of f16; Redis is shared by workers that say "
     "the same."},
    {"quota", OPT_STR, NULL, 0, 0, "NS=ram:SIZE,nvme:SIZE",
     "Hard caps of a namespace's records; in a variable spaces separate several.",
     .repeatable = true, .split = " ", .check = is_quota},
    {"ttl", OPT_STR, NULL, 0, 0, "[NS=]DURATION",
     "Life of records, or of a namespace's; none or 0 = for ever.", .repeatable = true,
     .check = is_ttl},
    {"nvme-write-budget", OPT_SIZE, "0", 0, 0, NULL,
     "Bytes a day written to NVMe; 0 = the size of the drive."},
    {"tier-wait", OPT_DURATION, "0", 0, 60000, NULL,
     "Load from a slower tier even where computing is predicted to be faster, if it takes no "
     "longer than this."},
    {"secret", OPT_STR, NULL, 0, 0, NULL,
     "Text mixed into all keys of records: workers share records only when it agrees. Better given "
     "by a variable or --secret-file.",
     .props = OPT_SECRET},
    {"secret-file", OPT_STR, NULL, 0, 0, NULL, "File with that text."},
    {"access-log", OPT_STR, NULL, 0, 0, NULL,
     "File for one JSON line a request: which records it used, for tools/hit-rates."},
    {"kv-pages", OPT_STR, "auto", 0, 0, "auto|SIZE[:RESERVE]",
     "KV memory of running requests; auto: eight full contexts, at most 2 GiB. With --device cuda "
     "of running requests and records together, auto: most of what the weights leave, RESERVE: "
     "kept for records whatever running requests need.",
     .check = is_kv_pages},
    {"dtype", OPT_ENUM, "auto", 0, 0, "auto|f32|bf16",
     "Arithmetic; auto never goes below the file's own precision."},
    {"weights", OPT_ENUM, "auto", 0, 0, "auto|bf16|fp8|int8",
     "Weights of the layers; auto: as the arithmetic. fp8 and int8 halve their memory, on a GPU."},
    {"kv-dtype", OPT_ENUM, "auto", 0, 0, "auto|f32|f16|bf16|q8",
     "Stored KV; auto: f32 for F32 files, else f16; q8: 8 bits, half of f16."},
    {"threads", OPT_INT, "0", 0, 4096, NULL, "Compute threads; 0 = all cores."},
    {"device", OPT_STR, "cpu", 0, 0, NULL, "What computes: cpu, cuda, or cuda:N for GPU number N."},
    {"gemm", OPT_STR, "auto", 0, 0, NULL, "Force a GEMM candidate by name; auto measures."},
    {"ctx", OPT_INT, "0", 0, 1 << 24, NULL, "Context in tokens; 0 = the model's."},
    {"chat-template", OPT_STR, NULL, 0, 0, NULL, "Chat format by name instead of the file's."},
    {"served-model-name", OPT_STR, NULL, 0, 0, NULL,
     "Name in the API; several are split by commas; default: the file's name."},
    {"max-running", OPT_INT, "16", 1, 4096, NULL, "Choices decoded together."},
    {"max-queue", OPT_INT, "64", 1, 65536, NULL, "Requests waiting before 429."},
    {"order", OPT_ENUM, "sjf", 0, 0, "fifo|sjf|edf",
     "Who goes first of waiting requests: as they come, the shortest (one may be overtaken for "
     "three times as long as it will run), or the earliest deadline (kvblend.max_ttft_ms)."},
    {"profile", OPT_STR, NULL, 0, 0, NULL,
     "What kvblend-bench quality calibrate has written for the model; default: the one it left in "
     "the cache folder, else shares of the depth."},
    {"strategy", OPT_ENUM, NULL, 0, 0, "qs|query|side|hkvd|sink|reuse|prefix|full",
     "Strategy of mode auto and blend; default: the profile's."},
    {"ratio", OPT_DOUBLE, NULL, 0, 1, NULL,
     "Share of reused tokens to recompute; default: the profile's."},
    {"guard", OPT_STR, "0.01", 0, 0, "SHARE[:KL]",
     "Share of blended requests that the guard compares with a full prefill in idle time, 0: none, "
     "and no reaction; and the mean KL(full || blend) in nats that it lets pass, by default twice "
     "the profile's loss, as a share of what plain reuse loses on the same prompts.",
     .check = is_guard},
    {"controller", OPT_BOOL, "true", 0, 0, NULL,
     "For each request choose what is reused from where, strategy and ratio by predicted time; "
     "off: "
     "--strategy and --ratio for all."},
    {"decision-log", OPT_STR, NULL, 0, 0, NULL,
     "File for one JSON line a prompt: snapshot, choice and what came of it."},
    {"presets", OPT_STR, NULL, 0, 0, NULL, "Folder of segment presets; default: built in."},
    {"sandbox", OPT_BOOL, "false", 0, 0, NULL,
     "Once the model is loaded give up all system calls that serving does not need, starting "
     "programs first of all. Not with --device cuda."},
    {0}};
