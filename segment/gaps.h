/* gaps: the places in a text where two pieces meet, and what can be remembered of them.
 *
 * A piece is a line without the marker in front of it ("[3]", "Document 2:", "4."); a gap is
 * everything between two pieces: white space, rule lines ("---"), marker lines. Every gap carries
 * fingerprints of the bytes on either side in three widths, and of its neighbours. Long pieces
 * without a line break have gaps between words as well. Linear in the text: windows come from one
 * rolling sum, whatever their width. Memory while it runs: 8 bytes per byte of text, 104 per gap.
 * Thread: any; pure. */
#ifndef SEGMENT_GAPS_H
#define SEGMENT_GAPS_H

#include "segment/segment_int.h"

enum gap_form { FORM_WORD, FORM_LINE, FORM_BLANK, FORM_RULE, FORM_EDGE, FORM_KNOWN, FORM_COUNT };
enum {
    GAP_WIDTHS = 3, /* 64 (of one piece), 256 and 1024 bytes: the widest known decides */
    GAP_WORDS_MAX = 1 << 16,
    GAP_TEXT_MAX = 4 << 20, /* longer regions are cut by the blocks alone */
    PIECE_BYTES_LONE = 600  /* chosen: a piece alone in its region is looked into from here on */
};
enum {                   /* decided about a gap */
       GAP_UNSURE_JOIN,  /* first sight: joined unless the piece grows too long */
       GAP_UNSURE_SPLIT, /* first sight: blocks decide */
       GAP_JOIN,
       GAP_CUT,
};
struct gap_side {  /* what is known of one side */
    uint8_t seen;  /* times it was seen before, in other texts */
    uint8_t turns; /* how often the neighbour was another one, this text included */
    uint8_t n;     /* different neighbours, about */
    uint8_t moved; /* times that it moved together with this neighbour */
    bool blur;     /* it stands in a text twice: known, but says nothing */
    uint8_t known; /* its windows that are known */
    uint8_t news;  /* the last so many neighbours had never been seen (still texts only) */
};
struct gap {
    uint32_t end, begin;                          /* the piece before ends, the one behind begins */
    uint64_t left[GAP_WIDTHS], right[GAP_WIDTHS]; /* what stands before and behind; 0 at an edge */
    uint32_t next, prev; /* fingerprints of the neighbours, as the other side sees them */
    uint32_t opens;      /* form, and the word that the piece behind starts with; 0: none */
    struct gap_side l, r;
    uint8_t moved; /* times that both sides moved together */
    uint8_t form, verdict;
    bool together; /* in this very text both sides moved together */
    float prior;   /* share of boundaries among the gaps like it; -1: too few are known */
    const char *reason;
    float confidence;
};
struct gaps {
    struct gap *gap;
    size_t n, cap;
    bool still; /* the caller's: of a text that comes again with a few words changed */
};
/* All gaps of text[begin, end), the first and the last are its edges. -ENOMEM. */
int gaps_find(const char *text, size_t begin, size_t end, struct gaps *ret);
int gaps_add(struct gaps *g, struct gap x);
void gaps_fini(struct gaps *g);
size_t marker_end(const char *text, size_t at, size_t end); /* behind a positional marker */
const char *gap_form_name(unsigned form);

#endif
