/* What a template keeps: its names, each once, so that a run compares pointers; its own strings. */
#include "fusor/text/jinja_tree.h"

#include "base/fnv.h"
#include "fusor/text/jinja_str.h"

#include <string.h>

const struct jj_name *jj_known(const struct jinja *t, const char *s, size_t len)
{
    const struct jj_name *n = t->names[fnv_add(FNV_START, s, len) % 256];
    while (n && (n->len != len || memcmp(n->s, s, len) != 0))
        n = n->next;
    return n;
}

const struct jj_name *jj_intern(struct jinja *t, const char *s, size_t len)
{
    const struct jj_name *known = jj_known(t, s, len);
    if (known) return known;
    struct jj_name *n = arena_alloc(&t->arena, sizeof *n + len + 1);
    if (!n) return NULL;
    struct jj_name **head = &t->names[fnv_add(FNV_START, s, len) % 256];
    memcpy(n->s, s, len);
    n->len = len;
    n->next = *head;
    *head = n;
    return n;
}

void jinja_close(struct jinja *t)
{
    if (!t) return;
    arena_fini(&t->arena);
    mem_free(t);
}

bool jinja_says(const struct jinja *t, const char *words)
{
    const size_t len = strlen(words);
    for (const struct jj_node *n = t->strings; n; n = n->next) {
        const struct jinja_str *s = n->val.s;
        if (s->len == len && len && memcmp(s->seg->p, words, len) == 0) return true;
    }
    return false;
}
