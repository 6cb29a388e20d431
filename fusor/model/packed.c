/* Rows are taken a few at a time: numbers that share a word are those of neighbouring rows (AWQ) or
 * stand beside those of neighbouring rows (GPTQ), so that a row alone would read 8 or 16 times as
 * much memory as it has. */
#include "fusor/model/packed.h"

#include "base/assert.h"
#include "kernels/turn.h"

#include <stdio.h>
#include <string.h>

enum { WORD_BITS = 32, WORD = 4 /* bytes */, NIBBLES = 8 /* of a word */ };
/* Number j of eight of AWQ's rows is nibble order[j] of their word. */
static const unsigned order[NIBBLES] = {0, 4, 1, 5, 2, 6, 3, 7};
static const unsigned awq_row[NIBBLES] = {0, 2, 4, 6,
                                          1, 3, 5, 7}; /* of a nibble: order's inverse */

/* Bytes of a block are those that files have, 4 of scale and zero included: whoever asks how
 * precise a weight is sees that it is less than 16 bits. */
#define TYPE(bits, group, bf16)                                                                    \
    {                                                                                              \
        QUANT_PACKED, "packed", group, group *bits / 8 + 4, NULL, CODES_ZERO(bits, group, bf16)    \
    }
static const struct quant_type forms[] = {TYPE(4, 32, false),  TYPE(4, 32, true),
                                          TYPE(4, 128, false), TYPE(4, 128, true),
                                          TYPE(8, 32, false),  TYPE(8, 32, true)};
static const struct quant_type values_alone = {QUANT_PACKED, "packed", 32, 36, NULL, {0}};

/* ---- tensors ---- */

/* What a method calls them, behind the layer's name. */
enum part { CODES, ZEROS, SCALES, G_IDX, SHAPE, PARTS };
static const char *const names[][PARTS] = {
    [PACKED_AWQ] = {"qweight", "qzeros", "scales", NULL, NULL},
    [PACKED_GPTQ] = {"qweight", "qzeros", "scales", "g_idx", NULL},
    [PACKED_TENSORS] = {"weight_packed", "weight_zero_point", "weight_scale", "weight_g_idx",
                        "weight_shape"}};

enum { NAME_MAX_BYTES = 160 };
static bool part_name(enum packed_method m, const char *name, enum part p, char *ret)
{
    static const char weight[] = "weight";
    const size_t len = strlen(name), n = sizeof(weight) - 1;
    if (!names[m][p] || len < n || strcmp(name + len - n, weight) != 0) return false;
    const int r = snprintf(ret, NAME_MAX_BYTES, "%.*s%s", (int)(len - n), name, names[m][p]);
    return r > 0 && r < NAME_MAX_BYTES;
}

static struct tensor *find_part(enum packed_method m, const struct tensors *ts, const char *name,
                                enum part p)
{
    char full[NAME_MAX_BYTES];
    return part_name(m, name, p, full) ? tensors_find(ts, full) : NULL;
}

bool packed_has(const struct packed_cfg *c, const struct tensors *ts, const char *name)
{
    return c->method != PACKED_NONE && find_part(c->method, ts, name, CODES) != NULL;
}

struct finder {
    const struct packed_cfg *cfg;
    const struct tensors *ts;
    const struct packed_layer *layer;
    struct err *err;
};

/* A part of rows x cols elements of a type; NULL: a number of any that scales may have. */
static int take_part(const struct finder *f, enum part part, const char *type, size_t rows,
                     size_t cols, struct tensor **ret)
{
    char full[NAME_MAX_BYTES] = "";
    (void)part_name(f->cfg->method, f->layer->name, part, full);
    struct tensor *t = tensors_find(f->ts, full);
    if (!t) return err_set(f->err, -EBADMSG, "tensor \"%.100s\" is missing", full);
    if (type ? strcmp(t->type_name, type) != 0 : !t->type || t->type->block != 1)
        return err_set(f->err, -EBADMSG, "tensor \"%.100s\" has type %s, expected %s", full,
                       t->type_name, type ? type : "F16, BF16 or F32");
    if (t->n_dims < 1 || t->n_dims > 2 || t->planes != 1 || t->rows != rows || t->cols != cols)
        return err_set(f->err, -EBADMSG,
                       "tensor \"%.100s\" has shape [%zu, %zu], expected [%zu, %zu]", full, t->rows,
                       t->cols, rows, cols);
    t->used = true;
    *ret = t;
    return 0;
}

static size_t words(size_t n, unsigned bits)
{
    return (n * bits + WORD_BITS - 1) / WORD_BITS;
}

/* Bits and groups: the configuration's or, where modules have their own, what shapes say. */
static int settle_shape(const struct finder *f, struct packed *p)
{
    const struct packed_cfg *c = f->cfg;
    const bool by_rows = c->method == PACKED_TENSORS;
    const struct tensor *codes = find_part(c->method, f->ts, f->layer->name, CODES),
                        *scales = find_part(c->method, f->ts, f->layer->name, SCALES);
    p->bits = c->bits;
    p->groups = c->group ? p->k / c->group : 1;
    if (c->mixed) {
        const size_t of = by_rows ? codes->cols : codes->rows;
        p->bits = of > 0 && of <= p->k ? (unsigned)(of * WORD_BITS / p->k) : 0;
        p->groups = !scales ? 1 : by_rows ? scales->cols : scales->rows;
    } else if (c->group && p->k % c->group != 0) {
        return err_set(f->err, -EBADMSG, "\"%.100s\" has rows of %zu, no whole groups of %u",
                       f->layer->name, p->k, c->group);
    }
    if (p->bits != 2 && p->bits != 3 && p->bits != 4 && p->bits != 8)
        return err_set(f->err, -EBADMSG, "\"%.100s\" has codes of no known number of bits",
                       f->layer->name);
    if (p->groups == 0 || p->k % p->groups != 0)
        return err_set(f->err, -EBADMSG, "\"%.100s\" has %zu groups in rows of %zu", f->layer->name,
                       p->groups, p->k);
    p->group = p->k / p->groups;
    if (p->k % CODES_STEP != 0)
        return err_set(f->err, -ENOTSUP, "\"%.100s\" has rows of %zu, no whole steps of %d",
                       f->layer->name, p->k, CODES_STEP);
    if (c->method == PACKED_AWQ && p->n % NIBBLES != 0)
        return err_set(f->err, -EBADMSG, "\"%.100s\" has %zu rows, no whole eights", f->layer->name,
                       p->n);
    return 0;
}

static uint32_t word(const uint8_t *words, size_t i)
{
    uint32_t v;
    memcpy(&v, words + i * WORD, sizeof(v));
    return v;
}

/* Which group each value is in: of them a mapping that says what is so anyway is dropped. */
static int check_groups(const struct finder *f, struct packed *p)
{
    bool in_order = true;
    for (size_t i = 0; i < p->k; i++) {
        const uint32_t g = word(p->g_idx, i);
        if (g >= p->groups)
            return err_set(f->err, -EBADMSG, "\"%.100s\": value %zu is in group %u of %zu",
                           f->layer->name, i, g, p->groups);
        in_order = in_order && g == i / p->group;
    }
    if (in_order) p->g_idx = NULL;
    return 0;
}

static const struct quant_type *form_of(const struct packed *p)
{
    const unsigned bits = p->bits == 8 ? 8 : 4;
    const unsigned group = bits == 4 && p->group % 128 == 0 ? 128 : 32;
    if (p->g_idx || p->group % CODES_STEP != 0 || p->scale->id == QUANT_F32) return &values_alone;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        const struct codes_form *f = &forms[i].form;
        if (f->bits == bits && f->group == group && f->bf16 == (p->scale->id == QUANT_BF16))
            return &forms[i];
    }
    return &values_alone;
}

static int take_parts(const struct finder *f, struct packed *p)
{
    const bool by_rows = p->method == PACKED_TENSORS;
    struct tensor *t = NULL;
    int r = by_rows                   ? take_part(f, CODES, "I32", p->n, words(p->k, p->bits), &t)
            : p->method == PACKED_AWQ ? take_part(f, CODES, "I32", p->k, p->n / NIBBLES, &t)
                                      : take_part(f, CODES, "I32", words(p->k, p->bits), p->n, &t);
    if (r < 0) return r;
    p->codes = t->data;
    p->codes_bytes = t->size_bytes;
    r = by_rows ? take_part(f, SCALES, NULL, p->n, p->groups, &t)
                : take_part(f, SCALES, NULL, p->groups, p->n, &t);
    if (r < 0) return r;
    p->scales = t->data;
    p->scale = t->type;
    if (f->cfg->mixed && by_rows ? find_part(p->method, f->ts, f->layer->name, ZEROS) != NULL
                                 : f->cfg->has_zeros) {
        r = by_rows ? take_part(f, ZEROS, "I32", words(p->n, p->bits), p->groups, &t)
                    : take_part(f, ZEROS, "I32", p->groups, words(p->n, p->bits), &t);
        if (r < 0) return r;
        p->zeros = t->data;
    }
    if (find_part(p->method, f->ts, f->layer->name, G_IDX)) {
        r = take_part(f, G_IDX, "I32", 1, p->k, &t);
        if (r < 0) return r;
        p->g_idx = t->data;
    }
    return 0;
}

/* The shape that compressed-tensors keep beside the codes. */
static int check_shape(const struct finder *f, const struct packed *p)
{
    struct tensor *t = NULL;
    int64_t shape[2];
    int r = p->method == PACKED_TENSORS ? take_part(f, SHAPE, "I64", 1, 2, &t) : 0;
    if (r < 0 || !t) return r;
    memcpy(shape, t->data, sizeof(shape));
    if (shape[0] == (int64_t)p->n && shape[1] == (int64_t)p->k) return 0;
    return err_set(f->err, -EBADMSG,
                   "\"%.100s\" says that its shape is [%lld, %lld], not [%zu, %zu]", f->layer->name,
                   (long long)shape[0], (long long)shape[1], p->n, p->k);
}

int packed_take(const struct packed_cfg *c, const struct tensors *ts,
                const struct packed_layer *layer, struct packed *ret, struct err *err)
{
    const struct finder f = {c, ts, layer, err};
    struct packed p = {.method = c->method,
                       .n = layer->n,
                       .k = layer->k,
                       .row0 = layer->row0,
                       .less_one = c->less_one};
    int r = settle_shape(&f, &p);
    if (r == 0) r = take_parts(&f, &p);
    if (r == 0) r = check_shape(&f, &p);
    if (r == 0 && p.g_idx) r = check_groups(&f, &p);
    if (r < 0) return r;
    p.type = form_of(&p);
    *ret = p;
    return 0;
}

size_t packed_part(const struct packed *p, unsigned i, const uint8_t **ret)
{
    const struct {
        const uint8_t *at;
        size_t bytes;
    } parts[] = {{p->codes, p->codes_bytes},
                 {p->scales, p->groups * p->n * p->scale->bytes},
                 {p->zeros, words(p->n, p->bits) * p->groups * WORD},
                 {p->g_idx, p->k * WORD}};
    for (size_t at = 0; at < sizeof(parts) / sizeof(parts[0]); at++) {
        if (!parts[at].at || i-- > 0) continue;
        *ret = parts[at].at;
        return parts[at].bytes;
    }
    return 0;
}

/* ---- numbers ---- */

/* Number i of a stream of bits whose words stand `step` apart. */
static unsigned bits_at(const uint8_t *at, size_t step, unsigned bits, size_t i)
{
    const size_t bit = i * bits, w = bit / WORD_BITS;
    const unsigned off = bit % WORD_BITS;
    uint64_t v = word(at, w * step);
    if (off + bits > WORD_BITS) v |= (uint64_t)word(at, (w + 1) * step) << WORD_BITS;
    return (unsigned)(v >> off) & ((1u << bits) - 1);
}

/* The zero of row `row` (of the layer) in group g, as codes count. */
static int zero_of(const struct packed *p, size_t row, size_t g)
{
    if (!p->zeros) return 1 << (p->bits - 1);
    if (p->method == PACKED_AWQ)
        return (int)(word(p->zeros, g * (p->n / NIBBLES) + row / NIBBLES) >>
                         4 * order[row % NIBBLES] &
                     15);
    if (p->method == PACKED_TENSORS)
        return (int)bits_at(p->zeros + g * WORD, p->groups, p->bits, row);
    return (int)bits_at(p->zeros + g * words(p->n, p->bits) * WORD, 1, p->bits, row) + p->less_one;
}

static const uint8_t *scale_of(const struct packed *p, size_t row, size_t g)
{
    const size_t at = p->method == PACKED_TENSORS ? row * p->groups + g : g * p->n + row;
    return p->scales + at * p->scale->bytes;
}

/* Codes are read PIECE of a row at a time: a line of cache, which is then whole. */
enum { PIECE = 64 };
/* Places for codes [k0, k0 + n_k), whole steps, of rows [row, row + n) of the layer: those of the
 * first row are from to[0].q + at on. */
struct piece {
    size_t row, n, k0, n_k;
    const struct codes_row *to;
    size_t at;
};

/* The first n bytes, of 16. */
static inline turn_8 load_some(const uint8_t *at, size_t n)
{
    turn_8 v = {0};
    if (n == sizeof v) return turn_load(at);
    memcpy(&v, at, n);
    return v;
}

/* A vector is words of up to 32 rows: of 16 vectors that are turned each holds 16 codes of two. */
static void awq_turned(const struct packed *p, const struct piece *x, size_t from, size_t n,
                       size_t k)
{
    const size_t step = p->n / NIBBLES * WORD, first = (x->row + from) % NIBBLES;
    const size_t n_bytes = (first + n + NIBBLES - 1) / NIBBLES * WORD;
    const uint8_t *at = p->codes + (x->k0 + k) * step + (x->row + from) / NIBBLES * WORD;
    turn_8 v[sizeof(turn_8)];
    for (size_t i = 0; i < sizeof(turn_8); i++)
        v[i] = load_some(at + i * step, n_bytes);
    turn(1, v);
    for (size_t b = 0; b < n_bytes; b++)
        for (unsigned high = 0; high < 2; high++) {
            const size_t r = b / WORD * NIBBLES + awq_row[b % WORD * 2 + high] - first;
            if (r < n) turn_store(x->to[from + r].q + x->at + k, v[b] >> 4 * high & 15, sizeof *v);
        }
}

static void awq_codes(const struct packed *p, const struct piece *x)
{
    enum { ROWS = sizeof(turn_8) / WORD * NIBBLES };
    for (size_t r = 0, now; r < x->n; r += now) {
        const size_t most = ROWS - (x->row + r) % NIBBLES;
        now = x->n - r < most ? x->n - r : most;
        for (size_t k = 0; k < x->n_k; k += sizeof(turn_8))
            awq_turned(p, x, r, now, k);
    }
}

/* Streams of 4 and 8 bits: 16 bytes of a row, as codes to q. Of 8 bits less half of the range, as
 * zeros are then. */
static inline void put_stream(unsigned bits, turn_8 v, int8_t *q)
{
    if (bits == 8) {
        turn_store(q, v ^ 128, sizeof v);
        return;
    }
    const turn_8 low = v & 15, high = v >> 4;
    turn_store(q, turn_low_8(low, high), sizeof v);
    turn_store(q + sizeof v, turn_high_8(low, high), sizeof v);
}

static void rows_stream(const struct packed *p, const struct piece *x)
{
    const size_t per = words(p->k, p->bits) * WORD, in = sizeof(turn_8) * 8 / p->bits;
    for (size_t r = 0; r < x->n; r++)
        for (size_t k = 0; k < x->n_k; k += in)
            put_stream(p->bits,
                       turn_load(p->codes + (x->row + r) * per + (x->k0 + k) / 8 * p->bits),
                       x->to[r].q + x->at + k);
}

/* Words of four neighbouring rows are a vector, and four of those are turned. */
static void columns_stream(const struct packed *p, const struct piece *x)
{
    enum { ROWS = sizeof(turn_8) / WORD };
    const size_t step = p->n * WORD, in = sizeof(turn_8) * 8 / p->bits;
    for (size_t k = 0; k < x->n_k; k += in) {
        const uint8_t *at = p->codes + (x->k0 + k) * p->bits / WORD_BITS * step + x->row * WORD;
        for (size_t r = 0, now; r < x->n; r += now) {
            turn_8 v[ROWS];
            now = x->n - r < ROWS ? x->n - r : ROWS;
            for (size_t i = 0; i < ROWS; i++)
                v[i] = load_some(at + i * step + r * WORD, now * WORD);
            turn(WORD, v);
            for (size_t i = 0; i < now; i++)
                put_stream(p->bits, v[i], x->to[r + i].q + x->at + k);
        }
    }
}

/* 32 codes of a row: `bits` words, `step` apart. */
static inline __attribute__((always_inline)) void step_codes(const uint8_t *at, size_t step,
                                                             const unsigned bits, int8_t *q)
{
    uint64_t v = 0;
    unsigned have = 0, next = 0;
    for (unsigned i = 0; i < CODES_STEP; i++) {
        if (have < bits) {
            v |= (uint64_t)word(at, next++ * step) << have;
            have += WORD_BITS;
        }
        q[i] = (int8_t)(v & ((1u << bits) - 1));
        v >>= bits;
        have -= bits;
    }
}

/* Streams of 2 and 3 bits. */
static void few_bits_stream(const struct packed *p, const struct piece *x)
{
    const bool by_rows = p->method == PACKED_TENSORS;
    const size_t step = by_rows ? 1 : p->n, per = by_rows ? words(p->k, p->bits) : 1;
    for (size_t k = 0; k < x->n_k; k += CODES_STEP)
        for (size_t r = 0; r < x->n; r++) {
            const size_t first = (x->k0 + k) / CODES_STEP * p->bits * step;
            const uint8_t *at = p->codes + ((x->row + r) * per + first) * WORD;
            int8_t *q = x->to[r].q + x->at + k;
            if (p->bits == 2)
                step_codes(at, step, 2, q);
            else
                step_codes(at, step, 3, q);
        }
}

/* Words of a piece are in lines a whole row of words apart, which no processor guesses. */
static void fetch(const struct packed *p, const struct piece *x)
{
    enum { LINE = 64 };
    if (p->method == PACKED_TENSORS) return;
    const bool awq = p->method == PACKED_AWQ;
    const size_t per = awq ? p->n / NIBBLES : p->n, row = awq ? x->row / NIBBLES : x->row;
    const size_t n = (awq ? (x->n + NIBBLES - 1) / NIBBLES : x->n) * WORD;
    const size_t from = awq ? x->k0 : x->k0 * p->bits / WORD_BITS;
    const size_t n_lines = awq ? x->n_k : x->n_k * p->bits / WORD_BITS;
    for (size_t i = 0; i < n_lines; i++) {
        const uint8_t *at = p->codes + ((from + i) * per + row) * WORD;
        for (size_t b = 0; b < n; b += LINE)
            __builtin_prefetch(at + b);
        __builtin_prefetch(at + n - 1);
    }
}

static void codes_of(const struct packed *p, const struct piece *x)
{
    ASSERT(x->n <= PACKED_ROWS);
    ASSERT(x->n_k % CODES_STEP == 0);
    if (p->method == PACKED_AWQ)
        awq_codes(p, x);
    else if (p->bits < 4)
        few_bits_stream(p, x);
    else if (p->method == PACKED_TENSORS)
        rows_stream(p, x);
    else
        columns_stream(p, x);
}

/* A small whole number, up to 256 either way, as f16. */
static uint16_t small_f16(int x)
{
    const unsigned size = (unsigned)(x < 0 ? -x : x), sign = x < 0 ? 0x8000 : 0;
    unsigned e = 0;
    if (size == 0) return 0;
    while (size >> (e + 1))
        e++;
    return (uint16_t)(sign | (e + 15) << 10 | (size << (10 - e) & 0x3ff));
}

void packed_codes(const struct packed *p, size_t row, size_t n, const struct codes_row *ret)
{
    const struct codes_form *f = &p->type->form;
    ASSERT(f->bits != 0);
    for (size_t k = 0; k < p->k; k += PIECE) {
        struct piece x = {p->row0 + row, n, k + PIECE, 0, ret, k};
        x.n_k = x.k0 >= p->k ? 0 : p->k - x.k0 < PIECE ? p->k - x.k0 : PIECE;
        fetch(p, &x);
        x.k0 = k;
        x.n_k = p->k - k < PIECE ? p->k - k : PIECE;
        codes_of(p, &x);
    }
    for (size_t k = 0, i = 0; k < p->k; k += f->group, i++)
        for (size_t r = 0; r < n; r++) {
            const size_t of = p->row0 + row + r, g = k / p->group;
            memcpy(&ret[r].d[i], scale_of(p, of, g), sizeof(*ret[r].d));
            ret[r].m[i] = small_f16(zero_of(p, of, g) - (f->bits == 8 ? 128 : 0));
        }
}

/* The difference is exact, and so is its product with a scale of 16 bits. */
void packed_values(const struct packed *p, size_t row, size_t n, float *out)
{
    const int half = p->bits == 8 ? 128 : 0;
    int8_t q[PACKED_ROWS][CODES_STEP];
    struct codes_row to[PACKED_ROWS];
    for (size_t r = 0; r < n; r++)
        to[r].q = q[r];
    for (size_t k = 0; k < p->k; k += CODES_STEP) {
        codes_of(p, &(struct piece){p->row0 + row, n, k, CODES_STEP, to, 0});
        for (size_t r = 0; r < n; r++) {
            float scale = 0;
            int zero = 0;
            size_t is = SIZE_MAX;
            for (size_t i = 0; i < CODES_STEP; i++) {
                const size_t g = p->g_idx ? word(p->g_idx, k + i) : (k + i) / p->group;
                if (g != is) {
                    quant_to_f32(p->scale, scale_of(p, p->row0 + row + r, g), 1, &scale);
                    zero = zero_of(p, p->row0 + row + r, g) - half;
                    is = g;
                }
                out[r * p->k + k + i] = (float)(q[r][i] - zero) * scale;
            }
        }
    }
}
