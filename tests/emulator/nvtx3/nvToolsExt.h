/* NVIDIA's ranges on the emulated GPU: emulator_ranges tells what was open last, and how deep (emulator.cpp). */
#ifndef EMULATOR_NVTX_H
#define EMULATOR_NVTX_H
extern "C" int nvtxRangePushA(const char *text); /* both: the depth */
extern "C" int nvtxRangePop(void);
#endif
