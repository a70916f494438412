/* ${comment} */
static int ${function}(const gpunn_kernel_call *call)
{
    //@if per_batch
    const int64_t batch = call->batch;
    //@end
    //@if busy
    const int multiprocessors = call->multiprocessors;
    //@end
    //@if space
    char *const workspace = (char *)call->workspace;
    ${areas}
    //@end
    ${run}
    return -(int)cudaGetLastError();
}

static size_t ${function}_workspace(int64_t batch, int multiprocessors)
{
    //@if space
    ${areas}
    //@end
    //@if sums
    size_t most = 0; /* bytes for partial sums: the largest need of any launch */
    //@end
    (void)batch, (void)multiprocessors;
    ${room}
    return ${result};
}
