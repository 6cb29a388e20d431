/* The arithmetic is f32 in the same order as in transformers' rope utilities, because a difference
 * of one unit in an inverse frequency turns into a visible angle at position 100 000. Powers are
 * taken in double and rounded once: the vector powf of the reference is within one unit of that. */
#include "fusor/model/model.h"

#include <math.h>

/* The dimension at which a wave makes n_turns turns within the original context. */
static double correction_dim(double n_turns, const struct model_rope *r, unsigned n_rot)
{
    const double pi = 3.14159265358979323846;
    return (double)n_rot * log(r->orig_ctx / (n_turns * 2 * pi)) / (2 * log(r->base));
}

static float llama3_freq(const struct model_rope *r, float f)
{
    const float two_pi = 6.283185307179586f;
    float orig = (float)r->orig_ctx, factor = (float)r->factor;
    float low = (float)r->low_freq_factor;
    float wavelen = two_pi / f;
    if (wavelen > (float)(r->orig_ctx / r->low_freq_factor)) return f / factor;
    if (wavelen < (float)(r->orig_ctx / r->high_freq_factor)) return f;
    if (r->high_freq_factor == r->low_freq_factor) return f; /* there is nothing between them */
    float smooth = (orig / wavelen - low) / (float)(r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / factor + smooth * f;
}

static float yarn_mscale(const struct model_rope *r)
{
    if (r->attn_factor > 0) return (float)r->attn_factor;
    return r->factor <= 1 ? 1.0f : (float)(0.1 * log(r->factor) + 1.0);
}

struct model_rope model_rope_for(const struct model_rope *r, unsigned ctx)
{
    struct model_rope one = *r;
    if (r->type != ROPE_LONG) return one;
    const bool is_long = ctx > r->orig_ctx;
    if (is_long) one.freq_factors = r->long_factors;
    one.long_factors = NULL;
    one.factor = is_long; /* which, for those who compare settings */
    return one;
}

void model_rope_freqs(const struct model_cfg *c, const struct model_rope *r, float *ret_inv_freq,
                      float *ret_mscale)
{
    double low = 0, high = 0;
    if (r->type == ROPE_YARN) {
        low = correction_dim(r->beta_fast, r, c->n_rot);
        high = correction_dim(r->beta_slow, r, c->n_rot);
        if (!r->no_truncate) {
            low = floor(low);
            high = ceil(high);
        }
        low = fmax(low, 0);
        high = fmin(high, (double)c->n_rot - 1);
        if (low == high) high += 0.001; /* as the reference does against a division by zero */
    }
    for (unsigned i = 0; i < c->n_rot / 2; i++) {
        float e = (float)(2 * i) / (float)c->n_rot;
        float p = (float)pow(r->base, (double)e), f;
        if (r->freq_factors) p *= r->freq_factors[i];
        f = 1.0f / p;
        if (r->type == ROPE_LINEAR) {
            f /= (float)r->factor;
        } else if (r->type == ROPE_LLAMA3) {
            f = llama3_freq(r, f);
        } else if (r->type == ROPE_YARN) {
            float ramp = ((float)i - (float)low) / (float)(high - low);
            ramp = fminf(fmaxf(ramp, 0), 1);
            float keep = 1 - ramp;
            f = 1.0f / ((float)r->factor * p) * (1 - keep) + f * keep;
        }
        ret_inv_freq[i] = f;
    }
    *ret_mscale = r->type == ROPE_YARN   ? yarn_mscale(r)
                  : r->type == ROPE_LONG ? (float)r->attn_factor
                                         : 1.0f;
}
