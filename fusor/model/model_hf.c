#include "fusor/model/model_int.h"
int model_from_hf(struct model *m, struct err *err)
{
    return err_set(err, -ENOTSUP, "%s: is a folder", m->where);
}
