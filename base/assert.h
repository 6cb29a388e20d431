/* Assertions for programmer errors; never for input, disk, network or device data.
 *
 * ASSERT is always compiled, prints and aborts. DEBUG_ASSERT costs nothing in release builds.
 * ALWAYS/NEVER mark defensive branches: they abort in debug builds and are handled in release.
 * NDEBUG is never defined in this project. */
#ifndef BASE_ASSERT_H
#define BASE_ASSERT_H

#include <assert.h>

_Noreturn void assert_fail(const char *expr, const char *file, int line, const char *func);

#define ASSERT(x) ((x) ? (void)0 : assert_fail(#x, __FILE__, __LINE__, __func__))

#ifdef KV_DEBUG
#define DEBUG_ASSERT(x) ASSERT(x)
#define ALWAYS(x) ((x) ? 1 : (assert_fail(#x, __FILE__, __LINE__, __func__), 0))
#define NEVER(x) ((x) ? (assert_fail(#x, __FILE__, __LINE__, __func__), 1) : 0)
#else
#define DEBUG_ASSERT(x) ((void)0)
#define ALWAYS(x) (x)
#define NEVER(x) (x)
#endif

#endif
