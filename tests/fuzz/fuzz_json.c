/* Fuzz target: any bytes as a JSON body. What the scanner accepts jansson must accept too (but for
 * numbers beyond its types), and every reported value must be valid by itself. */
#include "base/assert.h"
#include "base/buf.h"
#include "base/jsonscan.h"

#include <jansson.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static int on_field(void *ctx, const struct json_field *f)
{
    const char *text = ctx;
    ASSERT(f->key.type == JSON_T_STRING && f->key.p >= text);
    struct buf b = BUF_INIT;
    struct json_val again;
    int64_t i;
    double d;
    ASSERT(json_str_read(&f->key, &b) == 0 && b.len <= f->key.len);
    ASSERT(json_scan(f->val.p, f->val.len, &again, NULL) == 0);
    ASSERT(again.type == f->val.type && again.len == f->val.len);
    buf_clear(&b);
    if (f->val.type == JSON_T_STRING) ASSERT(json_str_read(&f->val, &b) == 0);
    (void)json_int_read(&f->val, &i);
    (void)json_double_read(&f->val, &d);
    buf_fini(&b);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const char *text = (const char *)data;
    struct json_fault fault = {0};
    int r = json_scan_object(text, len, on_field, (void *)data, &fault);
    if (r < 0) {
        ASSERT(fault.why && fault.at <= len);
        return 0;
    }
    json_error_t e;
    json_t *root = json_loadb(text, len, JSON_ALLOW_NUL, &e);
    ASSERT(root || json_error_code(&e) == json_error_numeric_overflow);
    json_decref(root);
    return 0;
}
