"""Train on MNIST: torch.compile fuses the operations, a CUDA graph launches them."""

import argparse
import copy
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.datasets import MNIST

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", default="data", help="MNIST's folder, else a download")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--tf32", action="store_true", help="faster matrix products")
args = parser.parse_args()
if not torch.cuda.is_available():
    sys.exit("A CUDA graph needs a GPU, and torch.cuda.is_available() is False.")
device = torch.device("cuda")
torch.manual_seed(1)
torch.set_float32_matmul_precision("high" if args.tf32 else "highest")

train, test = (MNIST(args.data, train=part, download=True) for part in (True, False))
images = [(mnist.data[:, None] / 255 - 0.1307) / 0.3081 for mnist in (train, test)]
train_images, test_images = images[0].to(device), images[1].to(device)
train_targets, test_targets = train.targets.to(device), test.targets.to(device)
net = nn.Sequential(
    nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
    nn.Conv2d(10, 20, 5), nn.Dropout2d(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
    nn.Linear(320, 50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5)

static_images = train_images[: args.batch].clone()
static_targets = train_targets[: args.batch].clone()
compiled_net = torch.compile(net)  # in the default mode, which makes no graphs itself
compiled_update = torch.compile(optimizer.step)


def training_step():
    loss = F.cross_entropy(compiled_net(static_images), static_targets)
    loss.backward()
    compiled_update()
    return loss.detach()


# 1. Warm up on a side stream: compilation happens here, since it cannot in a capture.
weights, generator = copy.deepcopy(net.state_dict()), torch.cuda.get_rng_state()
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        optimizer.zero_grad()
        training_step()
torch.cuda.current_stream().wait_stream(stream)

# 2. Capture one step of the compiled code.
optimizer.zero_grad()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    static_loss = training_step()
# 3. Undo the warm-up in place.
net.load_state_dict(weights)
for state in optimizer.state.values():
    for tensor in filter(torch.is_tensor, state.values()):
        tensor.zero_()
torch.cuda.set_rng_state(generator)

# 4. Train: fill the buffers, replay.
start, full = time.perf_counter(), len(train_images) // args.batch * args.batch
for epoch in range(args.epochs):
    for first in range(0, full, args.batch):
        static_images.copy_(train_images[first : first + args.batch])
        static_targets.copy_(train_targets[first : first + args.batch])
        graph.replay()
    loss = static_loss.item()  # waits for the GPU, once an epoch
    print(f"epoch {epoch + 1}: loss {loss:.4f}, {time.perf_counter() - start:.2f} s")

with torch.no_grad():
    right = net.eval()(test_images).argmax(1) == test_targets
print(f"accuracy on {len(right):,} test images: {right.float().mean().item():.4f}")
