"""The pair of volumes of test_register3d.py and make_register3d.py: 12 x 15 x 18 bytes each."""
import math

SIZE = (12, 15, 18)


def pair():
    """The moving and the fixed volume: lists of integers, x fastest."""
    def brightness(x, y, z):
        blob = 120 * math.exp(-((x - 8) ** 2 / 18 + (y - 7) ** 2 / 14 + (z - 5.5) ** 2 / 10))
        return int(60 + blob + 30 * math.sin(0.7 * x + 0.2) * math.cos(0.6 * y) * math.sin(0.8 * z + 1))

    places = [(x, y, z) for z in range(SIZE[0]) for y in range(SIZE[1]) for x in range(SIZE[2])]
    return ([brightness(*place) for place in places],
            [brightness(x + math.sin(0.3 * y), y + 0.8 * math.cos(0.25 * z), z - 0.7 * math.sin(0.2 * x))
             for x, y, z in places])
