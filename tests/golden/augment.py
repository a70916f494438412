#!/usr/bin/env python3
"""Writes augment.safetensors with PyTorch: python3 tests/golden/augment.py

Images that gpunn_loader rotates, changes in colour and mixes, by torchvision's formulas (0.29), with Philox
draws as in the loader."""
import math
import struct

import torch
from safetensors.torch import save_file
from torch.nn.functional import grid_sample

SEED, COUNT, HEIGHT, WIDTH = 11, 6, 7, 6
CROP, DEGREES, JITTER = 1, 70.0, (0.4, 0.5, 1.5, 0.3)
PLACE, TURN, COLOUR, MIX = range(4)


def philox(key, counter):
    k, c = [key & 0xFFFFFFFF, key >> 32], list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def words(number, what, epoch=0):
    return philox(SEED, (number & 0xFFFFFFFF, number >> 32, epoch, 0xE0000000 + (what << 24)))


def between(word, low, high):
    return low + (high - low) * word / 2**32


def below(word, choices):
    return word * choices >> 32


def rotate(image, angle):
    """torchvision.transforms.functional.rotate of a tensor, nearest."""
    height, width = image.shape[-2:]
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    theta = torch.tensor([[[cosine, -sine, 0], [sine, cosine, 0]]], dtype=torch.float64)
    base = torch.ones(1, height, width, 3, dtype=torch.float64)
    base[..., 0] = torch.linspace(-width / 2 + 0.5, width / 2 - 0.5, width, dtype=torch.float64)
    base[..., 1] = torch.linspace(-height / 2 + 0.5, height / 2 - 0.5, height, dtype=torch.float64)[:, None]
    half = torch.tensor([width / 2, height / 2], dtype=torch.float64)
    grid = (base.view(1, -1, 3) @ (theta.transpose(1, 2) / half)).view(1, height, width, 2)
    return grid_sample(image[None].double(), grid, mode="nearest", padding_mode="zeros",
                       align_corners=False)[0].to(image.dtype)


def crop(image, dy, dx):
    padded = torch.nn.functional.pad(image, (CROP,) * 4)
    return padded[..., CROP + dy:CROP + dy + HEIGHT, CROP + dx:CROP + dx + WIDTH]


def blend(a, b, ratio):
    return (ratio * a + (1 - ratio) * b).clamp(0, 1)


def grey(image):
    return (0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2])[None]


def hue(image, turn):
    r, g, b = image
    most, least = image.max(0).values, image.min(0).values
    same = most == least
    range_ = most - least
    one = torch.ones_like(most)
    s = range_ / torch.where(same, one, most)
    divisor = torch.where(same, one, range_)
    rc, gc, bc = (most - r) / divisor, (most - g) / divisor, (most - b) / divisor
    h = ((most == r) * (bc - gc) + ((most == g) & (most != r)) * (2 + rc - bc) +
         ((most != g) & (most != r)) * (4 + gc - rc))
    h = (torch.fmod(h / 6 + 1, 1) + turn) % 1
    i = torch.floor(h * 6)
    f = h * 6 - i
    p, q, t = ((most * (1 - x)).clamp(0, 1) for x in (s, s * f, s * (1 - f)))
    rows = torch.stack([torch.stack(row) for row in ((most, q, p, p, t, most), (t, most, most, q, p, p),
                                                     (p, p, t, most, most, q))])
    return rows.gather(1, (i.long() % 6)[None, None].expand(3, 1, -1, -1)).squeeze(1)


def jitter(image, sample):
    drawn, order = words(sample, COLOUR), [0, 1, 2, 3]
    for i in (3, 2, 1):
        other = below(words(sample, TURN)[i], i + 1)
        order[i], order[other] = order[other], order[i]
    factor = [between(word, max(0.0, 1 - x), 1 + x) for word, x in zip(drawn, JITTER[:3])] + [
        between(drawn[3], -JITTER[3], JITTER[3])]
    for what in order:
        if what == 0:
            image = blend(image, torch.zeros_like(image), factor[0])
        elif what == 1:
            image = blend(image, grey(image).mean(), factor[1])
        elif what == 2:
            image = blend(image, grey(image), factor[2])
        else:
            image = hue(image, factor[3])
    return image


def beta(batch, alpha):
    attempt = 0
    while True:
        word = words(batch | attempt << 32, MIX)
        u, v = (word[0] + 1) / 2**32, (word[1] + 1) / 2**32
        if alpha > 0.5:
            return 0.5 + 0.5 * math.sqrt(1 - u**(2 / (2 * alpha - 1))) * math.cos(2 * math.pi * v)
        x, y = u**(1 / alpha), v**(1 / alpha)
        if x + y <= 1:
            return x / (x + y)
        attempt += 1


def main():
    torch.manual_seed(1)
    images = torch.randint(0, 256, (COUNT, 3, HEIGHT, WIDTH), dtype=torch.uint8)
    images[0, :, 2] = 77  # grey
    labels = torch.eye(3)[torch.arange(COUNT) % 3]
    out = {"images": images, "labels": labels, "turned": [], "coloured": []}
    for i, image in enumerate(images):
        place, turn = words(i, PLACE), words(i, TURN)
        moved = crop(image, below(place[0], 2 * CROP + 1) - CROP, below(place[1], 2 * CROP + 1) - CROP)
        moved = rotate(moved, between(turn[0], -DEGREES, DEGREES))
        if place[3] < 2**31:
            moved = moved.flip(-1)
        out["turned"].append(moved)
        out["coloured"].append((jitter(image.float() / 255, i) - 0.5) / 0.25)
    for name in ("turned", "coloured"):
        out[name] = torch.stack(out[name])
    for alpha in (0.3, 2.0):
        for name, whole in (("images", images.float()), ("labels", labels)):
            parts = []
            for b, batch in enumerate(whole.split(4)):
                part = beta(b, alpha)
                parts.append(batch.roll(1, 0).mul(1 - part).add(batch.mul(part)))
            out["%s_%g" % (name, alpha)] = torch.cat(parts)
    save_file({name: tensor.contiguous() for name, tensor in out.items()},
              __file__.replace(".py", ".safetensors"))


if __name__ == "__main__":
    main()
