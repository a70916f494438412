"""PyTorch versions of bench.c's workloads. One workload per process:

    bench_torch.py NAME THREADS      prints: NAME THREADS median-ms minimum-ms peak-RSS-MiB

Names are bench.c's. PyTorch's fastest forms have names of their own: resnet_forward_jit (frozen, optimized
for inference), resnet_train_cl and cnn3d_cl (channels last), and adam_fused if PyTorch has it. Any name also
exists as NAME_b16_autocast (under bfloat16 autocast) and NAME_b16_weights (all of it in bfloat16)."""
import itertools
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.skip = None
        if inputs != width:
            self.skip = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)), inplace=True)
        h = self.bn2(self.conv2(h))
        h += x if self.skip is None else self.skip(x)
        return F.relu(h, inplace=True)


def resnet(classes=5):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage in range(4):
        for block in range(2):
            width = 64 << stage
            layers.append(Block(channels, width, 2 if stage and not block else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def training(model, optimizer, criterion, x, y):
    def step():
        optimizer.zero_grad(set_to_none=True)
        criterion(model(x), y).backward()
        optimizer.step()
    return step


def classes(batch, count):
    return torch.tensor([i * 7 % count for i in range(batch)])


def sgemm(n):
    a, b, c = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
    return lambda: torch.mm(a, b, out=c)


def mlp20():
    model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1), nn.Sigmoid())
    y = (torch.arange(32) % 2).float()[:, None]
    return training(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.BCELoss(), torch.rand(32, 20), y)


def lenet(batch):
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    return training(model, optimizer, nn.CrossEntropyLoss(), torch.rand(batch, 3, 32, 32), classes(batch, 10))


def mlp784():
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    return training(model, optimizer, nn.CrossEntropyLoss(), torch.rand(128, 784), classes(128, 10))


def resnet_forward(jit):
    model, x = resnet().eval(), torch.rand(10, 3, 64, 64)
    if jit:
        with torch.no_grad():
            model = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(model, x)))

    def step():
        with torch.inference_mode():
            model(x)
    return step


class Recurrent(nn.Module):
    """The last step of 32 sequences of 64 is classified."""

    def __init__(self, kind):
        super().__init__()
        self.rnn, self.fc = kind(128, 256), nn.Linear(256, 10)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][-1])


def recurrent(kind):
    model = Recurrent(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return training(model, optimizer, nn.CrossEntropyLoss(), torch.randn(64, 32, 128), classes(32, 10))


def resnet_train(channels_last):
    model, x = resnet().train(), torch.rand(32, 3, 64, 64)
    if channels_last:
        model, x = (model.to(memory_format=torch.channels_last),
                    x.contiguous(memory_format=torch.channels_last))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    return training(model, optimizer, nn.CrossEntropyLoss(), x, classes(32, 5))


class BertLayer(nn.Module):
    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.n1, self.n2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.f1, self.f2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
                   for layer in (self.q, self.k, self.v))
        x = self.n1(x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.n2(x + self.f2(F.gelu(self.f1(x))))


def bert(batch, fast):
    """fast: PyTorch's own encoder in its inference fast path."""
    model, x = nn.Sequential(*[BertLayer() for _ in range(12)]), torch.rand(batch, 128, 768)
    if fast:
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu",
                                           layer_norm_eps=1e-12, batch_first=True)
        model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    model.eval()

    def step():
        with torch.inference_mode():
            model(x)
    return step


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.f1, self.f2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(self.n1(x)).chunk(3, 2))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.f2(F.gelu(self.f1(self.n2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, rows, tokens):
        super().__init__()
        self.wte, self.wpe, self.n = (nn.Embedding(tokens, width), nn.Embedding(rows, width),
                                      nn.LayerNorm(width))
        self.blocks = nn.Sequential(*[GptBlock(width, heads) for _ in range(layers)])

    def forward(self, tokens):
        return F.linear(self.n(self.blocks(self.wte(tokens) + self.wpe.weight)),
                        self.wte.weight).flatten(0, 1)


def gpt():
    model, tokens = Gpt(6, 384, 6, 128, 1024), torch.arange(512) * 7 % 1024
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    return training(model, optimizer, nn.CrossEntropyLoss(), tokens.reshape(4, 128), tokens)


class Registration(nn.Module):
    """The loss of one volume, moved by the displacements in voxels, against another."""

    def __init__(self, side):
        super().__init__()
        self.field = nn.Parameter(torch.zeros(1, side, side, side, 3))
        grid = F.affine_grid(torch.eye(3, 4)[None], [1, 1, side, side, side], align_corners=False)
        self.register_buffer("grid", grid)

    def forward(self, volumes):
        moving, fixed = volumes
        warped = F.grid_sample(moving, self.grid + self.field * (2 / self.field.shape[1]),
                               padding_mode="border", align_corners=False)
        a, b = warped - warped.mean(), fixed - fixed.mean()
        similarity = (a * b).sum() / ((a * a).sum() * (b * b).sum() + 1e-5).sqrt()
        return 0.01 * sum(self.field.diff(dim=d).square().mean() for d in (1, 2, 3)) - similarity


def register(side):
    model = Registration(side)
    volumes = [2 * torch.rand(1, 1, side, side, side) - 1 for _ in range(2)]
    return training(model, torch.optim.Adam(model.parameters(), lr=0.1), lambda loss, _: loss, volumes, None)


def cnn3d(channels_last):
    layers, channels = [], 1
    for width in 16, 32, 64:
        layers += [nn.Conv3d(channels, width, 3, padding=1, bias=False), nn.BatchNorm3d(width),
                   nn.ReLU(inplace=True), nn.MaxPool3d(2)]
        channels = width
    model, x = (nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, 10)),
                torch.rand(4, 1, 32, 32, 32))
    if channels_last:
        model, x = (model.to(memory_format=torch.channels_last_3d),
                    x.contiguous(memory_format=torch.channels_last_3d))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    return training(model, optimizer, nn.CrossEntropyLoss(), x, classes(4, 10))


def adam(**options):
    parameters = [nn.Parameter(torch.rand(10000000 // 64)) for _ in range(64)]
    for p in parameters:
        p.grad = torch.rand_like(p)
    optimizer = torch.optim.Adam(parameters, lr=0.001, **options)
    return optimizer.step


def attention(rows, causal, train):
    q, k, v = (nn.Parameter(torch.randn(1, 8 if causal else 6, rows, 64)) for _ in range(3))

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if not train:
        return torch.inference_mode()(forward)
    return training(lambda _: forward(), torch.optim.SGD((q, k, v), lr=0.01),
                    lambda y, _: y.square().mean(), None, None)


def table(optimizer):
    """A sparse table 10 million x 16, other rows in each step."""
    model, batches = nn.Embedding(10000000, 16, sparse=True), torch.randint(0, 10000000, (64, 2048))
    optimizer, turns = optimizer(model.parameters()), itertools.cycle(batches)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(next(turns)).square().mean().backward()
        optimizer.step()
    return step


def fused():
    x, r = torch.rand(64, 256, 28, 28, requires_grad=True), torch.rand(64, 256, 28, 28, requires_grad=True)
    scale, shift = (torch.rand(256, 1, 1, requires_grad=True) for _ in range(2))
    gradient = torch.rand(64, 256, 28, 28)
    return lambda: torch.autograd.grad(F.gelu(x * scale + shift) + r, (x, scale, shift, r), gradient)


WORKLOADS = {
    "sgemm1024": lambda: sgemm(1024), "sgemm256": lambda: sgemm(256), "mlp20": mlp20,
    "lenet4": lambda: lenet(4), "lenet128": lambda: lenet(128), "mlp784": mlp784,
    "lstm": lambda: recurrent(nn.LSTM), "gru": lambda: recurrent(nn.GRU),
    "resnet_forward": lambda: resnet_forward(False), "resnet_forward_jit": lambda: resnet_forward(True),
    "resnet_train": lambda: resnet_train(False), "resnet_train_cl": lambda: resnet_train(True),
    "bert1": lambda: bert(1, False), "bert8": lambda: bert(8, False),
    "bert1_fast": lambda: bert(1, True), "bert8_fast": lambda: bert(8, True),
    "gpt": gpt, "register48": lambda: register(48), "register96": lambda: register(96),
    "register192": lambda: register(192), "cnn3d": lambda: cnn3d(False), "cnn3d_cl": lambda: cnn3d(True),
    "adam": adam, "adam_fused": lambda: adam(fused=True), "fused": fused,
    "attention8192": lambda: attention(8192, True, False),
    "attention4096": lambda: attention(4096, True, True),
    "attention1500": lambda: attention(1500, False, False),
    "table_sgd": lambda: table(lambda parameters: torch.optim.SGD(parameters, lr=0.01)),
    "table_adam": lambda: table(torch.optim.SparseAdam),
}


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    own, _, form = name.partition("_b16_")
    if form == "weights":
        torch.set_default_dtype(torch.bfloat16)
    step = WORKLOADS[own]()
    if form == "autocast":
        step = torch.autocast("cpu", dtype=torch.bfloat16)(step)
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < 0.3 or calls < 3:
        step()
        calls += 1
    calls = int(0.2 / ((time.perf_counter() - begin) / calls)) + 1
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        times.append((time.perf_counter() - begin) / calls)
    times.sort()
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    print(f"{name} {threads} {1e3 * times[4]:.6f} {1e3 * times[0]:.6f} {peak:.1f}")


if __name__ == "__main__":
    main()
