#include "gateway/process/memory.h"

#include "base/buf.h"
#include "base/jobs.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "segment/segment.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAVE_EVERY_MS = 180000 }; /* chosen: what a crash may cost; a save takes milliseconds */

struct gw_memory {
    struct seg_learner *learner;
    struct jobs *pool;
    struct http_timer timer;
    char *path;
    uint64_t n_texts; /* that the file knows */
    atomic_bool busy;
};

static uint64_t texts_seen(const struct gw_memory *m)
{
    struct seg_learner_stats st;
    seg_learner_get_stats(m->learner, &st);
    return st.n_texts;
}

static void save(struct gw_memory *m)
{
    uint64_t n = texts_seen(m);
    if (n == m->n_texts) return;
    int r = seg_learner_save(m->learner, m->path);
    if (r < 0)
        log_event(LOG_WARN, "segment.memory", "path=%s error=%s, going on without", m->path,
                  err_name(r));
    else
        m->n_texts = n;
}

static void save_job(void *arg) /* helper thread */
{
    struct gw_memory *m = arg;
    save(m);
    atomic_store(&m->busy, false);
}

static void on_save_due(void *arg)
{
    struct gw_memory *m = arg;
    http_timer_set(&m->timer, SAVE_EVERY_MS);
    if (atomic_exchange(&m->busy, true)) return;
    if (jobs_submit(m->pool, save_job, m) < 0) atomic_store(&m->busy, false);
}

static int choose_path(const char *setting, const char *run_dir, struct buf *out)
{
    const char *cache = getenv("CACHE_DIRECTORY");
    if (setting) return buf_adds(out, setting);
    bool one = cache && *cache && !strchr(cache, ':');
    return buf_addf(out, "%s/segment.memory", one ? cache : run_dir);
}

/* What another version has learned stays for its return; ours takes the place. */
static void put_aside(const struct gw_memory *m)
{
    struct buf old = BUF_INIT;
    (void)buf_addf(&old, "%s.old", m->path);
    int r = !buf_cstr(&old) ? -ENOMEM : rename(m->path, old.data) < 0 ? -errno : 0;
    log_event(LOG_WARN, "segment.memory", "path=%s of another version, %s%s", m->path,
              r < 0 ? "ignoring: " : "now ", r < 0 ? err_name(r) : old.data);
    buf_fini(&old);
}

static void load_memory(struct gw_memory *m)
{
    struct seg_learner_stats st;
    int r = seg_learner_load(m->learner, m->path);
    if (r == -ESTALE)
        put_aside(m);
    else if (r < 0 && r != -ENOENT)
        log_event(LOG_WARN, "segment.memory", "path=%s error=%s, ignoring", m->path, err_name(r));
    seg_learner_get_stats(m->learner, &st);
    if (r == 0)
        log_event(LOG_INFO, "segment.memory", "path=%s namespaces=%zu bytes=%zu", m->path,
                  st.n_spaces, st.bytes);
}

int gw_memory_create(struct http_loop *loop, struct jobs *pool, struct seg_learner *learner,
                     const char *setting, const char *run_dir, struct gw_memory **ret)
{
    struct buf path = BUF_INIT;
    *ret = NULL;
    if (setting && strcmp(setting, "off") == 0) return 0;
    struct gw_memory *m = mem_zalloc(sizeof *m);
    int r = m ? choose_path(setting, run_dir, &path) : -ENOMEM;
    if (r == 0 && !buf_cstr(&path)) r = -ENOMEM;
    if (r < 0) {
        buf_fini(&path);
        mem_free(m);
        return r;
    }
    m->learner = learner;
    m->pool = pool;
    m->path = buf_take(&path, NULL);
    load_memory(m);
    http_timer_init(&m->timer, loop, on_save_due, m);
    http_timer_set(&m->timer, SAVE_EVERY_MS);
    *ret = m;
    return 0;
}

void gw_memory_destroy(struct gw_memory *m)
{
    if (!m) return;
    save(m);
    http_timer_fini(&m->timer);
    mem_free(m->path);
    mem_free(m);
}
