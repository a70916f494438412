/* Loads eight 16-bit numbers, at a 16-byte aligned address, as floats. */
${fn} void ${name}_eight(float *to, const ${type} *from)
{
    const uint4    all = *(const uint4 *)from;
    const unsigned words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        //@if half
        to[2 * i] = __half2float(__ushort_as_half((unsigned short)(words[i] & 0xFFFF)));
        to[2 * i + 1] = __half2float(__ushort_as_half((unsigned short)(words[i] >> 16)));
        //@end
        //@if !half
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
        //@end
    }
}
