/* Opening: from a loaded model or from a path. Apart from tok.c, so that whoever links the
 * tokenizer alone needs no model loader. */
#include "fusor/model/gguf.h"
#include "fusor/model/model.h"
#include "fusor/text/tok_int.h"

int tok_open(const struct model *m, struct tok **ret, struct err *err)
{
    const struct gguf *g = model_gguf(m);
    return g ? tok_open_gguf(g, ret, err) : tok_open_path(model_path(m), ret, err);
}
