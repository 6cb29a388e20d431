#include "base/opt_removed.h"

#include "base/opt_int.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* At most 100 characters: with the option's name they fit in an error's sentence. */
static const char measured[] =
    "kvblend-bench quality and throughput measure map_reduce and map_rerank (--strategies)";
static const char kept_policies[] = "lru is the default, arc keeps popular records through scans",
                  fixed_share[] = "ratio says how many tokens are recomputed",
                  one_schedule[] =
                      "hkvd filters gradually, the others keep their choice in all layers",
                  no_static[] = "use side, which asks the question as cheaply",
                  no_hybrid[] = "use qs, which finds what hybrid added",
                  one_policy[] = "policy says it for RAM and NVMe",
                  one_codec[] = "codec says it for NVMe and Redis",
                  one_namespace[] =
                      "namespace says it: NS=ram:SIZE,nvme:SIZE,ttl:DURATION; NS * is all",
                  one_size[] = "kv_pages says it: auto or SIZE, :RESERVE behind it",
                  one_guard[] = "guard says it: SHARE, :KL behind it",
                  one_client[] = "timeouts.client says it for body and answer",
                  a_constant[] = "it is a constant now";

/* clang-format off */
static const struct {
    const char *flag;
    const char *key;     /* in a file; NULL: the flag's name */
    const char *value;   /* "a|b": these of its values; NULL: the option as a whole */
    const char *instead;
    const char *line; /* of a file in that section, the value as @; NULL: not by the value alone */
} removed[] = {
    {"strategy-parallel", "strategy.parallel",      NULL, measured},
    {"map-tokens",        "strategy.map_tokens",    NULL, measured},
    {"map-prompt",        "strategy.map_prompt",    NULL, measured},
    {"reduce-prompt",     "strategy.reduce_prompt", NULL, measured},
    {"rerank-prompt",     "strategy.rerank_prompt", NULL, measured},
    {"redis-urls",        NULL,                     NULL, "redis takes several, split by spaces"},
    {"mass",              "worker.mass",            NULL, fixed_share},
    {"min-ratio",         "worker.min_ratio",       NULL, fixed_share},
    {"strategy",          "worker.strategy",        "static", no_static},
    {"strategy",          "worker.strategy",        "hybrid", no_hybrid},
    {"strategy",          "worker.strategy",        "map_reduce|map_rerank", measured},
    {"policy",            "worker.policy",          "clock|s3fifo|gdsf", kept_policies},
    {"ram-policy",        "worker.ram_policy",      NULL, one_policy, "policy: @"},
    {"nvme-policy",       "worker.nvme_policy",     NULL, one_policy, "policy: @"},
    {"nvme-codec",        "worker.nvme_codec",      NULL, one_codec, "codec: @"},
    {"redis-codec",       "worker.redis_codec",     NULL, one_codec, "codec: @"},
    {"side-share",        "worker.side_share",      NULL, a_constant},
    {"tier-price",        "worker.tier_price",      NULL, a_constant},
    {"ttl-ns",            "worker.ttl_ns",          NULL, one_namespace},
    {"ttl", "worker.ttl", NULL, one_namespace, "namespace: [\"*=ttl:@\"]"},
    {"quota",             "worker.quota",           NULL, one_namespace},
    {"nvme-write-budget", "worker.nvme_write_budget", NULL, "nvme says it: PATH:SIZE:SIZE/d"},
    {"secret-file", "worker.secret_file", NULL, "secret takes file:PATH", "secret: file:@"},
    {"decision-log",      "worker.decision_log",    NULL, "access_log has the decisions, too"},
    {"controller",        "worker.controller",      NULL, "off is strategy: always or always:NAME"},
    {"weights",           "worker.weights",         NULL, "dtype says it: fp8 or int8", "dtype: @"},
    {"gemm",              "worker.gemm",            NULL, "the variable KVBLEND_GEMM forces one"},
    {"tier-wait",         "worker.tier_wait",       NULL, "which way is faster is predicted"},
    {"registry-group",    "registry.group",         NULL, "the URL says it: ?group=NAME"},
    {"exit-on-stdin-eof", NULL, NULL, "the variable KVBLEND_EXIT_ON_STDIN_EOF says it"},
    {"gpu",               "worker.gpu",             NULL, one_size, "kv_pages: @"},
    {"gpu-reserve",       "worker.gpu_reserve",     NULL, one_size},
    {"guard-sample",      "worker.guard_sample",    NULL, one_guard, "guard: @"},
    {"guard-kl",          "worker.guard_kl",        NULL, one_guard},
    {"quality-loss",      "worker.quality_loss",    NULL, "the profile's loss says it"},
    {"hang-timeout",      "worker.hang_timeout",    NULL, a_constant},
    {"health-successes",  "health.successes",       NULL, a_constant},
    {"cors-max-age",      "cors.max_age",           NULL, a_constant},
    {"head-timeout",      "timeouts.client_head",   NULL, a_constant},
    {"body-timeout",      "timeouts.client_body",   NULL, one_client, "client: @"},
    {"write-timeout",     "timeouts.client_write",  NULL, one_client, "client: @"},
    /* of requests, profiles and the methods that kvblend-bench compares */
    {"kvblend.mass",      NULL,                     NULL, fixed_share},
    {"kvblend.schedule",  NULL,                     NULL, one_schedule},
    {"kvblend.tensor",    NULL,                     NULL, "hkvd compares K"},
    {"kvblend.share",     NULL,                     NULL, no_hybrid},
};
/* clang-format on */
enum { N_REMOVED = sizeof removed / sizeof removed[0] };

/* Its place in the table; N_REMOVED: it never was. */
static size_t find_removed(const char *name, const char *value)
{
    for (size_t i = 0; i < N_REMOVED; i++) {
        const char *of = removed[i].value;
        if (!of != !value || (of && !opt_in_values(of, value))) continue;
        if (opt_same_name(removed[i].flag, name, SIZE_MAX) ||
            (removed[i].key && opt_same_name(removed[i].key, name, SIZE_MAX)))
            return i;
    }
    return N_REMOVED;
}

const char *opt_removed(const char *name, const char *value)
{
    const size_t i = find_removed(name, value);
    return i < N_REMOVED ? removed[i].instead : NULL;
}

bool opt_removed_line(const char *key, const char *text, char *ret, size_t size)
{
    const size_t i = find_removed(key, NULL);
    const char *line = i < N_REMOVED ? removed[i].line : NULL;
    const char *at = line ? strchr(line, '@') : NULL;
    return at && snprintf(ret, size, "%.*s%s%s", (int)(at - line), line, text, at + 1) < (int)size;
}

bool opt_removed_section(const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < N_REMOVED; i++)
        if (removed[i].key && strncmp(removed[i].key, name, n) == 0 && removed[i].key[n] == '.')
            return true;
    return false;
}
