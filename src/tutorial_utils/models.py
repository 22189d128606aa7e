"""The networks of the course: the digit classifier of part I, the LSTM ensembles of part II."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MnistNet(nn.Module):
    """The digit classifier of the LibTorch MNIST example, in Python.

    Two 5x5 convolutions (1 to 10 to 20 channels), each followed by max-pooling and ReLU, the second with channel
    dropout before its pooling; then 320 to 50 to 10 linear, with ReLU and dropout between. 21,840 parameters, PyTorch's
    default initialisation, dropout probability 0.5 at both places. Train it with :func:`torch.nn.functional.nll_loss`.

    Source: ``cpp/mnist/mnist.cpp`` of https://github.com/pytorch/examples, which the tutorial "Using CUDA Graphs in
    PyTorch C++ API" turned into a captured graph. The operations and their order are the source's. Its
    ``FeatureDropout`` is called :class:`torch.nn.Dropout2d` today.

    Input: float32 ``[N, 1, 28, 28]``. Output: float32 ``[N, 10]``, logarithms of the class probabilities.
    An input of another height or width raises PyTorch's ``RuntimeError`` in a convolution or in ``view``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(F.max_pool2d(self.conv1(x), 2))
        x = torch.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = x.view(-1, 320)
        x = torch.relu(self.fc1(x))
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


class BidirectionalLSTM(nn.Module):
    """Two LSTMs, one reading the sequence forwards and one backwards, their outputs side by side.

    With the weights of its directions it computes what ``nn.LSTM(size, size, bidirectional=True)`` computes.

    Args:
        size: the number of features of the input, and of each direction's hidden state.

    Shape: float32 ``[T, B, size]`` (time, batch, features) to float32 ``[T, B, 2 * size]``.

    Source: the network of the former PyTorch tutorial on dynamic parallelism in TorchScript.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(size, size)
        self.backward_lstm = nn.LSTM(size, size)

    def run_forward(self, x: Tensor) -> Tensor:
        output, _ = self.forward_lstm(x)
        return output

    def run_backward(self, x: Tensor) -> Tensor:
        output, _ = self.backward_lstm(torch.flip(x, dims=[0]))
        return torch.flip(output, dims=[0])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.run_forward(x), self.run_backward(x)], dim=2)


class ForkedBidirectionalLSTM(BidirectionalLSTM):
    """:class:`BidirectionalLSTM`, its forward direction forked and its backward one run by the caller meanwhile."""

    def forward(self, x: Tensor) -> Tensor:
        future = torch.jit.fork(self.run_forward, x)
        backwards = self.run_backward(x)
        return torch.cat([torch.jit.wait(future), backwards], dim=2)


class LSTMEnsemble(nn.Module):
    """The sum of several bidirectional LSTMs' outputs, computed one model after another.

    Args:
        models: one or more modules from ``[T, B, size]`` to ``[T, B, 2 * size]``.

    Shape: float32 ``[T, B, size]`` to float32 ``[T, B, 2 * size]``.
    """

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([model(x) for model in self.models]).sum(dim=0)


class ForkedLSTMEnsemble(LSTMEnsemble):
    """:class:`LSTMEnsemble`, one forked task per model."""

    def forward(self, x: Tensor) -> Tensor:
        futures = [torch.jit.fork(model, x) for model in self.models]
        return torch.stack([torch.jit.wait(future) for future in futures]).sum(dim=0)
