"""Run an ensemble of bidirectional LSTMs with fork and wait, and without, on the CPU.

TorchScript is deprecated, and ends at Python 3.13.
"""

import argparse
import os
import statistics
import time
import warnings

import torch
from torch import Tensor, nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--intra", type=int, default=1, help="threads within an operation")
parser.add_argument("--inter", type=int, default=os.cpu_count(), help="tasks at once")
parser.add_argument("--models", type=int, default=4)
parser.add_argument("--size", type=int, default=256, help="the input is [50, 16, size]")
args = parser.parse_args()
torch.set_num_threads(args.intra)
torch.set_num_interop_threads(args.inter)  # once a process, before the first fork
warnings.filterwarnings("ignore", message=r".*torch\.jit\.\w+` is deprecated")


class BidirectionalLSTM(nn.Module):
    """[T, B, size] to [T, B, 2 * size]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(size, size)
        self.backward_lstm = nn.LSTM(size, size)

    def run_forward(self, x: Tensor) -> Tensor:
        return self.forward_lstm(x)[0]

    def run_backward(self, x: Tensor) -> Tensor:
        return self.backward_lstm(x.flip(0))[0].flip(0)

    def forward(self, x: Tensor) -> Tensor:
        future = torch.jit.fork(self.run_forward, x)  # starts a task, returns at once
        backward = self.run_backward(x)
        return torch.cat([torch.jit.wait(future), backward], dim=2)


class Ensemble(nn.Module):
    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        # Fork every model, then wait: a wait in the same loop would serialize them.
        futures = [torch.jit.fork(model, x) for model in self.models]
        return torch.stack([torch.jit.wait(future) for future in futures]).sum(dim=0)


def median_ms(function, x: Tensor) -> float:
    times = []
    for _ in range(13):
        start = time.perf_counter()
        function(x)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[2:])  # two calls warm up


torch.manual_seed(1)
ensemble = Ensemble([BidirectionalLSTM(args.size) for _ in range(args.models)]).eval()
scripted = torch.jit.script(ensemble)  # in Python itself, a fork runs its task at once
x = torch.randn(50, 16, args.size)
with torch.no_grad():
    print("bitwise equal:", torch.equal(scripted(x), ensemble(x)))
    print(f"one after another: {median_ms(ensemble, x):.1f} ms")
    print(f"forked:            {median_ms(scripted, x):.1f} ms", flush=True)
os._exit(0)  # the pool's threads may abort a process that ends in the usual way
