static int ${function}(const gpunn_kernel_call *call)
{
    ${checks}
    const unsigned mode = ${name}_flush_denormals();
    ${memory}
    ${launches}
    ${name}_restore(mode);
    return 0;
}

static size_t ${function}_workspace(int64_t batch, int threads)
{
    ${space}
}
