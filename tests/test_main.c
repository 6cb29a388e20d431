#include "tests/test.h"

#include <setjmp.h>
#include <stdarg.h>

static struct test *tests_head, **tests_tail = &tests_head;
static jmp_buf test_jmp;
static char test_msg[1024];

void test_register(struct test *t)
{
    *tests_tail = t;
    tests_tail = &t->next;
}

_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
{
    int n = snprintf(test_msg, sizeof test_msg, "%s:%d: ", file, line);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(test_msg + n, sizeof test_msg - (size_t)n, fmt, ap);
    va_end(ap);
    longjmp(test_jmp, 1);
}

_Noreturn void test_skip(const char *why)
{
    (void)snprintf(test_msg, sizeof test_msg, "%s", why);
    longjmp(test_jmp, 2);
}

static bool is_missing;

_Noreturn void test_missing(const char *what)
{
    is_missing = true;
    test_skip(what);
}

const char *test_data(const char *rel)
{
    static char path[4096];
    const char *root = getenv("KVBLEND_TEST_DATA");
    (void)snprintf(path, sizeof path, "%s/%s", root ? root : KV_SOURCE_DIR "/tests/data", rel);
    return path;
}

uint64_t test_rand(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Does the name contain one of the patterns, which have commas between? */
static bool wanted(const char *name, const char *patterns)
{
    char part[128];
    for (const char *p = patterns;; p++) {
        const size_t n = strcspn(p, ",");
        (void)snprintf(part, sizeof part, "%.*s", (int)n, p);
        if (strstr(name, part)) return true;
        p += n;
        if (!*p) return false;
    }
}

int main(int argc, char **argv)
{
    const char *pattern = argc == 3 && strcmp(argv[1], "-k") == 0 ? argv[2] : "";
    volatile int passed = 0, failed = 0, skipped = 0;
    for (struct test *volatile t = tests_head; t; t = t->next) {
        if (!wanted(t->name, pattern)) continue;
        int r = setjmp(test_jmp);
        if (r == 0) {
            t->fn();
            passed++;
        } else if (r == 1) {
            (void)printf("FAIL %s: %s\n", t->name, test_msg);
            (void)fflush(stdout); /* a sanitizer may end the program without it */
            failed++;
        } else {
            (void)printf("SKIP %s: %s\n", t->name, test_msg);
            skipped++;
        }
    }
    (void)printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    if (failed) return 1;
    return is_missing || (passed == 0 && skipped > 0) ? 77 : 0;
}
