#include "base/libraries.h"
#include "base/errors.h"
#include "base/memory.h"

/* ---- finding the libraries ----------------------------------------------------------------------------- */

#ifndef GPUNN__EMULATOR

GPUNN__INTERNAL void *gpunn__module_symbol(const gpunn__module *module, const char *name)
{
#ifdef _WIN32
    return (void *)GetProcAddress((HMODULE)module->handle, name);
#else
    return dlsym(module->handle, name);
#endif
}

#ifndef _WIN32
/* Keeps what the loader says of a file that is there. A bare name that it finds nowhere begins its
 * sentence. */
static void gpunn__module_fail(gpunn__module *module, const char *path)
{
    const char *why = dlerror();
    if (why && (strchr(path, '/') || strncmp(why, path, strlen(path)) != 0))
        (void)snprintf(module->failure, sizeof module->failure, "%s", why);
}

/* cuDNN 9 aborts when it is asked for anything while its file for graphs does not load. */
static void gpunn__module_need_graphs(gpunn__module *module)
{
    char    file[600];
    Dl_info info;
    void   *symbol = dlsym(module->handle, "cudnnGetVersion");
    if (symbol == NULL || dladdr(symbol, &info) == 0 || info.dli_fname == NULL) return;
    const char *slash = strrchr(info.dli_fname, '/');
    (void)snprintf(file, sizeof file, "%.*slibcudnn_graph.so.9",
                   slash ? (int)(slash + 1 - info.dli_fname) : 0, info.dli_fname);
    if (dlopen(access(file, F_OK) == 0 ? file : "libcudnn_graph.so.9", RTLD_LAZY | RTLD_LOCAL)) return;
    gpunn__module_fail(module, info.dli_fname);
    (void)dlclose(module->handle);
    module->handle = NULL;
}
#endif

static bool gpunn__module_load(gpunn__module *module, const char *path)
{
#ifdef _WIN32
    module->handle = (void *)LoadLibraryExA(
        path, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR);
    if (module->handle == NULL) module->handle = (void *)LoadLibraryA(path);
#else
    module->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module->handle == NULL)
        gpunn__module_fail(module, path);
    else if (strstr(path, "libcudnn.so.9"))
        gpunn__module_need_graphs(module);
#endif
    (void)snprintf(module->path, sizeof module->path, "%s", path);
    return module->handle != NULL;
}

#ifndef _WIN32
/* Lists the files root/rest. rest may contain wildcards; root is taken literally. The caller calls
 * globfree. */
static void gpunn__files(glob_t *found, const char *root, size_t root_length, const char *rest)
{
    char   pattern[1024];
    size_t n = 0;
    for (size_t i = 0; i < root_length && n + 2 < sizeof pattern; i++) {
        if (strchr("*?[\\", root[i])) pattern[n++] = '\\';
        pattern[n++] = root[i];
    }
    (void)snprintf(pattern + n, sizeof pattern - n, "/%s", rest);
    memset(found, 0, sizeof *found);
    (void)glob(pattern, 0, NULL, found);
}
#endif

/* Opens `file` in the folders root/rest. */
static bool gpunn__module_seek(gpunn__module *module, const char *root, const char *rest, const char *file)
{
    char path[1024];
    bool open = false;
    if (root == NULL || *root == 0) return false;
#ifdef _WIN32
    (void)snprintf(path, sizeof path, "%s\\%s%s", root, rest, file);
    open = gpunn__module_load(module, path);
#else
    glob_t found;
    (void)snprintf(path, sizeof path, "%s%s", rest, file);
    gpunn__files(&found, root, strlen(root), path);
    for (size_t i = 0; i < found.gl_pathc && !open; i++) open = gpunn__module_load(module, found.gl_pathv[i]);
    globfree(&found);
#endif
    return open;
}

#ifndef _WIN32
/* Searches the wheels of every Python on the PATH. */
static bool gpunn__module_beside_python(gpunn__module *module, const char *file)
{
    char python[600];
    for (const char *path = getenv("PATH"); path && *path;) {
        int length = (int)strcspn(path, ":");
        (void)snprintf(python, sizeof python, "%.*s/python3", length, path);
        bool there = access(python, X_OK) == 0;
        (void)snprintf(python, sizeof python, "%.*s/..", length, path);
        if (there && gpunn__module_seek(module, python, "lib/python3*/site-packages/nvidia/*/lib/", file))
            return true;
        path += length;
        if (*path == ':') path++;
    }
    return false;
}
#endif

GPUNN__INTERNAL bool gpunn__module_find(gpunn__module *module, const char *file, const char *variable)
{
    module->failure[0] = 0;
    if (gpunn__module_load(module, file)) return true;
#ifdef _WIN32
    return gpunn__module_seek(module, getenv(variable), "", file) ||
           gpunn__module_seek(module, getenv(variable), "bin\\", file) ||
           gpunn__module_seek(module, getenv("CUDA_PATH"), "bin\\", file);
#else
    char    program[512];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash) *slash = 0;
    const struct {
        const char *root, *rest;
    } places[] = {
        {getenv(variable), ""},
        {getenv(variable), "lib64/"},
        {getenv(variable), "lib/"},
        {getenv("CUDA_HOME"), "lib64/"},
        {"/usr/local/cuda", "lib64/"},
        {program, ""},
        {getenv("VIRTUAL_ENV"), "lib/python3*/site-packages/nvidia/*/lib/"},
        {getenv("CONDA_PREFIX"), "lib/"},
        {getenv("CONDA_PREFIX"), "lib/python3*/site-packages/nvidia/*/lib/"},
        {getenv("HOME"), ".local/lib/python3*/site-packages/nvidia/*/lib/"},
        {"/usr/local", "lib/python3*/*-packages/nvidia/*/lib/"},
        {"/usr", "lib/python3*/*-packages/nvidia/*/lib/"},
        {"/opt", "*/lib/python3*/*-packages/nvidia/*/lib/"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (gpunn__module_seek(module, places[i].root, places[i].rest, file)) return true;
    return gpunn__module_beside_python(module, file);
#endif
}

/* "9.19.0"; cuDNN 8 and cuBLAS 11 still counted in thousands. */
static const char *gpunn__version_text(size_t version, char text[32])
{
    unsigned unit = version < 90000 ? 1000 : 10000, v = (unsigned)version;
    (void)snprintf(text, 32, "%u.%u.%u", v / unit, v % unit / 100, v % 100);
    return text;
}

GPUNN__INTERNAL void gpunn__module_locate(gpunn__module *module, const char *function)
{
#ifdef _WIN32
    (void)module, (void)function;
#else
    void   *symbol = gpunn__module_symbol(module, function);
    Dl_info info;
    if (symbol && dladdr(symbol, &info) && info.dli_fname)
        (void)snprintf(module->path, sizeof module->path, "%s", info.dli_fname);
#endif
}

/* Determines its path and version. */
static void gpunn__module_describe(gpunn__module *module, const char *version_function)
{
    size_t (*version)(void) = (size_t(*)(void))gpunn__module_symbol(module, version_function);
    module->version = version ? version() : 0;
    gpunn__module_locate(module, version_function);
}

/* Opens one library of the same major version as the header (`built`). On failure, text says why. */
static bool gpunn__module_open(gpunn__module *module, const char *title, const char *file_format,
                               const char *variable, const char *version_function, size_t built, char *text,
                               size_t text_size)
{
    char file[64], has[32], needs[32];
    int  major = (int)(built / 10000);
    (void)gpunn__version_text(built, needs);
    (void)snprintf(file, sizeof file, file_format, major);
    if (gpunn__module_find(module, file, variable)) {
        gpunn__module_describe(module, version_function);
        if (module->version / 10000 == (size_t)major) return true;
        (void)snprintf(text, text_size,
                       "%.200s is %s %s, but this program was built with %s; install %s %d, or build with "
                       "the header of the other version",
                       module->path, title, gpunn__version_text(module->version, has), needs, title, major);
        return false;
    }
    if (module->failure[0]) {
        (void)snprintf(text, text_size,
                       "%s %d does not load: %s; reinstall it, or set %s to the folder of another copy",
                       title, major, module->failure, variable);
        return false;
    }
    for (int other = major + 1; other >= major - 1; other -= 2) {
        (void)snprintf(file, sizeof file, file_format, other);
        if (!gpunn__module_find(module, file, variable)) continue;
        gpunn__module_describe(module, version_function);
        (void)snprintf(text, text_size,
                       "only %s %s was found (%.200s), but this program was built with %s and needs %d; "
                       "install that, or set %s to its folder",
                       title, gpunn__version_text(module->version, has), module->path, needs, major,
                       variable);
        return false;
    }
    const char *set = getenv(variable);
    (void)snprintf(file, sizeof file, file_format, major);
    int n = snprintf(text, text_size, "%s %d is missing: %s was not found in " GPUNN__PLACES, title, major,
                     file, variable);
    if (n > 0 && (size_t)n < text_size)
        (void)snprintf(text + n, text_size - (size_t)n, "; install it, or set %s (%s%s%s) to its folder",
                       variable, set ? "now '" : "now unset", set ? set : "", set ? "'" : "");
    return false;
}

static bool gpunn__lt_find(gpunn__module *module, char *text, size_t text_size)
{
    return gpunn__module_open(module, "cuBLASLt", GPUNN__LT_FILE, "GPUNN_CUDA_PATH", "cublasLtGetVersion",
                              CUBLAS_VERSION, text, text_size);
}

#if GPUNN__CUDNN
/* Loads the files next to the module that match the pattern. Code that later opens them by name gets the
 * loaded ones. */
GPUNN__INTERNAL void gpunn__module_beside(const gpunn__module *module, const char *pattern)
{
#ifdef _WIN32
    (void)module, (void)pattern;
#else
    const char *slash = strrchr(module->path, '/');
    if (slash) {
        glob_t found;
        gpunn__files(&found, module->path, (size_t)(slash - module->path), pattern);
        for (size_t i = 0; i < found.gl_pathc; i++) (void)dlopen(found.gl_pathv[i], RTLD_LAZY | RTLD_GLOBAL);
        globfree(&found);
    }
#endif
}

/* cuDNN compiles attention at run time with NVRTC, which opens its builtins by name and only on the loader's
 * path. Those in wheels, or in toolkits that the loader does not know, must be loaded before. Without NVRTC
 * attention has no plan, which is logged. */
static void gpunn__nvrtc_open(void)
{
#ifndef _WIN32
    gpunn__module module;
    char          file[32];
    (void)snprintf(file, sizeof file, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    if (!gpunn__module_find(&module, file, "GPUNN_CUDA_PATH")) return;
    gpunn__module_locate(&module, "nvrtcVersion");
    gpunn__module_beside(&module, "libnvrtc-builtins.so.*");
    gpunn__module_beside(&module, file);
#endif
}

static bool gpunn__dnn_find(gpunn__module *module, char *text, size_t text_size)
{
    if (!gpunn__module_open(module, "cuDNN", GPUNN__DNN_FILE, "GPUNN_CUDNN_PATH", "cudnnGetVersion",
                            CUDNN_VERSION, text, text_size))
        return false;
    size_t (*cuda_version)(void) = (size_t(*)(void))gpunn__module_symbol(module, "cudnnGetCudartVersion");
    if (cuda_version && cuda_version() / 1000 != CUDART_VERSION / 1000) {
        (void)snprintf(
            text, text_size,
            "%.200s is cuDNN for CUDA %d, but this program was built with CUDA %d; install cuDNN for that",
            module->path, (int)(cuda_version() / 1000), CUDART_VERSION / 1000);
        return false;
    }
    gpunn__nvrtc_open();
    /* all parts from the folder of the first one; libcudnn_adv is loaded with the first recurrent layer */
    gpunn__module_beside(module, "libcudnn_[!a]*.so.9");
    return true;
}
#endif
#endif

/* ---- opening the libraries ----------------------------------------------------------------------------- */

#ifndef GPUNN__EMULATOR

/* Each function resolves a library's functions and returns the name of the first missing one; NULL: none. */
#define GPUNN__X(function)                                                                        \
    libraries->function = (decltype(libraries->function))gpunn__module_symbol(module, #function); \
    if (libraries->function == NULL) return #function;
static const char *gpunn__lt_bind(gpunn__libraries *libraries, const gpunn__module *module)
{
    GPUNN__LT_FUNCTIONS(GPUNN__X)
    return NULL;
}

#if GPUNN__CUDNN
static const char *gpunn__dnn_bind(gpunn__libraries *libraries, const gpunn__module *module)
{
    GPUNN__DNN_FUNCTIONS(GPUNN__X)
    return NULL;
}
#endif
#undef GPUNN__X

GPUNN__INTERNAL gpunn_status gpunn__libraries_open(gpunn__cuda *cuda)
{
    gpunn__libraries *libraries = cuda->libraries = (gpunn__libraries *)gpunn__host_alloc(cuda,
                                                                                          sizeof *libraries);
    char              text[sizeof cuda->text];
    if (libraries == NULL) return GPUNN_ERR_MEMORY;
    if (!gpunn__lt_find(&libraries->lt_module, text, sizeof text))
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "%s", text);
    const char *missing = gpunn__lt_bind(libraries, &libraries->lt_module);
    if (missing)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "%s lacks %s; install the cuBLAS of CUDA 12 or later",
                                libraries->lt_module.path, missing);
    cublasStatus_t status = libraries->cublasLtCreate(&libraries->lt);
    if (status != CUBLAS_STATUS_SUCCESS)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "cublasLtCreate: %s",
                                libraries->cublasLtGetStatusString(status));
    libraries->lt_workspace_bytes = cuda->capability >= 90 ? (size_t)32 << 20 : (size_t)4 << 20;
    libraries->lt_workspace = gpunn__cuda_alloc(cuda, libraries->lt_workspace_bytes);
    return libraries->lt_workspace ? GPUNN_OK : GPUNN_ERR_MEMORY;
}

#if GPUNN__CUDNN
static gpunn_status gpunn__dnn_open(gpunn__cuda *cuda)
{
    gpunn__libraries *libraries = cuda->libraries;
    char              text[sizeof cuda->text];
    if (!gpunn__dnn_find(&libraries->dnn_module, text, sizeof text))
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "%s", text);
    const char *missing = gpunn__dnn_bind(libraries, &libraries->dnn_module);
    if (missing)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "%s lacks %s; install a later cuDNN %d",
                                libraries->dnn_module.path, missing, CUDNN_MAJOR);
    cudnnStatus_t status = libraries->cudnnCreate(&libraries->dnn);
    if (status == CUDNN_STATUS_SUCCESS) status = libraries->cudnnSetStream(libraries->dnn, cuda->stream);
    if (status == CUDNN_STATUS_SUCCESS) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "cudnnCreate of %s failed: %s",
                            libraries->dnn_module.path, libraries->cudnnGetErrorString(status));
}
#else
static gpunn_status gpunn__dnn_open(gpunn__cuda *cuda)
{
    return gpunn__cuda_fail(
        cuda, GPUNN_ERR_UNSUPPORTED,
        "this program was built without cuDNN; put the folder of cuDNN 9's cudnn.h on the include path (-I)");
}
#endif

GPUNN__INTERNAL gpunn_status gpunn__libraries_dnn(gpunn__cuda *cuda)
{
    gpunn__libraries *libraries = cuda->libraries;
    if (!libraries->dnn_sought) {
        libraries->dnn_sought = true;
        libraries->dnn_status = gpunn__dnn_open(cuda);
        if (libraries->dnn_status != GPUNN_OK) {
            char text[sizeof cuda->text + 96];
            (void)snprintf(text, sizeof text,
                           "convolutions, attention and recurrent layers use slower kernels: %s", cuda->text);
            gpunn__cuda_log(cuda, GPUNN_LOG_WARNING, text);
        }
    }
    return libraries->dnn_status;
}

GPUNN__INTERNAL gpunn_status gpunn__libraries_stream(gpunn__cuda *cuda)
{
#if GPUNN__CUDNN
    gpunn__libraries *libraries = cuda->libraries;
    if (libraries->dnn && libraries->cudnnSetStream(libraries->dnn, cuda->stream) != CUDNN_STATUS_SUCCESS)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "cudnnSetStream failed");
#endif
    (void)cuda;
    return GPUNN_OK;
}

GPUNN__INTERNAL void gpunn__libraries_close(gpunn__cuda *cuda)
{
    gpunn__libraries *libraries = cuda->libraries;
    if (libraries == NULL) return;
    const bool is_ours = !gpunn__cuda_is_forked(cuda);
#if GPUNN__CUDNN
    if (libraries->dnn && is_ours) (void)libraries->cudnnDestroy(libraries->dnn);
#endif
    if (libraries->lt && is_ours) (void)libraries->cublasLtDestroy(libraries->lt);
    if (libraries->lt_workspace)
        gpunn__cuda_free(cuda, libraries->lt_workspace, libraries->lt_workspace_bytes);
    gpunn__host_free(cuda, libraries, sizeof *libraries);
    cuda->libraries = NULL;
}

GPUNN__INTERNAL void gpunn__libraries_report(void (*write)(void *user, const char *text), void *user)
{
    char          text[640], line[768], has[32], built[32];
    gpunn__module module;
    memset(&module, 0, sizeof module);
    if (gpunn__lt_find(&module, text, sizeof text))
        (void)snprintf(line, sizeof line, "cuBLASLt      %s (built with %s), %s\n",
                       gpunn__version_text(module.version, has), gpunn__version_text(CUBLAS_VERSION, built),
                       module.path);
    else
        (void)snprintf(line, sizeof line, "cuBLASLt      %s\n", text);
    write(user, line);
#if GPUNN__CUDNN
    if (gpunn__dnn_find(&module, text, sizeof text))
        (void)snprintf(line, sizeof line, "cuDNN         %s (built with %s), %s\n",
                       gpunn__version_text(module.version, has), gpunn__version_text(CUDNN_VERSION, built),
                       module.path);
    else
        (void)snprintf(line, sizeof line, "cuDNN         %s; convolutions are computed as matrix products\n",
                       text);
#else
    (void)snprintf(line, sizeof line,
                   "cuDNN         not built in: no cudnn.h of cuDNN 9 was on the include path; convolutions "
                   "are computed as matrix products\n");
#endif
    write(user, line);
}
#endif
