/* group: several GPUs of a host as one device of kn.h, by tensor parallelism (Megatron-LM, arXiv
 * 1909.08053): each rank has whole KV heads, the queries that read them and a share of the
 * feed-forward width; two sums a layer make the residual whole again on every rank.
 *
 * One process and one thread: a run of the group is a run of every rank, one inside the other, and
 * an operation is the ranks' own, one rank after the other on its stream.
 *
 * Addresses: what has a place on every rank has one address of the group, in which nothing is
 * mapped: MARK, the number of an area, an offset. Area and offset tell each rank's own place:
 * whole tensors are as far from its base, those whose heads are shared `n` times less. Scratch
 * slots are areas that the operation reads either way. Memory that the host reaches is one, and its
 * address the same for all.
 * Thread: as kn.h. */
#ifndef KERNELS_GROUP_GROUP_H
#define KERNELS_GROUP_GROUP_H

#include "base/assert.h"
#include "kernels/kn_int.h"

#define GROUP_MARK ((uintptr_t)1 << 62) /* no address of a process, nor of a device */
enum {
    GROUP_AREA_BIT = 40,
    GROUP_TABLE_BYTES = 16 << 20, /* chosen: page tables of 268 million tokens */
    GROUP_TABLE_UNIT = 256,
    GROUP_TURNS = 64, /* of kn_stage() at once, as the ranks */
    GROUP_PARTS = 4,  /* of a weight */
};
enum {                          /* areas: scratch slots, then */
       GROUP_TABLES = KN_SLOTS, /* KN_MEM_TABLE, then pieces of kn_stage(), */
       GROUP_PIECES = GROUP_TABLES + 1,
       GROUP_MEMORY = GROUP_PIECES + 512 /* chosen: 64 ranges of four layers; then all else */
};

enum group_area_kind { AREA_FREE, AREA_WHOLE, AREA_HEADS, AREA_EITHER /* scratch */ };
struct group_area {
    enum group_area_kind kind;
    char *base[KN_RANKS_MAX];
    uint64_t turn; /* a piece of that turn of kn_stage(); 0: memory */
};

struct group_turn {
    bool open;
    uint64_t rank[KN_RANKS_MAX];
};

struct kn_stream { /* as struct kn_stream_head */
    struct kn_dev *dev;
    struct kn_stream *rank[KN_RANKS_MAX];
    bool shared[KN_SLOTS]; /* kn_operand() of a product that reads a share */
};

struct kn_dev {
    struct kn_dev_head head;
    unsigned n;
    struct kn_dev *rank[KN_RANKS_MAX];
    const struct kn_ops *ops; /* the ranks' */
    struct kn_team *team;
    char name[200], model[96];
    struct kn_stream stream;
    struct group_area *area;
    size_t n_areas;
    uint32_t *table_units; /* [GROUP_TABLE_BYTES / UNIT] at a table's first unit its length */
    struct group_turn turn[GROUP_TURNS];
    uint64_t next_turn;
};

struct kn_mat { /* as struct kn_mat_head */
    struct kn_dev *dev;
    size_t n, k;
    bool inner;
    typeof(kn_mat_create) *create; /* of the ranks'; NULL: kn_mat_create_coded() of `form` */
    struct kn_part form[GROUP_PARTS];
    size_t n_forms;
    enum kn_split split;
    size_t part[GROUP_PARTS], n_parts; /* KN_SPLIT_HEADS, _VOCAB: rows that are shared out, each */
    struct kn_mat *rank[KN_RANKS_MAX]; /* NULL: not made yet */
    struct kn_mat **experts[KN_RANKS_MAX]; /* of a router: gate_up [n], down [n], of this rank */
};

static inline bool group_owns(const void *p)
{
    return (uintptr_t)p >> 62 == 1;
}
static inline void *group_address(size_t area, size_t offset)
{
    return (void *)(GROUP_MARK | area << GROUP_AREA_BIT | offset);
}
static inline size_t group_area_of(const void *p)
{
    return ((uintptr_t)p & ~GROUP_MARK) >> GROUP_AREA_BIT;
}
static inline size_t group_offset(const void *p)
{
    return (uintptr_t)p & (((uintptr_t)1 << GROUP_AREA_BIT) - 1);
}
/* Where rank r has it, of tensors that are whole on each; and of those that are shared out. What
 * the host reaches, NULL included, is where it is. */
void *group_whole(const struct kn_dev *d, unsigned r, const void *p);
void *group_share(const struct kn_dev *d, unsigned r, const void *p);
bool group_is_heads(const struct kn_dev *d, const void *p);
/* Operations, ops.c; weights, mat.c. */
extern const struct kn_row_ops group_row_ops;
extern const struct kn_mat_ops group_mat_ops;
int group_mat_rows(struct kn_mat *w, size_t row0, size_t n, struct kn_mat **ret_mat);
int group_embed(struct kn_stream *st, const struct kn_mat *w, const int32_t *id, size_t m,
                float *out, size_t ldo);

#endif
