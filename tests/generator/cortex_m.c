/* Starts a program on an emulated Cortex-M4 (qemu's mps2-an386) with nothing but the compiler, and lets it
 * say what it computed by semihosting: as many outputs as differ from those expected, and the most stack that
 * was used. */
#include <stddef.h>
#include <stdint.h>

int  differing(void); /* runs the model */
void start(void);

enum { STACK = 64 * 1024, UNUSED = 0x5A };
static unsigned char stack[STACK] __attribute__((aligned(8)));

__attribute__((section(".vectors"), used)) static void *const vectors[2] = {stack + STACK, (void *)start};

void *memset(void *to, int value, size_t count)
{
    for (unsigned char volatile *byte = to; count > 0; --count) *byte++ = (unsigned char)value;
    return to;
}

void *memcpy(void *to, const void *from, size_t count)
{
    unsigned char volatile *byte = to;
    for (const unsigned char *own = from; count > 0; --count) *byte++ = *own++;
    return to;
}

static int host(int operation, const void *argument)
{
    register int         r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void say(const char *name, unsigned value)
{
    char text[12], *digit = text + sizeof text;
    *--digit = 0;
    *--digit = '\n';
    do *--digit = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    (void)host(4, name);
    (void)host(4, digit);
}

void start(void)
{
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* the floating-point unit */
    __asm__ volatile("dsb\n isb");
    volatile unsigned char *low = stack;
    unsigned char           here;
    while (low < (volatile unsigned char *)&here - 64) *low++ = UNUSED;
    const int bad = differing();
    size_t    left = 0;
    while (left < STACK && stack[left] == UNUSED) ++left;
    say("differing ", (unsigned)bad);
    say("stack ", (unsigned)(STACK - left));
    (void)host(0x18, (const void *)0x20026); /* exit */
    for (;;) {}
}
