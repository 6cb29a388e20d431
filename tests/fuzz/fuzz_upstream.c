/* Fuzz target: any bytes as what a backend answers: a completion, a stream of events, a list of
 * models, a page of metrics, a worker's feed. The first byte chooses. Events are counted alike
 * however they are cut. */
#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"
#include "gateway/fleet/fleet_int.h"
#include "gateway/fleet/residency.h"
#include "gateway/request/merge.h"
#include "gateway/request/usage.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void sound(const struct gw_usage *u)
{
    ASSERT(u->prompt <= GW_USAGE_MAX && u->completion <= GW_USAGE_MAX && u->cached <= GW_USAGE_MAX);
}

static void completion(const char *p, size_t len)
{
    struct gw_usage u = {0};
    gw_usage_answer(&u, p, len);
    sound(&u);
}

static void events(const char *p, size_t len)
{
    struct gw_usage whole = {0}, parts = {0};
    enum gw_bring most = GW_BRING_NOTHING;
    gw_usage_events(&whole, p, len);
    sound(&whole);
    ASSERT(whole.n_events <= len / 6);
    for (size_t at = 0; at < len;) { /* a line is the least that comes */
        const char *nl = memchr(p + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - p) + 1 - at : len - at;
        enum gw_bring b = gw_usage_bring(p + at, n);
        if (b > most) most = b;
        gw_usage_events(&parts, p + at, n);
        at += n;
    }
    ASSERT(memcmp(&whole, &parts, sizeof whole) == 0);
    ASSERT(gw_usage_bring(p, len) == most);
}

static void models(const char *p, size_t len)
{
    struct gw_fleet f = {.m = PTHREAD_MUTEX_INITIALIZER};
    struct gw_target t = {.worker = len & 1};
    struct buf body = BUF_INIT;
    ASSERT(buf_add(&body, p, len) == 0);
    (void)fleet_models_read(&f, &t, &body);
    fleet_models_clear(&t.models);
    buf_fini(&body);
}

static void metrics(const char *p, size_t len)
{
    struct gw_merge m = {0};
    struct buf out = BUF_INIT;
    ASSERT(gw_merge_page(&m, -1, "# HELP a A.\n# TYPE a gauge\na 1\n", 31) == 0);
    if (gw_merge_page(&m, 0, p, len) == 0 && gw_merge_page(&m, 1, p, len / 2) == 0)
        ASSERT(gw_merge_render(&m, &out) == 0);
    buf_fini(&out);
    gw_merge_fini(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len == 0) return 0;
    const char *p = (const char *)data + 1;
    struct gw_residency_line line;
    char *text;
    len--;
    switch (data[0] % 5) {
    case 0:
        completion(p, len);
        break;
    case 1:
        events(p, len);
        break;
    case 2:
        models(p, len);
        break;
    case 3:
        metrics(p, len);
        break;
    default:
        text = mem_strndup(p, len);
        ASSERT(text);
        (void)gw_residency_parse(text, &line);
        mem_free(text);
    }
    return 0;
}
