/* cart.h - CartPole-v1 of Gymnasium: a pole on a cart that is pushed to the left or to the right. */
#ifndef CART_H
#define CART_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { CART_STATE = 4, CART_LONGEST = 500 }; /* numbers of a state; steps of an episode */

/* A push to the left (0) or to the right (1) for 0.02 s. The state is the place and speed of the cart, the
 * angle and speed of the pole. Returns whether the pole has fallen or the cart has left the track. */
static inline bool cart_push(float state[CART_STATE], int64_t action)
{
    const float force = action ? 10.0f : -10.0f, sine = sinf(state[2]), cosine = cosf(state[2]);
    /* half the pole: 0.5 m, 0.1 kg; with the cart 1.1 kg */
    const float push = (force + 0.05f * state[3] * state[3] * sine) / 1.1f;
    const float turn = (9.8f * sine - cosine * push) / (0.5f * (4.0f / 3 - 0.1f * cosine * cosine / 1.1f));
    const float change[CART_STATE] = {state[1], push - 0.05f * turn * cosine / 1.1f, state[3], turn};
    for (int i = 0; i < CART_STATE; i++) state[i] += 0.02f * change[i];
    return fabsf(state[0]) > 2.4f || fabsf(state[2]) > 0.2094395f;
}

#endif /* CART_H */
