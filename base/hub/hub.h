/* hub: models by their names on the Hugging Face hub, found in the folder where the hub's own
 * library (huggingface_hub) and hub_pull() keep them.
 *
 * A name is [hf:]ORG/NAME[@REVISION][:FILE or :QUANT]. A path that exists is that path, whatever it
 * looks like; what has not the form of a name is a path, too. REVISION (main) is a branch, a tag or
 * a commit of 40 hex digits. Of what the revision holds a name means:
 *
 *   :FILE   the GGUF file of that path within the repository
 *   :QUANT  the one GGUF file whose path has QUANT as a word of its own, in any case, between
 *           '/', '-' or '.': Q4_K_M means model-Q4_K_M.gguf
 *   none    the folder, where it has config.json and model*.safetensors; else its one GGUF file
 *
 * A file in parts (-00001-of-00003.gguf) is one file, named by the first; projectors (mmproj-…) do
 * not count. Where several files fit, the name is refused and the error lists them.
 *
 * The folder is $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else
 * $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub; in it models--ORG--NAME has
 * refs/REVISION (a text: the commit) and snapshots/COMMIT/PATH. Thread: any. */
#ifndef BASE_HUB_HUB_H
#define BASE_HUB_HUB_H

#include "base/buf.h"
#include "base/err.h"

struct hub_name {
    char repo[97];      /* ORG/NAME: the hub allows 96 bytes */
    char revision[128]; /* "main" where none is named */
    char which[256];    /* FILE or QUANT, "" where none is named */
};
/* 1; 0: the text has not the form of a name; -EINVAL: it begins with "hf:" and is none. */
int hub_name_parse(const char *text, struct hub_name *ret);
/* The same of what a `model` option says: 0 of a path that exists, too. */
int hub_name_of(const char *model, struct hub_name *ret);

/* Appends the folder that holds all models. -ENOENT: no variable names one, and there is no home.
 */
int hub_cache_dir(struct buf *out, struct err *err);

/* Appends the path that `model` means (above), of a name the file's or snapshot's. -ENOENT: there
 * is no such model in the folder, or nothing there that the name means; -EINVAL: a malformed name;
 * -ENOMEM. err: one sentence, which names the folder and the command that downloads the model. */
int hub_find(const char *model, struct buf *out, struct err *err);

#endif
