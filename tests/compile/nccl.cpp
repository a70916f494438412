/* gpunn_cuda.cu's own declarations of NCCL, ours.h, against NCCL's header: check.py compiles this. */
#include <cstddef>
#include <type_traits>

#include <nccl.h> /* which needs the first */

enum { GPUNN_RANKS_ID = 128 };
#include "ours.h"

/* Whether one may be given where the other is expected: as large, and a pointer, a number or a struct as the
 * other is. */
template <typename A, typename B> constexpr bool same()
{
    if constexpr (std::is_same_v<A, B> || std::is_void_v<A>) return true;
    /* theirs has grown since; it says how long it is */
    else if constexpr (std::is_same_v<A, gpunn__nccl_config>)
        return std::is_same_v<B, ncclConfig_t>;
    else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>)
        return same<std::remove_cv_t<std::remove_pointer_t<A>>, std::remove_cv_t<std::remove_pointer_t<B>>>();
    else
        return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
               std::is_class_v<A> == std::is_class_v<B>;
}
template <typename R, typename... A, typename S, typename... B>
constexpr bool called_alike(R (*)(A...), S (*)(B...))
{
    if constexpr (sizeof...(A) == sizeof...(B))
        return same<R, S>() && (same<A, B>() && ...);
    else
        return false;
}

#define GPUNN__X(result, name, arguments)   \
    typedef result(*name##_type) arguments; \
    static_assert(called_alike(name##_type(nullptr), decltype (&name)(nullptr)), #name);
GPUNN__NCCL_FUNCTIONS(GPUNN__X)
#undef GPUNN__X

static_assert(sizeof(gpunn__nccl_id) == sizeof(ncclUniqueId), "the unique id");
static_assert(GPUNN__NCCL_IN_PROGRESS == (int)ncclInProgress && GPUNN__NCCL_FLOAT == (int)ncclFloat &&
                  GPUNN__NCCL_BFLOAT16 == (int)ncclBfloat16 && GPUNN__NCCL_SUM == (int)ncclSum &&
                  GPUNN__NCCL_AVERAGE == (int)ncclAvg,
              "values");
#define SAME_PLACE(member) (offsetof(gpunn__nccl_config, member) == offsetof(ncclConfig_t, member))
static_assert(SAME_PLACE(size) && SAME_PLACE(magic) && SAME_PLACE(version) && SAME_PLACE(blocking),
              "the configuration");
static constexpr gpunn__nccl_config ours = GPUNN__NCCL_CONFIG;
static constexpr ncclConfig_t       theirs = NCCL_CONFIG_INITIALIZER;
static_assert(ours.magic == theirs.magic && ours.version == NCCL_VERSION(2, 14, 0),
              "the configuration's beginning");
