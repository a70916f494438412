${fn} float ${name}_float_of(uint32_t bits)
{
    union { uint32_t bits; float value; } both;
    both.bits = bits;
    return both.value;
}

${fn} uint32_t ${name}_bits_of(float value)
{
    union { uint32_t bits; float value; } both;
    both.value = value;
    return both.bits;
}

#if defined(__GNUC__)
#define ${NAME}_INFINITY __builtin_inff()
#define ${NAME}_NAN __builtin_nanf("")
#else
#include <math.h>
#define ${NAME}_INFINITY INFINITY
#define ${NAME}_NAN NAN
#endif

${fn} float ${name}_abs(float x)
{
    return ${name}_float_of(${name}_bits_of(x) & 0x7fffffffu);
}

${fn} float ${name}_copysign(float size, float sign)
{
    return ${name}_float_of((${name}_bits_of(size) & 0x7fffffffu) | (${name}_bits_of(sign) & 0x80000000u));
}

${fn} float ${name}_floor(float x)
{
    if (!(${name}_abs(x) < 8388608.0f)) return x; /* 2^23 and above: an integer already, or NaN */
    const float whole = (float)(int32_t)x;
    return ${name}_copysign(whole > x ? whole - 1 : whole, x);
}

/* C's fmod: the remainder of x / y with the sign of x, by repeated subtraction. The result is exact. */
${fn} float ${name}_fmod(float x, float y)
{
    float       rest = ${name}_abs(x), part;
    const float size = ${name}_abs(y);
    if (!(size > 0) || !(rest < ${NAME}_INFINITY)) return ${NAME}_NAN;
    while (rest >= size) {
        for (part = size; part <= 0.5f * rest;) part *= 2;
        rest -= part;
    }
    return ${name}_copysign(rest, x);
}
