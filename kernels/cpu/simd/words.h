/* words: a piece of a weight for AMX, unpacked part by part, included by gemm_words.h.
 *
 * Of 4 bits a part is a word of each of sixteen columns, straight to pairs (codes_pairs.h); of all
 * else a whole step is unpacked with its first part; what is packed already is prefetched. Thread:
 * any. */
#ifndef KERNELS_CPU_SIMD_WORDS_H
#define KERNELS_CPU_SIMD_WORDS_H

enum { WORDS_PARTS = 8 }; /* of a step */

/* Units [k0, k0 + kc) of panel p. */
struct words_piece {
    size_t i, p, k0, kc;  /* i: counts the panels in their order, see gated_panel() */
    const elem *b;        /* with zeros up to a whole step */
    elem *to;             /* where they are unpacked to, or copied */
    size_t all, done;     /* parts */
    const uint8_t *codes; /* the panel's, and which of CODES_FORMS they are, or none */
    size_t form;
    struct kn_step at; /* of 4 bits the step that is unpacked, to: */
    elem *step;
    struct scales s; /* of the vector at hand */
};

static size_t words_steps(const struct words_piece *w)
{
    return (w->kc + AMX_UNITS - 1) / AMX_UNITS;
}

static void words_find(const struct kn_gemm_job *j, struct words_piece *w)
{
#define ONE(...) __VA_ARGS__,
    static const struct codes_form all[] = {CODES_FORMS(ONE)};
#undef ONE
    const struct kn_panel *panel = &j->coded->panel[w->p];
    w->codes = j->coded->data + panel->at;
    while (w->form < sizeof all / sizeof *all && !codes_form_same(&panel->form, &all[w->form]))
        w->form++;
}

static void words_unpack(const struct kn_gemm_job *j, const struct words_piece *w,
                         const struct kn_panel *panel, size_t unit, elem *to)
{
    const size_t n = w->kc - unit < AMX_UNITS ? w->kc - unit : AMX_UNITS;
    tile_unpack(&panel->form, j->coded->data + panel->at, w->k0 + unit, n, j->k, to);
    memset(to + n * TILE_NR, 0, (AMX_UNITS - n) * TILE_NR * sizeof *to);
}

static void words_fetch(struct words_piece *w)
{
    enum { BYTES = AMX_UNITS * TILE_NR * sizeof(elem) / WORDS_PARTS };
    for (size_t at = 0; at < BYTES; at += 64)
        __builtin_prefetch((const char *)w->b + w->done * BYTES + at, 0, 2);
    w->done++;
}

/* The next part where this is the panel's form. */
VF_INLINE void words_codes(const struct codes_form f, const struct kn_gemm_job *j,
                           struct words_piece *w)
{
    const size_t unit = w->done / WORDS_PARTS * AMX_UNITS, part = w->done % WORDS_PARTS;
    w->done++;
    if (f.bits != 4) {
        if (part == 0) words_unpack(j, w, &j->coded->panel[w->p], unit, w->to + unit * TILE_NR);
        return;
    }
    if (part == 0) {
        const struct kn_layout l = kn_layout(&f, NR);
        w->at = kn_step_at(&l, (w->k0 + unit) * TILE_UNIT / CODES_STEP);
        w->step = w->to + unit * TILE_NR;
    }
    if (part % 4 == 0) step_scales(f, w->codes, w->at, part / 4, &w->s);
    pairs_word(f, w->codes + w->at.codes + part * VL * 4, &w->s,
               w->step + part % 4 * TILE_NR + part / 4 * VL);
}

static void words_part(const struct kn_gemm_job *j, struct words_piece *w)
{
    size_t form = 0;
    if (!j->coded) {
        words_fetch(w);
        return;
    }
#define TRY(...)                                                                                   \
    if (w->form == form++) {                                                                       \
        words_codes((struct codes_form)__VA_ARGS__, j, w);                                         \
        return;                                                                                    \
    }
    CODES_FORMS(TRY)
#undef TRY
    words_codes((struct codes_form){0}, j, w);
}

#endif
