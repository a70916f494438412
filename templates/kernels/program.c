static int ${function}(const gpunn_kernel_call *call)
{
    ${checks}
    ${memory}
    ${launches}
    return 0;
}

static size_t ${function}_workspace(int64_t batch, int threads)
{
    ${space}
}
