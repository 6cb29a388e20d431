/* keyfile: what was measured under a key (machine, shapes, model), remembered for the next start.
 *
 * DIR/NAME-HASH.txt, with the hash of the key: the key in line 1, then the caller's lines. A file
 * with another key is none, and a new one replaces it as a whole. Thread: any. */
#ifndef BASE_KEYFILE_H
#define BASE_KEYFILE_H

#include "base/buf.h"

#include <stdbool.h>

/* `below` ("/kvblend") in the user's cache folder ($XDG_CACHE_HOME, else ~/.cache), which is made.
 * NULL: there is none. */
enum { KEYFILE_PATH_MAX = 4096 };
const char *keyfile_dir(const char *below, char ret[KEYFILE_PATH_MAX]);

enum { KEYFILE_LINE_MAX = 1200 }; /* the key's, too */
struct keyfile {
    const char *dir; /* NULL: nothing is remembered */
    const char *name, *key;
};
/* Hands the lines out, without their ends, as long as take() wants more. False: there is no such
 * file. */
bool keyfile_read(const struct keyfile *k, bool (*take)(void *arg, const char *line), void *arg);
/* Best effort: without a file the next start measures again. */
void keyfile_write(const struct keyfile *k, struct buf *lines);

#endif
