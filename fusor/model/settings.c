/* What both readers set alike, from numbers that each finds its own way. */
#include "fusor/model/model_int.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

int model_set_layers(struct model *m, const uint8_t *bits, struct err *err)
{
    const struct model_arch *a = m->arch;
    const unsigned L = m->cfg.L;
    const unsigned every = m->cfg.experts.every;
    const bool locals =
        m->cfg.window || m->cfg.chunk || a->local_base > 0; /* else they are as the others */
    bool any = false;
    if (L < 1 || L > MODEL_L_MAX) return 0; /* to be refused */
    m->layers = mem_zalloc(L);
    if (!m->layers) return err_set(err, -ENOMEM, "out of memory");
    for (unsigned l = 0; l < L; l++) {
        const bool local = !a->local_every || (l + 1) % a->local_every != 0;
        const bool still = a->nope_every && (l + 1) % a->nope_every == 0;
        const bool dense = every && (l + 1) % every != 0;
        m->layers[l] = bits ? bits[l]
                            : (local ? MODEL_LAYER_LOCAL : 0) | (still ? MODEL_LAYER_NOPE : 0) |
                                  (dense ? MODEL_LAYER_DENSE : 0);
        if (!locals) m->layers[l] &= (uint8_t)~MODEL_LAYER_LOCAL;
        any |= m->layers[l] != 0;
    }
    if (any) m->cfg.layers = m->layers;
    return 0;
}

void model_scale_residual(struct model_cfg *c, double embed, double residual)
{
    c->embed_scale = (float)(embed / residual);
    c->rms_eps = (float)((double)c->rms_eps / (residual * residual));
}

int model_own_factors(const void *f, size_t n, const char *name, float **ret, struct err *err)
{
    float *own = mem_alloc(n * sizeof(*own));
    if (!own) return err_set(err, -ENOMEM, "out of memory");
    memcpy(own, f, n * sizeof(*own));
    *ret = own;
    for (size_t i = 0; i < n; i++)
        if (!(own[i] > 0) || !isfinite(own[i]))
            return err_set(err, -EBADMSG, "\"%s\" is damaged", name);
    return 0;
}
