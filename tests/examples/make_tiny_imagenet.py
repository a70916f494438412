#!/usr/bin/env python3
"""Makes expected_output/tiny_imagenet.safetensors with PyTorch: python3 tests/examples/make_tiny_imagenet.py

Pictures, the weights to begin with, and the losses of 20 steps of the same network over them in float64:
batches of 8 in order, no augmentation."""
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
CLASSES, EACH, SIZE, WIDTH, BATCH, STEPS = 3, 8, 16, 2, 8, 20


class Block(nn.Module):
    def __init__(self, channels_in, channels):
        super().__init__()
        self.conv1, self.bn1 = (nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
                                nn.BatchNorm2d(channels))
        self.conv2, self.bn2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                                nn.BatchNorm2d(channels))

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(4):
            setattr(self, f"block{i + 1}", Block(3 if i == 0 else WIDTH << (i - 1), WIDTH << i))
        self.fc = nn.Linear(WIDTH << 3, CLASSES)

    def forward(self, x):
        for i in range(4):
            x = getattr(self, f"block{i + 1}")(x)
        return self.fc(x.mean((2, 3)))


def main():
    torch.manual_seed(7)
    labels = torch.arange(CLASSES).repeat_interleave(EACH)
    pictures = torch.randint(0, 256, (CLASSES * EACH, 3, SIZE, SIZE), dtype=torch.uint8)
    pictures[:, :, :, 8:] = pictures[:, :, :, 8:] // 4 + (labels * 60)[:, None, None, None].to(torch.uint8)
    net = Network()
    tensors = {"weight/" + key: value.clone()
               for key, value in net.state_dict().items() if "num_batches" not in key}
    tensors["pictures"], tensors["labels"] = pictures, labels.to(torch.int32)
    mean, std = (torch.tensor(x, dtype=torch.float64)[None, :, None, None]
                 for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x, net, losses = (pictures.double() / 255 - mean) / std, net.double(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    for step in range(STEPS):
        rows = torch.arange(BATCH) + step * BATCH % len(x)
        loss = F.cross_entropy(net(x[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    tensors["losses"] = torch.tensor(losses, dtype=torch.float32)
    save_file(tensors, os.path.join(HERE, "expected_output", "tiny_imagenet.safetensors"))
    print(losses)


if __name__ == "__main__":
    main()
