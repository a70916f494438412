/* WIDTH bytes as floats. */
${fn} ${name}_vector ${name}_load_int8(const int8_t *x)
{
    float own[${NAME}_WIDTH];
    for (int i = 0; i < ${NAME}_WIDTH; ++i) own[i] = (float)x[i];
    return ${name}_load(own);
}

