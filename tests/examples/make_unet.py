#!/usr/bin/env python3
"""Makes expected_output/unet.safetensors, what PyTorch computes with test_unet.py's weights: python3
tests/examples/make_unet.py

The pictures are those of examples/unet.c. In float64: every seventh logit for ten sizes, and the losses of
five steps."""
import os
import struct
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(os.path.dirname(HERE))]
from tests import tensor_file  # noqa: E402
from tests.examples import drawn_weights, test_unet  # noqa: E402

DISK, SQUARE, CLASSES, DEPTH, SIDE, BATCH = 1, 2, 4, 3, 64, 8
TURNS = (1, 0, 1), (3, 4, 5), (4, 3, 5), (5, 12, 13), (-12, 5, 13), (-4, 3, 5)


class DoubleConv(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.double_conv = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False),
                                         nn.BatchNorm2d(width), nn.ReLU(),
                                         nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
                                         nn.ReLU())

    def forward(self, x):
        return self.double_conv(x)


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inc = DoubleConv(1, width)
        for i in range(DEPTH):
            setattr(self, f"down{i + 1}", DoubleConv(width << i, width << (i + 1)))
            setattr(self, f"up{i + 1}", DoubleConv(3 * width << (DEPTH - 1 - i), width << (DEPTH - 1 - i)))
        self.outc = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        x, skips = self.inc(x), []
        for i in range(DEPTH):
            skips.append(x)
            x = getattr(self, f"down{i + 1}")(F.max_pool2d(x, 2))
        for i in range(DEPTH):
            skip = skips.pop()
            x = getattr(self, f"up{i + 1}")(torch.cat((skip, F.interpolate(x, skip.shape[2:])), 1))
        return self.outc(x)


class Drawing:
    """examples/unet.c's pictures, drawn in its order."""
    drawn = 0

    def numbers(self, count):
        x = torch.arange(self.drawn, self.drawn + count) * 0x9E3779B1 & 0xFFFFFFFF
        self.drawn += count
        x = (x ^ x >> 15) * 0x85EBCA77 & 0xFFFFFFFF
        x = (x ^ x >> 13) * 0xC2B2AE3D & 0xFFFFFFFF
        return x ^ x >> 16

    def draw(self, low, high):
        return low + self.numbers(1).item() % (high - low)

    def picture(self, height, width):
        behind, count, side = self.draw(96, 160), self.draw(1, 4), min(height, width)
        shade, label = (torch.zeros(height, width, dtype=torch.int64) for _ in range(2))
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        for _ in range(count):
            kind, radius = self.draw(DISK, CLASSES), self.draw(min(8, side // 4), min(17, side // 2 - 1))
            across, down = x - self.draw(radius, width - radius), y - self.draw(radius, height - radius)
            a, b, c = TURNS[self.draw(0, 6)]
            u, v, reach = (a * across + b * down).abs(), a * down - b * across, radius * c
            own = self.draw(48, 112) * (1 if self.draw(0, 2) else -1)
            covered = (u * u + v * v < reach * reach if kind == DISK else
                       (8 * u < 7 * reach) & (8 * v.abs() < 7 * reach) if kind == SQUARE else
                       (8 * v < 5 * reach) & (7 * u - 4 * v < 5 * reach))
            shade[covered], label[covered] = own, kind
        noise = (self.numbers(height * width) % 33 - 16).reshape(height, width)
        return ((behind + noise + shade).clamp(0, 255) - 128).double()[None] / 64, label

    def pictures(self, count, height, width):
        images, labels = zip(*(self.picture(height, width) for _ in range(count)))
        return torch.stack(images), torch.stack(labels)


def loss_of(net, x, labels):
    """MONAI's DiceLoss(batch=True) beside the cross entropy."""
    logits = net(x)
    share, truth = logits.softmax(1), F.one_hot(labels, CLASSES).movedim(3, 1)
    both, either = ((t.sum((0, 2, 3)) + 1e-5) for t in (2 * share * truth, share + truth))
    return F.cross_entropy(logits, labels) + (1 - both / either).mean()


def network(width):
    net = UNet(width).double()
    state = net.state_dict()
    for name, (_, shape, data) in drawn_weights(test_unet.shapes(width)).items():
        state[name] = torch.tensor(struct.unpack("<%df" % (len(data) // 4), data),
                                   dtype=torch.float64).reshape(shape)
    net.load_state_dict(state)
    return net


def main():
    net, drawing, tensors, losses = network(test_unet.WIDTH), Drawing(), {}, []
    with torch.no_grad():
        for i, size in enumerate(test_unet.SIZES):
            tensors[str(i)] = net.eval()(drawing.pictures(1, *size)[0]).flatten()[::test_unet.EACH].tolist()
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, test_unet.STEPS)
    for _ in range(test_unet.STEPS):
        loss = loss_of(net.train(), *drawing.pictures(BATCH, SIDE, SIDE))
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
        losses.append(loss.item())
    tensors["losses"] = losses
    tensor_file.save(os.path.join(HERE, "expected_output", "unet.safetensors"), {
        name: ("F32", [len(values)], struct.pack("<%df" % len(values), *values))
        for name, values in tensors.items()})


if __name__ == "__main__":
    main()
