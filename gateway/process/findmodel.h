/* findmodel: which model to serve when none was named, and where the worker program is.
 * Thread: any; blocking, so before the loop runs. */
#ifndef GATEWAY_PROCESS_FINDMODEL_H
#define GATEWAY_PROCESS_FINDMODEL_H

#include "base/err.h"

struct buf;

/* The first model, by name, where tools/get-model leaves them: $KVBLEND_MODELS, else
 * $XDG_CACHE_HOME/kvblend/models, else ~/.cache/kvblend/models. A *.gguf file or a folder with
 * config.json. 0; -ENOENT with a sentence that says what to do. */
int gw_find_model(struct buf *out, struct err *err);
/* kvblend-worker beside this program, or where the build tree has it. */
int gw_find_worker(struct buf *out, struct err *err);

#endif
