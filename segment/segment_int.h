/* segment_int: what the parts of the segmenter share: patterns, presets, block cutting.
 *
 * Pattern language (no regular expressions, no backtracking; the cost is linear): literal bytes,
 * newlines included; `%d` one or more digits; `%w` a run without blanks and `%*` a run within one
 * line, both as short as the next literal allows and at most PAT_RUN_MAX bytes, or to the end of
 * the line when nothing follows; `%%` a percent sign; `^` in front: at the start of a line only.
 * Thread: any; everything is immutable after loading. */
#ifndef SEGMENT_SEGMENT_INT_H
#define SEGMENT_SEGMENT_INT_H

#include "segment/segment.h"

enum {
    PAT_OPS_MAX = 24,
    PAT_RUN_MAX = 512,     /* chosen: longer than any marker line; bounds the work per candidate */
    PRESET_LIST_MAX = 16,  /* patterns in one list of a preset */
    CHUNK_BYTES_MIN = 24,  /* chosen: what is shorter is not worth a record, markers or not */
    BLOCK_BYTES_OWN = 400, /* chosen: about 100 tokens, a paragraph that stands alone */
    BLOCK_BYTES_GROUP =
        256,                /* chosen: about 64 tokens, what joined neighbours come to on average */
    BLOCK_BYTES_MIN = 128,  /* chosen: about 32 tokens, the least that pays when reused */
    BLOCK_BYTES_CUT = 1600, /* chosen: about 400 tokens, joined neighbours end here at the latest */
    BLOCK_BYTES_MAX = 4096, /* chosen: a longer piece is cut at the next finer boundary */
    ROLL_BYTES_MIN = 1024,  /* chosen: no cut of the rolling hash before; average twice this */
    LEARNED_BYTES_MAX = 16384, /* chosen: about 4000 tokens; what is known to move together */
    TOOL_BYTES_MIN = 128,      /* chosen: about 32 tokens; shorter tool results are left alone */
    TEXT_BYTES_BLOCKS = 1000,  /* chosen: about 256 tokens, shorter plain text is left alone */
    JSON_IN_JSON_MAX = 2,      /* chosen: a result in a protocol's envelope */
    QUESTION_BYTES_MAX = 4096  /* chosen: how far before the end a question's lead-in is believed */
};

enum pat_kind { PAT_LITERAL, PAT_DIGITS, PAT_WORD, PAT_REST }; /* the last two need an end */
struct pat_op {
    enum pat_kind kind;
    const char *lit; /* into the pattern's own text */
    size_t len;
};
struct pat {
    char *text; /* owned: literals with escapes resolved */
    struct pat_op op[PAT_OPS_MAX];
    unsigned n_ops;
    bool line_start;
};
struct pat_list {
    struct pat p[PRESET_LIST_MAX];
    unsigned n;
};
int pat_compile(const char *s, struct pat *ret); /* -EINVAL, -ENOMEM */
void pat_fini(struct pat *p);

struct span {
    size_t begin, end;
};
#define SPAN_NONE ((struct span){SIZE_MAX, SIZE_MAX})
/* First match in text[from, to), or SPAN_NONE. */
struct span pat_search(const struct pat *p, const char *text, size_t from, size_t to);

struct finder { /* the earliest match of a list; remembers, so that a whole scan stays linear */
    const struct pat_list *list;
    const char *text;
    size_t to;
    struct span next[PRESET_LIST_MAX];
    bool known[PRESET_LIST_MAX];
};
void finder_init(struct finder *f, const struct pat_list *list, const char *text, size_t to);
struct span finder_next(struct finder *f, size_t from); /* `from` never goes back */

enum preset_split { SPLIT_BLOCKS, SPLIT_LINES, SPLIT_JOIN, SPLIT_WHOLE };
struct preset {
    char *name;
    struct pat_list begin, end, open, close, join;
    enum preset_split split; /* without `open` */
    bool close_required, to_end;
    bool tool_only; /* for role tool and function */
    unsigned min_matches;
};
struct seg_presets {
    struct preset *preset;
    size_t n;
    struct pat_list question; /* lead-ins of the question, for all texts */
};

struct seg_builtin { /* the embedded copy of etc/presets, made by base/embed.c */
    const char *file;
    const char *json;
};
extern const struct seg_builtin seg_builtins[];
extern const size_t seg_n_builtins;

/* A region of text that no marker divides. */
struct region_job {
    const struct seg_opts *opts;
    const char *text; /* the whole text */
    size_t begin, end;
    size_t preamble_end; /* what starts before it is no chunk unless it is known to move */
    size_t question;     /* what starts here or behind is none unless it moves; SIZE_MAX: none */
    bool by_line;        /* every line may be a chunk */
    bool fixed_preamble; /* the first run may turn out to be instructions */
    bool still;          /* a text that was seen before, byte for byte, has no chunks */
    uint32_t msg;
    const char *detector; /* NULL: "learned", "known" or "blocks" as it comes */
};
int learned_cut(const struct region_job *j, struct seg_list *out);

/* Chunks of plain text, piece by piece: paragraphs, or lines when the job is by_line. */
struct cutter {
    const struct region_job *job;
    const char *detector;
    struct seg_list *out;
    size_t own;        /* bytes of a piece that stands alone */
    struct span group; /* joined short pieces, empty when begin == end */
};
struct cutter cutter_of(const struct region_job *j, const char *detector, struct seg_list *out);
int blocks_cut(struct cutter *c, size_t begin, size_t end);
/* A piece is never joined with what comes after a blocks_flush(). */
int blocks_piece(struct cutter *c, struct span piece);
int blocks_flush(struct cutter *c);
bool chunk_trim(const char *text, struct span *s); /* false when too little is left */

/* Remember chunks that markers showed, so that their text is found without markers. */
void learned_keep(const struct seg_opts *o, const char *text, const struct seg_list *l,
                  size_t from);
/* Where a line starts from which a kept text reaches up to `end`; SIZE_MAX when none does. */
size_t learned_tail(const struct seg_opts *o, const char *text, size_t begin, size_t end);
/* A short text: chunks only where texts stand that were kept before; its own paragraphs are
 * candidates, kept when they come a second time. */
int learned_short(const struct region_job *j, struct seg_list *out);

int why_add(struct seg_whys *w, struct seg_why y); /* w may be NULL */
bool detector_ok(const char *name, size_t len);    /* it travels in a header */
/* Room for one item more behind n: the array, which may have moved, or NULL. */
void *grown(void *items, size_t n, size_t *cap, size_t size);

static inline bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static inline bool is_space(char c)
{
    return is_blank(c) || c == '\n';
}

#endif
