#include "fusor/model/tensors.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

int tensors_reserve(struct tensors *ts, size_t extra)
{
    if (ts->cap - ts->n >= extra) return 0;
    size_t cap = ts->n + extra, bytes;
    if (!size_mul(cap, sizeof(*ts->t), &bytes)) return -ENOMEM;
    struct tensor *t = mem_realloc(ts->t, bytes);
    if (!t) return -ENOMEM;
    ts->t = t;
    ts->cap = cap;
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->data != y->data) return x->data > y->data ? 1 : -1;
    return (x->size_bytes > y->size_bytes) - (x->size_bytes < y->size_bytes);
}

int tensors_check_overlap(struct tensors *ts, size_t from, struct err *err)
{
    if (ts->n > from + 1) qsort(ts->t + from, ts->n - from, sizeof(*ts->t), by_place);
    for (size_t i = from + 1; i < ts->n; i++) {
        const struct tensor *a = &ts->t[i - 1], *b = &ts->t[i];
        if (a->data + a->size_bytes > b->data)
            return err_set(err, -EBADMSG, "tensors \"%.64s\" and \"%.64s\" overlap", a->name,
                           b->name);
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

int tensors_sort(struct tensors *ts, struct err *err)
{
    if (ts->n > 1) qsort(ts->t, ts->n, sizeof(*ts->t), by_name);
    for (size_t i = 1; i < ts->n; i++)
        if (by_name(&ts->t[i - 1], &ts->t[i]) == 0)
            return err_set(err, -EBADMSG, "tensor \"%.80s\" is there twice", ts->t[i].name);
    return 0;
}

struct tensor *tensors_find(const struct tensors *ts, const char *name)
{
    struct tensor want = {.name = name};
    return ts->n ? bsearch(&want, ts->t, ts->n, sizeof(*ts->t), by_name) : NULL;
}

void tensors_fini(struct tensors *ts)
{
    mem_free(ts->t);
    ts->t = NULL;
    ts->n = ts->cap = 0;
}
