/* Fuzz target: any bytes as a safetensors file; every tensor of a known type is converted. */
#include "base/mem.h"
#include "fusor/model/safetensors.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void convert_all(struct st_set *s)
{
    enum { VALUES_MAX = 1 << 16 };
    static float out[VALUES_MAX];
    struct tensors *ts = st_tensors(s);
    if (tensors_sort(ts, NULL) < 0) return;
    for (size_t i = 0; i < ts->n; i++) {
        const struct tensor *t = &ts->t[i];
        if (!t->type) continue;
        size_t n = t->size_bytes / t->type->bytes;
        quant_to_f32(t->type, t->data, n < VALUES_MAX ? n : VALUES_MAX, out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    char path[40];
    struct st_set *s;
    int fd = memfd_create("fuzz", 0);
    if (fd < 0) return 0;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (write(fd, data, len) == (ssize_t)len && st_open_file(path, &s, NULL) == 0) {
        convert_all(s);
        st_close(s);
    }
    (void)close(fd);
    return 0;
}
