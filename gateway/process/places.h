/* places: where things are that no option names: sockets, the model, the worker program.
 *
 * The sockets of one user's gateways live in $XDG_RUNTIME_DIR/kvblend, or /tmp/kvblend-UID where
 * that is not set; mode 0700, and refused when it belongs to somebody else or is a link, because
 * whoever owns it could answer in our place. Thread: any; blocking, so before the loop runs. */
#ifndef GATEWAY_PROCESS_PLACES_H
#define GATEWAY_PROCESS_PLACES_H

#include "base/err.h"

struct buf;

/* Make the folder and append its path. */
int gw_rundir_make(struct buf *out, struct err *err);
/* "unix:…/admin.sock", or "unix:…/admin-PID.sock" while a live gateway holds the first (1 then). A
 * socket file that nobody serves is removed. */
int gw_rundir_admin(const char *dir, struct buf *out);
/* A fresh folder DIR/PID for the own worker's socket. */
int gw_rundir_private(const char *dir, struct buf *out, struct err *err);

/* The first model, by name, where tools/get-model leaves them: $KVBLEND_MODELS, else
 * $XDG_CACHE_HOME/kvblend/models, else ~/.cache/kvblend/models. A *.gguf file or a folder with
 * config.json. 0; -ENOENT with a sentence that says what to do. */
int gw_find_model(struct buf *out, struct err *err);
/* kvblend-worker beside this program, or where the build tree has it. */
int gw_find_worker(struct buf *out, struct err *err);

#endif
