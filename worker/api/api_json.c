/* Bodies to JSON trees, and what all readers of them need. Nesting is checked before jansson sees a
 * body, because its parser recurses. */
#include "base/jsonscan.h"
#include "worker/api/api.h"

int api_load_object(const char *body, size_t len, json_t **ret, struct api_err *e)
{
    json_error_t je;
    json_t *root;

    if (len == 0)
        return api_err_set(e, API_INVALID_JSON, NULL,
                           "The request body is empty; a JSON object is expected.");
    if (json_depth(body, len) > JSON_DEPTH_MAX)
        return api_err_set(e, API_INVALID_JSON, NULL,
                           "The request body is nested deeper than %d levels.", JSON_DEPTH_MAX);
    root = json_loadb(body, len, JSON_DECODE_ANY, &je);
    if (!root)
        return api_err_set(e, API_INVALID_JSON, NULL,
                           "The request body is not valid JSON: %s (line %d, column %d).", je.text,
                           je.line, je.column);
    if (!json_is_object(root)) {
        json_decref(root);
        return api_err_set(e, API_INVALID_JSON, NULL, "The request body must be a JSON object.");
    }
    *ret = root;
    return 0;
}

const json_t *api_field(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);

    return json_is_null(v) ? NULL : v;
}

bool api_string(const json_t *v, const char **ret, size_t *ret_len)
{
    if (!json_is_string(v)) return false;
    *ret = json_string_value(v);
    *ret_len = json_string_length(v);
    return true;
}
