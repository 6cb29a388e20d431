#include "worker/opts_table.h"

const struct opt_def wk_opts_table[] = {
    {"ram", OPT_SIZE, "1GiB", 1 << 20, 1e15, NULL, "Hard budget of the KV records kept in RAM."},
    {"gpu", OPT_STR, NULL, 0, 0, NULL,
     "With --device cuda: memory of the GPU for running requests and for records together, a size "
     "or auto, most of what the weights leave. Default: --kv-pages if that is given, else auto."},
    {"gpu-reserve", OPT_SIZE, "0", 0, 0, NULL,
     "Of that, kept for records whatever running requests need."},
    {"nvme", OPT_STR, NULL, 0, 0, NULL,
     "PATH:SIZE of a file or device for records that RAM has no room for; hard budget."},
    {"redis", OPT_STR, NULL, 0, 0, NULL,
     "URL of a Redis shared by workers: redis://, rediss://, redis-cluster://, redis-sentinel://, "
     "unix://; in a variable spaces separate several.",
     .repeatable = true, .props = OPT_SECRET, .split = " "},
    {"ram-policy", OPT_ENUM, "lru", 0, 0, "lru|arc", "Eviction from RAM."},
    {"nvme-policy", OPT_ENUM, "lru", 0, 0, "lru|arc", "Eviction from NVMe."},
    {"nvme-codec", OPT_ENUM, "none", 0, 0, "none|q8",
     "What sinks to NVMe: q8 = 8 bits, half of f16."},
    {"redis-codec", OPT_ENUM, "none", 0, 0, "none|q8",
     "The same of Redis; shared by workers that say the same."},
    {"side-share", OPT_DOUBLE, "0.05", 0.001, 0.5, NULL,
     "Share of --ram for K of one layer of records that have sunk to a slower tier."},
    {"quota", OPT_STR, NULL, 0, 0, NULL,
     "NS=ram:SIZE,nvme:SIZE: hard caps of a namespace's records; in a variable spaces separate "
     "several.",
     .repeatable = true, .split = " "},
    {"ttl", OPT_DURATION, "0", 0, 0, NULL, "Life of a record; 0 = for ever."},
    {"ttl-ns", OPT_STR, NULL, 0, 0, NULL, "NS=DURATION: life of a namespace's records.",
     .repeatable = true},
    {"nvme-write-budget", OPT_SIZE, "0", 0, 0, NULL,
     "Bytes a day written to NVMe; 0 = the size of the drive."},
    {"tier-wait", OPT_DURATION, "0", 0, 60000, NULL,
     "Load from a slower tier even where computing is predicted to be faster, if it takes no "
     "longer "
     "than this."},
    {"secret", OPT_STR, NULL, 0, 0, NULL,
     "Text mixed into all keys of records: workers share records only when it agrees. Better given "
     "by a variable or --secret-file.",
     .props = OPT_SECRET},
    {"secret-file", OPT_STR, NULL, 0, 0, NULL, "File with that text."},
    {"access-log", OPT_STR, NULL, 0, 0, NULL,
     "File for one JSON line a request: which records it used, for kvblend-bench tiers hits."},
    {"kv-pages", OPT_SIZE, "0", 0, 0, NULL,
     "KV memory of running requests; 0 = eight full contexts, at most 2 GiB."},
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
    {"guard-sample", OPT_DOUBLE, "0.01", 0, 1, NULL,
     "Share of blended requests that the guard compares with a full prefill in idle time; 0: none, "
     "and no reaction."},
    {"guard-kl", OPT_DOUBLE, "0", 0, 100, NULL,
     "Mean KL(full || blend) in nats that the guard lets pass; 0: twice the profile's loss, as a "
     "share of what plain reuse loses on the same prompts."},
    {"controller", OPT_BOOL, "true", 0, 0, NULL,
     "For each request choose what is reused from where, strategy and ratio by predicted time; "
     "off: "
     "--strategy and --ratio for all."},
    {"quality-loss", OPT_DOUBLE, NULL, 0, 1, NULL,
     "What the controller may lose against an exact answer, as a share of what plain reuse loses; "
     "default: the profile's."},
    {"tier-price", OPT_STR, NULL, 0, 0, NULL,
     "TIER=PRICE,…: what a GB of a tier costs, in any unit: new records are written to the "
     "cheapest "
     "first whose load hides behind computing. Default: ram=3,nvme=0.1,redis=3."},
    {"decision-log", OPT_STR, NULL, 0, 0, NULL,
     "File for one JSON line a prompt: snapshot, choice and what came of it."},
    {"presets", OPT_STR, NULL, 0, 0, NULL, "Folder of segment presets; default: built in."},
    {"sandbox", OPT_BOOL, "false", 0, 0, NULL,
     "Once the model is loaded give up all system calls that serving does not need, starting "
     "programs first of all. Not with --device cuda."},
    {0}};
