/* Stands in for the CUDA driver (libcuda.so.1) where there is no GPU, for a library that compiles a
 * kernel and hands it over: the driver takes it, and everything else that it is asked for fails. */
enum { SUCCESS = 0, NOT_INITIALIZED = 3 };
static int nothing;

#define TAKES(name)                                                                                \
    int name(void **ret);                                                                          \
    int name(void **ret)                                                                           \
    {                                                                                              \
        *ret = &nothing;                                                                           \
        return SUCCESS;                                                                            \
    }
#define FAILS(name)                                                                                \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return NOT_INITIALIZED;                                                                    \
    }

TAKES(cuLibraryLoadData)
TAKES(cuLibraryGetKernel)
TAKES(cuKernelGetFunction)
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetCount)
FAILS(cuDriverGetVersion)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuInit)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelSetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLibraryUnload)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkDestroy)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
