"""Training by replay is eager training: the same bits after every step, and the accuracy that the course promises."""

import copy
import os

import pytest
import torch
import torch.nn.functional as F

from tutorial_utils import batches, cuda, device, load_mnist
from tutorial_utils.models import MnistNet

BATCH_SIZE, TEST_BATCH_SIZE, EPOCHS = 64, 1000, 10


@pytest.fixture(autouse=True)
def _deterministic():
    """On a GPU, cuDNN may otherwise choose algorithms whose order of additions varies; on a CPU this does nothing."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


def make_model():
    torch.manual_seed(0)
    net = MnistNet().to(device)
    return net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5)


def training_step(net, optimizer, images, targets):
    optimizer.zero_grad(set_to_none=True)
    loss = F.nll_loss(net(images), targets)
    loss.backward()
    optimizer.step()
    return loss


def eager_training(data, epochs):
    """Yield the net and the loss after every step."""
    net, optimizer = make_model()
    torch.manual_seed(1)  # the dropout masks
    for _ in range(epochs):
        for images, targets in batches(data.train_images, data.train_labels, BATCH_SIZE):
            yield net, training_step(net, optimizer, images, targets)


def replayed_training(data, epochs):
    """Yield the net and the loss after every step; the loss is poisoned before each replay."""
    net, optimizer = make_model()
    images = torch.zeros(BATCH_SIZE, 1, 28, 28, device=device)
    targets = torch.zeros(BATCH_SIZE, dtype=torch.int64, device=device)

    snapshot = copy.deepcopy(net.state_dict())
    warmup_stream = cuda.Stream()
    warmup_stream.wait_stream(cuda.current_stream())
    with cuda.stream(warmup_stream):
        for _ in range(7):
            training_step(net, optimizer, images, targets)
    cuda.current_stream().wait_stream(warmup_stream)
    net.load_state_dict(snapshot)
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()

    optimizer.zero_grad(set_to_none=True)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = training_step(net, optimizer, images, targets).detach()

    torch.manual_seed(1)
    for _ in range(epochs):
        for batch in batches(data.train_images, data.train_labels, BATCH_SIZE):
            loss.fill_(float("nan"))
            images.copy_(batch[0])
            targets.copy_(batch[1])
            graph.replay()
            yield net, loss


@torch.no_grad()
def accuracy(net, data):
    """The share of right answers over the full test batches of 1,000."""
    net.eval()
    rows = list(batches(data.test_images, data.test_labels, TEST_BATCH_SIZE))
    right = sum((net(images).argmax(1) == labels).sum().item() for images, labels in rows)
    return right / (len(rows) * TEST_BATCH_SIZE)


@torch.no_grad()
def bits(net, loss):
    """Every parameter and the loss as one vector of 21,841 integers, so that 0.0 and -0.0 differ."""
    return torch.cat([p.flatten() for p in net.parameters()] + [loss.reshape(1)]).view(torch.int32)


@pytest.mark.slow
def test_every_parameter_after_every_step_of_ten_epochs_is_bitwise_that_of_eager_training():
    data = load_mnist().to(device)
    eager = [bits(net, loss) for net, loss in eager_training(data, EPOCHS)]
    assert len(eager) == 1280
    assert not torch.equal(eager[0], eager[-1])
    for step, (net, loss) in enumerate(replayed_training(data, EPOCHS)):
        assert loss.isfinite(), f"the replay of step {step + 1} left the loss unwritten"
        assert torch.equal(bits(net, loss), eager[step]), f"the runs part at step {step + 1}"
    assert step + 1 == len(eager)
    assert accuracy(net, data) >= 0.91


def test_the_comparison_sees_a_flipped_bit():
    net, _ = make_model()
    before = bits(net, torch.zeros((), device=device))
    with torch.no_grad():
        net.fc2.bias.view(torch.int32)[3] ^= 1
    assert (bits(net, torch.zeros((), device=device)) != before).sum() == 1
    assert not torch.equal(bits(net, torch.tensor(-0.0, device=device)), bits(net, torch.tensor(0.0, device=device)))


@pytest.mark.slow
@pytest.mark.full_data
@pytest.mark.skipif(not os.environ.get("MNIST_ROOT"), reason="set MNIST_ROOT to the folder of the full MNIST data")
def test_ten_epochs_of_the_full_data_by_replay_reach_the_accuracy_of_the_source():
    data = load_mnist("full").to(device)
    steps = 0
    for net, _ in replayed_training(data, EPOCHS):  # noqa: B007  the last one is asked below
        steps += 1
    assert steps == EPOCHS * 937
    assert accuracy(net, data) >= 0.980
