"""The network is the source's, layer by layer."""

import pytest
import torch
import torch.nn.functional as F

from tutorial_utils.models import MnistNet


@pytest.fixture
def net() -> MnistNet:
    torch.manual_seed(0)
    return MnistNet()


def test_parameters_are_those_of_the_libtorch_example(net):
    shapes = {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    assert shapes == {
        "conv1.weight": (10, 1, 5, 5),
        "conv1.bias": (10,),
        "conv2.weight": (20, 10, 5, 5),
        "conv2.bias": (20,),
        "fc1.weight": (50, 320),
        "fc1.bias": (50,),
        "fc2.weight": (10, 50),
        "fc2.bias": (10,),
    }
    assert sum(parameter.numel() for parameter in net.parameters()) == 21_840
    assert net.conv2_drop.p == 0.5


def test_evaluation_is_the_formula_of_the_source(net):
    net.eval()
    x = torch.randn(5, 1, 28, 28)
    hidden = F.conv2d(x, net.conv1.weight, net.conv1.bias)
    hidden = F.max_pool2d(hidden, 2).clamp(min=0)
    hidden = F.conv2d(hidden, net.conv2.weight, net.conv2.bias)
    hidden = F.max_pool2d(hidden, 2).clamp(min=0).reshape(5, 320)
    hidden = (hidden @ net.fc1.weight.T + net.fc1.bias).clamp(min=0)
    expected = (hidden @ net.fc2.weight.T + net.fc2.bias).log_softmax(1)
    output = net(x)
    assert output.shape == (5, 10) and output.dtype == torch.float32
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(output.exp().sum(1), torch.ones(5))
    assert torch.equal(output, net(x)), "evaluation must not depend on the generator"


def test_training_drops_whole_channels_before_the_second_pooling(net):
    net.train()
    seen = {}
    net.conv2_drop.register_forward_hook(lambda module, inputs, output: seen.update(x=inputs[0], y=output))
    net(torch.randn(32, 1, 28, 28))
    assert seen["x"].shape == (32, 20, 8, 8), "dropout stands between the convolution and the pooling"
    dropped = (seen["y"] == 0).flatten(2)
    assert torch.equal(dropped.all(2), dropped.any(2)), "a channel is dropped as a whole or not at all"
    assert 0.3 < dropped.all(2).float().mean() < 0.7
    kept = seen["y"] != 0
    torch.testing.assert_close(seen["y"][kept], 2 * seen["x"][kept])


def test_training_drops_half_of_the_hidden_layer(net, monkeypatch):
    calls = []
    dropout = F.dropout
    monkeypatch.setattr(
        F, "dropout", lambda x, p, training: calls.append((x.shape, p, training)) or dropout(x, p, training)
    )
    net.train()(torch.randn(3, 1, 28, 28))
    net.eval()(torch.randn(3, 1, 28, 28))
    assert calls == [((3, 50), 0.5, True), ((3, 50), 0.5, False)]


def test_every_parameter_gets_a_gradient(net):
    loss = F.nll_loss(net(torch.randn(64, 1, 28, 28)), torch.arange(64) % 10)
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.parameters())


def test_another_image_size_is_refused(net):
    with pytest.raises(RuntimeError, match="shape"):
        net(torch.randn(3, 1, 32, 32))
