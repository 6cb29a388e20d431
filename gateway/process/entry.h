/* entry: the fields NAME=VALUE of an entry in the lists of keys, workers and upstreams.
 *
 * A table, ended by {0}, says what each may be and where in the entry's struct it goes; a field
 * with a form of its own has a function instead. Thread: any. */
#ifndef GATEWAY_PROCESS_ENTRY_H
#define GATEWAY_PROCESS_ENTRY_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct arena;
struct buf;

struct gw_entry_field {
    const char *name;
    /* TEXT: char *, not empty, in the arena; MS: uint32_t */
    enum { GW_ENTRY_TEXT, GW_ENTRY_BOOL, GW_ENTRY_UINT, GW_ENTRY_DOUBLE, GW_ENTRY_MS } kind;
    size_t offset;
    double min, max;
    int (*set)(void *entry, struct arena *texts, const char *value);
};
/* 0; -ENOENT: no such field; -EINVAL: not such a value; -ENOMEM. */
int gw_entry_set(const struct gw_entry_field *table, void *entry, struct arena *texts,
                 const char *name, const char *value);
/* The next word of *p, unquoted. 1, 0 at the end; -EINVAL: a quote is not closed; -ENOMEM. */
int gw_entry_word(const char **p, struct buf *word);
/* "${NAME}" or "os.environ/NAME"? Then its NAME. */
bool gw_entry_names_variable(const char *text, char *ret, size_t cap);

#endif
