/* fields: several keys of a JSON object in one pass.
 *
 * Of a key that stands twice the last value counts. Pure; borrows the text. Thread: any. */
#ifndef GATEWAY_REQUEST_FIELDS_H
#define GATEWAY_REQUEST_FIELDS_H

#include "base/jsonscan.h"

struct gw_field { /* a table of them ends with {0} */
    const char *key;
    struct json_val *ret; /* left alone where the key is missing */
};
static inline int gw_on_field(void *table, const struct json_field *f) /* of json_scan_object() */
{
    for (const struct gw_field *x = table; x->key; x++)
        if (json_str_is(&f->key, x->key)) *x->ret = f->val;
    return 0;
}
/* An object's fields; anything else has none. A negative errno: it is malformed. */
static inline int gw_fields(const struct json_val *object, struct gw_field *table)
{
    if (object->type != JSON_T_OBJECT) return 0;
    return json_scan_object(object->p, object->len, gw_on_field, table, NULL);
}

#endif
