/* etc/openapi.json and etc/openapi-admin.json describe the routes of the tables, each method of
 * each, and nothing else. */
#include "gateway/front/front.c"
#include "gateway/front/openapi.h"

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

/* A path as a client might send it: names in braces have a value. */
static void fill(const char *described, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *p = described; *p && n + 1 < cap; p++) {
        out[n++] = *p == '{' ? 'x' : *p;
        if (*p == '{') p = strchr(p, '}');
    }
    out[n] = '\0';
}

static const struct gw_route *route_of(const struct gw_route *table, size_t n,
                                       const char *described)
{
    char path[256];
    const char *rest;
    fill(described, path, sizeof path);
    return find_route(table, n, strncmp(path, "/v1/", 4) == 0 ? path + 3 : path, &rest);
}

/* Keys of an entry that are methods; others (parameters) are not. */
static bool is_method(const char *key, char *out)
{
    static const char *known[] = {"get", "post", "put", "delete", "patch"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(key, known[i]) != 0) continue;
        for (size_t j = 0; j <= strlen(key); j++)
            out[j] = (char)toupper(key[j]);
        return true;
    }
    return false;
}

static bool described(const json_t *paths, const struct gw_route *table, size_t n, size_t which,
                      const char *method)
{
    const char *path, *key;
    json_t *entry, *operation;
    json_object_foreach((json_t *)paths, path, entry) {
        if (route_of(table, n, path) != &table[which]) continue;
        char name[8];
        json_object_foreach(entry, key, operation)
            if (is_method(key, name) && strcmp(name, method) == 0) return true;
    }
    return false;
}

static void check_tables(const char *file, const struct gw_route *table, size_t n, const char *tag)
{
    json_t *paths, *doc = load(file, &paths);
    for (size_t i = 0; i < n; i++) {
        char methods[64], *save = NULL;
        (void)snprintf(methods, sizeof methods, "%s", table[i].methods);
        for (char *m = strtok_r(methods, ", ", &save); m; m = strtok_r(NULL, ", ", &save))
            if (!described(paths, table, n, i, m))
                test_fail(__FILE__, __LINE__, "%s does not describe %s %s", file, m, table[i].path);
    }
    const char *path, *key;
    json_t *entry, *operation;
    json_object_foreach(paths, path, entry)
        json_object_foreach(entry, key, operation) {
            char method[8];
            const json_t *tags = json_object_get(operation, "tags");
            if (!is_method(key, method)) continue;
            if (tag && strcmp(json_string_value(json_array_get(tags, 0)), tag) != 0) continue;
            const struct gw_route *r = route_of(table, n, path);
            if (!r || !method_allowed(r->methods, method))
                test_fail(__FILE__, __LINE__, "%s: no %s %s", file, method, path);
        }
    const char *version =
        json_string_value(json_object_get(json_object_get(doc, "info"), "version"));
    ASSERT_STREQ(version, KV_VERSION);
    json_decref(doc);
}

TEST(public_routes_are_described)
{
    check_tables("openapi.json", public_routes, N_PUBLIC, NULL);
}

/* The last is what goes on to the worker, whose own test knows its routes. */
TEST(admin_routes_are_described)
{
    ASSERT_STREQ(gw_admin_routes[gw_admin_n_routes - 1].path, "/admin/");
    check_tables("openapi-admin.json", gw_admin_routes, gw_admin_n_routes - 1, "gateway");
}

/* What the build has put into the program is what is described above, the admin API's first. */
TEST(the_program_carries_both)
{
    static const char *names[] = {"openapi-admin.json", "openapi.json"};
    ASSERT_EQ(gw_n_openapi_files, 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *paths, *doc = load(names[i], &paths);
        json_t *carried = json_loads(gw_openapi_files[i].text, 0, NULL);
        ASSERT_STREQ(gw_openapi_files[i].name, names[i]);
        ASSERT_TRUE(json_equal(doc, carried));
        json_decref(carried);
        json_decref(doc);
    }
}
