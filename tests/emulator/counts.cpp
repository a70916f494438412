/* Tells at a program's end what the emulated GPU has counted. */
#include <stdio.h>

extern "C" {
#include "emulator.h"
}

__attribute__((destructor)) static void tell(void)
{
    (void)fprintf(stderr, "host copies %ld, captures %ld, graph launches %ld, left %ld\n",
                  emulator_host_copies(), emulator_captures(), emulator_graph_launches(), emulator_held());
}
