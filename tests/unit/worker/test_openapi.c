/* etc/openapi.json and etc/openapi-admin.json describe the worker's routes, and no others as a
 * worker's. */
#include "worker/routes.c"

#include "tests/test.h"

#include <ctype.h>
#include <jansson.h>

static json_t *load(const char *name, json_t **ret_paths)
{
    json_error_t e;
    char path[512];

    (void)snprintf(path, sizeof path, KV_SOURCE_DIR "/etc/%s", name);
    json_t *doc = json_load_file(path, 0, &e);
    ASSERT_TRUE(doc);
    *ret_paths = json_object_get(doc, "paths");
    ASSERT_TRUE(json_is_object(*ret_paths));
    return doc;
}

/* "/v1/models/{id}" is the route "/models/". */
static bool same_route(const struct wk_route *r, const char *described)
{
    const char *path = strncmp(described, "/v1/", 4) == 0 ? described + 3 : described, *rest;

    return path_matches(r, path, &rest) && (rest[0] == '{') == ((r->flags & R_REST) != 0);
}

static bool has_method(const json_t *entry, const char *method)
{
    char key[8] = "";

    for (size_t i = 0; method[i] && i + 1 < sizeof key; i++)
        key[i] = (char)tolower(method[i]);
    return json_object_get(entry, key) != NULL;
}

TEST(routes_are_described)
{
    json_t *public_paths, *admin_paths, *entry;
    json_t *public_doc = load("openapi.json", &public_paths);
    json_t *admin_doc = load("openapi-admin.json", &admin_paths);

    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct wk_route *r = &routes[i];
        bool found = false;
        const char *path;
        json_object_foreach(strncmp(r->path, "/admin/", 7) == 0 ? admin_paths : public_paths, path,
                            entry)
            found = found || (same_route(r, path) && has_method(entry, r->method));
        if (!found) test_fail(__FILE__, __LINE__, "%s %s is not described", r->method, r->path);
    }
    json_decref(public_doc);
    json_decref(admin_doc);
}

TEST(what_is_described_as_a_workers_is_there)
{
    static const char *methods[] = {"GET", "POST", "DELETE", "PUT"};
    json_t *paths, *entry, *doc = load("openapi-admin.json", &paths);
    const char *path;

    json_object_foreach(paths, path, entry)
        for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
            bool found = false;
            char key[8] = "";
            for (size_t i = 0; methods[m][i]; i++)
                key[i] = (char)tolower(methods[m][i]);
            const json_t *tags = json_object_get(json_object_get(entry, key), "tags");
            const char *tag = json_string_value(json_array_get(tags, 0));
            if (!tag || strcmp(tag, "worker") != 0) continue;
            for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
                found = found ||
                        (same_route(&routes[i], path) && strcmp(routes[i].method, methods[m]) == 0);
            if (!found)
                test_fail(__FILE__, __LINE__, "%s %s is described, and not there", methods[m],
                          path);
        }
    json_decref(doc);
}
