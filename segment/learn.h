/* learn: what the learner remembers of one namespace, behind seg_find().
 *
 * A space holds three tables of fixed-size entries: sides of gaps (fingerprint → last neighbour and
 * how often it changed), kept texts (fingerprint of the first bytes → length and fingerprint of
 * all), and whole texts seen lately. Buckets of four, the oldest entry gives way: memory is bounded
 * and old history fades. Life cycle: learn_open() → calls → learn_close(); the calls lock the space
 * for at most LEARN_BATCH gaps at a time. Thread: any. */
#ifndef SEGMENT_LEARN_H
#define SEGMENT_LEARN_H

#include "segment/gaps.h"

struct space;
enum {
    LEARN_BATCH = 512, /* about 50 us of look-ups */
    KEPT_WINDOW = 32,  /* bytes whose fingerprint finds a kept text */
    KEPT_BYTES_MAX = 64 << 10,
    SPACE_NAME_MAX = 600
};
/* 1 open; 0 no memory for this namespace: go on without; never an error of the request. */
int learn_open(struct seg_learner *l, const char *name, struct space **ret);
void learn_close(struct seg_learner *l, struct space *s);
/* How often this very text has come (TEXT_TIMES: so often or more), with TEXT_CUT if it was said to
 * have chunks. Unless dry it has come once more, or, with `cut`, is said to have chunks. */
enum { TEXT_TIMES = 3, TEXT_CUT = 4 };
unsigned learn_text(struct seg_learner *l, struct space *s, uint64_t text_print, unsigned cut,
                    bool dry);
/* Fill in what is known of the gaps' sides, and of gaps like them. */
void learn_look(struct space *s, struct gaps *g);
/* Add this text to the history, after learn_look(). */
void learn_add(struct seg_learner *l, struct space *s, const struct gaps *g);
/* Keep a text (sighting 1 for candidates; a second one or `sure` makes it found). */
void learn_keep(struct seg_learner *l, struct space *s, const char *text, size_t len, bool sure);
/* The longest kept text that starts at text[at]; its length or 0. `work`: bytes that may still be
 * compared, so that a scan stays linear. */
size_t learn_match(struct space *s, const char *text, size_t at, size_t end, size_t *work);
void learn_lock(struct space *s);
void learn_unlock(struct space *s);

#endif
