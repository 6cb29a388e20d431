/* learn_int: the learner's tables, shared by learn.c (what they mean) and memory.c (what is kept of
 * them between two runs). */
#ifndef SEGMENT_LEARN_INT_H
#define SEGMENT_LEARN_INT_H

#include "segment/learn.h"

#include <pthread.h>

enum {
    WAYS = 4,
    LEVEL0 = 4096,              /* gap sides of a new space: 96 KiB */
    SPACE_ENTRIES_MAX = 262144, /* 6 MiB: about 250 KB of structureless or 8 MB of other text */
    TEXTS = 1024,
    COUNT_MAX = 240, /* then both counts are halved: old habits fade */
    PRIOR_LEAST = 4, /* chosen: decided gaps of a form before it says anything */
    OPENINGS = 512,
    MARKS_LEAST = 3 /* chosen: boundaries in front of different pieces before a word marks them */
};

/* memory.c writes the first bytes of the next two as they lie here: SIDE_BYTES, KEPT_BYTES. */
struct side { /* one side of a gap, as history */
    uint64_t key;
    uint32_t neighbour, stamp;
    uint8_t seen, turns, sketch, moved, repeated;
    uint8_t news; /* not in the file: three texts teach it again */
};
struct opening {        /* the word that pieces start with, by the gap in front of them */
    uint32_t key, last; /* the piece it was counted for last: one that comes again says nothing */
    uint16_t n_cut, n_join;
};
struct kept {
    uint64_t start, all;
    uint32_t len, stamp;
    uint8_t sightings;
};
struct space {
    pthread_mutex_t m; /* guards all below but refs and used */
    struct side *side;
    struct kept *kept;
    size_t n_sides, n_kept, n_used; /* capacities; entries in use */
    uint64_t text[TEXTS];
    uint32_t clock;
    uint32_t n_cut[FORM_COUNT], n_join[FORM_COUNT];
    struct opening opening[OPENINGS];
    /* guarded by the learner's lock */
    struct space *next;
    uint64_t used;
    unsigned refs;
    size_t bytes;
    size_t owner_len;
    char name[];
};
struct seg_learner {
    pthread_mutex_t m; /* inside a space's lock, never the other way round */
    struct space *spaces;
    size_t bytes, budget, n_spaces;
    uint64_t clock, n_texts, n_repeated, n_evicted;
};

/* The space's lock is held. */
struct side *learn_side_place(struct space *s, uint64_t key); /* a free place, else the oldest */
void learn_kept_move(struct space *s, const struct kept *k);  /* to a free place, if there is one */
void learn_grow(struct seg_learner *l, struct space *s);      /* when it is filling up */

#endif
