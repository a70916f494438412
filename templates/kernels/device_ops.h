${fn} float ${name}_sum(const float *x, int n)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) sum += x[i];
    return sum;
}

/* mean = mean(x), or 0 if `root`; scale = 1 / sqrt(mean of (x - mean)^2 + eps). */
template <int N> ${fn} void ${name}_moments(const float *x, float eps, bool root, float *mean, float *scale)
{
    float squares = 0;
    *mean = root ? 0 : ${name}_sum(x, N) / N;
#pragma unroll
    for (int i = 0; i < N; ++i) squares += (x[i] - *mean) * (x[i] - *mean);
    *scale = ${name}_rsqrt(squares / N + eps);
}

/* y = layer_norm(x), or rms_norm(x) if `root`. w[N] and b[N] may be NULL. */
template <int N>
${fn} void ${name}_layer_norm(float *y, const float *x, const float *w, const float *b, float eps, bool root)
{
    float mean, scale;
    ${name}_moments<N>(x, eps, root, &mean, &scale);
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = (x[i] - mean) * scale * (w ? w[i] : 1) + (b ? b[i] : 0);
}

/* dx += the gradient of layer_norm, or of rms_norm if `root`, for dy. */
template <int N>
${fn} void ${name}_layer_norm_gradient(float *dx, const float *dy, const float *x, const float *w, float eps,
                                       bool root)
{
    float mean, scale, sum = 0, dot = 0;
    ${name}_moments<N>(x, eps, root, &mean, &scale);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const float gradient = dy[i] * (w ? w[i] : 1);
        sum += gradient;
        dot += gradient * (x[i] - mean) * scale;
    }
    if (root) sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i)
        dx[i] += scale * (dy[i] * (w ? w[i] : 1) - sum / N - (x[i] - mean) * scale * dot / N);
}

/* y = softmax(x), or log_softmax(x) if `log`. */
template <int N> ${fn} void ${name}_softmax(float *y, const float *x, bool log)
{
    float top = x[0], sum = 0;
#pragma unroll
    for (int i = 1; i < N; ++i) top = ${name}_max(top, x[i]);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += ${name}_exp(x[i] - top);
    const float shift = log ? top + ${name}_log(sum) : top;
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = log ? x[i] - shift : ${name}_exp(x[i] - shift) / sum;
}

/* dx += the gradient of softmax, or of log_softmax if `log`, for dy and the result y. */
template <int N> ${fn} void ${name}_softmax_gradient(float *dx, const float *dy, const float *y, bool log)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += log ? dy[i] : dy[i] * y[i];
#pragma unroll
    for (int i = 0; i < N; ++i) dx[i] += log ? dy[i] - ${name}_exp(y[i]) * sum : y[i] * (dy[i] - sum);
}
