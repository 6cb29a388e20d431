#include "kernels/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int kn_module_find(const char *kind, const char *name, void **ret, struct err *err)
{
    const char *dir = getenv("KVBLEND_KERNELS_DIR");
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/libkn_%s.so", dir && *dir ? dir : KN_MODULE_DIR, kind);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(err, -ENOTSUP, "device \"%s\" is not available: %.150s", kind, dlerror());
    void *found = dlsym(lib, name);
    if (!found) return err_set(err, -ENOTSUP, "%.200s is no backend", path);
    *ret = found;
    return 0;
}
