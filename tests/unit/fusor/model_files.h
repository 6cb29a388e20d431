/* Files in memory for the loader tests: something with a path, a seeded mutator, a GGUF builder. */
#ifndef TESTS_UNIT_FUSOR_MODEL_FILES_H
#define TESTS_UNIT_FUSOR_MODEL_FILES_H

#include "base/buf.h"
#include "base/mem.h"
#include "fusor/model/gguf.h"
#include "tests/test.h"

#include <sys/mman.h>
#include <unistd.h>

struct mem_file { /* an anonymous file that can be opened by path */
    int fd;
    char path[40];
};

static inline void mem_file_init(struct mem_file *f, const void *data, size_t len)
{
    f->fd = memfd_create("test", 0);
    ASSERT_TRUE(f->fd >= 0);
    (void)snprintf(f->path, sizeof(f->path), "/proc/self/fd/%d", f->fd);
    ASSERT_EQ(pwrite(f->fd, data, len, 0), len);
}

static inline void mem_file_fini(struct mem_file *f)
{
    (void)close(f->fd);
}

static inline uint8_t *read_whole(const char *path, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");
    ASSERT_TRUE(f != NULL);
    ASSERT_EQ(fseek(f, 0, SEEK_END), 0);
    long len = ftell(f);
    ASSERT_TRUE(len > 0);
    rewind(f);
    uint8_t *p = mem_alloc((size_t)len);
    ASSERT_TRUE(p != NULL);
    ASSERT_EQ(fread(p, 1, (size_t)len, f), len);
    (void)fclose(f);
    *ret_len = (size_t)len;
    return p;
}

/* Damage a copy of `src` in one to four places, mostly in its first `head` bytes; sometimes cut it
 * short. Returns the new length. */
static inline size_t mutate(const uint8_t *src, size_t len, size_t head, uint8_t *out,
                            uint64_t *seed)
{
    static const uint64_t odd[] = {0,          1,          31,        0x7fffffff,
                                   0xffffffff, 1ull << 40, INT64_MAX, UINT64_MAX};
    memcpy(out, src, len);
    for (uint64_t i = 1 + test_rand(seed) % 4; i > 0; i--) {
        size_t at = test_rand(seed) % (test_rand(seed) % 8 ? head : len);
        uint64_t r = test_rand(seed);
        size_t n = len - at < 8 ? len - at : 8;
        switch (r % 4) {
        case 0:
            out[at] ^= (uint8_t)(1u << (r >> 8) % 8);
            break;
        case 1:
            out[at] = (uint8_t)(r >> 8);
            break;
        case 2:
            memcpy(out + at, &odd[(r >> 8) % (sizeof(odd) / sizeof(odd[0]))], n);
            break;
        default:
            memmove(out + at, out + test_rand(seed) % head, n < head - n ? n : 0);
            break;
        }
    }
    return test_rand(seed) % 8 ? len : test_rand(seed) % len + 1;
}

/* ---- GGUF builder: header, entries, tensors, data, all little-endian ---- */
struct gguf_build {
    struct buf kv, info;
    uint64_t n_kv, n_tensors, data_bytes;
};

static inline void put(struct buf *b, const void *p, size_t n)
{
    ASSERT_OK(buf_add(b, p, n));
}

static inline void put_u32(struct buf *b, uint32_t v)
{
    put(b, &v, sizeof(v));
}

static inline void put_u64(struct buf *b, uint64_t v)
{
    put(b, &v, sizeof(v));
}

static inline void put_str(struct buf *b, const char *s)
{
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static inline void gb_kv_u32(struct gguf_build *g, const char *key, uint32_t v)
{
    put_str(&g->kv, key);
    put_u32(&g->kv, GGUF_U32);
    put_u32(&g->kv, v);
    g->n_kv++;
}

static inline void gb_kv_f32(struct gguf_build *g, const char *key, float v)
{
    put_str(&g->kv, key);
    put_u32(&g->kv, GGUF_F32);
    put(&g->kv, &v, sizeof(v));
    g->n_kv++;
}

static inline void gb_kv_str(struct gguf_build *g, const char *key, const char *v)
{
    put_str(&g->kv, key);
    put_u32(&g->kv, GGUF_STR);
    put_str(&g->kv, v);
    g->n_kv++;
}

/* rows 0: a vector. The data comes behind that of the tensors before it. */
static inline void gb_tensor(struct gguf_build *g, const char *name, uint32_t type, uint64_t rows,
                             uint64_t cols, uint64_t size_bytes)
{
    put_str(&g->info, name);
    put_u32(&g->info, rows ? 2 : 1);
    put_u64(&g->info, cols);
    if (rows) put_u64(&g->info, rows);
    put_u32(&g->info, type);
    put_u64(&g->info, g->data_bytes);
    g->data_bytes += (size_bytes + 31) / 32 * 32;
    g->n_tensors++;
}

/* The whole file with `data_bytes` of zeros behind it; frees the builder. */
static inline void gb_finish(struct gguf_build *g, struct buf *out)
{
    put(out, "GGUF", 4);
    put_u32(out, 3);
    put_u64(out, g->n_tensors);
    put_u64(out, g->n_kv);
    if (g->kv.len) put(out, g->kv.data, g->kv.len);
    if (g->info.len) put(out, g->info.data, g->info.len);
    size_t pad = (32 - out->len % 32) % 32;
    for (uint64_t i = 0; i < pad + g->data_bytes; i++)
        ASSERT_OK(buf_addc(out, 0));
    buf_fini(&g->kv);
    buf_fini(&g->info);
}

#endif
