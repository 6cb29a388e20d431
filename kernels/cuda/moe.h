/* moe: a mixture of experts on a device, see kn_moe(). Errors and threads as launch.h. */
#ifndef KERNELS_CUDA_MOE_H
#define KERNELS_CUDA_MOE_H

#include "kernels/cuda/coded.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cu_expert { /* weights of one, values or codes; data NULL: no row goes to it */
    struct cu_side gate_up, down;
};

/* A pair is a row and one of its experts. Pairs have two orders: by rows, and by experts inside a
 * row; or by experts, and by rows inside an expert ("grouped"). */
struct cu_moe {
    enum cu_type type; /* of the experts' weights; activations are f32 where it is, else bf16 */
    const struct cu_expert *expert;        /* [n] */
    struct cu_coded gate_up, down;         /* codes: all experts' form and shape; else k is 0 */
    const float *gate_up_bias, *down_bias; /* [n, 2F], [n, D], or NULL */
    unsigned n, used;
    enum kn_act act;
    int renorm, accumulate;
    size_t m, D, F, shared_F; /* shared_F 0: no shared expert */
    const float *h;           /* [m, D] */
    float *x;                 /* [m, D] */
    /* From here on set by cu_moe_place(). The caller fills in first, where there is a shared
     * expert by way of the next two: */
    float *logits, *shared;        /* [m, n], with a shared expert [m, n + 1]; [m, D] or NULL */
    float *shared_gu, *shared_act; /* [m, 2 shared_F], [m, shared_F] */
    uint32_t *choice, *place;      /* [m used] by rows: the expert; where it is, grouped */
    float *weight;                 /* [m used] by rows */
    uint32_t *row, *owner, *first; /* [m used] grouped: row, expert; [n + 1] of an expert's pairs */
    void *in, *mid;                /* [m, D] (NULL: h is it), [m used, F], as products read them */
    float *out;                    /* [m used, D] grouped */
    uint16_t *panel;               /* codes and many rows: values of experts, or NULL */
    unsigned panel_first, n_panel; /* which has what it has room for */
};
/* Divides scratch at `at`; the bytes that it takes. at NULL: only counts. */
size_t cu_moe_place(struct cu_moe *g, void *at);
/* moe_coded.cu: codes of the experts that the panel has, as values; products of few rows. */
int cu_moe_values(struct cu *c, const struct cu_moe *g, int up);
int cu_moe_coded(struct cu *c, const struct cu_moe *g, int up);
/* Logits and the shared expert's results are queued already. */
int cu_moe(struct cu *c, const struct cu_moe *g);

#ifdef __cplusplus
}
#endif
#endif
