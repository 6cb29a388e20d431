/* What is remembered under a key comes back under it alone, line by line. */
#include "base/fnv.h"
#include "base/keyfile.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct seen {
    char text[64];
    unsigned n, most;
};

static bool take_line(void *arg, const char *line)
{
    struct seen *s = arg;
    strncat(s->text, line, sizeof s->text - strlen(s->text) - 1);
    strncat(s->text, ";", sizeof s->text - strlen(s->text) - 1);
    return ++s->n < s->most;
}

static void write_lines(const struct keyfile *k, const char *lines)
{
    struct buf b = BUF_INIT;
    ASSERT_OK(buf_adds(&b, lines));
    keyfile_write(k, &b);
    buf_fini(&b);
}

TEST(lines_come_back_under_their_key_alone)
{
    char dir[] = "/tmp/keyfile-XXXXXX", inner[64], path[128];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    (void)snprintf(inner, sizeof inner, "%s/made", dir);
    const struct keyfile k = {inner, "test", "v1 of this machine"};
    const struct keyfile other = {inner, "test", "v2 of this machine"};
    struct seen s = {.most = 9};
    ASSERT_TRUE(!keyfile_read(&k, take_line, &s));
    write_lines(&k, "a 1\nb 2\nc 3\n");
    write_lines(&k, "a 1\nb 2\n"); /* as a whole */
    ASSERT_TRUE(keyfile_read(&k, take_line, &s));
    ASSERT_STREQ(s.text, "a 1;b 2;");
    s = (struct seen){.most = 1};
    ASSERT_TRUE(keyfile_read(&k, take_line, &s));
    ASSERT_STREQ(s.text, "a 1;");
    ASSERT_TRUE(!keyfile_read(&other, take_line, &s));
    ASSERT_TRUE(!keyfile_read(&(struct keyfile){NULL, "test", k.key}, take_line, &s));
    const uint64_t hash = fnv_add(FNV_START, k.key, strlen(k.key));
    (void)snprintf(path, sizeof path, "%s/test-%016llx.txt", inner, (unsigned long long)hash);
    FILE *f = fopen(path, "we"); /* another key of the same hash */
    ASSERT_TRUE(f && fputs("v3 of this machine\na 1\n", f) >= 0);
    ASSERT_OK(fclose(f));
    ASSERT_TRUE(!keyfile_read(&k, take_line, &s));
    ASSERT_OK(unlink(path));
    ASSERT_OK(rmdir(inner));
    ASSERT_OK(rmdir(dir));
}

TEST(fnv_is_fnv_1a)
{
    ASSERT_TRUE(fnv_add(FNV_START, "", 0) == 0xcbf29ce484222325ull);
    ASSERT_TRUE(fnv_add(FNV_START, "a", 1) == 0xaf63dc4c8601ec8cull);
}
