"""Public kinds of network, in miniature: each trains three steps by replay bitwise as in eager, on the stand-in.

A network is a function that makes modules and returns them with its loss, or with several pairs of (what to update,
loss) where a step has several optimizers. The numbers of a network are as small as its kind allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parametrizations
from torch.utils.checkpoint import checkpoint

from tutorial_utils import cuda_stand_in as cuda

NETWORKS: dict[str, tuple[Callable, tuple[Callable, ...], Callable]] = {}
# Which the stand-in does not train, and why.
FAILS = {"speech_with_ctc": "F.ctc_loss copies the lengths from pageable memory, and is refused"}

DEVICE = torch.device("cpu")  # in a capture, a tensor that is made without it is a host tensor, as on a GPU
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=0.01, capturable=True)
FUSED_ADAM = partial(torch.optim.Adam, lr=0.01, fused=True, capturable=True)


def network(*inputs: Callable, optimizer: Callable = SGD) -> Callable:
    """Register a network under its function's name; `inputs` make the tensors of a step from a generator."""

    def register(make: Callable) -> Callable:
        NETWORKS[make.__name__] = (make, inputs, optimizer)
        return make

    return register


def normal(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(shape, generator=generator)


def whole(high: int, *shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(high, shape, generator=generator)


def parts(**children) -> nn.Module:
    """Return a module of these submodules and parameters, each an attribute."""
    module = nn.Module()
    for name, child in children.items():
        setattr(module, name, child)
    return module


def weights(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / math.sqrt(shape[-1]))


def mlp_of(*sizes: int, activation: Callable = nn.ReLU) -> nn.Sequential:
    layers = [layer for a, b in zip(sizes, sizes[1:], strict=False) for layer in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


def conv(a: int, b: int, kernel: int = 3, **options) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(a, b, kernel, padding=kernel // 2, **options), nn.BatchNorm2d(b), nn.ReLU())


def pooled(x: Tensor) -> Tensor:
    return x.flatten(2).mean(2)


def blend(a: Tensor, b: Tensor, rate: float) -> None:
    a.lerp_(b.detach(), rate)


IMAGES, LABELS, ROWS, SEQUENCES, TOKENS = (
    normal(4, 3, 8, 8),
    whole(5, 4),
    normal(4, 8),
    normal(4, 6, 8),
    whole(11, 4, 6),
)
classify = F.cross_entropy


# --- convolutions on images ---------------------------------------------------------------------------------------


@network(ROWS, LABELS)
def perceptron():
    net = mlp_of(8, 16, 16, 5)
    return net, lambda x, y: classify(net(x), y)


@network(normal(4, 1, 28, 28), LABELS)
def lenet():
    features = nn.Sequential(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh())
    net = nn.Sequential(features, nn.AvgPool2d(2), nn.Flatten(), mlp_of(256, 120, 84, 5, activation=nn.Tanh))
    return net, lambda x, y: classify(net(x), y)


@network(normal(2, 3, 32, 32), whole(5, 2))
def alexnet():
    features = nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.LocalResponseNorm(3), nn.MaxPool2d(3, 2))
    net = nn.Sequential(features, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(32, 5))
    return net, lambda x, y: classify(net(x), y)


@network(IMAGES, LABELS)
def vgg():
    net = nn.Sequential(
        conv(3, 8), conv(8, 8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 16), nn.Dropout(), nn.Linear(16, 5)
    )
    return net, lambda x, y: classify(net(x), y)


@network(IMAGES, LABELS)
def resnet():
    net = parts(stem=conv(3, 8), body=nn.Sequential(conv(8, 8), nn.Conv2d(8, 8, 3, padding=1)), head=nn.Linear(8, 5))
    return net, lambda x, y: classify(net.head(pooled(F.relu((h := net.stem(x)) + net.body(h)))), y)


@network(IMAGES, LABELS)
def resnext_bottleneck():
    net = parts(
        stem=conv(3, 8), body=nn.Sequential(conv(8, 4, 1), conv(4, 4, groups=2), conv(4, 8, 1)), head=nn.Linear(8, 5)
    )
    return net, lambda x, y: classify(net.head(pooled((h := net.stem(x)) + net.body(h))), y)


@network(IMAGES, LABELS)
def densenet():
    net = parts(layers=nn.ModuleList(conv(3 + 4 * i, 4) for i in range(3)), head=nn.Linear(15, 5))

    def loss(x, y):
        for layer in net.layers:
            x = torch.cat([x, layer(x)], 1)
        return classify(net.head(pooled(x)), y)

    return net, loss


@network(normal(2, 3, 16, 16), whole(4, 2, 16, 16))
def unet():
    net = parts(down=conv(3, 8), deep=conv(8, 16), up=nn.ConvTranspose2d(16, 8, 2, 2), out=nn.Conv2d(16, 4, 1))
    return net, lambda x, y: classify(
        net.out(torch.cat([h := net.down(x), net.up(net.deep(F.max_pool2d(h, 2)))], 1)), y
    )


@network(IMAGES, LABELS)
def inception():
    net = parts(branches=nn.ModuleList([conv(3, 4, 1), conv(3, 4, 3), conv(3, 4, 5)]), head=nn.Linear(15, 5))
    pool = nn.MaxPool2d(3, 1, 1)
    return net, lambda x, y: classify(net.head(pooled(torch.cat([b(x) for b in net.branches] + [pool(x)], 1))), y)


@network(IMAGES, LABELS)
def mobilenet_inverted_residual():
    net = parts(
        body=nn.Sequential(conv(3, 12, 1), conv(12, 12, groups=12), nn.Conv2d(12, 3, 1), nn.BatchNorm2d(3)),
        head=nn.Linear(3, 5),
    )
    return net, lambda x, y: classify(net.head(pooled(x + net.body(x))), y)


@network(IMAGES, LABELS)
def squeeze_and_excite():
    net = parts(stem=conv(3, 8), gate=mlp_of(8, 2, 8), head=nn.Linear(8, 5))
    return net, lambda x, y: classify(
        net.head(pooled((h := net.stem(x)) * net.gate(pooled(h)).sigmoid()[..., None, None])), y
    )


@network(IMAGES, LABELS)
def efficientnet_with_stochastic_depth():
    net = parts(
        stem=nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU()),
        body=nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Hardswish()),
        head=nn.Linear(8, 5),
    )

    def keep(x):
        return x * torch.bernoulli(torch.full((x.shape[0], 1, 1, 1), 0.8, device=DEVICE)) / 0.8

    return net, lambda x, y: classify(net.head(pooled((h := net.stem(x)) + keep(net.body(h)))), y)


@network(IMAGES, LABELS)
def convnext():
    net = parts(
        depth=nn.Conv2d(3, 3, 7, padding=3, groups=3),
        norm=nn.LayerNorm(3),
        mix=mlp_of(3, 12, 3, activation=nn.GELU),
        head=nn.Linear(3, 5),
    )
    return net, lambda x, y: classify(
        net.head((x.movedim(1, -1) + net.mix(net.norm(net.depth(x).movedim(1, -1)))).mean((1, 2))), y
    )


@network(IMAGES, LABELS)
def shufflenet():
    net = parts(a=conv(3, 8, 1), b=conv(8, 8, groups=4), head=nn.Linear(8, 5))
    return net, lambda x, y: classify(net.head(pooled(net.b(F.channel_shuffle(net.a(x), 4)))), y)


@network(normal(2, 3, 16, 16), normal(2, 1, 32, 32))
def super_resolution():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.PReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2))
    return net, lambda x, y: F.smooth_l1_loss(net(x), y)


@network(normal(2, 3, 16, 16), whole(4, 2, 16, 16))
def dilated_segmentation_with_upsampling():
    net = nn.Sequential(
        conv(3, 8, stride=2),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2),
        nn.Conv2d(8, 4, 1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
    )
    return net, lambda x, y: classify(net(x), y)


@network(normal(2, 3, 16, 16), whole(4, 2, 16, 16))
def feature_pyramid():
    net = parts(a=conv(3, 8), b=conv(8, 8, stride=2), lateral=nn.Conv2d(8, 8, 1), out=nn.Conv2d(8, 4, 3, padding=1))
    return net, lambda x, y: classify(
        net.out(net.lateral(h := net.a(x)) + F.interpolate(net.b(h), scale_factor=2.0)), y
    )


@network(normal(2, 3, 8, 8), normal(2, 4, 8, 8))
def detector_with_boxes():
    net = nn.Sequential(conv(3, 8), nn.Conv2d(8, 4, 1))

    def area(b):
        return (b[:, 2] - b[:, 0]).clamp_min(0) * (b[:, 3] - b[:, 1]).clamp_min(0)

    def corners(b):
        return torch.cat([b[:, :2] - b[:, 2:].exp(), b[:, :2] + b[:, 2:].exp()], 1)

    def loss(x, target):
        a, b = corners(net(x).float()), corners(target)
        both = torch.cat([torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])], 1)
        return 1 - (area(both) / (area(a) + area(b) - area(both))).mean()

    return net, loss


@network(IMAGES, LABELS)
def spatial_transformer():
    net = parts(where=nn.Linear(192, 6), head=nn.Linear(192, 5))

    def loss(x, y):
        grid = F.affine_grid((net.where(x.flatten(1)) * 0.1).float().view(-1, 2, 3), x.shape, align_corners=False)
        return classify(net.head(F.grid_sample(x, grid, align_corners=False).flatten(1)), y)

    return net, loss


@network(normal(2, 2, 6, 6, 6), whole(5, 2))
def video_of_three_dimensions():
    net = nn.Sequential(
        nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 5)
    )
    return net, lambda x, y: classify(net(x), y)


@network(normal(4, 3, 16), LABELS)
def convolutions_of_one_dimension():
    net = nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(56, 5)
    )
    return net, lambda x, y: classify(net(x), y)


@network(IMAGES, LABELS)
def group_and_instance_norm():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(2, 8),
        nn.LeakyReLU(),
        nn.InstanceNorm2d(8, affine=True),
        nn.Flatten(2),
        nn.AvgPool1d(36),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    return net, lambda x, y: classify(net(x), y)


@network(IMAGES, LABELS)
def dropout_of_every_kind():
    net = nn.Sequential(
        nn.Dropout2d(0.2),
        nn.Conv2d(3, 8, 3),
        nn.SELU(),
        nn.AlphaDropout(0.2),
        nn.FeatureAlphaDropout(0.2),
        nn.RReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(288, 5),
    )
    return net, lambda x, y: classify(net(x), y)


@network(IMAGES, LABELS)
def spectral_and_weight_norm():
    net = nn.Sequential(
        parametrizations.spectral_norm(nn.Conv2d(3, 8, 3)),
        nn.ReLU(),
        nn.Flatten(),
        parametrizations.weight_norm(nn.Linear(288, 5)),
    )
    return net, lambda x, y: classify(net(x), y)


# --- generative models --------------------------------------------------------------------------------------------


@network(ROWS, normal(4, 3), optimizer=FUSED_ADAM)
def gan():
    net = parts(g=mlp_of(3, 16, 8), d=mlp_of(8, 16, 1, activation=partial(nn.LeakyReLU, 0.2)))

    def real_or_fake(x, z):
        return F.softplus(-net.d(x)).mean() + F.softplus(net.d(net.g(z).detach())).mean()

    return net, (net.d, real_or_fake), (net.g, lambda x, z: F.softplus(-net.d(net.g(z))).mean())


@network(normal(4, 1, 8, 8), normal(4, 6, 1, 1), optimizer=FUSED_ADAM)
def dcgan():
    up = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh()
    )
    net = parts(g=up, d=nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1)))

    def judge(x, one):
        return F.binary_cross_entropy_with_logits(net.d(x), torch.full((4, 1), one, device=DEVICE))

    return (
        net,
        (net.d, lambda x, z: judge(x, 1.0) + judge(net.g(z).detach(), 0.0)),
        (net.g, lambda x, z: judge(net.g(z), 1.0)),
    )


@network(ROWS, normal(4, 3))
def wasserstein_gan_with_gradient_penalty():
    net = parts(g=mlp_of(3, 16, 8), d=mlp_of(8, 16, 1, activation=nn.Tanh))

    def critic(x, z):
        between = torch.lerp(x, fake := net.g(z).detach().float(), torch.rand(4, 1, device=DEVICE)).requires_grad_()
        (slope,) = torch.autograd.grad(net.d(between).sum(), between, create_graph=True)
        return net.d(fake).mean() - net.d(x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    return net, (net.d, critic), (net.g, lambda x, z: -net.d(net.g(z)).mean())


@network(ROWS)
def autoencoder():
    net = nn.Sequential(mlp_of(8, 16, 3), mlp_of(3, 16, 8))
    return net, lambda x: F.mse_loss(net(x), x)


@network(ROWS)
def denoising_sparse_autoencoder():
    net = parts(encode=mlp_of(8, 16), decode=mlp_of(16, 8))
    return (
        net,
        lambda x: (
            F.mse_loss(net.decode(h := net.encode(x + 0.1 * torch.randn_like(x)).relu()), x) + 0.01 * h.abs().mean()
        ),
    )


@network(ROWS)
def variational_autoencoder():
    net = parts(encode=mlp_of(8, 16, 6), decode=mlp_of(3, 16, 8))

    def loss(x):
        mean, log_variance = net.encode(x).chunk(2, 1)
        code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        return F.mse_loss(net.decode(code), x) - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()

    return net, loss


@network(ROWS)
def vector_quantised_autoencoder():
    net = parts(encode=mlp_of(8, 16, 4), decode=mlp_of(4, 16, 8), book=nn.Embedding(6, 4))

    def loss(x):
        code = net.encode(x).float()
        nearest = net.book(torch.cdist(code, net.book.weight).argmin(1))
        straight = code + (nearest - code).detach()
        return (
            F.mse_loss(net.decode(straight), x)
            + F.mse_loss(nearest, code.detach())
            + F.mse_loss(code, nearest.detach())
        )

    return net, loss


@network(normal(2, 3, 8, 8), whole(10, 2), optimizer=FUSED_ADAM)
def ddpm():
    net = parts(net=nn.Sequential(conv(3, 8), nn.Conv2d(8, 3, 3, padding=1)), time=nn.Embedding(10, 3))
    alphas = torch.linspace(0.99, 0.1, 10)

    def loss(x, t):
        noise, a = torch.randn_like(x), alphas[t].view(-1, 1, 1, 1)
        return F.mse_loss(net.net(a.sqrt() * x + (1 - a).sqrt() * noise + net.time(t)[..., None, None]), noise)

    return net, loss


@network(ROWS)
def flow_matching():
    net = mlp_of(9, 16, 8, activation=nn.SiLU)

    def loss(x):
        noise, t = torch.randn_like(x), torch.rand(4, 1, device=DEVICE)
        return F.mse_loss(net(torch.cat([torch.lerp(noise, x, t), t], 1)), x - noise)

    return net, loss


@network(ROWS)
def score_matching():
    net = mlp_of(8, 16, 8, activation=nn.Softplus)
    return net, lambda x: (net(x + 0.5 * (noise := torch.randn_like(x))) * 0.5 + noise).square().sum(1).mean()


@network(ROWS)
def normalising_flow_of_couplings():
    net = nn.ModuleList(mlp_of(4, 16, 8, activation=nn.Tanh) for _ in range(2))

    def loss(x):
        a, b, logdet = *x.chunk(2, 1), 0.0
        for layer in net:
            scale, shift = layer(a).chunk(2, 1)
            a, b, logdet = b * scale.tanh().exp() + shift, a, logdet + scale.tanh().sum(1)
        return (0.5 * (a.square() + b.square()).sum(1) - logdet).mean()

    return net, loss


@network(normal(2, 1, 8, 8))
def pixelcnn():
    net = parts(weight=weights(4, 1, 5, 5), out=nn.Conv2d(4, 1, 1))
    mask = torch.ones(5, 5)
    mask[2, 2:], mask[3:] = 0, 0
    return net, lambda x: F.mse_loss(net.out(F.conv2d(x, net.weight * mask, padding=2).relu()), x)


@network(ROWS)
def energy_based_model():
    net = mlp_of(8, 16, 1, activation=nn.Softplus)

    def loss(x):
        fake = torch.randn_like(x).requires_grad_()
        for _ in range(2):
            (slope,) = torch.autograd.grad(net(fake).sum(), fake)
            fake = (fake - 0.1 * slope + 0.01 * torch.randn_like(x)).detach().requires_grad_()
        return net(x).mean() - net(fake).mean()

    return net, loss


@network(normal(2, 3, 8, 8), normal(2, 3, 8, 8))
def style_transfer():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.InstanceNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1)
    )

    def gram(x):
        return torch.einsum("bchw,bdhw->bcd", x, x) / x[0].numel()

    return (
        net,
        lambda x, style: F.mse_loss(gram(net(x)), gram(style)) + (net(x)[..., 1:] - net(x)[..., :-1]).abs().mean(),
    )


# --- sequences ----------------------------------------------------------------------------------------------------


@network(SEQUENCES, LABELS)
def elman_rnn():
    net = parts(rnn=nn.RNN(8, 12, batch_first=True), head=nn.Linear(12, 5))
    return net, lambda x, y: classify(net.head(net.rnn(x)[0][:, -1]), y)


@network(SEQUENCES, LABELS)
def gru():
    net = parts(rnn=nn.GRU(8, 12, 2, batch_first=True, dropout=0.2), head=nn.Linear(12, 5))
    return net, lambda x, y: classify(net.head(net.rnn(x)[1][-1]), y)


@network(SEQUENCES, LABELS)
def lstm():
    net = parts(rnn=nn.LSTM(8, 12, batch_first=True), head=nn.Linear(12, 5))
    return net, lambda x, y: classify(net.head(net.rnn(x)[1][0][-1]), y)


@network(SEQUENCES, LABELS)
def bidirectional_lstm():
    net = parts(rnn=nn.LSTM(8, 12, 2, bidirectional=True, dropout=0.2), head=nn.Linear(24, 5))
    return net, lambda x, y: classify(net.head(net.rnn(x.transpose(0, 1))[0][-1]), y)


@network(SEQUENCES, LABELS)
def lstm_by_cells():
    net = parts(cell=nn.LSTMCell(8, 12), head=nn.Linear(12, 5))

    def loss(x, y):
        state = None
        for step in x.unbind(1):
            state = net.cell(step, state)
        return classify(net.head(state[0]), y)

    return net, loss


@network(TOKENS, whole(11, 4, 5))
def seq2seq_with_attention():
    net = parts(
        embed=nn.Embedding(11, 8),
        encode=nn.GRU(8, 8, batch_first=True),
        decode=nn.GRU(8, 8, batch_first=True),
        out=nn.Linear(16, 11),
    )

    def loss(source, target):
        memory, state = net.encode(net.embed(source))
        h, _ = net.decode(net.embed(target[:, :-1]), state)
        context = (h @ memory.transpose(1, 2)).softmax(-1) @ memory
        return classify(net.out(torch.cat([h, context], 2)).flatten(0, 1), target[:, 1:].flatten())

    return net, loss


@network(whole(11, 4, 9))
def language_model_with_tied_weights():
    net = parts(
        embed=nn.Embedding(11, 8, padding_idx=0),
        rnn=nn.LSTM(8, 8, batch_first=True),
        bias=nn.Parameter(torch.zeros(11)),
    )
    return net, lambda t: classify(
        F.linear(net.rnn(net.embed(t[:, :-1]))[0], net.embed.weight, net.bias).flatten(0, 1),
        t[:, 1:].flatten(),
        ignore_index=0,
    )


@network(normal(4, 2, 16), normal(4, 8, 16))
def wavenet():
    net = parts(first=nn.Conv1d(2, 8, 1), gates=nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=d) for d in (1, 2, 4)))

    def loss(x, target):
        h, out = net.first(x), 0
        for gate, d in zip(net.gates, (1, 2, 4), strict=True):
            a, b = gate(F.pad(h, (d, 0))).chunk(2, 1)
            h, out = h + (skip := a.tanh() * b.sigmoid()), out + skip
        return F.mse_loss(out, target)

    return net, loss


@network(normal(4, 3, 12), LABELS)
def temporal_convolutions():
    net = parts(
        a=parametrizations.weight_norm(nn.Conv1d(3, 8, 3)), b=nn.Conv1d(8, 8, 3, dilation=2), head=nn.Linear(8, 5)
    )
    return net, lambda x, y: classify(
        net.head(F.dropout(net.b(F.pad(net.a(F.pad(x, (2, 0))).relu(), (4, 0))), 0.1)[..., -1]), y
    )


@network(normal(12, 2, 6), whole(4, 2, 3))
def speech_with_ctc():
    net = nn.Linear(6, 5)
    return net, lambda x, y: F.ctc_loss(net(x).float().log_softmax(-1), y + 1, (12, 12), (3, 3))


@network(normal(12, 2, 6), whole(4, 2, 3))
def speech_with_ctc_written_out():
    net, never = nn.Linear(6, 5), -1e9

    def loss(x, y):
        labels = F.pad((y + 1)[..., None], (1, 0)).flatten(1)  # a blank before each label, and one after the last
        labels = F.pad(labels, (0, 1))
        may_skip = (labels != 0) & (labels != F.pad(labels, (2, 0))[:, :-2])
        steps = net(x).float().log_softmax(-1).gather(2, labels.expand(12, 2, 7)).unbind(0)
        alpha = F.pad(steps[0][:, :2], (0, 5), value=never)
        for step in steps[1:]:
            by_one = F.pad(alpha, (1, 0), value=never)[:, :-1]
            by_two = F.pad(alpha, (2, 0), value=never)[:, :-2].masked_fill(~may_skip, never)
            alpha = torch.stack([alpha, by_one, by_two]).logsumexp(0) + step
        return -alpha[:, -2:].logsumexp(1).mean() / 3

    return net, loss


@network(SEQUENCES, LABELS)
def state_space_layer():
    net = parts(decay=weights(8), into=weights(8), head=nn.Linear(8, 5))
    times = torch.arange(6.0)

    def loss(x, y):
        kernel = net.into * torch.exp(-F.softplus(net.decay) * times[:, None])
        h = torch.fft.irfft(torch.fft.rfft(x, 12, 1) * torch.fft.rfft(kernel, 12, 0), 12, 1)[:, :6]
        return classify(net.head(h[:, -1]), y)

    return net, loss


@network(SEQUENCES, LABELS)
def gated_linear_recurrence():
    net = parts(gate=nn.Linear(8, 8), value=nn.Linear(8, 8), head=nn.Linear(8, 5))

    def loss(x, y):
        log_keep = F.logsigmoid(net.gate(x)).cumsum(1)
        return classify(net.head(((net.value(x) * (-log_keep).exp()).cumsum(1) * log_keep.exp())[:, -1]), y)

    return net, loss


# --- attention ----------------------------------------------------------------------------------------------------


@network(SEQUENCES, LABELS, optimizer=FUSED_ADAM)
def transformer_encoder():
    net = parts(
        encode=nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), head=nn.Linear(8, 5)
    )
    return net, lambda x, y: classify(net.head(net.encode(x).mean(1)), y)


@network(SEQUENCES, whole(11, 4, 5), optimizer=FUSED_ADAM)
def transformer_decoder():
    net = parts(
        embed=nn.Embedding(11, 8), decode=nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), out=nn.Linear(8, 11)
    )
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return net, lambda memory, t: classify(
        net.out(net.decode(net.embed(t[:, :-1]), memory, tgt_mask=mask)).flatten(0, 1), t[:, 1:].flatten()
    )


@network(whole(11, 4, 7), optimizer=FUSED_ADAM)
def gpt_block():
    net = parts(
        embed=nn.Embedding(11, 8),
        where=weights(6, 8),
        a=nn.LayerNorm(8),
        qkv=nn.Linear(8, 24),
        b=nn.LayerNorm(8),
        mlp=mlp_of(8, 32, 8, activation=nn.GELU),
        out=nn.Linear(8, 11),
    )

    def loss(t):
        x = net.embed(t[:, :-1]) + net.where
        q, k, v = net.qkv(net.a(x)).view(4, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True).transpose(1, 2).flatten(2)
        return classify(net.out(x + net.mlp(net.b(x))).flatten(0, 1), t[:, 1:].flatten())

    return net, loss


@network(whole(11, 4, 7), optimizer=partial(torch.optim.AdamW, lr=0.01, capturable=True, foreach=True))
def llama_block():
    net = parts(
        embed=nn.Embedding(11, 8),
        a=nn.RMSNorm(8),
        q=nn.Linear(8, 8),
        kv=nn.Linear(8, 8),
        b=nn.RMSNorm(8),
        up=nn.Linear(8, 32),
        down=nn.Linear(16, 8),
        out=nn.Linear(8, 11),
    )
    angles = torch.outer(torch.arange(6.0), 100.0 ** -torch.arange(0, 1, 0.5)).repeat(1, 2)

    def rotary(x):
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

    def loss(t):
        x = net.embed(t[:, :-1])
        q = net.q(h := net.a(x)).view(4, 6, 2, 4).transpose(1, 2)
        k, v = net.kv(h).view(4, 6, 2, 1, 4).permute(2, 0, 3, 1, 4)
        k, v = rotary(k).expand_as(q), v.expand_as(q)
        x = x + F.scaled_dot_product_attention(rotary(q).to(v), k.to(v), v, is_causal=True).transpose(1, 2).flatten(2)
        gate, value = net.up(net.b(x)).chunk(2, -1)
        return classify(net.out(x + net.down(F.silu(gate) * value)).flatten(0, 1), t[:, 1:].flatten())

    return net, loss


@network(IMAGES, LABELS, optimizer=FUSED_ADAM)
def vision_transformer():
    net = parts(
        patch=nn.Conv2d(3, 8, 4, 4),
        first=weights(1, 1, 8),
        where=weights(5, 8),
        encode=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True),
        head=nn.Linear(8, 5),
    )
    return net, lambda x, y: classify(
        net.head(net.encode(torch.cat([net.first.expand(4, 1, 8), net.patch(x).flatten(2).mT], 1) + net.where)[:, 0]), y
    )


@network(IMAGES, LABELS)
def mlp_mixer():
    net = parts(
        patch=nn.Conv2d(3, 8, 2, 2),
        tokens=mlp_of(16, 32, 16, activation=nn.GELU),
        channels=mlp_of(8, 32, 8, activation=nn.GELU),
        head=nn.Linear(8, 5),
    )

    def loss(x, y):
        x = net.patch(x).flatten(2)
        x = (x + net.tokens(x)).mT
        return classify(net.head((x + net.channels(x)).mean(1)), y)

    return net, loss


@network(whole(11, 4, 6), normal(4, 6))
def masked_language_model():
    net = parts(
        embed=nn.Embedding(12, 8), encode=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), out=nn.Linear(8, 11)
    )

    def loss(t, chance):
        hidden = chance > 0
        return classify(
            net.out(net.encode(net.embed(torch.where(hidden, 11, t)))).flatten(0, 1),
            torch.where(hidden, t, -100).flatten(),
        )

    return net, loss


@network(SEQUENCES, normal(4, 6), LABELS)
def attention_with_padding():
    net = parts(attend=nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True), head=nn.Linear(8, 5))

    def loss(x, chance, y):
        padding = (chance > 1).index_fill(1, torch.zeros(1, dtype=torch.long, device=DEVICE), False)
        return classify(net.head(net.attend(x, x, x, key_padding_mask=padding)[0][:, 0]), y)

    return net, loss


@network(SEQUENCES, LABELS)
def linear_attention():
    net = parts(qkv=nn.Linear(8, 24), head=nn.Linear(8, 5))

    def loss(x, y):
        q, k, v = net.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return classify(net.head((q @ (k.mT @ v) / (q @ k.sum(1, keepdim=True).mT)).mean(1)), y)

    return net, loss


@network(SEQUENCES, LABELS)
def perceiver():
    net = parts(latents=weights(1, 3, 8), attend=nn.MultiheadAttention(8, 2, batch_first=True), head=nn.Linear(8, 5))
    return net, lambda x, y: classify(net.head(net.attend(net.latents.expand(4, 3, 8), x, x)[0].mean(1)), y)


@network(ROWS, LABELS)
def modern_hopfield_memory():
    net = parts(memory=weights(6, 8), head=nn.Linear(8, 5))
    return net, lambda x, y: classify(net.head((2 * x @ net.memory.T).softmax(-1) @ net.memory), y)


@network(ROWS, LABELS)
def mixture_of_experts():
    net = parts(gate=nn.Linear(8, 3), experts=nn.ModuleList(mlp_of(8, 16, 5) for _ in range(3)))
    return net, lambda x, y: classify(
        torch.einsum("be,ebc->bc", net.gate(x).softmax(-1), torch.stack([e(x) for e in net.experts])), y
    )


@network(ROWS, LABELS)
def mixture_of_the_two_best_experts():
    net = parts(gate=nn.Linear(8, 4), experts=nn.ModuleList(mlp_of(8, 16, 5) for _ in range(4)))

    def loss(x, y):
        best, which = net.gate(x).topk(2)
        chosen = torch.stack([e(x) for e in net.experts], 1).gather(1, which[..., None].expand(4, 2, 5))
        return classify((best.softmax(-1)[..., None] * chosen).sum(1), y)

    return net, loss


# --- sets, graphs, points, tables -----------------------------------------------------------------------------------


@network(normal(6, 8), normal(6, 6), whole(5, 6))
def graph_convolution_with_a_dense_adjacency():
    net = nn.ModuleList([nn.Linear(8, 12), nn.Linear(12, 5)])

    def loss(x, edges, y):
        a = (edges > 0).float() + torch.eye(6, device=DEVICE)
        a = a / a.sum(1, keepdim=True)
        return classify(a @ net[1]((a @ net[0](x)).relu()), y)

    return net, loss


@network(normal(6, 8), whole(6, 2, 10), whole(5, 6))
def message_passing_by_index_add():
    net = parts(message=nn.Linear(16, 8), update=nn.GRUCell(8, 8), head=nn.Linear(8, 5))

    def loss(x, edges, y):
        message = net.message(torch.cat([x[edges[0]], x[edges[1]]], 1)).float()
        return classify(net.head(net.update(torch.zeros_like(x).index_add(0, edges[1], message), x)), y)

    return net, loss


@network(normal(6, 8), whole(6, 2, 10), whole(5, 6))
def graph_attention_by_scatter():
    net = parts(value=nn.Linear(8, 5), score=nn.Linear(16, 1))

    def loss(x, edges, y):
        score = net.score(torch.cat([x[edges[0]], x[edges[1]]], 1)).float().squeeze(1)
        score = (
            score - torch.zeros(6, device=DEVICE).scatter_reduce(0, edges[1], score.detach(), "amax")[edges[1]]
        ).exp()
        share = score / torch.zeros(6, device=DEVICE).scatter_add(0, edges[1], score)[edges[1]]
        return classify(
            torch.zeros(6, 5, device=DEVICE).index_add(0, edges[1], share[:, None] * net.value(x)[edges[0]]), y
        )

    return net, loss


@network(SEQUENCES, LABELS)
def deep_sets():
    net = parts(each=mlp_of(8, 16, 16), all=mlp_of(16, 16, 5))
    return net, lambda x, y: classify(net.all(net.each(x).sum(1)), y)


@network(normal(4, 3, 20), LABELS)
def pointnet():
    net = parts(
        align=nn.Linear(3, 9),
        each=nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU()),
        head=nn.Linear(16, 5),
    )

    def loss(x, y):
        turn = torch.eye(3, device=DEVICE) + 0.1 * net.align(x.amax(2)).view(4, 3, 3)
        return classify(net.head(net.each(turn.to(x.dtype) @ x).amax(2)), y)

    return net, loss


@network(normal(2, 12, 3), whole(5, 2))
def nearest_neighbours_of_points():
    net = parts(edge=mlp_of(6, 16, 8), head=nn.Linear(8, 5))

    def loss(x, y):
        near = torch.cdist(x, x).topk(3, largest=False).indices
        others = x[torch.arange(2, device=DEVICE)[:, None, None], near]
        return classify(net.head(net.edge(torch.cat([others - x[:, :, None], others], -1)).amax((1, 2))), y)

    return net, loss


@network(whole(11, 4, 6), LABELS)
def bag_of_embeddings():
    net = parts(bag=nn.EmbeddingBag(11, 8), head=nn.Linear(8, 5))
    return net, lambda t, y: classify(net.head(net.bag(t)), y)


@network(whole(11, 6), whole(11, 6), whole(11, 6, 3))
def word2vec_with_negative_sampling():
    net = parts(word=nn.Embedding(11, 8), context=nn.Embedding(11, 8))

    def score(word, context):
        return (net.word(word).unsqueeze(1) * net.context(context)).sum(-1)

    return net, lambda w, c, others: -F.logsigmoid(score(w, c[:, None])).mean() - F.logsigmoid(-score(w, others)).mean()


@network(whole(7, 8), whole(9, 8), normal(8))
def matrix_factorisation():
    net = parts(user=nn.Embedding(7, 4), item=nn.Embedding(9, 4), bias=nn.Embedding(7, 1))
    return net, lambda u, i, r: F.mse_loss((net.user(u) * net.item(i)).sum(1) + net.bias(u)[:, 0], r)


@network(whole(7, 8, 3), normal(8, 2), whole(2, 8))
def factorisation_machine_of_clicks():
    net = parts(embed=nn.Embedding(21, 4), deep=mlp_of(14, 16, 1))

    def loss(ids, numbers, y):
        e = net.embed(ids + torch.arange(0, 21, 7, device=DEVICE))
        pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
        return F.binary_cross_entropy_with_logits(
            net.deep(torch.cat([e.flatten(1), numbers], 1))[:, 0] + pairs, y.float()
        )

    return net, loss


# --- losses and ways to train -------------------------------------------------------------------------------------


@network(ROWS, ROWS)
def contrastive_infonce():
    net = mlp_of(8, 16, 6)
    return net, lambda a, b: classify(F.normalize(net(a)) @ F.normalize(net(b)).T / 0.1, torch.arange(4, device=DEVICE))


@network(ROWS)
def simclr_with_augmentation():
    net = mlp_of(8, 16, 6)

    def loss(x):
        h = F.normalize(net(torch.cat([F.dropout(x, 0.2), x + 0.1 * torch.randn_like(x)])))
        similarity = (h @ h.T / 0.5).masked_fill(torch.eye(8, dtype=torch.bool, device=DEVICE), float("-inf"))
        return classify(similarity, torch.arange(8, device=DEVICE).roll(4))

    return net, loss


@network(normal(4, 3, 8), whole(2, 4))
def siamese():
    net = mlp_of(8, 16, 6)
    return net, lambda x, y: F.cosine_embedding_loss(net(x[:, 0]), net(x[:, 1]), 2.0 * y - 1, margin=0.2)


@network(normal(4, 3, 8))
def triplets():
    net = mlp_of(8, 16, 6)
    return net, lambda x: F.triplet_margin_loss(*net(x).unbind(1))


@network(ROWS)
def byol_with_a_moving_target():
    net = parts(online=mlp_of(8, 16, 6), target=mlp_of(8, 16, 6).requires_grad_(False), predict=nn.Linear(6, 6))

    def loss(x):
        with torch.no_grad():
            for a, b in zip(net.target.parameters(), net.online.parameters(), strict=True):
                blend(a, b, 0.05)
        return -F.cosine_similarity(net.predict(net.online(x + 0.1 * torch.randn_like(x))), net.target(x)).mean()

    return net, loss


@network(ROWS, LABELS)
def mean_teacher_by_averaged_model():
    student = mlp_of(8, 16, 5)
    net = parts(
        student=student,
        teacher=torch.optim.swa_utils.AveragedModel(
            student, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        ),
    )

    def loss(x, y):
        with torch.no_grad():
            torch._foreach_lerp_(list(net.teacher.module.parameters()), [p.detach() for p in student.parameters()], 0.1)
        return classify(h := student(x), y) + F.mse_loss(h.softmax(1), net.teacher(x).softmax(1).detach())

    return net, (student, loss)


@network(ROWS, LABELS)
def knowledge_distillation():
    net, teacher = mlp_of(8, 8, 5), mlp_of(8, 32, 5).requires_grad_(False)

    def soft(x):
        return F.kl_div((net(x) / 2).log_softmax(1), (teacher(x) / 2).softmax(1), reduction="batchmean")

    return net, lambda x, y: 4 * soft(x) + classify(net(x), y)


@network(ROWS, LABELS)
def label_smoothing():
    net = mlp_of(8, 16, 5)
    return net, lambda x, y: classify(net(x), y, label_smoothing=0.1, weight=torch.linspace(0.5, 1.5, 5, device=DEVICE))


@network(ROWS, LABELS)
def focal_loss():
    net = mlp_of(8, 16, 5)
    return net, lambda x, y: ((1 - (p := net(x).softmax(1).gather(1, y[:, None]))) ** 2 * -p.log()).mean()


@network(ROWS, LABELS)
def mixup():
    net = mlp_of(8, 16, 5)

    def loss(x, y):
        share, other = torch.rand((), device=DEVICE), torch.randperm(4, device=DEVICE)
        h = net(torch.lerp(x[other], x, share))
        return share * classify(h, y) + (1 - share) * classify(h, y[other])

    return net, loss


@network(ROWS, LABELS)
def cosine_classifier_with_a_margin():
    net = parts(body=mlp_of(8, 16, 6), centres=weights(5, 6))
    return net, lambda x, y: classify(
        8 * (F.linear(F.normalize(net.body(x)), F.normalize(net.centres)) - 0.2 * F.one_hot(y, 5)), y
    )


@network(ROWS, LABELS)
def hinge_loss_with_penalties():
    net = nn.Linear(8, 5)
    return (
        net,
        lambda x, y: F.multi_margin_loss(net(x).float(), y) + 0.01 * sum(p.abs().sum() for p in net.parameters()),
    )


@network(ROWS, normal(4))
def quantile_and_uncertain_regression():
    net = mlp_of(8, 16, 3)

    def loss(x, y):
        mean, spread, quantile = net(x).float().unbind(1)
        variance = F.softplus(spread) + 0.1
        likelihood = 0.5 * (variance.log() + (y - mean).square() / variance)
        return (likelihood + torch.maximum(0.9 * (y - quantile), 0.1 * (quantile - y))).mean()

    return net, loss


@network(ROWS, LABELS)
def adversarial_training():
    net = mlp_of(8, 16, 5)

    def loss(x, y):
        attacked = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(classify(net(attacked), y), attacked)
        return classify(net(x + 0.1 * slope.sign()), y)

    return net, loss


@network(ROWS, LABELS)
def maml():
    net = nn.Linear(8, 5)

    def loss(x, y):
        fast = dict(net.named_parameters())
        slopes = torch.autograd.grad(classify(net(x), y), list(fast.values()), create_graph=True)
        fast = {name: p - 0.1 * slope for (name, p), slope in zip(fast.items(), slopes, strict=True)}
        return classify(torch.func.functional_call(net, fast, (x.flip(0),)), y.flip(0))

    return net, loss


@network(ROWS, LABELS)
def lora():
    net = parts(
        frozen=nn.Linear(8, 16).requires_grad_(False),
        a=weights(2, 8),
        b=nn.Parameter(torch.zeros(16, 2)),
        head=nn.Linear(16, 5),
    )
    return net, lambda x, y: classify(
        net.head((net.frozen(x) + F.linear(F.linear(F.dropout(x, 0.1), net.a), net.b)).relu()), y
    )


def clipping_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    def clip(*_: object) -> None:
        clip_grad_norm_(parameters, 0.1)

    optimizer = SGD(parameters)
    optimizer.register_step_pre_hook(clip)
    return optimizer


@network(ROWS, LABELS, optimizer=clipping_sgd)
def gradient_clipping():
    net = mlp_of(8, 16, 5)
    return net, lambda x, y: classify(net(x), y)


@network(ROWS, LABELS)
def straight_through_binary_network():
    net = parts(a=weights(16, 8), norm=nn.BatchNorm1d(16), b=weights(5, 16))

    def binary(w):
        return w + (w.sign() - w).detach()

    return net, lambda x, y: classify(F.linear(net.norm(F.linear(x, binary(net.a))).clamp(-1, 1), binary(net.b)), y)


@network(ROWS, LABELS)
def gumbel_softmax_routing():
    net = parts(route=nn.Linear(8, 3), experts=weights(3, 8, 5))
    return net, lambda x, y: classify(
        torch.einsum("be,bi,eio->bo", F.gumbel_softmax(net.route(x), hard=True), x, net.experts), y
    )


# --- reinforcement learning ---------------------------------------------------------------------------------------


@network(ROWS, whole(3, 4), normal(4), ROWS, optimizer=FUSED_ADAM)
def dqn():
    net, target = mlp_of(8, 16, 3), mlp_of(8, 16, 3).requires_grad_(False)

    def loss(state, action, reward, after):
        goal = reward + 0.9 * target(after).amax(1).detach()
        return F.smooth_l1_loss(net(state).gather(1, action[:, None])[:, 0], goal)

    return net, loss


@network(ROWS, whole(3, 4), normal(4))
def reinforce():
    net = mlp_of(8, 16, 3)
    return net, lambda s, a, r: -(net(s).log_softmax(1).gather(1, a[:, None])[:, 0] * (r - r.mean())).mean()


@network(ROWS, whole(3, 4), normal(4))
def actor_critic():
    net = parts(body=mlp_of(8, 16), policy=nn.Linear(16, 3), value=nn.Linear(16, 1))

    def loss(state, action, reward):
        h = net.body(state).tanh()
        choice, value = torch.distributions.Categorical(logits=net.policy(h), validate_args=False), net.value(h)[:, 0]
        advantage = (reward - value).detach()
        return F.mse_loss(value, reward) - (choice.log_prob(action) * advantage + 0.01 * choice.entropy()).mean()

    return net, loss


@network(ROWS, normal(4, 2), normal(4), normal(4), optimizer=FUSED_ADAM)
def ppo():
    net = parts(mean=mlp_of(8, 16, 2, activation=nn.Tanh), spread=nn.Parameter(torch.zeros(2)))

    def loss(state, action, old, advantage):
        policy = torch.distributions.Normal(net.mean(state), net.spread.exp(), validate_args=False)
        ratio = (policy.log_prob(action).sum(1) - old).clamp(-3, 3).exp()
        return (
            -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean() - 0.01 * policy.entropy().mean()
        )

    return net, loss


@network(ROWS, normal(4, 2), normal(4), ROWS, optimizer=FUSED_ADAM)
def sac():
    def q():
        return mlp_of(10, 16, 1)

    net = parts(policy=mlp_of(8, 16, 4), a=q(), b=q(), a_target=q(), b_target=q(), heat=nn.Parameter(torch.zeros(())))

    def act(state):
        mean, spread = net.policy(state).chunk(2, 1)
        policy = torch.distributions.Normal(mean, F.softplus(spread) + 0.01, validate_args=False)
        action = (raw := policy.rsample()).tanh()
        return action, (policy.log_prob(raw) - (1 - action.square() + 1e-6).log()).sum(1, keepdim=True)

    def critics(state, action, reward, after):
        with torch.no_grad():
            for mine, theirs in ((net.a_target, net.a), (net.b_target, net.b)):
                for x, y in zip(mine.parameters(), theirs.parameters(), strict=True):
                    blend(x, y, 0.01)
            next_action, chance = act(after)
            pair = torch.cat([after, next_action], 1)
            goal = reward[:, None] + 0.9 * (
                torch.minimum(net.a_target(pair), net.b_target(pair)) - net.heat.exp() * chance
            )
        pair = torch.cat([state, action], 1)
        return F.mse_loss(net.a(pair), goal) + F.mse_loss(net.b(pair), goal)

    def actor(state, *_):
        action, chance = act(state)
        pair = torch.cat([state, action], 1)
        return (net.heat.exp().detach() * chance - torch.minimum(net.a(pair), net.b(pair))).mean()

    def heat(state, *_):
        return -(net.heat * (act(state)[1] - 2).detach()).mean()

    return net, (nn.ModuleList([net.a, net.b]), critics), (net.policy, actor), (parts(heat=net.heat), heat)


@network(ROWS, normal(4, 2), normal(4), ROWS)
def ddpg():
    net = parts(actor=mlp_of(8, 16, 2), critic=mlp_of(10, 16, 1))

    def q(state, action):
        return net.critic(torch.cat([state, action], 1))[:, 0]

    def learn(s, a, r, n):
        return F.mse_loss(q(s, a), r + 0.9 * q(n, net.actor(n).tanh()).detach())

    return net, (net.critic, learn), (net.actor, lambda s, a, r, n: -q(s, net.actor(s).tanh()).mean())


@network(normal(4, 6, 8), normal(4, 6))
def world_model():
    net = parts(next=nn.GRU(8, 12, batch_first=True), observe=nn.Linear(12, 8), reward=nn.Linear(12, 1))

    def loss(x, reward):
        h, _ = net.next(x[:, :-1])
        return F.mse_loss(net.observe(h), x[:, 1:]) + F.mse_loss(net.reward(h)[..., 0], reward[:, 1:])

    return net, loss


# --- functions of coordinates, and other shapes -----------------------------------------------------------------------


@network(normal(16, 2), normal(16, 3), optimizer=ADAM)
def siren():
    net = nn.ModuleList([nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 3)])
    return net, lambda x, y: F.mse_loss(net[2](torch.sin(3 * net[1](torch.sin(3 * net[0](x))))), y)


@network(normal(16, 2), normal(16, 3))
def fourier_features():
    net, frequencies = mlp_of(16, 16, 3), 2 * math.pi * torch.randn(2, 8)
    return net, lambda x, y: F.mse_loss(net(torch.cat([(x @ frequencies).sin(), (x @ frequencies).cos()], 1)), y)


@network(normal(4, 6, 3), normal(4, 3))
def radiance_field():
    net = mlp_of(3, 16, 4, activation=nn.Softplus)

    def loss(points, colour):
        out = net(points)
        alpha = 1 - (-F.softplus(out[..., 3]) * 0.2).exp()
        through = (1 - alpha + 1e-6).log().cumsum(1).exp()
        return F.mse_loss(((alpha * through)[..., None] * out[..., :3].sigmoid()).sum(1), colour)

    return net, loss


@network(normal(16, 2))
def physics_informed_network():
    net = mlp_of(2, 16, 1, activation=nn.Tanh)

    def loss(x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (curve,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        return (slope[:, 1] - curve[:, 0]).square().mean()

    return net, loss


@network(ROWS, LABELS)
def kolmogorov_arnold_network():
    net, knots = parts(spline=weights(5, 8, 6), base=nn.Linear(8, 5)), torch.linspace(-2, 2, 6)
    return net, lambda x, y: classify(
        torch.einsum("bik,oik->bo", (1 - (x[..., None] - knots).abs()).relu(), net.spline) + net.base(F.silu(x)),
        y,
    )


@network(ROWS, LABELS)
def highway():
    net = parts(body=nn.Linear(8, 8), gate=nn.Linear(8, 8), head=nn.Linear(8, 5))
    return net, lambda x, y: classify(
        net.head(torch.lerp(x, net.body(x).relu().float(), net.gate(x).sigmoid().float())), y
    )


@network(normal(4, 6, 8), LABELS)
def capsules_with_routing():
    net = parts(votes=weights(6, 5, 8, 4))

    def squash(s):
        return s * (n := s.norm(dim=-1, keepdim=True)) / (1 + n.square())

    def loss(x, y):
        votes, routes = torch.einsum("bid,icde->bice", x, net.votes), torch.zeros(4, 6, 5, device=DEVICE)
        for _ in range(3):
            out = squash((routes.softmax(2)[..., None] * votes).sum(1))
            routes = routes + (votes * out[:, None]).sum(-1).detach()
        return classify(out.norm(dim=-1), y)

    return net, loss


@network(ROWS, LABELS)
def maxout_and_gated_units():
    net = parts(a=nn.Linear(8, 24), b=nn.Linear(12, 10), head=nn.Linear(5, 5))
    return net, lambda x, y: classify(net.head(F.glu(net.b(net.a(x).view(4, 12, 2).amax(2)))), y)


@network(ROWS, LABELS)
def neural_ordinary_differential_equation():
    net = parts(field=mlp_of(8, 16, 8, activation=nn.Tanh), head=nn.Linear(8, 5))

    def loss(x, y):
        for _ in range(3):
            k = net.field(x)
            x = x + 0.1 * net.field(x + 0.05 * k)
        return classify(net.head(x), y)

    return net, loss


@network(ROWS, LABELS)
def deep_equilibrium_by_fixed_point():
    net = parts(a=nn.Linear(8, 8), b=nn.Linear(8, 8), head=nn.Linear(8, 5))

    def loss(x, y):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(5):
                z = (0.5 * net.a(z) + net.b(x)).tanh()
        return classify(net.head((0.5 * net.a(z) + net.b(x)).tanh()), y)

    return net, loss


@network(ROWS, normal(4))
def gaussian_process_with_a_deep_kernel():
    net = parts(body=mlp_of(8, 16, 2), noise=nn.Parameter(torch.zeros(())))

    def loss(x, y):
        h = net.body(x).float()
        kernel = (-(h[:, None] - h).square().sum(-1)).exp() + (F.softplus(net.noise) + 0.1) * torch.eye(
            4, device=DEVICE
        )
        factor = torch.linalg.cholesky_ex(kernel).L
        return (
            torch.linalg.solve_triangular(factor, y[:, None], upper=False).square().sum()
            + 2 * factor.diagonal().log().sum()
        )

    return net, loss


@network(ROWS, LABELS)
def hypernetwork():
    net = parts(make=nn.Linear(3, 40), code=weights(1, 3))
    return net, lambda x, y: classify(F.linear(x, net.make(net.code).view(5, 8)), y)


@network(ROWS, LABELS)
def bayes_by_backprop():
    net = parts(mean=weights(5, 8), spread=nn.Parameter(torch.full((5, 8), -3.0)))

    def sample():
        return net.mean + F.softplus(net.spread) * torch.randn_like(net.mean)

    return (
        net,
        lambda x, y: (
            classify(F.linear(x, sample()), y) + 0.01 * (net.mean.square() - F.softplus(net.spread).log()).mean()
        ),
    )


@network(normal(2, 3, 8, 8), whole(5, 2))
def checkpointed_convolutions():
    net = parts(body=nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()), head=nn.Linear(8, 5))
    return net, lambda x, y: classify(net.head(pooled(checkpoint(net.body, x, use_reentrant=False))), y)


@network(ROWS, LABELS)
def checkpointed_dropout():
    net = nn.Sequential(mlp_of(8, 16), nn.Dropout(), mlp_of(16, 5))
    return net, lambda x, y: classify(checkpoint(net, x, use_reentrant=False), y)


@network(ROWS, LABELS)
def reentrant_checkpointed_dropout():
    net = nn.Sequential(mlp_of(8, 16), nn.Dropout(), mlp_of(16, 5))
    return net, lambda x, y: classify(checkpoint(net, x.clone().requires_grad_(), use_reentrant=True), y)


# --- the test -----------------------------------------------------------------------------------------------------


class Trainer:
    """A network with its optimizers, warmed up on a side stream and restored in place."""

    def __init__(self, name: str, mode: str) -> None:
        torch.manual_seed(0)
        make, inputs, optimizer = NETWORKS[name]
        net, *phases = make()
        self.net, self.mode, self.make_inputs = net, mode, inputs
        self.phases = [(net, phase) if callable(phase) else phase for phase in phases]
        learnable = [[p for p in module.parameters() if p.requires_grad] for module, _ in self.phases]
        self.optimizers = [optimizer(parameters) for parameters in learnable]
        self.static = self.inputs(0)
        before = [x.clone() for x in self.weights()]
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(2):
                self.step()
        cuda.current_stream().wait_stream(stream)
        with torch.no_grad():
            for x, value in zip(self.weights(), before, strict=True):
                x.copy_(value)
            for x in self.optimizer_state():
                x.zero_()

    def inputs(self, i: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(i)
        return [make(generator) for make in self.make_inputs]

    def weights(self) -> list[Tensor]:
        return [*self.net.parameters(), *self.net.buffers()]

    def optimizer_state(self) -> list[Tensor]:
        states = [state for optimizer in self.optimizers for state in optimizer.state.values()]
        return [x for state in states for x in state.values() if isinstance(x, Tensor)]

    def step(self) -> list[Tensor]:
        losses = []
        for optimizer, (_, loss_of) in zip(self.optimizers, self.phases, strict=True):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.mode == "autocast", cache_enabled=False):
                loss = loss_of(*self.static)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    def run(self, step: Callable[[], None], losses: list[Tensor] | None = None) -> list[list[Tensor]]:
        """Train three steps on fresh inputs; return everything that a step changes, after each."""
        torch.manual_seed(1)
        history = []
        for i in range(1, 4):
            for target, source in zip(self.static, self.inputs(i), strict=True):
                target.copy_(source)
            result = step()
            state = [*(losses or result), *self.weights(), *self.optimizer_state()]
            history.append([x.detach().clone() for x in state])
        return history


def marks_of(name: str) -> list:
    return [pytest.mark.xfail(strict=True, reason=FAILS[name])] if name in FAILS else []


@pytest.mark.parametrize("mode", ["float32", "autocast"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in NETWORKS])
def test_three_steps_by_replay_are_bitwise_those_of_eager(name: str, mode: str) -> None:
    try:
        eager, graphed, graph = Trainer(name, mode), Trainer(name, mode), cuda.CUDAGraph()
        with cuda.graph(graph):
            losses = graphed.step()
        expected, by_replay = eager.run(eager.step), graphed.run(graph.replay, losses)
    finally:
        cuda.set_stream(cuda.default_stream())
    for i, (theirs, ours) in enumerate(zip(expected, by_replay, strict=True), 1):
        assert len(theirs) == len(ours) and all(map(torch.equal, theirs, ours)), f"differs after step {i}"
    assert all(x.isfinite().all() for x in expected[-1])
    assert any(not torch.equal(a, b) for a, b in zip(expected[0], expected[-1], strict=True))  # it learned something


def test_there_are_at_least_sixty_networks() -> None:
    assert len(NETWORKS) >= 60, len(NETWORKS)
