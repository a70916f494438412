#!/usr/bin/env python3
"""Examples in PyTorch: the same networks, batches, losses and optimizers as examples/NAME.c. Prints
milliseconds per step, and the quality that the example reaches.

    PYTHON_WITH_TORCH tests/bench/examples_torch.py NAME [THREADS [AMOUNT]]

NAME is vae, gan, actor_critic, ppo, forecast, sdf or unet. AMOUNT is the number of epochs or steps."""
import gzip
import math
import os
import random
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

IMAGES = "/usr/share/datasets/fashion-mnist/%s-images-idx3-ubyte.gz"


def images(part, batch):
    with gzip.open(IMAGES % part) as file:
        pixels = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).reshape(-1, 28 * 28)

    def batches(shuffle=True):
        order = torch.randperm(len(pixels)) if shuffle else torch.arange(len(pixels))
        for i in range(0, len(pixels) - batch + 1, batch):
            yield pixels[order[i:i + batch]].float() / 255
    return batches


def now():
    return time.perf_counter() * 1e3


def vae(epochs=2):
    trained, tested = images("train", 128), images("t10k", 128)
    encode, mean_of, spread_of = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
    decode = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))
    parts = nn.ModuleList([encode, mean_of, spread_of, decode])
    adam = torch.optim.Adam(parts.parameters(), lr=1e-3)

    def loss_of(x):
        h = F.relu(encode(x))
        mean, log_variance = mean_of(h), spread_of(h)
        logits = decode(mean + torch.exp(log_variance / 2) * torch.randn_like(mean))
        divergence = (mean ** 2 + log_variance.exp() - 1 - log_variance).mean() * 10
        return F.binary_cross_entropy_with_logits(logits, x) * 784 + divergence

    for _ in range(epochs):
        start, steps = now(), 0
        for x in trained():
            adam.zero_grad()
            loss = loss_of(x)
            loss.backward()
            adam.step()
            loss.item()
            steps += 1
        spent = (now() - start) / steps
    with torch.no_grad():
        losses = [loss_of(x).item() for x in tested(False)]
    return spent, "loss of test images %.2f" % (sum(losses) / len(losses))


def gan(most=937):
    batches = images("train", 64)
    maker = nn.Sequential(nn.Linear(64, 64 * 49, bias=False), nn.Unflatten(1, (64, 7, 7)), nn.BatchNorm2d(64),
                          nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32),
                          nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh())
    judge = nn.Sequential(nn.Conv2d(1, 32, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
                          nn.Conv2d(32, 64, 4, 2, 1, bias=False),
                          nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64 * 49, 1))
    adams = [torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999)) for part in (judge, maker)]
    steps = 0
    while steps < most:
        for x in batches():
            if steps == most:
                break
            if steps == 1:
                start = now()
            adams[0].zero_grad()
            with torch.no_grad():
                made = maker(torch.randn(64, 64))
            loss = F.softplus(-judge(x.reshape(-1, 1, 28, 28) * 2 - 1)).mean() + F.softplus(
                judge(made)).mean()
            loss.backward()
            adams[0].step()
            first = loss.item()
            judge.requires_grad_(False)
            adams[1].zero_grad()
            loss = F.softplus(-judge(maker(torch.randn(64, 64)))).mean()
            loss.backward()
            adams[1].step()
            judge.requires_grad_(True)
            second = loss.item()
            steps += 1
    return (now() - start) / (most - 1), "losses of the last step %.3f %.3f" % (first, second)


class Cart:
    def __init__(self):
        self.state, self.steps = [random.uniform(-0.05, 0.05) for _ in range(4)], 0

    def push(self, action):
        place, speed, angle, turning = self.state
        sine, cosine = math.sin(angle), math.cos(angle)
        push = ((10.0 if action else -10.0) + 0.05 * turning * turning * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
        change = speed, push - 0.05 * turn * cosine / 1.1, turning, turn
        self.state = [x + 0.02 * y for x, y in zip(self.state, change)]
        self.steps += 1
        return abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2094395


def actor_critic(most=300000, carts=8, horizon=32, gamma=0.98, keep=0.8):
    def layers(out):
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))

    actor, critic = layers(2), layers(1)
    weights = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(weights, lr=1e-3)
    all_carts, lengths, steps, spent = [Cart() for _ in range(carts)], [], 0, 0.0
    begin = now()
    while steps < most and (len(lengths) < 100 or sum(lengths[-100:]) / 100 < 475):
        states, taken, before, values, rewards, on = [], [], [], [], [], []
        with torch.no_grad():
            for _ in range(horizon):
                state = torch.tensor([c.state for c in all_carts])
                logp = F.log_softmax(actor(state), 1)
                action = torch.argmax(logp - torch.log(-torch.log(torch.rand_like(logp))), 1, keepdim=True)
                states.append(state)
                taken.append(action)
                before.append(logp.gather(1, action))
                values.append(critic(state))
                reward, goes_on = [1.0] * carts, [1.0] * carts
                for i, a in enumerate(action[:, 0].tolist()):
                    fell = all_carts[i].push(a)
                    if not fell and all_carts[i].steps < 500:
                        continue
                    if not fell:
                        reward[i] += gamma * critic(torch.tensor([all_carts[i].state])).item()
                    goes_on[i] = 0.0
                    lengths.append(all_carts[i].steps)
                    all_carts[i] = Cart()
                rewards.append(torch.tensor(reward)[:, None])
                on.append(gamma * torch.tensor(goes_on)[:, None])
            values.append(critic(torch.tensor([c.state for c in all_carts])))
            advantages, advantage = [], torch.zeros(carts, 1)
            for t in range(horizon - 1, -1, -1):
                advantage = rewards[t] + on[t] * values[t + 1] - values[t] + on[t] * keep * advantage
                advantages.insert(0, advantage)
            advantages, old = torch.cat(advantages), torch.cat(before)
            targets = advantages + torch.cat(values[:-1])
            advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
            states, taken = torch.cat(states), torch.cat(taken)
        start = now()
        for _ in range(20):
            adam.zero_grad()
            logp = F.log_softmax(actor(states), 1)
            ratio = torch.exp(logp.gather(1, taken) - old)
            policy = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            entropy = -(logp.exp() * logp).sum(1).mean()
            loss = policy + 0.5 * F.mse_loss(critic(states), targets) - 0.001 * entropy
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 0.5)
            adam.step()
        spent += now() - start
        steps += carts * horizon
    rounds = steps // (carts * horizon)
    whole = now() - begin
    return spent / rounds, "%.3f ms to act; %.1f after %d steps" % (
        (whole - spent) / rounds, sum(lengths[-100:]) / 100, steps)


def carts_push(state, action):
    """Cart of many carts [carts, 4]: their next states, and whether they have fallen."""
    place, speed, angle, turning = state.unbind(1)
    sine, cosine = angle.sin(), angle.cos()
    push = (20.0 * action - 10.0 + 0.05 * turning * turning * sine) / 1.1
    turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
    state = state + 0.02 * torch.stack([speed, push - 0.05 * turn * cosine / 1.1, turning, turn], 1)
    return state, (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.2094395)


def ppo(most=1200000, carts=1024, horizon=32, size=4096, gamma=0.99, keep=0.95):
    """The carts are stepped as tensors; otherwise as ppo.c, whose states are normalized in double."""
    def layers(out):
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))

    actor, critic = layers(2), layers(1)
    weights = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(weights, lr=3e-3, eps=1e-5)
    state, length = torch.rand(carts, 4) * 0.1 - 0.05, torch.zeros(carts, dtype=torch.int64)
    over, lengths, steps, begin = torch.zeros(carts, dtype=torch.bool), [], 0, now()
    count, mean, square = 0, torch.zeros(4), torch.zeros(4)

    def normal():
        nonlocal count, mean, square
        count, mean, square = count + carts, mean + state.sum(0), square + state.square().sum(0)
        deviation = ((square / count - (mean / count).square()).clamp(min=0) + 1e-8).sqrt()
        return ((state - mean / count) / deviation).clamp(-10, 10)

    seen_now = normal()
    while steps < most and (len(lengths) < 100 or sum(lengths[-100:]) / 100 < 500):
        rows = [[] for _ in range(7)]  # seen, taken, before, value, reward, carries on, made
        with torch.no_grad():
            for _ in range(horizon):
                logp = F.log_softmax(actor(seen_now), 1)
                action = torch.argmax(logp - torch.log(-torch.log(torch.rand_like(logp))), 1, keepdim=True)
                row = [seen_now, action, logp.gather(1, action), critic(seen_now)]
                begins = over
                state, fell = carts_push(state, action[:, 0].float())
                state[begins] = torch.rand(int(begins.sum()), 4) * 0.1 - 0.05
                fell, length = fell & ~begins, torch.where(begins, 0, length + 1)
                over = (fell | (length == 500)) & ~begins
                lengths += length[over].tolist()
                seen_now = normal()
                row += [torch.where(begins, 0.0, 0.02)[:, None],
                        torch.stack([gamma * ~fell, gamma * keep * ~(over | begins)], 1), ~begins]
                for all_rows, one in zip(rows, row):
                    all_rows.append(one)
            rows[3].append(critic(seen_now))
            advantage, advantages = torch.zeros(carts, 1), []
            for t in range(horizon - 1, -1, -1):
                on, carry = rows[5][t].split(1, 1)
                advantage = rows[4][t] + on * rows[3][t + 1] - rows[3][t] + carry * advantage
                advantages.insert(0, advantage)
            made = torch.cat(rows[6])
            seen, taken, old, value = (torch.cat(one[:horizon])[made] for one in rows[:4])
            advantages = torch.cat(advantages)[made]
            target = advantages + value
            advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
        for _ in range(4):
            order = torch.randperm(len(seen))
            for at in range(0, len(seen) - size + 1, size):
                i = order[at:at + size]
                adam.zero_grad()
                logp, v = F.log_softmax(actor(seen[i]), 1), critic(seen[i])
                ratio = torch.exp(logp.gather(1, taken[i]) - old[i])
                policy = -torch.minimum(ratio * advantages[i], ratio.clamp(0.8, 1.2) * advantages[i]).mean()
                close = value[i] + (v - value[i]).clamp(-0.2, 0.2)
                worst = torch.maximum((v - target[i]).square(), (close - target[i]).square()).mean()
                (policy + 0.5 * worst + 0.001 * (logp.exp() * logp).sum(1).mean()).backward()
                nn.utils.clip_grad_norm_(weights, 0.5)
                adam.step()
        steps += carts * horizon
    spent = (now() - begin) / (steps // (carts * horizon))
    return spent, "%.1f of the last 100 after %d steps, %.0f in a second" % (
        sum(lengths[-100:]) / 100, steps, carts * horizon / spent * 1e3)


def forecast(epochs=3):
    torch_of = torch.Generator().manual_seed(1)
    hours = torch.arange(24 * 364)
    series = torch.sin((hours % 24 - 9) * 2 * math.pi / 24) + torch.rand(len(hours), generator=torch_of)
    series = (series - series.mean()) / series.std()
    windows = series[:len(hours) * 4 // 5].unfold(0, 96 + 24, 1)
    gru, out = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 24)
    adam = torch.optim.Adam([*gru.parameters(), *out.parameters()], lr=3e-3)
    for _ in range(epochs):
        start, steps = now(), 0
        order = torch.randperm(len(windows))
        for i in range(0, len(windows) - 63, 64):
            x = windows[order[i:i + 64]]
            adam.zero_grad()
            state = gru(x[:, :96, None])[1][0]
            loss = F.l1_loss(out(state) + x[:, 95:96], x[:, 96:])
            loss.backward()
            adam.step()
            steps += 1
        spent = (now() - start) / steps
    return spent, "loss %.4f, of a series that is made otherwise" % loss.item()


def sdf(steps=2000, count=512):
    network = nn.Sequential(nn.Linear(3, 64), nn.Softplus(10), nn.Linear(64, 64), nn.Softplus(10),
                            nn.Linear(64, 64), nn.Softplus(10), nn.Linear(64, 1))
    adam = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)

    def slope(y, x):
        return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

    for step in range(steps):
        around, about = torch.rand(count) * 2 * math.pi, torch.rand(count) * 2 * math.pi
        normal = torch.stack((about.cos() * around.cos(), about.cos() * around.sin(), about.sin()), 1)
        surface = (torch.stack((0.55 * around.cos(), 0.55 * around.sin(), torch.zeros(count)),
                               1) + 0.25 * normal)
        anywhere = torch.rand(count, 3) * 2 - 1
        anywhere[1::2] = surface[1::2] + torch.rand(count // 2, 3) * 0.2 - 0.1
        surface.requires_grad_(), anywhere.requires_grad_()
        adam.zero_grad()
        f = network(surface)
        along = (slope(f, surface) - normal).square().sum(1).mean()
        eikonal = ((slope(network(anywhere), anywhere).square().sum(1) + 1e-12).sqrt() - 1).square().mean()
        (10 * f.abs().mean() + along + eikonal).backward()
        adam.step()
        schedule.step()
        if step == 0:
            start = now()
    spent = (now() - start) / (steps - 1)
    x = torch.rand(4096, 3) * 2 - 1
    right = torch.hypot(torch.hypot(x[:, 0], x[:, 1]) - 0.55, x[:, 2]) - 0.25
    with torch.no_grad():
        return spent, "mean error %.4f" % (network(x)[:, 0] - right).abs().mean()


def unet(steps=200, width=16):
    """Its pictures are drawn before."""
    sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    from tests.examples.make_unet import BATCH, SIDE, Drawing, UNet, loss_of
    drawing, net = Drawing(), UNet(width)
    batches = [drawing.pictures(BATCH, SIDE, SIDE) for _ in range(20)]
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(steps):
        adam.zero_grad()
        x, labels = batches[step % len(batches)]
        loss = loss_of(net, x.float(), labels)
        loss.backward()
        adam.step()
        loss.item()
        if step == 0:
            start = now()
    return (now() - start) / (steps - 1), "loss %.3f" % loss.item()


def main(name, threads=1, *amount):
    torch.manual_seed(1)
    random.seed(1)
    torch.set_num_threads(int(threads))
    print("%.3f ms a step; %s" % globals()[name](*map(int, amount)))


main(*sys.argv[1:])
