#!/usr/bin/env python3
"""Makes expected_output/resnet18.safetensors, what PyTorch computes with test_resnet18.py's weights: python3
tests/examples/make_resnet18.py

It has the images of examples/resnet18.c and the network of width 8, in float64: the scores of the first ten
images and of parts of the first, the losses of 20 steps of the head alone and of all layers, and the saliency
maps of two images. With torchvision, its names are compared with those of the network here."""
import os
import struct
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(os.path.dirname(HERE))]
from tests import tensor_file  # noqa: E402
from tests.examples import test_resnet18  # noqa: E402

SIDE, CLASSES, BATCH, TRAIN_BATCH, STEPS = 64, 5, 10, 32, 20


class BasicBlock(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False),
                                            nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        channels = width
        for stage in range(4):
            wide = width << stage
            first = BasicBlock(channels, wide, 2 if stage else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(first, BasicBlock(wide, wide, 1)))
            channels = wide
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def hashes(x):
    x = x * 0x9E3779B1 & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE3D & 0xFFFFFFFF
    return x ^ x >> 16


def images(first, count):
    """Those of examples/resnet18.c."""
    pixels = 3 * SIDE * SIDE
    at = torch.arange(first * pixels, (first + count) * pixels)
    noise = (hashes(at) >> 16) / 65536 - 0.5
    across, down = torch.tensor([(1, 0), (0, 1), (1, 1), (2, 1), (1, 2)])[at // pixels % CLASSES].T
    stripe = (at // SIDE % SIDE * across + at % SIDE * down) // 8 % 2
    return ((noise + (stripe - 0.5)).double().reshape(count, 3, SIDE, SIDE),
            torch.arange(first, first + count) % CLASSES)


def network():
    net = ResNet18(test_resnet18.WIDTH, CLASSES).double()
    state = net.state_dict()
    for name, (_, shape, data) in test_resnet18.weights().items():
        values = struct.unpack("<%df" % (len(data) // 4), data)
        state[name] = torch.tensor(values, dtype=torch.float64).reshape(shape)
    net.load_state_dict(state)
    return net


def losses(every_layer):
    net = network().train()
    for name, p in net.named_parameters():
        p.requires_grad_(every_layer or name.startswith("fc."))
    sgd = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
    result = []
    for step in range(STEPS):
        x, labels = images(step % (1000 // TRAIN_BATCH) * TRAIN_BATCH, TRAIN_BATCH)
        loss = F.cross_entropy(net(x), labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        result.append(loss.item())
    return result


def saliency(count):
    """The largest of the channels' gradients of each image's highest score, in gray levels."""
    x = images(0, count)[0].requires_grad_()
    network().eval()(x).amax(1).sum().backward()
    slopes = x.grad.abs().amax(1)
    return (255 * slopes / slopes.amax((1, 2), keepdim=True)).flatten().tolist()


def main():
    try:
        import torchvision
        own, theirs = ResNet18(64, 1000).state_dict(), torchvision.models.resnet18().state_dict()
        assert {name: t.shape for name, t in own.items()} == {name: t.shape for name, t in theirs.items()}
    except ImportError:
        print("without torchvision, whose names are not compared")
    with torch.no_grad():
        net, x = network().eval(), images(0, BATCH)[0]
        scores = net(x).flatten().tolist()
        sizes = [score for height, width in test_resnet18.SIZES
                 for score in net(x[:1, :, :height, :width]).flatten().tolist()]
    tensors = {"scores": scores, "sizes": sizes, "head": losses(False), "all": losses(True),
               "saliency": saliency(2)}
    tensor_file.save(os.path.join(HERE, "expected_output", "resnet18.safetensors"), {
        name: ("F32", [len(values)], struct.pack("<%df" % len(values), *values))
        for name, values in tensors.items()})


if __name__ == "__main__":
    main()
