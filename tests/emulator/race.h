/* Between emulator.cpp and race.cpp. */
#ifndef EMULATOR_RACE_H
#define EMULATOR_RACE_H
#include <stddef.h>
enum emulator_place { EMULATOR_NOWHERE, EMULATOR_STACK, EMULATOR_CONSTANT, EMULATOR_SHARED, EMULATOR_GLOBAL };
struct emulator_range {
    char       *start;
    size_t      bytes;
    const char *name;
};
extern "C" emulator_place emulator_locate(const void *address, emulator_range *range);
extern "C" void           emulator_race_fault(const char *text);
#endif
