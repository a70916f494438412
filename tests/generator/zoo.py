"""Small PyTorch models that cover all of gpunn. make_zoo.py computes their golden files, test_export_torch.py
exports them.

Each function decorated by @case returns (module, inputs) or (module, inputs, loss). module computes outputs
from inputs. loss is a function of its result and the last input; without it the module's own result "loss" is
the loss."""
import math

import torch
import torch.nn.functional as F
from torch import nn

try:
    from torchvision.ops import deform_conv2d, roi_align
except ImportError:
    deform_conv2d = roi_align = None

CASES = {}


def case(optimizer=None, steps=20, train=True):
    """optimizer: the spec's, for training `steps` steps. train False: the module draws random numbers in
    training."""
    def register(function):
        CASES[function.__name__] = (function, optimizer, steps if optimizer else 0, train)
        return function
    return register


SGD = {"type": "sgd", "lr": 0.05}
MOMENTUM = {"type": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 0.01}
NESTEROV = {"type": "sgd", "lr": 0.02, "momentum": 0.9, "nesterov": True}
ADAM = {"type": "adam", "lr": 0.003}
ADAMW = {"type": "adamw", "lr": 0.002, "betas": [0.8, 0.99], "weight_decay": 0.05}
RMSPROP = {"type": "rmsprop", "lr": 0.001, "momentum": 0.5}
ADAGRAD = {"type": "adagrad", "lr": 0.01}


class Net(nn.Module):
    """A module of named parts, and a function of them and the inputs."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def randn(*shape):
    return torch.randn(shape)


def classes(n, count):
    return torch.randint(0, count, (n,))


def parameter(*shape, scale=0.5, dtype=None):
    return nn.Parameter(torch.randn(shape, dtype=dtype) * scale)


# ---- perceptrons -------------------------------------------------------------------------------------------
@case(ADAM)
def mlp():
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))
    return net, (randn(5, 6), classes(5, 4)), nn.CrossEntropyLoss()


@case(train=False)
def mlp_dropout():
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.25), nn.Linear(16, 3))
    return net, (randn(4, 6), randn(4, 3)), nn.MSELoss()


MLP_SMOOTH = [nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.Mish(), nn.GELU(), nn.GELU("tanh"), nn.Softsign(),
              nn.LogSigmoid(), nn.Softplus(), nn.Softplus(2, 1.5), nn.Tanhshrink()]
MLP_KINKS = [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.75), nn.Hardsigmoid(), nn.Hardswish(),
             nn.LeakyReLU(0.2), nn.ELU(0.7),
             nn.SELU(), nn.CELU(1.5), nn.Hardshrink(0.3), nn.Softshrink(0.3), nn.Threshold(0.1, -0.2)]


def branches(activations):
    linear = nn.ModuleList([nn.Linear(5, 3) for _ in activations])
    return Net(lambda self, x: self.out(torch.cat([act(fc(x)) for fc, act in zip(self.linear, activations)],
                                                  1)), linear=linear, out=nn.Linear(3 * len(activations), 2))


@case(ADAMW)
def mlp_smooth():
    return branches(MLP_SMOOTH), (randn(4, 5) * 2, randn(4, 2)), nn.MSELoss()


@case(SGD)
def mlp_kinks():
    return branches(MLP_KINKS), (randn(4, 5) * 2, randn(4, 2)), nn.SmoothL1Loss()


@case(MOMENTUM)
def mlp_prelu():
    net = nn.Sequential(nn.Linear(5, 8), nn.PReLU(), nn.Linear(8, 6), nn.PReLU(6, 0.1), nn.Linear(6, 2))
    return net, (randn(4, 5), randn(4, 2)), nn.HuberLoss(delta=0.8)


@case(NESTEROV)
def mlp_residual():
    def forward(self, x):
        x = self.stem(x)
        for norm, up, down in zip(self.norm, self.up, self.down):
            x = x + down(F.gelu(up(norm(x))))
        return self.head(self.last(x))
    net = Net(forward, stem=nn.Linear(6, 8), norm=nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8, eps=1e-3)]),
              up=nn.ModuleList([nn.Linear(8, 16), nn.Linear(8, 16)]),
              down=nn.ModuleList([nn.Linear(16, 8), nn.Linear(16, 8, bias=False)]),
              last=nn.LayerNorm(8), head=nn.Linear(8, 3))
    return net, (randn(4, 6), classes(4, 3)), nn.CrossEntropyLoss(label_smoothing=0.1)


@case(RMSPROP)
def mlp_highway():
    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        x = gate * torch.tanh(self.fc(x)) + (1 - gate) * x
        return F.glu(self.glu(x))
    net = Net(forward, gate=nn.Linear(6, 6), fc=nn.Linear(6, 6), glu=nn.Linear(6, 4))
    return net, (randn(4, 6), randn(4, 2)), nn.MSELoss()


@case(ADAGRAD)
def mlp_batch_norm():
    net = nn.Sequential(nn.Linear(6, 10, bias=False), nn.BatchNorm1d(10), nn.ReLU(),
                        nn.Linear(10, 8, bias=False),
                        nn.BatchNorm1d(8, momentum=0.3, affine=False), nn.Tanh(), nn.Linear(8, 3))
    return net, (randn(6, 6), classes(6, 3)), nn.CrossEntropyLoss()


@case(SGD)
def mlp_shared():
    """One layer used twice, and its weight once more as the output's."""
    def forward(self, x):
        x = torch.tanh(self.fc(torch.tanh(self.fc(x))))
        return F.linear(x, self.out, self.fc.bias[:3]) + x @ self.fc.weight[:, :3]
    net = Net(forward, fc=nn.Linear(6, 6), out=parameter(3, 6))
    return net, (randn(4, 6), randn(4, 3)), nn.MSELoss()


@case(SGD)
def mlp_frozen():
    net = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 8), nn.ReLU(),
                        nn.Linear(8, 2))
    for p in list(net[0].parameters()) + [net[3].weight]:
        p.requires_grad = False
    return net, (randn(4, 5), randn(4, 2)), nn.MSELoss()


@case(ADAM)
def autoencoder_mlp():
    net = Net(lambda self, x: {"code": (z := self.encoder(x)), "output": (y := self.decoder(z)),
                               "loss": F.mse_loss(y, x)},
              encoder=nn.Sequential(nn.Linear(8, 6), nn.ELU(), nn.Linear(6, 3)),
              decoder=nn.Sequential(nn.Linear(3, 6), nn.ELU(), nn.Linear(6, 8), nn.Sigmoid()))
    return net, (torch.rand(5, 8),)


# ---- images ------------------------------------------------------------------------------------------------
@case(MOMENTUM)
def lenet():
    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        return self.fc2(F.relu(self.fc1(x)))
    net = Net(forward, conv1=nn.Conv2d(1, 4, 3), conv2=nn.Conv2d(4, 6, 3, padding=1), fc1=nn.Linear(54, 16),
              fc2=nn.Linear(16, 5))
    return net, (randn(3, 1, 14, 14), classes(3, 5)), nn.CrossEntropyLoss()


@case(SGD)
def vgg():
    layers, channels = [], 3
    for width in (4, 4, "M", 6, "M"):
        if width == "M":
            layers.append(nn.MaxPool2d(2, 2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    net = Net(lambda self, x: self.classifier(torch.flatten(self.avgpool(self.features(x)), 1)),
              features=nn.Sequential(*layers),
              avgpool=nn.AdaptiveAvgPool2d((2, 2)), classifier=nn.Linear(24, 4))
    return net, (randn(4, 3, 8, 8), classes(4, 4)), nn.CrossEntropyLoss()


@case(SGD)
def spatial_transformer():
    def forward(self, x):
        theta = self.theta(torch.flatten(F.relu(self.locate(x)), 1)).view(-1, 2, 3)
        x = F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)
        return self.fc(torch.flatten(x, 1))
    net = Net(forward, locate=nn.Conv2d(2, 3, 3, stride=2), theta=nn.Linear(27, 6), fc=nn.Linear(98, 3))
    with torch.no_grad():  # near the identity, and away from the borders of cells, where the derivative jumps
        net.theta.weight.mul_(0.05)
        net.theta.bias.copy_(torch.tensor([0.83, 0.11, 0.013, -0.13, 0.91, 0.017]))
    return net, (randn(4, 2, 7, 7), classes(4, 3)), nn.CrossEntropyLoss()


@case(SGD, steps=5)
def warp_volume():
    def forward(self, moving, fixed):
        grid = F.affine_grid(self.theta, (1, 1, 4, 5, 6),
                             align_corners=True).expand(moving.size(0), -1, -1, -1, -1)
        warped = F.grid_sample(moving, grid + self.field, padding_mode="border", align_corners=True)
        label = F.grid_sample(moving, grid, mode="nearest", padding_mode="reflection", align_corners=True)
        return {"warped": warped, "label": label, "loss": F.mse_loss(warped, fixed)}
    identity = torch.tensor([[[0.87, 0.03, 0.02, 0.013], [0.02, 0.83, 0.011, 0.03],
                              [0.011, 0.02, 0.71, 0.017]]])
    net = Net(forward, theta=nn.Parameter(identity), field=parameter(1, 4, 5, 6, 3, scale=0.02))
    return net, (randn(2, 1, 4, 5, 6), randn(2, 1, 4, 5, 6))


def regions():
    """Parts of a feature map: one box per image and then a second one of the first. Only with torchvision."""
    def forward(self, x, corners):
        own = torch.arange(x.size(0), dtype=x.dtype)[:, None]
        h = F.relu(self.conv(x))
        a = roi_align(h, torch.cat([own, corners], 1), (2, 3), 0.5, 2, True)
        b = roi_align(h, self.boxes, 2)
        return self.fc(a.flatten(1)) + b.mean()
    net = Net(forward, conv=nn.Conv2d(2, 3, 3, padding=1), fc=nn.Linear(18, 4),
              boxes=torch.tensor([[0, 1.25, 0.5, 5.5, 7.0], [0, -1.5, 2.25, 3.0, 12.0]]))
    corners = torch.tensor([[0.75, 1, 9, 13], [4, 2, 15.5, 17], [-1, 3, 6, 9.5], [2, 2, 4.25, 3]])
    return net, (randn(4, 2, 9, 8), corners, classes(4, 4)), nn.CrossEntropyLoss()


def between_pixels():
    """Bicubic samples of an image with each padding, and a deformable convolution; only with torchvision."""
    def forward(self, x, grid):
        y = self.conv(x)
        moved = deform_conv2d(y, self.offset(y), self.weight, self.bias, stride=(2, 1), padding=(0, 1),
                              dilation=(1, 2), mask=self.mask(y).sigmoid())
        parts = [F.grid_sample(y, grid + 0.1 * self.shift, "bicubic", padding, align)
                 for padding, align in (("zeros", False), ("border", True), ("reflection", False))]
        return [moved, torch.cat(parts, 1)]
    net = Net(forward, conv=nn.Conv2d(2, 4, 3, padding=1),
              offset=nn.Conv2d(4, 24, (2, 3), (2, 1), (0, 1), (1, 2)),
              mask=nn.Conv2d(4, 12, (2, 3), (2, 1), (0, 1), (1, 2)), weight=parameter(6, 2, 2, 3),
              bias=parameter(6), shift=parameter(2))

    def loss(result, target):
        return result[0].square().mean() + F.mse_loss(result[1], target)
    return net, (randn(2, 2, 6, 7), randn(2, 3, 4, 2) * 0.7, randn(2, 12, 3, 4)), loss


if roi_align:
    case(SGD, steps=5)(regions)
    case(ADAM, steps=5)(between_pixels)


class BasicBlock(nn.Module):
    def __init__(self, channels, width, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu, self.downsample = nn.ReLU(inplace=True), None
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False),
                                            nn.BatchNorm2d(width))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


@case(SGD)
def resnet_block():
    return BasicBlock(4, 4), (randn(3, 4, 6, 6), randn(3, 4, 6, 6)), nn.MSELoss()


@case(MOMENTUM, steps=10)
def resnet():
    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))
    net = Net(forward, conv1=nn.Conv2d(3, 4, 5, 2, 2, bias=False), bn1=nn.BatchNorm2d(4),
              relu=nn.ReLU(inplace=True),
              maxpool=nn.MaxPool2d(3, 2, 1), layer1=nn.Sequential(BasicBlock(4, 4), BasicBlock(4, 4)),
              layer2=nn.Sequential(BasicBlock(4, 6, 2), BasicBlock(6, 6)), avgpool=nn.AdaptiveAvgPool2d(1),
              fc=nn.Linear(6, 3))
    return net, (randn(4, 3, 16, 16), classes(4, 3)), nn.CrossEntropyLoss()


@case(SGD, steps=10)
def resnext_squeeze():
    """Grouped convolutions, squeeze and excitation, a 1x1 bottleneck."""
    def forward(self, x):
        y = F.relu(self.bn1(self.reduce(x)))
        y = F.relu(self.bn2(self.group(y)))
        y = self.bn3(self.expand(y))
        scale = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(y, 1)))))
        return F.relu(y * scale + x).mean((2, 3))
    net = Net(forward, reduce=nn.Conv2d(8, 4, 1, bias=False), bn1=nn.BatchNorm2d(4),
              group=nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False),
              bn2=nn.BatchNorm2d(4), expand=nn.Conv2d(4, 8, 1, bias=False), bn3=nn.BatchNorm2d(8),
              down=nn.Conv2d(8, 2, 1), up=nn.Conv2d(2, 8, 1))
    return net, (randn(3, 8, 5, 5), randn(3, 8)), nn.MSELoss()


@case(SGD, steps=10)
def mobilenet():
    def forward(self, x):
        x = self.stem(x)
        x = x + self.project(self.depthwise(self.widen(x)))
        return self.head(F.hardswish(x).mean([2, 3]))

    def unit(*args, act=nn.ReLU6, **options):
        return nn.Sequential(nn.Conv2d(*args, bias=False, **options), nn.BatchNorm2d(args[1]), act())
    net = Net(forward, stem=unit(3, 4, 3, stride=2, padding=1, act=nn.Hardswish), widen=unit(4, 8, 1),
              depthwise=unit(8, 8, 3, padding=1, groups=8), project=unit(8, 4, 1, act=nn.Identity),
              head=nn.Linear(4, 3))
    return net, (randn(3, 3, 9, 9), classes(3, 3)), nn.CrossEntropyLoss()


@case(SGD)
def convnext_block():
    def forward(self, x):
        y = self.dwconv(x).permute(0, 2, 3, 1)
        y = self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)
    net = Net(forward, dwconv=nn.Conv2d(4, 4, 7, padding=3, groups=4), norm=nn.LayerNorm(4, eps=1e-6),
              pwconv1=nn.Linear(4, 16), act=nn.GELU(),
              pwconv2=nn.Linear(16, 4), gamma=nn.Parameter(torch.full((4,), 0.5)))
    return net, (randn(2, 4, 6, 5), randn(2, 4, 6, 5)), nn.MSELoss()


@case(SGD)
def inception():
    """Branches with rectangular and dilated kernels and pools, padding "same", joined."""
    def forward(self, x):
        a = self.b1(x)
        b = self.b2b(F.relu(self.b2a(x)))
        c = self.b3(F.avg_pool2d(x, 3, stride=1, padding=1))
        d = self.b4(F.max_pool2d(x, (3, 1), stride=(1, 1), padding=(1, 0)))
        e = self.b5(x)
        y = F.relu(torch.cat([a, b, c, d, e], dim=1))
        return F.avg_pool2d(y, (2, 3), padding=(0, 1), ceil_mode=True,
                            count_include_pad=False).flatten(2).amax(-1)
    net = Net(forward, b1=nn.Conv2d(3, 2, 1), b2a=nn.Conv2d(3, 4, (1, 3), padding=(0, 1)),
              b2b=nn.Conv2d(4, 2, (3, 1), padding=(1, 0)),
              b3=nn.Conv2d(3, 2, 3, dilation=2, padding=2), b4=nn.Conv2d(3, 2, 4, padding="same"),
              b5=nn.Conv2d(3, 2, 3, padding="same", bias=False))
    return net, (randn(2, 3, 7, 7), randn(2, 10)), nn.MSELoss()


@case({"type": "sgd", "lr": 0.001})
def pools():
    """Pools of one and three axes and adaptive ones, of whole and of uneven windows."""
    def forward(self, sequence, volume):
        a = self.one(sequence) + F.avg_pool1d(sequence, 2, ceil_mode=True)
        b = self.three(volume * self.scale) - F.avg_pool3d(volume, (2, 3, 1), stride=(2, 1, 2),
                                                           padding=(0, 1, 0))
        b = F.adaptive_max_pool3d(b, (3, 2, None)) + F.adaptive_avg_pool3d(b, (3, 2, 3))
        c = F.adaptive_max_pool2d(volume.flatten(2, 3), (5, 1)) + self.adaptive(volume.flatten(2, 3))
        d = F.adaptive_max_pool1d(a, 3) + F.adaptive_avg_pool1d(a, 3)
        return self.out(torch.cat([a.flatten(1), b.flatten(1), c.flatten(1), d.flatten(1)], 1))
    net = Net(forward, one=nn.MaxPool1d(3, 2, 1), three=nn.MaxPool3d(3, (2, 1, 2), 1),
              adaptive=nn.AdaptiveMaxPool2d((5, 1)), scale=parameter(2, 1, 1, 1), out=nn.Linear(60, 3))
    return net, (randn(2, 2, 7), randn(2, 2, 6, 4, 6), randn(2, 3)), nn.MSELoss()


@case({"type": "sgd", "lr": 0.001})
def resizes():
    """interpolate in all its modes, and padding with an input's own elements."""
    def forward(self, line, image, volume):
        a = F.interpolate(line * self.scale, scale_factor=1.7, mode="linear") + F.interpolate(
            line, size=11, mode="nearest")
        b = self.up(F.pad(image, (1, 0, 2, 1), mode="reflect")) + F.interpolate(
            image, (10, 12), mode="bilinear", align_corners=True)
        b = F.pad(F.interpolate(b, size=(4, 7), mode="nearest-exact"), (2, 1, 0, 0), mode="circular")
        c = F.interpolate(volume, scale_factor=(1.5, 1, 0.7), mode="trilinear") + F.interpolate(
            volume, (3, 3, 2), mode="area")
        d = F.pad(c, (1, 2, 3, 0, 0, 1), mode="replicate")
        return self.out(torch.cat([a.flatten(1), b.flatten(1), F.interpolate(d, scale_factor=0.5).flatten(1)],
                                  1))
    net = Net(forward, up=nn.Upsample(scale_factor=(1.25, 2), mode="bilinear"), scale=parameter(2, 1),
              out=nn.Linear(126, 3))
    return net, (randn(2, 2, 7), randn(2, 2, 5, 5), randn(2, 2, 2, 3, 4), randn(2, 3)), nn.MSELoss()


@case(SGD)
def densenet_block():
    def forward(self, x):
        for norm, conv in zip(self.norm, self.conv):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return self.out(F.max_pool2d(x, 3, stride=2, ceil_mode=True).flatten(1))
    net = Net(forward, norm=nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(5)]),
              conv=nn.ModuleList([nn.Conv2d(3, 2, 3, padding=1, bias=False),
                                  nn.Conv2d(5, 2, 3, padding=1, bias=False)]), out=nn.Linear(63, 3))
    return net, (randn(3, 3, 6, 6), classes(3, 3)), nn.CrossEntropyLoss()


@case(ADAM)
def autoencoder_conv():
    def forward(self, x):
        z = F.relu(self.enc2(F.relu(self.enc1(x))))
        y = F.interpolate(F.relu(self.dec1(z)), scale_factor=2, mode="nearest")
        return torch.sigmoid(self.dec2(F.pixel_shuffle(y, 2)))
    net = Net(forward, enc1=nn.Conv2d(1, 4, 3, 2, 1), enc2=nn.Conv2d(4, 6, 3, 2, 1),
              dec1=nn.Conv2d(6, 4, 3, padding=1), dec2=nn.Conv2d(1, 1, 3, padding=1))
    return net, (torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 8)), nn.BCELoss()


@case(ADAM)
def waves():
    """Convolutions of a sequence, dilated as in WaveNet, and back up."""
    def forward(self, x):
        h = F.relu(self.down(x))
        for layer in self.dilated:
            h = h + torch.tanh(layer(h))
        return self.up(h)
    net = Net(forward, down=nn.Conv1d(2, 6, 4, 2, 1), up=nn.ConvTranspose1d(6, 2, 5, 2, 2, output_padding=1),
              dilated=nn.ModuleList([nn.Conv1d(6, 6, 3, padding=d, dilation=d, groups=2) for d in (1, 2, 4)]))
    return net, (randn(3, 2, 16), randn(3, 2, 16)), nn.MSELoss()


@case(SGD, steps=10)
def unet_volume():
    """Strided down, transposed up, norms, a skip connection."""
    def forward(self, x):
        a = F.relu(self.norm1(self.enter(x)))
        b = F.relu(self.norm2(self.down(a).flatten(2)).unflatten(2, (2, 3, 2)))
        return self.leave(torch.cat([self.up(b), a], 1))
    net = Net(forward, enter=nn.Conv3d(1, 3, 3, padding=1, bias=False), norm1=nn.GroupNorm(1, 3),
              down=nn.Conv3d(3, 6, 2, 2),
              norm2=nn.BatchNorm1d(6), up=nn.ConvTranspose3d(6, 3, 2, 2, bias=False),
              leave=nn.Conv3d(6, 2, (1, 3, 1), padding=(0, 1, 0)))
    return net, (randn(2, 1, 4, 6, 4), torch.randint(0, 2, (2, 4, 6, 4))), nn.CrossEntropyLoss()


@case(ADAM)
def generator_dcgan():
    """Transposed convolutions with batch norms, as in DCGAN."""
    def forward(self, z):
        h = F.relu(self.bn1(self.up1(z[:, :, None, None])))
        h = F.relu(self.bn2(self.up2(h)))
        return torch.tanh(self.up3(h))
    net = Net(forward, up1=nn.ConvTranspose2d(5, 6, 3, bias=False), bn1=nn.BatchNorm2d(6),
              up2=nn.ConvTranspose2d(6, 4, 4, 2, 1, groups=2, bias=False), bn2=nn.BatchNorm2d(4),
              up3=nn.ConvTranspose2d(4, 1, 3, 2, 1, output_padding=1))
    return net, (randn(3, 5), randn(3, 1, 12, 12)), nn.MSELoss()


@case(SGD, steps=10)
def unet_segmentation():
    """Skip connections and a class for each pixel, some of which are ignored."""
    def forward(self, x):
        a = F.leaky_relu(self.down1(x), 0.1)
        b = F.leaky_relu(self.down2(F.max_pool2d(a, 2)), 0.1)
        up = F.interpolate(b, size=(6, 4))
        return self.out(F.leaky_relu(self.up(torch.cat([up, a], 1)), 0.1))
    labels = torch.randint(0, 3, (2, 6, 4))
    labels[0, :2] = 255
    net = Net(forward, down1=nn.Conv2d(2, 4, 3, padding=1), down2=nn.Conv2d(4, 6, 3, padding=1),
              up=nn.Conv2d(10, 4, 3, padding=1),
              out=nn.Conv2d(4, 3, 1))
    return net, (randn(2, 2, 6, 4), labels), nn.CrossEntropyLoss(ignore_index=255)


@case(SGD)
def norms():
    """Norms of every kind and rank."""
    def forward(self, image, sequence):
        y = self.group(image) + self.instance(image) * 0.5 + F.layer_norm(image, (5, 3)) + self.planes(image)
        z = self.batch(sequence) + F.layer_norm(sequence, (4,), eps=1e-3) + self.plain(sequence)
        return y, z, (y * y).mean() + (z * z).mean()
    net = Net(forward, group=nn.GroupNorm(2, 4), instance=nn.InstanceNorm2d(4, affine=True),
              planes=nn.LayerNorm([4, 5, 3]),
              batch=nn.BatchNorm1d(6), plain=nn.LayerNorm(4, elementwise_affine=False))
    return net, (randn(3, 4, 5, 3), randn(3, 6, 4))


norms.outputs = ["image", "sequence", "loss"]


@case(SGD)
def norms_of_channels():
    def forward(self, x):
        y = self.inner(F.relu(self.groups(self.conv(x)))) * x + self.instances(
            x.reshape(x.shape[0], 4, 6, 1, 5)).flatten(2, 3)
        y = self.deep(y[:, :, :, :, None])[..., 0] + F.group_norm(x, 2, eps=0.1) * self.plain(x)
        return y + F.instance_norm(x.flatten(2)).reshape_as(x)
    net = Net(forward, conv=nn.Conv2d(4, 4, 1), groups=nn.GroupNorm(2, 4, eps=1e-3),
              inner=nn.InstanceNorm2d(4, affine=True),
              instances=nn.InstanceNorm3d(4), deep=nn.BatchNorm3d(4), plain=nn.GroupNorm(4, 4, affine=False))
    return net, (randn(3, 4, 6, 5), randn(3, 4, 6, 5)), nn.MSELoss()


@case(SGD)
def norms_tracked():
    """instance_norm with running statistics, alone and behind a convolution; batch_norm of other ranks
    without them."""
    def forward(self, x):
        y = self.tracked(self.conv(x)).relu() + self.deep(x[:, :, :, :, None])[..., 0]
        return y + self.rows(x.mean((2, 3)))[:, :, None, None] + self.lines(x.flatten(2)).reshape_as(x)
    net = Net(forward, conv=nn.Conv2d(4, 4, 1, bias=False),
              rows=nn.BatchNorm1d(4, affine=False, track_running_stats=False),
              deep=nn.BatchNorm3d(4, eps=0.1, track_running_stats=False),
              tracked=nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
              lines=nn.InstanceNorm1d(4, momentum=0.3, track_running_stats=True))
    return net, (randn(3, 4, 6, 5), randn(3, 4, 6, 5)), nn.MSELoss()


# ---- sequences ---------------------------------------------------------------------------------------------
class Attention(nn.Module):
    def __init__(self, width, heads, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.heads,
                                      width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1) > 0, float("-inf"))
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, causal=False):
        super().__init__()
        self.ln1, self.attn, self.ln2 = (nn.LayerNorm(width), Attention(width, heads, causal),
                                         nn.LayerNorm(width))
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.proj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


@case(SGD)
def transformer_block():
    return Block(8, 2), (randn(3, 5, 8), randn(3, 5, 8)), nn.MSELoss()


@case(MOMENTUM, steps=10)
def gpt():
    """A causal model over vectors, each position's class the target."""
    def forward(self, x):
        x = self.inp(x) + self.pos[: x.size(1)]
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)
    net = Net(forward, inp=nn.Linear(4, 8), pos=parameter(6, 8),
              blocks=nn.Sequential(Block(8, 2, True), Block(8, 4, True)), norm=nn.LayerNorm(8),
              head=nn.Linear(8, 5, bias=False))
    return net, (randn(2, 4, 4), torch.randint(0, 5, (2, 4))), nn.CrossEntropyLoss()


@case(SGD)
def transformer_encoder_layer():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    return layer, (randn(2, 4, 8), randn(2, 4, 8)), nn.L1Loss()


@case(SGD)
def transformer_encoder_layer_pre_norm():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True,
                                       norm_first=True)
    return layer, (randn(2, 4, 8), randn(2, 4, 8)), nn.MSELoss()


@case(SGD)
def cross_attention():
    """Keys of another length than queries, and a mask that is an input."""
    def forward(self, x, memory, mask):
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None],
                                           attn_mask=mask[:, None, None, :])
        return self.out(y.squeeze(1))
    mask = torch.tensor([[True, True, True, False, True], [False, True, True, True, True]])
    net = Net(lambda self, x, memory, mask, target: {"output": (y := forward(self, x, memory, mask)),
                                                     "loss": F.mse_loss(y, target)},
              q=nn.Linear(6, 4), k=nn.Linear(3, 4), v=nn.Linear(3, 4), out=nn.Linear(4, 6))
    return net, (randn(2, 3, 6), randn(2, 5, 3), mask, randn(2, 3, 6))


@case(SGD)
def attention_float_mask():
    """A float mask that is an input, with a fully masked row, and grouped heads."""
    def forward(self, x, mask):
        q, k, v = self.q(x), self.k(x[:, :2]), self.v(x[:, 1:3])
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True))
    mask = randn(5, 5)
    mask[1] = -math.inf
    mask[2, 3] = -math.inf
    net = Net(lambda self, x, mask, target: {"output": (y := forward(self, x, mask)),
                                             "loss": F.mse_loss(y, target)},
              q=nn.Linear(3, 4), k=nn.Linear(3, 4), v=nn.Linear(3, 4), out=nn.Linear(4, 3))
    return net, (randn(2, 4, 5, 3), mask, randn(2, 4, 5, 3))


@case(SGD)
def attention():
    """An encoder with padding, then causal heads that share keys."""
    def forward(self, x, padding):
        y = self.encoder(x, src_key_padding_mask=padding)
        q, k = self.q(y).unflatten(2, (4, 4)).transpose(1, 2), self.k(y).unflatten(2, (2, 4)).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))
    padding = torch.tensor([[False, False, True, False], [False, True, False, False]])
    layer = nn.TransformerEncoderLayer(8, 2, 6, dropout=0.0, batch_first=True)
    net = Net(lambda self, x, padding, target: {"output": (y := forward(self, x, padding)),
                                                "loss": F.mse_loss(y, target)},
              encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), q=nn.Linear(8, 16),
              k=nn.Linear(8, 8), out=nn.Linear(16, 3))
    return net, (randn(2, 4, 8), padding, randn(2, 4, 3))


@case(SGD)
def vit():
    """Patches by a convolution, a class token for each sample, learned positions."""
    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.block(x))[:, 0])
    net = Net(forward, patch=nn.Conv2d(1, 8, 4, stride=4), cls=parameter(1, 1, 8), pos=parameter(1, 5, 8),
              block=Block(8, 2), norm=nn.LayerNorm(8, bias=False) if torch.__version__ >= "2.1" else
              nn.LayerNorm(8), head=nn.Linear(8, 3))
    return net, (randn(3, 1, 8, 8), classes(3, 3)), nn.CrossEntropyLoss()


@case(SGD)
def transformer_decoder_layer():
    """Causal self-attention, and cross-attention with a masked part of the memory."""
    causal = torch.full((3, 3), float("-inf")).triu(1)
    padding = torch.tensor([[False, False, True, False], [False, False, False, True]])
    net = Net(lambda self, x, memory, padding: self.layer(x, memory, tgt_mask=causal,
                                                          memory_key_padding_mask=padding),
              layer=nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True))
    return net, (randn(2, 3, 8), randn(2, 4, 8), padding, randn(2, 3, 8)), nn.MSELoss()


@case(SGD)
def mlp_mixer():
    def forward(self, x):
        y = self.token2(F.gelu(self.token1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        x = x + y
        x = x + self.channel2(F.gelu(self.channel1(self.norm2(x))))
        return self.head(x.mean(dim=1))
    net = Net(forward, norm1=nn.LayerNorm(6), token1=nn.Linear(5, 8), token2=nn.Linear(8, 5),
              norm2=nn.LayerNorm(6), channel1=nn.Linear(6, 12),
              channel2=nn.Linear(12, 6), head=nn.Linear(6, 2))
    return net, (randn(4, 5, 6), randn(4, 2)), nn.MSELoss()


@case(ADAMW)
def llama_mlp():
    """RMS norms, SwiGLU and rotary positions."""
    def forward(self, x):
        x = x + self.rotate(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Rotary(nn.Module):
        def __init__(self, length, width):
            super().__init__()
            angle = torch.arange(length)[:, None] / 100 ** (torch.arange(0, width, 2) / width)
            self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1), persistent=False)
            self.register_buffer("sin", torch.cat([angle.sin()] * 2, -1), persistent=False)

        def forward(self, x):
            half = x.shape[-1] // 2
            return x * self.cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * self.sin
    net = Net(forward, norm1=nn.RMSNorm(8), norm2=nn.RMSNorm(8, eps=1e-5), rotate=Rotary(4, 8),
              gate=nn.Linear(8, 12, bias=False),
              up=nn.Linear(8, 12, bias=False), down=nn.Linear(12, 8, bias=False))
    return net, (randn(3, 4, 8), randn(3, 4, 8)), nn.MSELoss()


@case(SGD)
def rnn_unrolled():
    def forward(self, x):
        h = torch.zeros(x.size(0), 5)
        for i in range(x.size(1)):
            h = torch.tanh(x[:, i] @ self.w_x + torch.addmm(self.bias, h, self.w_h))
        return self.out(h)
    net = Net(forward, w_x=parameter(3, 5), w_h=parameter(5, 5), bias=parameter(5), out=nn.Linear(5, 2))
    return net, (randn(4, 3, 3), randn(4, 2)), nn.MSELoss()


@case(SGD)
def deep_sets():
    """A function of a set: each element's features summed, the mean, the largest."""
    def forward(self, x):
        z = F.softplus(self.phi(x))
        return self.rho(torch.cat([z.sum(1), z.mean(1), z.amax(1), z.max(dim=1)[0] - z.min(1).values], -1))
    net = Net(forward, phi=nn.Linear(3, 4), rho=nn.Linear(16, 2))
    return net, (randn(3, 6, 3), randn(3, 2)), nn.MSELoss()


# ---- words -------------------------------------------------------------------------------------------------
@case(ADAM)
def tied_words():
    """As in GPT-2: positions from a buffer, and the output shares the embedding's weight. The padding's
    embedding is zero."""
    def forward(self, tokens):
        h = self.words(tokens) + self.positions(self.numbers)
        h = h + F.gelu(self.fc(self.norm(h)), approximate="tanh")
        return self.head(h).mT  # [n, words, length]
    net = Net(forward, words=nn.Embedding(19, 8, padding_idx=3), positions=nn.Embedding(6, 8),
              norm=nn.LayerNorm(8),
              fc=nn.Linear(8, 8), head=nn.Linear(8, 19, bias=False), numbers=torch.arange(5)[None])
    net.head.weight = net.words.weight
    return net, (torch.randint(0, 19, (4, 5)), torch.randint(0, 19, (4, 5))), nn.CrossEntropyLoss()


@case(SGD)
def tied_with_bias():
    """As in BERT: the scores have a bias, and a second table shares the first one's weight."""
    def forward(self, tokens, others):
        h = self.words(tokens) * self.again(others) + F.embedding(others, self.plain, 0)
        return self.decoder(torch.tanh(h))
    net = Net(forward, words=nn.Embedding(11, 6), again=nn.Embedding(11, 6, padding_idx=0),
              plain=parameter(11, 6), decoder=nn.Linear(6, 11))
    net.again.weight = net.decoder.weight = net.words.weight
    words = (torch.randint(0, 11, (4, 3)).int(), torch.randint(0, 11, (4, 3)))
    return net, words + (randn(4, 3, 11),), nn.MSELoss()


@case(SGD)
def gathers():
    def forward(self, x, index):
        x = self.fc(x)
        y = torch.gather(x, 1, index) + x.gather(2, index) * 0.5
        return y + x.index_select(1, self.order)[:, :3]
    net = Net(forward, fc=nn.Linear(5, 5), order=torch.tensor([3, 0, 0, 2]))
    return net, (randn(3, 4, 5), torch.randint(0, 4, (3, 3, 5)), randn(3, 3, 5)), nn.MSELoss()


# ---- recurrent layers: so many steps that their products come in pieces ------------------------------------
@case(ADAM)
def tagger():
    """Two bidirectional layers. Each word has a class, and the last states give one for the sentence."""
    def forward(self, tokens):
        y, (h, _) = self.rnn(self.words(tokens))
        return self.head(y).mT + self.whole(h[-2] + h[-1])[..., None]
    net = Net(forward, words=nn.Embedding(13, 5), rnn=nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True),
              head=nn.Linear(8, 3), whole=nn.Linear(4, 3))
    return net, (torch.randint(0, 13, (9, 33)), torch.randint(0, 3, (9, 33))), nn.CrossEntropyLoss()


@case(SGD)
def recurrent():
    """One kind after another, without biases, with relu, and from a state that is an input."""
    def forward(self, x, h):
        y, last = self.gru(x, self.start(h)[None])
        return torch.cat([self.relu(self.rnn(y)[0])[1][0], last[0]], 1)
    net = Net(forward, gru=nn.GRU(3, 5, batch_first=True), rnn=nn.RNN(5, 4, bias=False, batch_first=True),
              relu=nn.RNN(4, 3, nonlinearity="relu", batch_first=True), start=nn.Linear(2, 5))
    return net, (randn(9, 33, 3), randn(9, 2), randn(9, 8)), nn.MSELoss()


# ---- losses ------------------------------------------------------------------------------------------------
@case(SGD)
def losses_regression():
    def forward(self, x, t):
        y = self.fc(x)
        each = F.mse_loss(y, t, reduction="none")
        return {"each": each, "loss": F.mse_loss(y, t) + 0.5 * F.l1_loss(y, t, reduction="sum") +
                F.huber_loss(y, t, delta=0.6)
                + F.smooth_l1_loss(y, t, beta=0.4, reduction="sum") + (each * t.abs()).sum() / x.size(0)}
    net = Net(forward, fc=nn.Linear(4, 3))
    return net, (randn(5, 4), randn(5, 3))


@case(SGD)
def losses_binary():
    def forward(self, x, t):
        y = self.fc(x)
        p = torch.sigmoid(y)
        return {"probability": p, "loss": F.binary_cross_entropy(p, t) + F.binary_cross_entropy_with_logits(
            y, t, reduction="sum") + F.binary_cross_entropy(p, t, weight=self.weight)
                + F.binary_cross_entropy_with_logits(y, t, self.weight, pos_weight=self.positive)}
    net = Net(forward, fc=nn.Linear(4, 3), weight=torch.tensor([0.5, 1.0, 2.0]),
              positive=torch.tensor([2.0, 1.0, 0.25]))
    return net, (randn(5, 4), (torch.rand(5, 3) > 0.5).float())


@case(SGD)
def losses_divergence():
    def forward(self, x, t):
        y = self.fc(x).log_softmax(-1)
        return {"output": y, "loss": F.kl_div(y, t, reduction="batchmean")
                + F.kl_div(y, t.log(), log_target=True, reduction="sum")
                + F.kl_div(y, t) + F.cross_entropy(self.fc2(x), t) +
                F.cross_entropy(self.fc2(x) * 0.5, t, label_smoothing=0.2)}
    net = Net(forward, fc=nn.Linear(4, 3), fc2=nn.Linear(4, 3))
    return net, (randn(5, 4), torch.rand(5, 3).add(0.1).softmax(-1))


@case(SGD)
def losses_classes():
    def forward(self, x, labels):
        y = self.fc(x)
        return {"each": F.cross_entropy(y, labels, reduction="none"),
                "loss": F.cross_entropy(y, labels, weight=self.weight)
                + F.cross_entropy(y, labels, ignore_index=1, label_smoothing=0.3)
                + F.nll_loss(y.log_softmax(1), labels, reduction="sum")
                + F.cross_entropy(y, labels, reduction="sum") / x.shape[0]}
    net = Net(forward, fc=nn.Linear(4, 3), weight=torch.tensor([0.5, 1.0, 2.0]))
    return net, (randn(6, 4), torch.tensor([0, 1, 2, 2, 0, 1]))


@case(SGD)
def losses_margins():
    def forward(self, x, t):
        y = self.fc(x)
        return {"output": y, "loss": F.margin_ranking_loss(y[:, 0], y[:, 1], t[:, 0], margin=0.3)
                + F.soft_margin_loss(y, self.sign) + F.hinge_embedding_loss(y, t, margin=0.8, reduction="sum")
                + F.hardshrink(y, 0.4).mean()}
    net = Net(forward, fc=nn.Linear(4, 3), sign=torch.tensor([1.0, -1.0, 1.0]))
    return net, (randn(5, 4), (torch.rand(5, 3) > 0.5).float() * 2 - 1)


@case(SGD)
def losses_of_distances():
    """Losses on vectors that belong together or do not, and on scores; some terms are below their margin."""
    def forward(self, x, y, labels, same):
        a, p, n = self.fc(x), self.fc(y), self.fc(y.roll(1, 1))
        each = F.triplet_margin_loss(a, p, n, margin=0.5, swap=True, reduction="none")
        return {"each": each, "loss": F.triplet_margin_loss(a, p, n, margin=0.1, p=1) + each.square().mean()
                + F.triplet_margin_loss(a, p, n, p=3, eps=0.01, reduction="sum") +
                F.triplet_margin_loss(a, p, n, p=math.inf) + F.cosine_embedding_loss(a, p, same)
                + F.cosine_embedding_loss(a, n, same, margin=0.3,
                                          reduction="sum") + F.multi_margin_loss(a, labels, margin=0.4)
                + F.multi_margin_loss(p, labels, p=2, weight=self.weight, reduction="sum")}
    net = Net(forward, fc=nn.Linear(4, 3), weight=torch.tensor([0.5, 1.0, 2.0]))
    return net, (randn(6, 4), randn(6, 4), classes(6, 3), torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0]))


@case(ADAM)
def metrics():
    """Predictions besides the loss."""
    def forward(self, x, labels):
        y = self.fc(x)
        guess = y.argmax(1)
        return {"guess": guess, "accuracy": (guess == labels).float().mean(),
                "worst": y.argmin(dim=1, keepdim=True), "loss": F.cross_entropy(y, labels)}
    net = Net(forward, fc=nn.Linear(4, 5))
    return net, (randn(6, 4), classes(6, 5))


# ---- elementwise, shapes, reductions, products -------------------------------------------------------------
@case(SGD)
def math_unary():
    def forward(self, x):
        y = self.fc(x)
        p = y.abs() + 0.5
        y = torch.stack([y.exp(), p.log(), p.sqrt(), p.rsqrt(), p.reciprocal(), y.square(), y.erf(), y.sin(),
                         y.cos(), y.expm1(), p.log1p(), -y,
                         y.sign() * y, y.floor() - y, y ** 3, p ** -1.5, torch.log2(p), torch.tan(y * 0.3),
                         torch.sinh(y), 2 ** y, y.ceil() * y], 1)
        return y.clamp(-2.5, 3).clamp(min=-2.25)
    net = Net(forward, fc=nn.Linear(3, 4))
    return net, (randn(3, 3), randn(3, 21, 4)), nn.MSELoss()


@case(SGD)
def math_binary():
    def forward(self, a, b):
        a, row, column = self.fc(a), self.row, self.column
        y = a + b - row * a / (b.abs() + 1) + torch.maximum(a, b) * torch.minimum(a, row)
        y = y + torch.pow(a.abs() + 0.5, b) + (1 - a) * (2 / (b * b + 1))
        y = torch.where(a > b, y, y * 0.5) + (a <= row).float() * b + torch.where(
            (b < 0.1) & (a != 0), a, column)
        y = y + torch.addcmul(a, b, row, value=0.3) + torch.lerp(a, b, 0.25) + torch.sub(a, b, alpha=2)
        y = y + (a >= 0).float() * torch.eq(b, b)
        return y.masked_fill(y > 4, 4.5)
    net = Net(forward, fc=nn.Linear(3, 4), row=parameter(4), column=parameter(5, 1))
    return net, (randn(2, 5, 3), randn(2, 5, 4), randn(2, 5, 4)), nn.MSELoss()


@case(SGD)
def broadcasting():
    def forward(self, x):
        outer = x[:, :, None] * x[:, None, :] + self.matrix
        return outer * self.scalar + self.column / (1 + self.row ** 2) + self.buffer
    net = Net(forward, matrix=parameter(4, 4), scalar=parameter(), column=parameter(4, 1), row=parameter(4),
              buffer=torch.randn(1, 4, 1))
    return net, (randn(3, 4), randn(3, 4, 4)), nn.MSELoss()


@case(SGD)
def shapes():
    def forward(self, x):
        x = x * self.scale
        a, b, c = x.split([2, 1, 3], dim=1)
        d, e = x.chunk(2, dim=2)
        y = F.pad(a, (1, 2), value=0.5) + F.pad(b, (2, 1, 0, 1)).narrow(1, 0, 2)
        z = torch.stack([d, e], dim=1).transpose(1, 2).reshape(x.size(0), -1)
        u = c[:, ::2, 1:].unsqueeze(1).squeeze(1).flatten(1) * c.roll(1, dims=2)[:, :2, :3].reshape(-1, 6)
        v = x.permute(2, 0, 1)[1].repeat(1, 2) + x[:, 3].repeat_interleave(3, dim=1) + x[:, -1, 2:3]
        w = torch.cat([y.flatten(1), z, u, v, x.unbind(1)[4],
                       x.unflatten(1, (2, 3)).movedim(1, -1).flatten(1), F.pad(x[:, 0], (-1, 1))], dim=1)
        return w.view(w.shape[0], 2, -1).mT.contiguous()
    net = Net(forward, scale=parameter(6, 4))
    return net, (randn(3, 6, 4), randn(3, 44, 2)), nn.MSELoss()


@case(SGD)
def repeats():
    class Keys(nn.Module):
        """Attention with a learned key and value for every sample."""
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, add_bias_kv=True, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    def forward(self, x):
        y = self.keys(x) + self.token.repeat(x.size(0), 4, 1) + self.rows.repeat(1, x.size(0), 2)[0, :, None]
        return torch.cat([y, x.repeat(1, 2, 1)], 1)
    net = Net(forward, keys=Keys(), token=parameter(1, 1, 6), rows=parameter(2, 1, 3))
    return net, (randn(3, 4, 6), randn(3, 12, 6)), nn.MSELoss()


@case(SGD)
def indices():
    def forward(self, x, which):
        each = torch.arange(x.size(0))
        a = self.table[self.places].permute(2, 0, 1) + self.narrow[:, self.places]
        b = x[each, which] + x[each, x[:, :, 0].argmax(1)] + x[each[:, None], which[:, None]][:, 0]
        c = x[:, self.places, self.places.flip(0)].sum((1, 2))[:, None] + self.square[which, which][:, None]
        seen = (x > 0)[each[:, None, None], torch.arange(4)[:, None], torch.arange(5)[None]]
        d = torch.where(seen, x, 0.1 * x).sum(1) + each[:, None] * 0.01
        area = x.new_zeros(4, 5)
        area[1:3, 2:] = 2  # places of a constant
        return b + c + d + a.sum((0, 1, 2)) + (area * x).sum(1)
    net = Net(forward, table=parameter(4, 3), narrow=parameter(3, 4), square=parameter(4, 4),
              places=torch.tensor([[0, -1], [2, 2], [1, 3]]))
    return net, (randn(3, 4, 5), torch.tensor([2, -4, 1]), randn(3, 5)), nn.MSELoss()


@case(SGD)
def modes():
    def forward(self, x):
        with torch.no_grad():
            angles = torch.arange(5)[None].float() * self.scale.exp()
            with torch.autocast("cpu", enabled=False):
                cos, sin = angles.cos(), angles.sin()
        y = self.fc(x)
        z = y * 2
        z.fill_(0.5)
        w = torch.ones_like(x)
        w.zero_()
        return y * cos + y.detach() * self.scale * sin + y.roll(1, 1) * z + w
    return Net(forward, fc=nn.Linear(5, 5), scale=parameter(5)), (randn(3, 5), randn(3, 5)), nn.MSELoss()


@case(SGD)
def weights_of_convolutions():
    norm = nn.utils.parametrizations.weight_norm

    def forward(self, x, y):
        x = self.twice(self.twice(x).relu()) + self.free(self.free(y)) + self.normed(x)
        x = F.conv2d(x, self.kernel * self.factor.exp(), self.factor[:, 0, 0, 0], padding=1)
        x = x + F.conv2d(y, self.blur, padding=1, groups=4)
        x = self.grown(x) + F.conv_transpose2d(y, self.blur.expand(4, 2, 3, 3) * self.factor,
                                               stride=2).repeat(1, 2, 1, 1)
        return x + self.deep(self.deep(x[:, :, None])).squeeze(2) + self.long(
            self.long(x.flatten(2))).unflatten(2, (9, 9))
    net = Net(forward, twice=nn.Conv2d(4, 4, 3, padding=1), free=nn.Conv2d(4, 4, 1, bias=False),
              kernel=parameter(4, 4, 3, 3), normed=norm(nn.Conv2d(4, 4, 3, padding=1, groups=2)),
              grown=norm(nn.ConvTranspose2d(4, 4, 3, stride=2), dim=1), factor=parameter(4, 1, 1, 1),
              blur=torch.rand(4, 1, 3, 3), deep=nn.Conv3d(4, 4, 1), long=norm(nn.Conv1d(4, 4, 1)))
    return net, (randn(3, 4, 4, 4), randn(3, 4, 4, 4), randn(3, 4, 9, 9)), nn.MSELoss()


@case()
def edges():
    """Points at which plain formulas lose digits, overflow, or meet ties and limits."""
    def forward(self, x, token):
        y = self.fc(x)
        ties = torch.cat([y, y], 1)
        a = ties.max(1)[0] + ties.min(1, keepdim=True)[0][:, 0]
        quarters = ((y * 0).clamp(0, 1) + (y * 0 + 1).clamp(max=1) * y +
                    (x * 1e30 * 1e9).clamp(min=0).clamp(max=2) * 0.1)
        said = (((y > 0) + (x > -1)) * y + torch.logical_and(x - 3, x * 2) * y +
                torch.logical_xor(x, token[:, None]) * 0.5)
        b = F.cosine_similarity(y * 1e13, x * 1e13, dim=1) + F.cosine_similarity(y * 0, x, dim=1)
        infinite = torch.where(x > 0, -math.inf, y)
        c = torch.cat([infinite, y[:, :1]], 1).logsumexp(1)
        d = (y.detach() // 0.1) * 0.01 + torch.div(x, 0.3, rounding_mode="trunc") * 0.1
        near = (y * 1e-4).sinh() * 1e3 + (torch.erfc(3 + y * 1e-3) * 1e4).sum(1, keepdim=True) + (
            y * 1e-4).cosh()
        e = (token == 7) + (token < 3) * a
        return quarters + said + d + near + (a + b + c + e)[:, None]
    inputs = torch.tensor([[-3.0, 0, 2.5, 0.25], [1.0, -0.5, 0.75, 3], [3, -3, 1, 0.0]])
    return (Net(forward, fc=nn.Linear(4, 4)), (inputs, torch.tensor([7, 0, 2 ** 24 + 1]), randn(3, 4)),
            nn.MSELoss())


@case(SGD)
def lists_of_one():
    def forward(self, x):
        x = self.fc(x)
        a, = x.unbind(1)
        b, = x.split(5, 2)
        c, = x.chunk(1, -1)
        d, = a.split_with_sizes([5], 1)
        return a + b.squeeze(1) * 2 + c[:, 0].tanh() + d.exp()
    return Net(forward, fc=nn.Linear(5, 5)), (randn(3, 1, 5), randn(3, 5)), nn.MSELoss()


@case(SGD)
def reductions():
    def forward(self, x):
        x = x * self.scale
        a = (x.sum(1) + x.mean((1,)) + x.amax(1) + x.amin(dim=1) + x.var(1) + x.std(1, unbiased=False) +
             x.logsumexp(1))
        b = x.norm(dim=2) + x.abs().sum(-1) + torch.linalg.vector_norm(x, 1, dim=2) + x.sum(
            2, keepdim=True).squeeze(-1)
        c = F.normalize(x, dim=-1).mean((1, 2), keepdim=True) + F.cosine_similarity(
            x, x.roll(1, 2), dim=2).sum(1)[:, None, None]
        loss = (a * a).mean() + b.sum() / x.size(0) + c.sum() + x.sum() + x.max() - x.min()
        return {"a": a, "b": b, "c": c, "d": x.mean(), "top": x.max(), "loss": loss}
    net = Net(forward, scale=parameter(4, 5))
    return net, (randn(3, 4, 5),)


@case(SGD)
def softmaxes():
    def forward(self, x):
        x = x * self.scale
        y = x.softmax(-1) + x.softmax(1) * 2 + F.log_softmax(x, dim=2) + F.log_softmax(x, 1)
        return y + F.softmin(x, dim=0) + torch.softmax(x, 0)
    net = Net(forward, scale=parameter(4, 5))
    return net, (randn(3, 4, 5), randn(3, 4, 5)), nn.MSELoss()


@case(SGD)
def orders():
    def forward(self, x, index):
        x = self.fc(x)
        top, places = x.topk(3, dim=1)
        low = torch.topk(x, 2, largest=False)[0]
        y = torch.cat([top, x.cumsum(1), x.cumsum(-1) * F.one_hot(index, 5)[:, None]], 1)
        y = y + self.token.expand(x.shape[0], 1, 5) + torch.einsum("nij->ni", low).sum(1)[:, None, None]
        return y * torch.where(places.argmin(1) == 0, 1.0, 0.5)[:, None] + torch.cat(
            [self.token] * 11, 1).tile(1, 1, 1)
    net = Net(forward, fc=nn.Linear(5, 5), token=parameter(1, 1, 5))
    return net, (randn(3, 4, 5), torch.randint(0, 5, (3,)), randn(3, 11, 5)), nn.MSELoss()


@case({"type": "sgd", "lr": 0.0002})
def scans():
    """Ops along an axis that have kernels of their own."""
    def forward(self, x):
        x = self.fc(x)
        z = torch.cross(x[:, :3], self.token, 1).sum(1, True) + torch.linalg.cross(
            x[..., :3], x[..., 1:4].sin()).sum(-1, True)
        places = (torch.searchsorted(x.detach().sort(-1)[0], x.detach() * 2, right=True),
                  torch.bucketize(x.detach(), self.edges))
        return x.logcumsumexp(-1) + torch.logcumsumexp(x * 3, 1) + z * (places[0].float() + places[1].float())
    return (Net(forward, fc=nn.Linear(5, 5), token=parameter(1, 3, 1), edges=torch.arange(-2.0, 3)),
            (randn(3, 4, 5), randn(3, 4, 5)), nn.MSELoss())


@case(SGD)
def drawn():
    """Random numbers, of which only the range can be tested."""
    def forward(self, x):
        whole = torch.floor(torch.rand(x.shape[0], 4)) + torch.floor(torch.rand_like(x))
        y = F.rrelu(self.fc(x), 0.25, 0.25, training=True)
        return y + torch.randn_like(x) * whole + torch.clamp(torch.randn(4), 7, 8)
    return Net(forward, fc=nn.Linear(4, 4)), (randn(3, 4), randn(3, 4)), nn.MSELoss()


@case({"type": "sgd", "lr": 0.0002})
def products():
    def forward(self, a, b):
        c = a @ b + torch.bmm(a, b) * 0.5 + torch.baddbmm(a[:, :, :4], a, b, beta=0.3, alpha=0.7)
        d = torch.matmul(c, self.square) + torch.matmul(self.square.t(), c.mT).mT + F.linear(
            c, self.square, self.bias)
        y = torch.mm(d.reshape(-1, 4), self.square).reshape_as(d) + torch.matmul(d, self.vector)[..., None]
        return y + c.transpose(1, 2) @ a[:, :, :4] @ self.square
    net = Net(forward, square=parameter(4, 4), bias=parameter(4), vector=parameter(4))
    return net, (randn(3, 4, 5), randn(3, 5, 4), randn(3, 4, 4)), nn.MSELoss()


@case(SGD)
def einsums():
    def forward(self, a, b):
        y = torch.einsum("nhid,nhjd->nhij", a, b) + torch.einsum("...id,jd->...ij", a, self.weight)
        y = y + torch.einsum("id,hd->hi", self.weight, self.narrow)[None, :, :, None] * torch.einsum(
            "nhid,d->nih", a, self.vector).mT[..., None]
        return F.channel_shuffle(y.transpose(1, 2), 2)
    net = Net(forward, weight=parameter(4, 5), narrow=parameter(2, 5), vector=parameter(5))
    return net, (randn(3, 2, 4, 5), randn(3, 2, 4, 5), randn(3, 4, 2, 4)), nn.MSELoss()


@case()
def einsums_of_diagonals():
    """Letters twice in one tensor, three tensors with an ellipsis, and results that are not spelled out."""
    def forward(self, x, y):
        x, e = self.fc(x), torch.einsum
        a = e("nii->ni", x) + e("nii->n", x)[:, None] + e("nii,nij->nj", x, y) + e(
            "nij,nij,nij->n", x, y, x)[:, None]
        b = e("...ij,...jk,kl->...il", x, y, self.weight) + e("nij,kk,njl", x, self.weight, y).sum(0)
        return torch.cat([a[:, None], b, e("...ii->...i", y)[:, None],
                          e("iii->i", self.cube).expand(x.shape[0], 1, 4)], 1)
    return Net(forward, fc=nn.Linear(4, 4), weight=parameter(4, 4), cube=parameter(4, 4, 4)), (
        randn(3, 4, 4), randn(3, 4, 4), randn(3, 7, 4)), nn.MSELoss()


@case(SGD)
def math_rest():
    """Trigonometric and hyperbolic functions and remainders, on both sides of each of their pieces."""
    def forward(self, x, other):
        y = self.fc(x)
        s, p = y.tanh() * 0.9, y.square() + 1.25
        endless = (other * 0).abs().log().detach() * other.detach().sign()
        u = torch.stack([y.atan(), (3 * y).atan(), s.asin(), s.acos(), y.asinh(), p.acosh(), s.atanh(),
                         torch.atan2(y, other), torch.atan2(other, y), torch.hypot(y, other),
                         torch.logaddexp(y, other), torch.xlogy(p, p),
                         torch.sinc(y), y.deg2rad() * 50, y.rad2deg() / 50, torch.logit(s * 0.5 + 0.5, 1e-3),
                         y.remainder(0.7) + torch.remainder(y, other), y.fmod(0.7) + torch.fmod(y, other),
                         y * (y * 3).round() + (other * 10).round() * 0.1, endless.nan_to_num(1, 2, -3) * y],
                        1)
        return u + (torch.isfinite(endless) | torch.isinf(y))[:, None] * 0.5
    net = Net(forward, fc=nn.Linear(3, 4))
    return net, (randn(3, 3), randn(3, 4), randn(3, 20, 4)), nn.MSELoss()


@case(SGD)
def rearranged():
    def forward(self, x):
        x = x * self.scale
        a = x.flip(1) + x.flip([1, 2]) + x.tril() + x.triu(1) * 2 + x.tril(-1)
        b = x.diagonal(0, 1, 2).sum(1) + x.diagonal(1, 2, 1).sum(1) + torch.diag_embed(x[:, 0]).sum((1, 2))
        c = F.unfold(x[:, None], (2, 3), dilation=(1, 2), padding=(1, 0), stride=(2, 1)).sum(1)
        d = x.unfold(2, 3, 2).mean(-1) + F.max_pool2d(x[:, None], (2, 2), 2, 1, (1, 2),
                                                      ceil_mode=True)[:, 0, :1, :2]
        e = (torch.slice_scatter(x, d[:, :2], 1, 1, 3, 1) if d.shape[2] == x.shape[2] else
             torch.select_scatter(x, x[:, 0] * 3, 1, 2))
        return {"a": a, "b": b, "c": c, "d": d, "e": e,
                "loss": (a * e).mean() + b.mean() + c.square().mean() + d.sum()}
    return Net(forward, scale=parameter(4, 5)), (randn(3, 4, 5),)


@case(SGD)
def in_order():
    """Cumulative products and extremes along axes, sorting."""
    def forward(self, x):
        x = self.fc(x)
        a, places = x.sort(1, descending=True)
        b = a + x.argsort(2) * x.sort(-1)[0] * 0.1 + (places == 1) * x
        c = x.cumprod(1) + x.cumprod(2) + x.cummax(1)[0] + x.cummin(2)[0]
        d = x.prod(1) + x.prod(2, keepdim=True).mean(1) + x[:, 0].prod(1, keepdim=True)
        spread, mean = torch.std_mean(x, 1)
        e = (torch.var_mean(x, (1, 2), correction=0,
                            keepdim=True)[0][:, 0] + spread + mean + (x > 0).any(1) + (x > -1).all(1))
        return b + c + (d + e)[:, None]
    return Net(forward, fc=nn.Linear(5, 5)), (randn(3, 7, 5), randn(3, 7, 5)), nn.MSELoss()


@case(SGD)
def scattered():
    def forward(self, x, index):
        x = self.fc(x)
        a = torch.zeros_like(x).scatter_add(1, index, x) + x.scatter_add(1, index, x * 2)
        b = x.scatter(1, self.turned.expand(x.shape), x.tanh()) + x.scatter(
            1, self.turned[:, :1].expand(x.shape[0], 1, 5), 0.5)
        c = x.index_add(1, self.order, x[:, :3], alpha=0.5) + x.index_copy(1, self.order[1:], x[:, :2]) * 0.5
        table = self.table.index_put((self.order,), self.rows, accumulate=True)
        return a + b + c + x.index_fill(2, self.order[1:], 0.25) + table.sum(0) + x.index_select(
            1, self.order).mean(1, keepdim=True)
    net = Net(forward, fc=nn.Linear(5, 5), order=torch.tensor([3, 3, 0]),
              turned=torch.tensor([[[3], [1], [0], [2]]]), table=parameter(4, 5), rows=parameter(3, 5))
    return net, (randn(3, 4, 5), torch.randint(0, 4, (3, 4, 5)), randn(3, 4, 5)), nn.MSELoss()


@case(SGD)
def masked():
    """Values that are overwritten may be infinite or NaN."""
    def forward(self, x, index):
        x = self.fc(x)
        top, places = x.topk(3, dim=-1)
        only = torch.full_like(x, float("-inf")).scatter(-1, places, top)
        banned = x.scatter(-1, index, float("-inf"))
        bad = (x * 0).log().detach() * x.detach().sign()  # infinite with either sign
        rows = bad.index_copy(1, self.order, x[:, :4]) + bad.index_fill(1, self.order, 0.5)
        table = self.table.log().index_put((self.order[:3],), self.rows)
        return (only.softmax(-1) + banned.softmax(-1) * 2 + rows +
                bad.scatter(1, self.order.expand(x.shape), x) + table.sum(0))
    net = Net(forward, fc=nn.Linear(5, 4), order=torch.tensor([2, 1, 0, 3]), table=torch.zeros(3, 4),
              rows=parameter(3, 4))
    return net, (randn(3, 5), torch.randint(0, 4, (3, 2)), randn(3, 4)), nn.MSELoss()


@case(SGD)
def scattered_joined():
    """Reductions of several elements for one place, indices that are shorter than what they change."""
    def forward(self, x, index):
        x = self.fc(x)
        parts = []
        for reduce in ("sum", "prod", "mean", "amax", "amin"):
            for include in (True, False):
                parts.append(x.scatter_reduce(1, index, x[:, :3] * 2 - 1, reduce, include_self=include))
                if reduce != "sum":
                    parts.append(x.index_reduce(1, self.order, x[:, 1:3] + 0.5, reduce, include_self=include))
        few = x.scatter(1, self.few.expand(x.shape[0], 1, 2), x[:, :1, :2].tanh())
        few = few + x.scatter_add(2, self.few.expand(x.shape[0], 2, 1), x[:, 1:3, :1])
        return torch.stack(parts, 1) + few[:, None]
    net = Net(forward, fc=nn.Linear(5, 5), order=torch.tensor([3, 3]), few=torch.tensor([[[2]]]))
    return net, (randn(3, 4, 5), torch.randint(0, 4, (3, 3, 5)), randn(3, 18, 4, 5)), nn.MSELoss()


@case()
def places_of_maxima():
    """Indices of extremes, and unpooling; pools with a divisor; instance norm by running statistics; bits."""
    def forward(self, x, bits):
        x = self.conv(x)
        top, places = F.max_pool2d(x, 2, return_indices=True)
        wide, far = F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)
        line, row = F.max_pool1d(x[:, 0], 3, 2, 1, 2, return_indices=True)
        most, first = x.cummax(2)
        least, last = x.cummin(3)
        means = (F.avg_pool2d(x, (2, 3), 2, 1, divisor_override=5),
                 F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=4))
        own = F.instance_norm(x, self.mean, self.var, self.weight, self.bias, False, 0.1, 1e-3)
        found = [y.float() for y in (places, far, row, first, last, (bits & 29) | (bits ^ self.mask))]
        parts = [top, wide, line, most, least, own, F.max_unpool2d(top, places, 2).tanh(), *means,
                 *[y / 9 for y in found]]
        return torch.cat([(part * self.scale).flatten(1).square().mean(1, True) for part in parts], 1)
    net = Net(forward, conv=nn.Conv2d(2, 3, 1), mean=torch.randn(3), var=torch.rand(3) + 0.5,
              weight=parameter(3), bias=parameter(3), scale=parameter(1),
              mask=torch.tensor([255, 0, 1, 77, 128], dtype=torch.uint8))
    return net, (randn(3, 2, 6, 8), torch.randint(0, 256, (3, 5)).to(torch.uint8), randn(3, 15)), nn.MSELoss()


@case(SGD)
def hashed():
    """Indices into a table by integers that do not fit float32."""
    def forward(self, ids):
        keys = (ids[:, :, None] * 2654435761 + self.salt) % 1000000007
        places = torch.where(keys > ids[:, :, None], keys // 7, 12345 - keys).clamp(min=-5)
        places = torch.cat([places, keys.roll(1, 1)], 1).abs() % 64
        odd = (torch.div(keys, 3,
                         rounding_mode="trunc").masked_fill(keys == keys.sum(1, keepdim=True), -1).sum(2) % 2)
        return self.fc(self.table(places)).mean(2) * (1 + odd.repeat(1, 2)[:, :, None])
    net = Net(forward, table=nn.Embedding(64, 6), fc=nn.Linear(6, 4),
              salt=torch.tensor([2654435761, 40503, 2 ** 40 + 3]))
    return net, (torch.randint(0, 2 ** 40, (3, 5)), randn(3, 10, 4)), nn.MSELoss()


@case(SGD)
def cells():
    """Recurrent cells in a loop of the program."""
    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 4)
        g, r = h, h
        for i in range(3):
            h, c = self.lstm(x[:, i], (h, c))
            g = self.gru(h, g)
            r = self.rnn(g, r)
        return torch.cat([h, c, g, r], 1)
    net = Net(forward, lstm=nn.LSTMCell(5, 4), gru=nn.GRUCell(4, 4),
              rnn=nn.RNNCell(4, 4, bias=False, nonlinearity="relu"))
    return net, (randn(3, 3, 5), randn(3, 16)), nn.MSELoss()


@case(SGD)
def distances():
    def forward(self, a, b):
        a, b = self.fc(a), self.fc(b)
        c = torch.cdist(a, b) + torch.cdist(a, b, p=1) + torch.cdist(a, b, p=3)
        d = (F.pairwise_distance(a, b) + F.pairwise_distance(a, b, p=1, keepdim=True)[..., 0] +
             torch.linalg.vector_norm(a, 3, dim=2))
        e = self.pair(a, b) + torch.einsum("nij,nkj,kl->nil", a, b, self.weight) + torch.outer(
            self.weight[0], self.weight[1])[0]
        rate = F.poisson_nll_loss(a, b.exp()) + F.poisson_nll_loss(
            a.exp(), b.exp(), log_input=False, full=True, reduction="sum")
        return {"c": c, "d": d, "e": e, "loss": c.mean() + d.mean() + e.square().mean() + rate * 0.01}
    net = Net(forward, fc=nn.Linear(5, 5), pair=nn.Bilinear(5, 5, 3), weight=parameter(4, 3))
    return net, (randn(3, 4, 5), randn(3, 4, 5))


@case(SGD)
def norms_of_batches():
    def forward(self, x):
        y = self.plain(self.conv(x)).relu()
        return self.last(self.affine(y).mean((2, 3)))
    net = Net(forward, conv=nn.Conv2d(2, 4, 3),
              plain=nn.BatchNorm2d(4, affine=False, track_running_stats=False),
              affine=nn.BatchNorm2d(4, track_running_stats=False), last=nn.Linear(4, 3))
    return net, (randn(3, 2, 6, 5), randn(3, 3)), nn.MSELoss()


@case(SGD)
def resampled():
    """Bicubic and antialiased resizing, unfolding and folding, in-place changes of parts."""
    def forward(self, x):
        x = self.conv(x)
        a = F.interpolate(x, size=(9, 7), mode="bicubic") + F.interpolate(
            x, size=(9, 7), mode="bicubic", align_corners=True)
        b = F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True)
        c = F.interpolate(x, scale_factor=(0.5, 1.5), mode="bicubic", antialias=True)
        d = F.fold(F.unfold(x, (3, 2), (1, 2), (2, 1), (2, 1)), (8, 7), (3, 2), (1, 2), (2, 1), (2, 1)) * 0.1
        e = x.flatten(2).tensor_split(3, 2)[1].tensor_split((2,), 1)[0].sigmoid()
        f = torch.zeros_like(x)
        f[:, 1:3] = x[:, :2] * x[:, 2:4]
        f[:, 0].add_(x[:, 1].tanh())
        f.view(-1, 4, 56)[:, 3] = 0.5
        return [part.flatten(1).mean(1)
                for part in (a, b.square(), c.square(), d, e, f.square(), (x.square() + 0.01).lgamma())]
    net = Net(lambda self, x: torch.stack(forward(self, x), 1), conv=nn.Conv2d(2, 4, 1))
    return net, (randn(3, 2, 8, 7), randn(3, 7)), nn.MSELoss()


@case(SGD)
def projected():
    def forward(self, x):
        start = torch.stack([x[:, 0], x[:, 1].sin()])
        y, (h, c) = self.back(self.lstm(x)[0].tanh(), (start[..., :2], start))
        return torch.cat([y[:, 1], h[0], h[1], c[1]], 1)
    net = Net(forward, lstm=nn.LSTM(4, 5, 2, proj_size=3, batch_first=True),
              back=nn.LSTM(3, 4, proj_size=2, bidirectional=True, batch_first=True))
    return net, (randn(3, 3, 4), randn(3, 12)), nn.MSELoss()


@case(SGD)
def spectra():
    """Fourier transforms, with complex numbers in between."""
    def forward(self, x):
        x = self.fc(x)
        a = torch.fft.rfft(x, 9, norm="ortho")
        b = torch.fft.ifft(torch.fft.fftn(x, dim=(1, 2)), dim=1)
        c = torch.stft(x.flatten(1), 8, 3, 6, window=self.window, return_complex=True)
        d = torch.fft.irfft(a * a, 8) + torch.view_as_complex(x.unflatten(2, (4, 2))).imag.sum(
            2, keepdim=True)
        parts = a.abs(), b.real, b.imag, torch.view_as_real(c), d
        return torch.cat([part.flatten(1).square().mean(1, True) for part in parts], 1)
    return (Net(forward, fc=nn.Linear(8, 8), window=torch.hann_window(6)), (randn(3, 4, 8), randn(3, 5)),
            nn.MSELoss())


@case()
def spectra_of_planes():
    """Transforms of several axes and back, frames back to sound, arithmetic of complex numbers."""
    def forward(self, x):
        x, fft = self.fc(x), torch.fft
        a, b, c = fft.rfft2(x), fft.rfftn(x, (5, 6), norm="ortho"), fft.rfftn(x, dim=(2, 1))
        real = [fft.irfft2(a, s=(5, 8)), fft.irfftn(b, dim=(1, 2), norm="forward") / 9,
                fft.irfftn(c, (9, 4), dim=(2, 1), norm="ortho"), fft.irfft2(a), fft.irfft(a, 1),
                fft.fftshift(fft.fft2(x), dim=(1, 2)).abs() + fft.ifftshift(x, dim=(2,))]
        d = torch.cat([a, a.conj() * 2 / 3, a[:, :, 1:] + 1 - a[:, :, :1]], 2).flatten(1) * x.flatten(
            1)[:, :1]
        e = torch.polar(x.abs() + 1, x) * torch.complex(x, x * 2)
        s = torch.stft(x.flatten(1), 8, 3, 6, self.window, return_complex=True)
        sound = torch.istft(s * s.abs(), 8, 3, 6, self.window, length=30)
        whole = torch.stft(x.flatten(1), 8, 4, onesided=False, normalized=True, return_complex=True)
        more = torch.istft(whole, 8, 4, onesided=False, normalized=True)
        real += [(1 - d).real, (x.flatten(1)[:, :1] + d).imag, (-d).sum(1, keepdim=True).abs(),
                 torch.view_as_real(e).mT, sound,
                 more, torch.view_as_real(fft.fftn(x, (3, 5))), torch.view_as_real(fft.ifft2(a, s=(-1, 3)))]
        return torch.cat([part.flatten(1).square().mean(1, True) for part in real], 1)
    return (Net(forward, fc=nn.Linear(8, 8), window=torch.hann_window(6) + 0.1),
            (randn(3, 4, 8), randn(3, 14)), nn.MSELoss())


# ---- sizes that vary ---------------------------------------------------------------------------------------
def sized(shapes, others, bounds=None):
    """shapes: export's. others: the case's name with further sizes."""
    def mark(function):
        function.dynamic_shapes, function.others, function.bounds = shapes, others, bounds
        return function
    return mark


@case(ADAM)
@sized({"input0": {1: "T"}, "input1": {1: "T"}, "target": {1: "T"}}, ((1, 5), (3, 2), (2, 16)))
def sized_text(n=3, length=7):
    """Positions up to 16, a mask of the length, a mean that divides by it, the last word, and its state."""
    def forward(self, tokens, mask):
        x = self.words(tokens) + self.places[:tokens.shape[1]] + self.waves[None, :tokens.shape[1]]
        future = torch.triu(torch.full((tokens.shape[1], tokens.shape[1]), float("-inf")), 1)
        scores = x @ x.mT / 3 + future + (1 - mask[:, None]) * -1e4
        x = self.norm(x + scores.softmax(2) @ self.value(x))
        q, k, v = self.qkv(x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        steps = torch.arange(tokens.shape[1]).float()[None, :, None] / tokens.shape[1]
        y, (h, _) = self.lstm(F.pad(x * steps, (0, 0, 1, 1), mode="replicate"))
        total = (x.sum(1) / x.size(1) + h[-1] + y[:, -1] + x[:, 0])[:, None]
        return self.head(torch.cat([x, y[:, 1:-1] + total], 2)).transpose(1, 2)
    net = Net(forward, words=nn.Embedding(11, 8), places=parameter(16, 8), waves=torch.randn(18, 8),
              norm=nn.LayerNorm(8), value=nn.Linear(8, 8), qkv=nn.Linear(8, 24, bias=False),
              lstm=nn.LSTM(8, 8, batch_first=True), head=nn.Linear(16, 5))
    mask = (torch.arange(length) < torch.arange(length - n + 1, length + 1)[:, None].clamp(1)).float()
    return (net, (torch.randint(0, 11, (n, length)), mask, torch.randint(0, 5, (n, length))),
            nn.CrossEntropyLoss())


@case(ADAM)
@sized({"input0": {2: "H", 3: "W"}, "target": {2: "H", 3: "W"}}, ((1, 4, 20), (2, 32, 8), (2, 12, 12)),
       {"H": {"multiple": 4, "max": 64}, "W": {"multiple": 4}})
def sized_image(n=2, height=16, width=8):
    """A U-Net with skip connections; windows, resizing both ways, moments of images, pools to a fixed
    size."""
    def forward(self, x):
        a = F.relu(self.norm(self.down[0](x)))
        b = F.relu(self.down[1](F.max_pool2d(a, 2)))
        c = F.instance_norm(self.down[2](F.avg_pool2d(b, 2)) + F.interpolate(x[:, :1], scale_factor=0.25))
        c = c * self.gate(F.adaptive_avg_pool2d(b, 1).flatten(1)).sigmoid()[:, :, None, None]
        b = torch.cat([self.up[0](c), b], 1)
        a = torch.cat([F.interpolate(self.up[1](b), size=a.shape[2:], mode="bilinear"), a], 1)
        small = F.adaptive_avg_pool2d(a, (2, 1)).flatten(1).mean(1)[:, None, None, None]
        y = F.pixel_shuffle(F.conv2d(F.pad(a, (1, 1, 1, 1), mode="reflect"), self.last, stride=2), 2)
        return y + small + F.unfold(x, 3, padding=1).unflatten(2, x.shape[2:]).mean(1, True)
    net = Net(forward,
              down=nn.ModuleList([nn.Conv2d(2, 4, 3, padding=1, bias=False),
                                  nn.Conv2d(4, 6, 3, padding="same"), nn.Conv2d(6, 6, 1, bias=False)]),
              norm=nn.BatchNorm2d(4), gate=nn.Linear(6, 6),
              up=nn.ModuleList([nn.ConvTranspose2d(6, 4, 2, 2), nn.Conv2d(10, 4, 1)]),
              last=parameter(4, 8, 3, 3, scale=0.2))
    return net, (randn(n, 2, height, width), randn(n, 1, height, width)), nn.MSELoss()


@case(ADAM)
@sized({"input0": {1: "T"}, "target": {1: "T"}}, ((1, 4), (3, 2)))
def sized_rotations(n=2, length=6):
    """Rotary positions as complex numbers, and a layer of Fourier space whose weights are complex, as
    FNO's."""
    def forward(self, x):
        turned = torch.view_as_real(
            torch.view_as_complex(x.unflatten(2, (4, 2))) * self.turns[:x.shape[1]]).flatten(2)
        waves = torch.fft.rfft(self.fc(turned))
        out = torch.zeros(x.shape[0], x.shape[1], 5, dtype=torch.cfloat)
        out[:, :, 1:4] = torch.einsum("bti,io->bto", waves[:, :, :3], self.weight)
        return torch.fft.irfft(out * (2 - 1j) + waves * self.scale, n=8)
    net = Net(forward, turns=torch.polar(torch.ones(6, 4), torch.rand(6, 4)),
              scale=torch.randn(5, dtype=torch.cfloat),
              weight=parameter(3, 3, dtype=torch.cfloat), fc=nn.Linear(8, 8))
    return net, (randn(n, length, 8), randn(n, length, 8)), nn.MSELoss()


@case(ADAM)
@sized({"input0": {1: "T"}, "input1": {1: "T"}, "target": {1: "T"}}, ((2, 5), (3, 2)))
def sized_masks(n=3, length=6):
    """A decoder's mask as transformers makes it, from ranges of varying sizes, and packed sequences."""
    def forward(self, tokens, mask):
        batch, rows = torch.arange(tokens.shape[0])[:, None, None, None], torch.arange(tokens.shape[1])
        packed = (torch.diff(tokens, prepend=tokens[:, :1] - 1, dim=-1) != 1).cumsum(-1)
        own = mask.bool()[batch, rows[None, None, None]] & (
            rows[None, None, :, None] >= rows[None, None, None])
        alike = packed[batch, rows[None, None, :, None]] == packed[batch, rows[None, None, None]]
        x = self.words(tokens) + 0.1 * mask.cumsum(1)[:, :, None]
        bias = torch.where(own, 0.1 * alike, -1e4)
        x = x + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], bias)[:, 0]
        if tokens.shape[0] != 1:
            x = x.expand(tokens.shape[0], -1, -1)
        return self.head(x) if tokens.shape[1] > 1 else x
    mask = (torch.arange(length) < torch.arange(length - n + 1, length + 1)[:, None].clamp(1)).long()
    return (Net(forward, words=nn.Embedding(11, 8), head=nn.Linear(8, 5)),
            (torch.randint(0, 11, (n, length)), mask, randn(n, length, 5)), nn.MSELoss())


@case(SGD)
def bags():
    """Bags of words, of equal and of different lengths, with padding and weights; counts of a histogram."""
    def forward(self, i, flat, weights):
        offsets = torch.tensor([0, 2, 2, 7])
        own = [F.embedding_bag(flat, self.words, offsets, mode=mode, padding_idx=2)
               for mode in ("sum", "mean", "max")]
        own.append(F.embedding_bag(flat, self.words, offsets, mode="sum", per_sample_weights=weights))
        counts = torch.histc(self.words[flat].detach(), 5, -1, 1) + torch.histc(weights, 5)
        return torch.cat([bag(i) for bag in self.alike], 1), torch.cat(own, 1), counts
    kinds = ("sum", None), ("mean", 1), ("max", None), ("max", 4)
    alike = [nn.EmbeddingBag(7, 3, mode=mode, padding_idx=i) for mode, i in kinds]
    net = Net(forward, words=parameter(7, 3), alike=nn.ModuleList(alike))

    def loss(result, target):
        return F.mse_loss(result[0], target) + result[1].square().mean() + result[2].square().mean() / 100
    return net, (torch.randint(0, 7, (3, 3)), torch.randint(0, 7, (12,)), randn(12), randn(3, 12)), loss


@case(SGD)
def masked_in_order():
    """masked_scatter of floats and large integers."""
    def forward(self, x, mask, i):
        y = self.fc(x).masked_scatter(mask[:, :1].expand(-1, 4), self.words)
        large = (i + 2 ** 40).masked_scatter(mask, self.numbers + 2 ** 33)
        return y * (large % 1009) / 1000
    net = Net(forward, fc=nn.Linear(4, 4), words=parameter(3, 4), numbers=torch.arange(12))
    return net, (randn(3, 4), torch.rand(3, 4) > 0.4, torch.randint(-9, 9, (3, 4)), randn(3, 4)), nn.MSELoss()


@sized({"input0": {1: "T"}}, [(2, 6), (4, 11)])
@case(SGD)
def sized_cuts(n=3, length=9):
    """Slices that begin or end at a linear expression of a size, and such parts changed in place."""
    def forward(self, x):
        size, y = x.shape[1], self.fc(x)
        z = y.clone()
        z[:, 0] = x[:, -1, :2]
        z[:, -3:] = 2
        first, last = y.split([size - 3, 3], 1)
        parts = [y[:, size - 5:].mean(1), y[:, :size - 5].sum(1), y[:, :size // 2].mean(1),
                 y[:, size // 2:].sum(1), y[:, size - 5::2].amax(1), y.narrow(1, size - 2, 2).sum(1),
                 y[:, size - 4], first.mean(1), last.sum(1),
                 (y[:, 5:] * y[:, :size - 5]).sum(1), z.square().mean(1)]
        return torch.cat(parts, 1)
    return Net(forward, fc=nn.Linear(3, 2)), (randn(n, length, 3), randn(n, 22)), nn.MSELoss()


@case(SGD)
def exact_integers():
    """Integers that do not fit float32, 8-bit integers that wrap, numbers as first operands."""
    def forward(self, x, i):
        near = i + 2 ** 40
        values, places = near.sort(1, descending=True)
        parts = [near.argmax(1, keepdim=True), near.argmin(1, keepdim=True),
                 near.max(1, keepdim=True)[0] - 2 ** 40, near.amin(1, keepdim=True) - 2 ** 40,
                 values - 2 ** 40, places, near.topk(2, 1, largest=False)[0] - 2 ** 40,
                 (i.to(torch.uint8) * 100), i.to(torch.int8) * 50 - 3, torch.where(i > 0, -7, i), i << 2,
                 i >> 1, i.prod(1, True), torch.min(near, near.flip(1)) - 2 ** 40,
                 F.pad(near, (1, 1), value=2 ** 40) - 2 ** 40,
                 near[:, :3, None].mul(near[:, None, :3]).tril().flatten(1) % 1000,
                 i.kthvalue(2, 1, True)[0], torch.sum(x.detach() * 3, 1, True, dtype=torch.int64)]
        return self.fc(x) * torch.cat([part.float() for part in parts], 1).sum(1, True) / 1000
    i = torch.randint(-9, 9, (3, 4))
    return Net(forward, fc=nn.Linear(4, 2)), (randn(3, 4), i, randn(3, 2)), nn.MSELoss()


@case(SGD)
def integers_at_places():
    """Scattered integers with reductions, bits of integers, cumulative products and extremes, powers."""
    def forward(self, x, i, at):
        large = i + 2 ** 33
        counts = torch.zeros_like(i)
        every = counts.clone()
        every[:, ::2] = 5
        parts = [large.scatter(1, at, i) % 1009, counts.scatter(1, at, 1),
                 large.scatter_add(1, at, i * 2 ** 40) % 1009, every,
                 *[large.scatter_reduce(1, at, i[:, :3] * 2 ** 33, how, include_self=own) % 1009
                   for how, own in (("amax", True), ("amin", False), ("sum", False), ("mean", True),
                                    ("mean", False), ("prod", False))],
                 large.index_add(1, self.places, i[:, :3], alpha=3) % 1009,
                 large.index_copy(1, self.places, i[:, :3]) % 1009,
                 large.index_fill(1, self.places, 7) % 1009, (large & 2 ** 33 - 5) % 1009, (i | 300) % 1009,
                 (large ^ i) % 1009, ~i, i << self.places.new_tensor([1, 3, 5, 40]) >> 38, i.cumprod(1),
                 large.cummin(1)[0] % 1009, large.cummax(1)[1], (i * 2 ** 20) ** 2 % 1009, i ** 3,
                 i[:, :2].diag_embed().flatten(1), i.repeat(1, 2), i.repeat_interleave(2, 1)]
        return self.fc(x) * torch.cat([part.float() for part in parts], 1).sum(1, True) / 100000
    i = torch.randint(-9, 9, (3, 4))
    net = Net(forward, fc=nn.Linear(4, 2), places=torch.tensor([2, 0, 3]))
    return net, (randn(3, 4), i, torch.randint(0, 4, (3, 3)), randn(3, 2)), nn.MSELoss()


@case(ADAM)
def casts_to_16_bits():
    """Casts that round ties to even, to infinity, and below the normal range."""
    def forward(self, x):
        fixed = x.detach()
        half = [(fixed * scale).half().to(x.dtype) / scale for scale in (1, 2.0 ** -18, 2.0 ** -24)]
        return self.fc(torch.cat(half + [fixed.bfloat16().to(x.dtype) * x,
                                         (fixed * 2.0 ** 18).half().to(x.dtype).clamp(-1, 1)], 1))
    x = torch.cat([randn(3, 4), torch.tensor([[1 + 2.0 ** -11, 1 + 3 * 2.0 ** -11],
                                              [1 + 2.0 ** -8, 1 + 3 * 2.0 ** -8], [0.0, -1.0]])], 1)
    return Net(forward, fc=nn.Linear(30, 2)), (x, randn(3, 2)), nn.MSELoss()


@case(SGD)
def decomposed():
    """Operators that PyTorch decomposes, and arguments that are not at their defaults."""
    def forward(self, x):
        y = self.fc(x)
        step = torch.zeros_like(y)
        step[:, ::2] = y[:, 1::2] * 3
        parts = [torch.diff(y, dim=1), torch.linalg.norm(y, dim=1, keepdim=True),
                 torch.tensordot(y, self.fc.weight, dims=1), y.median(1, True)[0], y.kthvalue(2, 1, True)[0],
                 y.aminmax(dim=1, keepdim=True).max, y.nansum(1, True),
                 torch.searchsorted(self.edges, y.detach()), torch.isin(y.detach().round(), self.edges),
                 torch.hstack([y, y * 2]),
                 torch.round(y.detach(), decimals=1), torch.round(y.detach() * 90, decimals=-1), step,
                 torch.rot90(y[:, :, None], 2, (1, 2))[..., 0], F.lp_pool1d(y[:, None].abs() + 1, 2, 2)[:, 0],
                 torch.linalg.cross(y[:, :3], x[:, :3]), y * self.fc.weight.roll(3)[:, 0]]
        return torch.cat(parts, 1)
    return (Net(forward, fc=nn.Linear(4, 6), edges=torch.arange(-2.0, 3)), (randn(3, 4), randn(3, 74)),
            nn.MSELoss())


def make(name, *at):
    """(module, inputs, loss, output names) of a case, the same at every call. at: other sizes than its
    own."""
    torch.manual_seed(sum(map(ord, name)))
    made = CASES[name][0](*at)
    return (made + (None,))[:3] + (getattr(CASES[name][0], "outputs", None),)


def sizes_of(name):
    """The varying sizes for export, and further sizes for make."""
    function = CASES[name][0]
    return ({key: getattr(function, key, None) for key in ("dynamic_shapes", "bounds")},
            getattr(function, "others", ()))
