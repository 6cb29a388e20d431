/* What is asked about the gateway, its targets, keys and workers: status, quality, targets, keys,
 * profile, mrc, tiers, explain; and drain, enable, reload, whose answers say what became of it. */
#include "tools/ctl/ctl.h"

#include <string.h>

static const char status_view[] =
    "<gateway:gateway   [{?draining}draining|{?ready}ready|not ready], version {version}, "
    "pid {pid}, up {uptime_s:time}\n"
    "requests  {in_flight} of {in_flight_max} running, {waiting} of {waiting_max} waiting\n"
    "[{?shed>0}shed      {shed:amounts}\n]>"
    "<upstreams:upstream  {name} {state} at {address}[{?breaker=closed}|, breaker {breaker}]"
    "[{?reason}: {reason}]\n>"
    "<workers:worker {index}  {state} at {address}"
    "[{?own}[{?pid>0}, pid {pid}], {restarts} restarts][{?reason}: {reason}]\n"
    "<status:[{?model}|  loading {100*progress} %\n]"
    "<model:  model   {id} ({arch}, {layers} layers), context {max_model_len}, kv {kv_dtype}\n>"
    "<compute:  compute {threads} threads, {isa}, gemm {gemm}\n>"
    "[{?engine}  engine  {engine.running} running, {engine.waiting} waiting, {builds.pending} "
    "builds\n]"
    "<store:  store   {ram_bytes:bytes} of {ram_budget_bytes:bytes}, {records} records "
    "({pinned} pinned), {evictions} evictions\n"
    "  hits    {hits} of {hits+misses} look-ups[{?misses>0}, {misses:counts}]\n>"
    "<tiers:[{?state=ok}|  tier    {tier} [{?state=refuses}REFUSES|{state}][{?reason}: {reason}]"
    "\n]>"
    "<blend:  blend   [{?enabled}{strategy} at ratio {ratio:g}|off: {reason}]\n>>>";

#define MEANS(OF, TITLE)                                                                           \
    "<" OF ":  " TITLE " KL {kl:.4} nats ({kl_low:.4} to {kl_high:.4}), limit {limit:.4}, "        \
    "over {shadows} shadows\n            the best token is the same in {100*agreement:.1} %"       \
    "[{?loss}; plain reuse: KL {reuse_kl:.4}, of which {100*loss} % are left]\n>"
static const char quality_view[] =
    "[{?workers.0}|no worker is there to be watched\n]"
    "<workers:worker {index}  {address}\n[{?quality}|  no answer\n]"
    "<quality:"
    "[{?state=exact}  EXACT     blending is off: quality was too low at every setting tried"
    "|{?state=raised}  RAISED    to level {level} of {levels}: {strategy} at ratio {ratio:g}"
    "|{?state=off}  off       [{?self_test=failed}the model's self-test failed: nothing is blended"
    "|{?sample>0}nothing is blended here|--guard is 0]"
    "|  normal    {strategy} at ratio {ratio:g}, as configured]\n" MEANS("now", "now      ")
        MEANS("level_below", "below    ") "[{?alarms>0}" MEANS(
            "last_change", "then     ") "]"
                                        "  shadows   {100*sample:.1} % of requests; {shadows.done} "
                                        "done, {shadows.pending} pending, "
                                        "{shadows.dropped} dropped, {shadows.failed} failed\n"
                                        "  alarms    {alarms}, returns {returns}\n>>";

static const char targets_view[] =
    "TARGET\tKIND\tSTATE\tBREAKER\t^IN FLIGHT\t^SENT\t^FAILED\t^BUSY\t^FIRST BYTE\t^WAIT\tMODELS\t"
    "REASON\n"
    "<targets:{name}\t{kind}\t{state}\t{breaker}\t{in_flight}[{?in_flight_max>0}/{in_flight_max}]\t"
    "{picked}\t{failed+timeouts}\t{busy}\t[{?ttfb_ms>0}{ttfb_ms:.1} ms|-]\t"
    "[{?predicted_wait_ms}{predicted_wait_ms} ms|-]\t{models:list40}\t{reason}\n>";

static const char keys_view[] =
    "KEY\t^WEIGHT\t^PRIORITY\t^OBJECTIVE\t^WAITING\t^SHARE\t^RUNNING\t^REQUESTS LEFT\t"
    "^TOKENS LEFT\n"
    "<keys:{id}\t{weight:g}\t{priority}\t[{?max_ttft_ms>0}{max_ttft_ms} ms|-]\t{waiting}\t"
    "{100*work_share:.1} %\t{running}[{?concurrency>0}/{concurrency}]\t"
    "[{?rpm>0}{requests_left} of {rpm}|-]\t[{?tpm>0}{tokens_left} of {tpm}|-]\n>";

static const char profile_view[] =
    "source    {source}\n"
    "<profile:measured  {measured}\n"
    "strategy  {strategy}, {100*ratio:.1} % of the reused tokens recomputed, for a loss of "
    "{loss:.3}\n"
    "layers    {score_lo} to {score_last} score (sensitivity to the power of {sense_power:g}), "
    "{side_layer} is the sidecar's, K is checked at {check_layer}\n"
    "records   are built [{?sink_tokens>0}behind one token|with nothing before "
    "them][{?contexts>0}, "
    "in idle time once more behind each of {contexts} contexts of {context_tokens} tokens]\n"
    "[{?ratios.0}{?curves.0}\nLOSS<ratios:\t^R={:g}>\n"
    "<curves:{strategy}<losses:\t[{?}{:.3}|-]>\n>"
    "\nLOSS: distance from a full prefill (KL) as a share of plain reuse's, {reuse_kl:.4} nats\n]>";

static void prepare_profile(json_t *answer)
{
    json_t *profile = json_object_get(answer, "profile"), *curves = json_array(), *losses;
    const char *strategy;
    (void)json_object_set_new(profile, "score_last", json_real(ctl_num(profile, "score_hi") - 1));
    json_object_foreach(json_object_get(profile, "losses"), strategy, losses)
        (void)json_array_append_new(curves,
                                    json_pack("{s:s,s:O}", "strategy", strategy, "losses", losses));
    (void)json_object_set_new(profile, "curves", curves);
}

static const char tiers_view[] =
    "[{?data.0.worker}^WORKER\t]TIER\t^USED\t^OF\t^RECORDS\t^PINNED\t^HITS\t^LOADS\t^FIRST\t"
    "^TAIL\n"
    "<data:[{?worker}{worker}\t]{tier}\t{used_bytes:bytes}\t[{?capacity_bytes>0}{capacity_bytes:"
    "bytes}|?]\t{records}\t"
    "{pinned_bytes:bytes}\t{hits}\t[{?load_bytes_per_s>0}{1e-9*load_bytes_per_s:.2} GB/s|-]\t"
    "[{?load_bytes_per_s>0}{first_ms:.2} ms|-]\t[{?tail_age_s>0}{tail_age_s:time}|-]\n>"
    "\n"
    "<data:{tier}[{?worker} of worker {worker}]\n"
    "[{?misses>0}  misses    {misses:counts}\n]"
    "[{?rejected>0}  refused   {rejected:counts}\n]"
    "  evicted   {evictions}, expired {expired}, corrupt {corrupt}[{?forged>0}, forged {forged}]"
    "[{?breaker}, errors {errors}, timeouts {timeouts}\n"
    "  breaker   {breaker} (opened {breaker_opened} times)"
    "|, lost {lost}, waiting to be written {dirty}]\n"
    "[{?write_budget_ratio>0}  written   {100*write_budget_ratio:.1} % of the day's budget\n]"
    "[{?degraded}  degraded  {degraded}\n]>";

/* What was held where, what each way to answer would have cost, what was chosen and why, and what
 * came of it. RAM is where the other tiers are loaded to. */
static const char explain_view[] =
    "<data:[{?#>1}\n---- prompt {#} ----\n]"
    "request   {id} ({reply_id})\n"
    "prompt    {in.n_tok} tokens, {in.n_prefix} of them an exact prefix that was held"
    "[{?in.held_in} in {in.held_in}]\n"
    "decided   {out.strategy}, {100*out.ratio:.1} % of the reused tokens recomputed, "
    "{out.n_reused} chunks reused\n"
    "by        [{?by=controller}the controller|the rules: nothing to choose]\n"
    "because   {out.reason}\n"
    "[{?out.predicted.ttft_s>0}predicted {1e3*out.predicted.ttft_s:.1} ms of prefill "
    "(exact: {1e3*out.full.ttft_s:.1} ms)\n]"
    "measured  [{?measured.prefill_s>0}{1e3*measured.prefill_s:.1} ms of prefill, "
    "{1e3*measured.compute_s:.1} ms of it computing; {1e3*before_s:.1} ms before it"
    "|nothing: the request ended before its first token]\n"
    "[{?in.max_ttft_s>0}objective {1e3*in.max_ttft_s:.1} ms were left of max_ttft_ms\n]\n"
    "[{?measured.steps.0}STEP, LOAD\tOF\t^FROM MS\t^TO\t^COMPUTED\n]"
    "<measured.loads:{tier}\t{records} records, {bytes:bytes}\t{1e3*begin_s:.1}\t"
    "{1e3*end_s:.1}\t\n>"
    "<measured.steps:{name}\t[{?layers.1>0}layers {layers.0} to {layers.1}|]\t{1e3*begin_s:.1}\t"
    "{1e3*end_s:.1}\t{1e3*compute_s:.1}\n>"
    "[{?measured.steps.0}\n]"
    "[{?in.chunks.0}^CHUNK\t^TOKENS\tHELD IN\t^TO LOAD\tTHEN\n]"
    "<in.chunks:{#}\t{n}\t[{?held_in}{held_in}\t{bytes:bytes}|nowhere\t-]\t"
    "[{?reuse}reused|computed]\n>"
    "<in.tiers:[{?#>1}{name} was taken to load {1e-9*bytes_per_s:.3} GB/s, after "
    "{1e3*first_s:.1} ms and a queue of {1e3*queue_s:.1} ms\n]>"
    "[{?alternatives.0}"
    "\nwith all that was held reused, at the least ratio that keeps the quality:\n"
    "INSTEAD\t^RATIO\t^FIRST TOKEN MS\t^COMPUTE\t^LOAD\t^WAITING\n]"
    "<alternatives:{strategy}\t{ratio:g3}\t{1e3*ttft_s:.1}\t{1e3*compute_s:.1}\t{1e3*load_s:.1}\t"
    "{1e3*exposed_s:.1}\n>>";

/* The tier by its name, where the index is one (0 or above). */
static void name_tier(json_t *of, const char *index, const json_t *tiers)
{
    json_t *tier = json_array_get(tiers, (size_t)ctl_num(of, index));
    if (ctl_num(of, index) >= 0)
        (void)json_object_set(of, "held_in", json_object_get(tier, "name"));
}

static void prepare_explain(json_t *answer)
{
    json_t *data = json_object_get(answer, "data"), *decision, *chunk;
    size_t i, k;
    json_array_foreach(data, i, decision) {
        json_t *in = json_object_get(decision, "in"), *tiers = json_object_get(in, "tiers");
        name_tier(in, "prefix_tier", tiers);
        json_array_foreach(json_object_get(in, "chunks"), k, chunk)
            name_tier(chunk, "tier", tiers);
    }
}

/* What each size of RAM would find, its share as a bar; today's size stands among them. */
static const char mrc_view[] =
    "<workers:worker {index}  {address}\n[{?mrc}|  no answer\n]"
    "<mrc:[{?look_ups>0}  {look_ups} look-ups; the different records among them take "
    "{distinct_bytes:bytes}\n\n|  nothing was looked up yet\n]"
    "[{?points.0}^RAM\t^FOUND\t\n]"
    "<points:{bytes:bytes}\t{100*found:.1} %\t{bar}[{?now} (now)]\n>>>";

enum { BAR_CELLS = 30 };

static void add_bar(json_t *point)
{
    char bar[3 * BAR_CELLS + 1] = "";
    const int n = (int)(ctl_num(point, "found") * BAR_CELLS + 0.5);
    for (int i = 0; i < n && i < BAR_CELLS; i++)
        (void)strcat(bar, "█");
    (void)json_object_set_new(point, "bar", json_string(bar));
}

static void prepare_mrc(json_t *answer)
{
    json_t *workers = json_object_get(answer, "workers"), *worker, *point;
    size_t i, k;
    json_array_foreach(workers, i, worker) {
        json_t *mrc = json_object_get(worker, "mrc"), *points = json_object_get(mrc, "points");
        const double ram = ctl_num(mrc, "ram_bytes");
        if (json_array_size(points) == 0) continue;
        for (k = 0; k < json_array_size(points); k++)
            if (ctl_num(json_array_get(points, k), "bytes") >= ram) break;
        if (ctl_num(json_array_get(points, k), "bytes") == ram) (void)json_array_remove(points, k);
        (void)json_array_insert_new(
            points, k,
            json_pack("{s:f,s:f,s:b}", "bytes", ram, "found", ctl_num(mrc, "ram_found"), "now", 1));
        json_array_foreach(points, k, point)
            add_bar(point);
    }
}

static const char reload_view[] =
    "reloaded\n[{?restart_needed.0}changed, but needs a restart: {restart_needed:list}\n]";

const struct ctl_command ctl_views[] = {
    {"status", NULL, CTL_WATCH, "gateway and workers at a glance", "GET /admin/status",
     status_view},
    {"quality", NULL, CTL_WATCH,
     "how close blended answers are to a full prefill's, and what was done about it",
     "GET /admin/quality", quality_view},
    {"targets", NULL, CTL_WATCH, "every backend: health, breaker, load, models",
     "GET /admin/targets", targets_view},
    {"keys", NULL, CTL_WATCH, "every API key: what it may, has waiting and got of the work",
     "GET /admin/keys", keys_view},
    {"drain", "TARGET", 0, "send it no new requests", "POST /admin/targets/*/drain", targets_view},
    {"enable", "TARGET", 0, "send it requests again", "POST /admin/targets/*/enable", targets_view},
    {"reload", NULL, 0, "read the configuration file and the keys again", "POST /admin/reload",
     reload_view},
    {"profile", NULL, 0, "what calibration knows of the model: layers, losses, ratio",
     "GET /admin/profile", profile_view, prepare_profile},
    {"mrc", NULL, CTL_WATCH, "what share of the tokens looked up each size of RAM would find",
     "GET /admin/mrc", mrc_view, prepare_mrc},
    {"tiers", NULL, CTL_WATCH, "what each tier holds, how fast it is and what it refuses",
     "GET /admin/tiers", tiers_view},
    {"explain", "REQUEST_ID", 0,
     "why a request was served as it was, and what else it could have been",
     "GET /admin/decisions/*", explain_view, prepare_explain},
    {0}};
