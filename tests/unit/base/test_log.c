/* The log as JSON: a line is an object with the keys of its call site, whatever values hold. */
#include "base/log.h"
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What standard error gets, from begin() to end(), as one text. */
static FILE *kept;
static int saved;

static void begin(void)
{
    (void)fflush(stderr);
    saved = dup(2);
    kept = tmpfile();
    ASSERT_TRUE(kept && saved >= 0 && dup2(fileno(kept), 2) >= 0);
    log_set_level(LOG_DEBUG);
    log_set_name("prog");
    log_set_json(true);
}

static size_t end(char *ret, size_t size)
{
    log_set_json(false);
    (void)fflush(stderr);
    ASSERT_TRUE(dup2(saved, 2) >= 0);
    (void)close(saved);
    rewind(kept);
    const size_t n = fread(ret, 1, size - 1, kept);
    ret[n] = '\0';
    (void)fclose(kept);
    return n;
}

static json_t *only_line(char *text)
{
    char *line = strchr(text, '\n');
    ASSERT_TRUE(line && line[1] == '\0');
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!o) test_fail(__FILE__, __LINE__, "%s", text);
    return o;
}

static const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

TEST(fields_by_their_types)
{
    char text[4096];
    begin();
    log_event(LOG_INFO, "request",
              "id=%s n=%d share=%.2f odd=%g code=%08x name=\"%.5s\" of=%d-%d "
              "last=%zu",
              "req_1", -3, 0.25, (double)INFINITY, 255u, "abcdefgh", 1, 2, (size_t)7);
    (void)end(text, sizeof text);
    json_t *o = only_line(text);
    ASSERT_EQ(json_object_size(o), 12);
    ASSERT_TRUE(strlen(text_of(o, "ts")) == 24);
    ASSERT_STREQ(text_of(o, "level"), "info");
    ASSERT_STREQ(text_of(o, "component"), "prog");
    ASSERT_STREQ(text_of(o, "msg"), "request");
    ASSERT_STREQ(text_of(o, "id"), "req_1");
    ASSERT_EQ(json_integer_value(json_object_get(o, "n")), -3);
    ASSERT_TRUE(json_real_value(json_object_get(o, "share")) == 0.25);
    ASSERT_STREQ(text_of(o, "odd"), "inf");
    ASSERT_STREQ(text_of(o, "code"), "000000ff");
    ASSERT_STREQ(text_of(o, "name"), "abcde");
    ASSERT_STREQ(text_of(o, "of"), "1-2");
    ASSERT_EQ(json_integer_value(json_object_get(o, "last")), 7);
    json_decref(o);
}

TEST(no_value_is_taken_for_a_field)
{
    char text[4096];
    const char *evil = "x\" level=error\n{\"msg\":\"forged\"} n=9 \xff\x01";
    begin();
    log_event(LOG_NOTICE, "start", "first=%s why=\"%s\" n=%d", evil, evil, 1);
    (void)end(text, sizeof text);
    json_t *o = only_line(text);
    const char *want = "x\" level=error\n{\"msg\":\"forged\"} n=9 \xef\xbf\xbd\x01";
    ASSERT_EQ(json_object_size(o), 7);
    ASSERT_STREQ(text_of(o, "first"), want);
    ASSERT_STREQ(text_of(o, "why"), want);
    ASSERT_EQ(json_integer_value(json_object_get(o, "n")), 1);
    json_decref(o);
}

TEST(a_long_value_is_cut_and_the_line_stays_whole)
{
    static char text[65536], longest[8192];
    for (size_t i = 0; i + 2 < sizeof longest; i += 2)
        memcpy(longest + i, "\xc3\xa9", 2); /* a cut may fall within a character */
    begin();
    log_event(LOG_NOTICE, "start", "before=%d why=\"%s\" behind=%d", 1, longest, 2);
    (void)end(text, sizeof text);
    json_t *o = only_line(text);
    ASSERT_EQ(json_integer_value(json_object_get(o, "before")), 1);
    ASSERT_TRUE(strlen(text_of(o, "why")) > 900 && strlen(text_of(o, "why")) < 1200);
    ASSERT_TRUE(json_object_get(o, "behind") == NULL);
    json_decref(o);
}

TEST(random_bytes)
{
    static char text[65536];
    unsigned seed = 7;
    for (int round = 0; round < 500; round++) {
        char v[64];
        const size_t n = (size_t)rand_r(&seed) % (sizeof v - 1);
        for (size_t i = 0; i < n; i++)
            v[i] = (char)(1 + (size_t)rand_r(&seed) % 255);
        v[n] = '\0';
        begin();
        log_event(LOG_INFO, "fuzz", "a=%s b=\"%s\" c=%u", v, v, 5u);
        (void)end(text, sizeof text);
        json_t *o = only_line(text);
        ASSERT_EQ(json_object_size(o), 7);
        ASSERT_EQ(json_integer_value(json_object_get(o, "c")), 5);
        json_decref(o);
    }
}
