/* Blocks: chunks of plain text without markers, cut where the text itself says so.
 *
 * A piece (paragraph, else line, else sentence) of at least `own` bytes is a chunk of its own.
 * Shorter neighbours are joined; the group ends after a piece whose hash says so (a share of the
 * pieces that grows with their size, so that groups are about BLOCK_BYTES_GROUP long whatever they
 * are made of), at BLOCK_BYTES_CUT, and wherever a long piece starts; a title in front goes with
 * that. As every rule but the size bound looks at one piece alone (and at what leads in), the same
 * run of paragraphs is cut the same way in any company, after one group at most. What has neither
 * lines nor sentences is cut by a rolling hash. Rejected: fixed-size blocks (any shift changes all
 * of them) and the rolling hash for all texts (it cuts
 * inside sentences, where tokens straddle). */
#include "segment/segment_int.h"

#include "base/assert.h"

#include <string.h>
#include <xxhash.h>

enum level { LEVEL_PARAGRAPH, LEVEL_LINE, LEVEL_SENTENCE, LEVEL_BYTES, LEVEL_COUNT };

/* Starts right after a newline run (or at a single blank), ends before trailing white space: what
 * follows a chunk varies with its place, what it starts with does not. */
bool chunk_trim(const char *text, struct span *s)
{
    size_t i = s->begin;
    while (i < s->end && is_space(text[i])) {
        if (text[i] == '\n') s->begin = i + 1;
        i++;
    }
    while (s->end > s->begin && is_space(text[s->end - 1]))
        s->end--;
    return s->end > s->begin && s->end - s->begin >= CHUNK_BYTES_MIN;
}

/* Where the bytes themselves say cut: a sum that the last 64 bytes decide, so that an edit changes
 * the cuts next to it only. Moved to a blank when one is near, never into a character. */
static size_t rolling_end(const char *text, size_t at, size_t end)
{
    size_t i = at + ROLL_BYTES_MIN, most = at + BLOCK_BYTES_MAX;
    uint64_t sum = 0;
    if (end - at <= BLOCK_BYTES_MAX) return end;
    for (i -= 64; i < most; i++) {
        sum = 2 * sum + ((unsigned char)text[i] + 1) * 0x9E3779B97F4A7C15u;
        if (i >= at + ROLL_BYTES_MIN && sum >> 54 == 0) break; /* one place in 1024 */
    }
    for (size_t k = i; k < i + 32 && k < end; k++)
        if (is_space(text[k])) return k;
    while (i > at && ((unsigned char)text[i] & 0xC0) == 0x80)
        i--;
    return i > at ? i : most; /* not text at all */
}

/* End of the piece that starts at `at`: the separator belongs to it. */
static size_t piece_end(const char *text, size_t at, size_t end, enum level level)
{
    if (level == LEVEL_BYTES) return rolling_end(text, at, end);
    if (level == LEVEL_SENTENCE) {
        for (size_t i = at; i + 1 < end; i++)
            if ((text[i] == '.' || text[i] == '?' || text[i] == '!') && text[i + 1] == ' ')
                return i + 1; /* before the blank: it opens the next token */
        return end;
    }
    while (at < end) {
        const char *nl = memchr(text + at, '\n', end - at);
        if (!nl) return end;
        size_t after = (size_t)(nl - text) + 1, i = after;
        while (i < end && is_space(text[i])) {
            if (text[i] == '\n') after = i + 1;
            i++;
        }
        bool blank_line = after > (size_t)(nl - text) + 1;
        if (blank_line || level == LEVEL_LINE) return after;
        at = after;
    }
    return end;
}

static int emit(struct cutter *c, struct span s, size_t least)
{
    if (!chunk_trim(c->job->text, &s) || s.end - s.begin < least) return 0;
    return seg_add(c->out, c->job->msg, s.begin, s.end, c->detector);
}

int blocks_flush(struct cutter *c)
{
    struct span s = c->group;
    c->group.begin = c->group.end;
    return emit(c, s, c->own < BLOCK_BYTES_MIN ? c->own : BLOCK_BYTES_MIN);
}

static int take_short(struct cutter *c, struct span s)
{
    if (c->group.begin == c->group.end) c->group.begin = s.begin;
    c->group.end = s.end;
    struct span t = s;
    while (t.end > t.begin && is_space(c->job->text[t.end - 1]))
        t.end--;
    size_t size = t.end - t.begin;
    bool cut = XXH3_64bits(c->job->text + t.begin, size) % BLOCK_BYTES_GROUP < size;
    return cut || c->group.end - c->group.begin >= BLOCK_BYTES_CUT ? blocks_flush(c) : 0;
}

/* A title, a line of metadata: too short for a block, it belongs to the paragraph behind it. */
static bool leads_in(const struct cutter *c, const struct span *s)
{
    size_t size = c->group.end - c->group.begin;
    return !c->job->by_line && size > 0 && size < BLOCK_BYTES_MIN && c->group.end == s->begin;
}

static int cut_level(struct cutter *c, size_t begin, size_t end, enum level level);

static int cut_piece(struct cutter *c, struct span s, enum level level)
{
    size_t size = s.end - s.begin;
    int r = 0;
    if (size > BLOCK_BYTES_MAX && level + 1 < LEVEL_COUNT) {
        r = blocks_flush(c);
        if (r == 0) r = cut_level(c, s.begin, s.end, level + 1);
        if (r == 0) r = blocks_flush(c);
    } else if (size >= c->own) {
        if (leads_in(c, &s))
            s.begin = c->group.begin;
        else
            r = blocks_flush(c);
        if (r == 0) r = emit(c, s, 0);
        c->group = (struct span){s.end, s.end};
    } else {
        r = take_short(c, s);
    }
    return r;
}

/* One level per nesting: the depth is the number of levels, whatever the text. */
static int cut_level(struct cutter *c, size_t begin, size_t end, enum level level)
{
    int r = 0;
    ASSERT(level < LEVEL_COUNT);
    for (size_t at = begin; at < end && r == 0;) {
        struct span s = {at, piece_end(c->job->text, at, end, level)};
        at = s.end;
        r = cut_piece(c, s, level);
    }
    return r;
}

int blocks_piece(struct cutter *c, struct span piece)
{
    if (piece.end - piece.begin > BLOCK_BYTES_MAX)
        return cut_level(c, piece.begin, piece.end, LEVEL_PARAGRAPH);
    return cut_piece(c, piece, LEVEL_PARAGRAPH);
}

struct cutter cutter_of(const struct region_job *j, const char *detector, struct seg_list *out)
{
    const size_t own = j->opts->block_bytes_min;
    return (struct cutter){
        .job = j, .detector = detector, .out = out, .own = own ? own : BLOCK_BYTES_OWN};
}

int blocks_cut(struct cutter *c, size_t begin, size_t end)
{
    c->group = (struct span){begin, begin};
    int r = cut_level(c, begin, end, c->job->by_line ? LEVEL_LINE : LEVEL_PARAGRAPH);
    return r < 0 ? r : blocks_flush(c);
}
