/* kvblend-worker: serves one model. See docs/api.md for the routes. */
#include "worker/worker.h"

#include "base/log.h"
#include "base/opt.h"
#include "base/sandbox.h"
#include "fusor/model/map.h"

#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct wk_opts o;
    struct worker *w;
    struct err err = {0};
    int rc;

    sandbox_no_new_privs();
    log_set_name("kvblend-worker");
    map_guard("kvblend-worker", WK_EXIT_MODEL_FILE);
    rc = wk_opts_read(argc, argv, &o, &err);
    if (rc == 1) return 0;
    if (rc < 0) {
        (void)fprintf(stderr, "kvblend-worker: %s\n", err.msg);
        return 2;
    }
    opts_hide_argv(o.store, argc, argv);
    rc = wk_create(&o, &w, &err);
    if (rc < 0) {
        log_event(LOG_ERROR, "start", "error=\"%s\"", err.msg);
        wk_opts_fini(&o);
        return 1;
    }
    rc = wk_run(w);
    if (wk_is_loading(w)) _exit(rc); /* told to end while the model loads: nothing to hand back */
    wk_destroy(w);
    wk_opts_fini(&o);
    return rc;
}
