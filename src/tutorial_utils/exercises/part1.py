"""The checks of the first part, in the order of the notebooks.

An answer that captures gets the stand-in and tensors on the CPU, also where there is a GPU: a failed capture can spoil
a GPU's process. Where an answer has to write in place, the check looks at an alias of the memory that a graph would
read, made before: neither a new tensor nor an exchanged `.data` reaches it.
"""

import copy
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_utils import cuda_stand_in
from tutorial_utils.checks import call, check, equal, letters, require, result
from tutorial_utils.models import MnistNet


class _HostReads(torch.overrides.TorchFunctionMode):
    """Counts how often the host reads a tensor, or copies one and reads the copy. On a GPU each of these waits."""

    NAMES = ("item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__format__", "__repr__")
    reads = copies = count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads += function.__name__ in self.NAMES
        self.reads += len(args[0]) if function is torch.tensor and isinstance(args[0], list) else 0
        self.copies += function.__name__ == "cpu"
        self.count = max(self.reads, self.copies)
        return function(*args, **(kwargs or {}))


def _captured(names: str, answer: Any, *arguments: Any) -> tuple[Any, ...]:
    """Return what an answer captures on the stand-in: the tuple ``names``, which begins with a graph."""
    hint = f"Capture operations on tensors, then `return {names}`."
    with cuda_stand_in.stream(cuda_stand_in.default_stream()):  # a refused capture leaves another
        returned = result(answer, cuda_stand_in, *arguments, hint=hint)
    right = type(returned) in (tuple, list) and len(returned) == names.count(",") + 1 and hasattr(returned[0], "replay")
    require(right, f"it does not return `{names}`.", f"End with `return {names}`; `graph` is a `cuda.CUDAGraph()`.")
    return returned


@check("00.1", "One recording, and as many inputs as you like.")
def check_00_1(replay_for: Callable[..., list[float]]) -> None:
    """The check's graph is not `doubling`, so that the results must come from replays."""
    x, y = torch.zeros(()), torch.zeros(())
    graph = SimpleNamespace(replay=lambda: y.copy_(x * x + 1))
    hint = "In the loop: write into `x` in place, replay, then append `y.item()`. `x = ...` only moves the name."
    equal(result(replay_for, graph, x, y, [1.0, 2.0, 3.0]), [2.0, 5.0, 10.0], "with the check's graph, the list", hint)


@check("01.1", "The gain is large where the host is the limit, and 1 where the kernels are.")
def check_01_1(largest_gain: Callable[[float, float], float]) -> None:
    """The gain is max(host, kernel) / kernel."""
    hint = "Before, the step takes the larger of the two times. Afterwards, it takes the kernels' time."
    for host_us, kernel_us, gain in ((2000, 200, 10.0), (250, 100, 2.5), (100, 400, 1.0)):
        equal(result(largest_gain, host_us, kernel_us), gain, f"largest_gain({host_us}, {kernel_us})", hint, 1e-6)


@check("01.2", "The same mean, the host waits once, and no autograd graph outlives its step.")
def check_01_2(mean_loss: Callable[[Callable[[], Tensor], int], float]) -> None:
    """One read in all, and at most one step's autograd graph (a loop variable's) alive when the next step begins."""
    losses, alive, kept = iter([3.0, 2.0, 1.0, 0.5]), weakref.WeakSet(), []

    def step() -> Tensor:
        kept.append(len(alive))
        loss = torch.tensor(next(losses), requires_grad=True) * 1
        loss.backward(retain_graph=True)  # fails under no_grad, as a training step does
        alive.add(loss.grad_fn.metadata.setdefault("lives as long as its graph", nn.Module()))
        return loss

    with _HostReads() as reads:
        mean = result(mean_loss, step, 4)
    equal(mean, 1.625, "the mean of 3, 2, 1 and 0.5", "Add up the losses, and divide by `steps`.", 1e-6)
    require(reads.count == 1, f"the host read {reads.count} times in 4 steps.", "Call `.item()` once, after the loop.")
    require(max(kept) < 2, f"{max(kept)} steps' autograd graphs were kept to the end.", "Add `step().detach()`.")


@check("02.1", "Whole batches are copied; all others are refused with both buffers untouched.")
def check_02_1(refill_both: Callable[..., Any]) -> None:
    """Other shapes and dtypes are refused with ValueError, before a buffer changes."""
    full = torch.ones(4, 1, 2, 2), torch.tensor([3, 1, 2, 4])
    memory = [torch.zeros_like(part) for part in full]
    call(refill_both, *map(torch.detach, memory), *copy.deepcopy(full))
    hint = "`copy_` writes into a buffer. `=` moves a name, and assigning to `.data` exchanges the memory."
    require(all(map(torch.equal, memory, full)), "a full batch is not at the addresses of both buffers.", hint)
    images, targets = full[0] + 1, full[1] + 1
    refused = {"a short batch": (images[:3], targets[:3]), "a batch of one": (images[:1], targets[:1])}
    refused |= {"a single target": (images, targets[:1]), "images of one row": (images[:, :, :1], targets)}
    refused |= {"a batch with float targets": (images, targets + 0.9), "a float64 batch": (images.double(), targets)}
    for what, batch in refused.items():
        try:
            raised = refill_both(*map(torch.detach, memory), *batch)
        except Exception as error:
            raised = error
        hint = "`copy_` repeats a single row, and cuts 2.9 to 2: compare shapes and dtypes, and raise ValueError."
        require(isinstance(raised, ValueError), f"{what} does not raise ValueError.", hint)
        require(all(map(torch.equal, memory, full)), f"{what}: refused too late.", "Compare all, then copy.")


@check("02.2", "Three updates, the right value each time, the same address, and no autograd graph.")
def check_02_2(update: Callable[[Tensor, Tensor], Any]) -> None:
    """The loss has an autograd graph, as that of a training step has; the mean may not hold on to it."""
    mean, loss, expected = torch.tensor(2.0), torch.tensor(1.0, requires_grad=True) * 1, 2.0
    memory = mean.detach()
    hint = "`mean = ...` and `mean.data = ...` go elsewhere. `mul_`, `add_`, `copy_` and `mean += ...` write in place."
    for _ in range(3):
        with _HostReads() as reads:
            call(update, mean, loss)
        expected = 0.9 * expected + 0.1
        equal(memory, expected, "the number at the address of `mean`", hint, 1e-5)
        require(not mean.requires_grad, "`mean` keeps the autograd graph of every step.", "Use `loss.detach()`.")
        require(not reads.count, "the host read a value, which no captured step may.", "Compute with the tensors.")


@check("02.3", "Both lines write in place now, so that every replay sees its batch and its scale.")
def check_02_3(run: Callable[..., list[Tensor]]) -> None:
    """Two batches, so that a name that has moved misses the second one."""
    x, scale, y = torch.zeros(3), torch.tensor(8.0), torch.zeros(3)
    memory = x.detach(), scale.detach()
    graph = SimpleNamespace(replay=lambda: y.copy_(memory[0] * memory[1]))
    kept = result(run, graph, x, scale, y, [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, 6.0])])
    require(type(kept) is list and len(kept) == 2, "it does not return a list with a result for each batch.", "")
    hint = "Two lines move a name away from the memory that the graph reads. Which? Write in place there."
    equal(kept[0], torch.tensor([-4.0, 0.0, 4.0]), "`y` after the first batch", hint)
    equal(kept[1], torch.tensor([-4.0, -4.0, 8.0]), "`y` after the second batch", hint)


@check("03.1", "Net and optimizer go on as if nothing had been run, and no tensor has moved.")
def check_03_1(warm_up: Callable[[nn.Module, torch.optim.Optimizer, Callable[[], Any]], Any]) -> None:
    """Weights, running statistics and the state of a trained SGD and Adam lie where they lay, as they were."""
    for make, options in ((torch.optim.SGD, {"momentum": 0.5}), (torch.optim.Adam, {})):
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        optimizer, steps = make(net.parameters(), lr=0.1, **options), []

        def step(net: nn.Module = net, optimizer: Any = optimizer, steps: list = steps) -> None:
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().sum().backward()
            optimizer.step()
            steps.append(None)

        step()
        memory = dict(net.state_dict())  # aliases
        for name, parameter in net.named_parameters():
            memory |= {f"{key} of {name}": value.detach() for key, value in optimizer.state[parameter].items()}
        before = copy.deepcopy(memory)
        call(warm_up, net, optimizer, step)
        require(
            len(steps) == 4, f"it calls `step()` {len(steps) - 1} times, not 3.", "Save, call it three times, restore."
        )
        hint = "Save a clone of every tensor, and `copy_` it back: also those in `optimizer.state`, also Adam's `step`."
        for name, value in memory.items():
            what = f"with {make.__name__}, `{name}` is not restored at its address."
            require(torch.equal(value, before[name]), what, hint)


@check("03.2", "The step `start` creates the mean; only a capture after it records the branch that updates.")
def check_03_2(warm_ups_needed: Callable[[int], int]) -> None:
    """The mean is created in step `start`, and the momentum in the first."""
    hint = "Which branch does a capture after that many steps record? What does its replay do? Would fewer steps do?"
    for start in (3, 1, 10):
        equal(result(warm_ups_needed, start), start, f"warm_ups_needed({start})", hint)


@check("03.3", "Each fence stands in the stream that has to wait, or the host itself waits.")
def check_03_3(races: set[str]) -> None:
    """The programs in which a stream does not wait for the other one."""
    letters(races, "bce", "For each line: which stream waits, and for which? Which one is current in a `with` block?")


@check("04.1", "Operations on tensors are replayed. Counters, branches and lists were Python's, once.")
def check_04_1(at_each_replay: set[str]) -> None:
    """The lines that are operations on the device."""
    letters(at_each_replay, "bcf", "A replay runs the recorded operations, and no Python: no number, branch or list.")


@check("04.2", "Both factors are read from their addresses at each replay, so that they can change in place.")
def check_04_2(capture_scaling: Callable[[Any, Tensor], Any]) -> None:
    """The factor is not baked in, and `static_x` is read itself, not a copy of it."""
    static_x = torch.arange(1.0, 6.0)
    graph, factor, scaled = _captured("graph, factor, scaled", capture_scaling, static_x)
    equal(factor, torch.tensor(1.0), "`factor`", "Make it first, as `torch.ones((), device=static_x.device)`.")
    hints = "Make `factor` first, and multiply by it: a number is baked in.", "Multiply `static_x` itself."
    for what, hint in zip(("`factor`", "`static_x`"), hints, strict=True):
        factor.detach().fill_(7.0)
        call(graph.replay)
        equal(scaled, static_x * 7, f"the result after a change of {what}", hint)
        static_x.mul_(2)


@check("04.3", "The device chooses, so one recording serves every batch.")
def check_04_3(training_step: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Loss, count and weights of eager steps, from one capture: with some, no and only images of a loss above 2."""
    hint = "Where no image is hard, all count. A mean is a sum divided by how many there are."
    eye, targets = torch.eye(3), torch.tensor([0, 1, 2, 0])
    images = torch.zeros(4, 3)

    def trainer() -> tuple[nn.Module, torch.optim.Optimizer]:
        net = nn.Linear(3, 3, bias=False)
        net.weight.data.copy_(5 * eye)  # a class's own image has a loss of 0.01, another one's has 5
        return net, torch.optim.SGD(net.parameters(), lr=0.01)

    def eager(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor]:
        output = net(images)
        losses = nn.functional.cross_entropy(output, targets, reduction="none")
        optimizer.zero_grad()
        loss = (losses[losses > 2] if bool((losses > 2).any()) else losses).mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), (output.argmax(1) == targets).sum()

    def capture(cuda: Any) -> tuple[Any, Any]:
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            return graph, training_step(net, optimizer, images, targets)

    capture.__name__ = getattr(training_step, "__name__", "answer")
    result(training_step, *trainer(), images, targets, hint=hint)
    (net, optimizer), same = trainer(), trainer()
    with cuda_stand_in.stream(cuda_stand_in.default_stream()):  # a refused capture leaves another
        graph, returned = call(capture, cuda_stand_in, hint="Python needs a value there. Let the device choose.")
    pair = isinstance(returned, (tuple, list)) and len(returned) == 2
    require(pair, "it does not return a loss and a count.", "End with `return loss.detach(), right`.")
    for name, classes in {"some": [0, 2, 2, 1], "no": [0, 1, 2, 0], "only": [1, 2, 0, 1]}.items():
        images.copy_(eye[classes])
        loss, right = eager(*same)
        graph.replay()
        equal(returned[0], loss, f"with {name} hard images, the loss", hint, 1e-5)
        equal(returned[1], right, f"with {name} hard images, the count", "Count all images, as before.")
        hint_weights = "Is `optimizer.step()` still there? `torch.where` computes both sides: neither may be 0 / 0."
        equal(net.weight, same[0].weight.detach(), f"with {name} hard images, the new weight", hint_weights, 1e-5)


@check("05.1", "Every result was copied before the next replay overwrote it, and the host waited for none.")
def check_05_1(replay_all: Callable[..., Tensor]) -> None:
    """The check's graph adds up its inputs, so that each result must come from a replay of its own, in order."""
    x, total, y = torch.zeros(3, 3).unbind()
    graph, inputs = SimpleNamespace(replay=lambda: y.copy_(total.add_(x) * 2)), torch.arange(15.0).view(5, 3)
    with _HostReads() as reads:
        results = result(replay_all, graph, x, y, list(inputs.clone()))
    hint = "Refill, replay, then clone: each replay overwrites the one result. `torch.stack` joins a list."
    equal(results, inputs.cumsum(dim=0) * 2, "what it returns", hint)
    require(not reads.count, "the results are right, but the host read a value.", "Keep `static_result.clone()`.")


@check("05.2", "It predicts without dropout, and follows the weights that training changes in place.")
def check_05_2(capture_predictions: Callable[[Any, nn.Module, Tensor], Any]) -> None:
    """The graph predicts as `net` does in evaluation mode, also after images and weights have changed in place."""
    torch.manual_seed(0)
    net, images, others = MnistNet(), *torch.randn(2, 64, 1, 28, 28).mul(3)
    graph, predictions = _captured("graph, static_predictions", capture_predictions, net, images)
    require(net.training, "`net` is in evaluation mode.", "Call `net.train()` after the capture.")
    hints = "`net.eval()` before the capture, `argmax` in it.", "Capture `net` and `static_images` themselves."
    for what, hint in zip(("what it predicts", "with new images and weights, what it predicts"), hints, strict=True):
        call(graph.replay)
        equal(predictions, copy.deepcopy(net).eval()(images).argmax(dim=1), what, hint)
        images.copy_(others)
        net.fc2.weight.data.neg_()


@check("06.1", "The scheduler writes into the tensor, and the graph reads it.")
def check_06_1(make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """A fused SGD reads the tensor on the device."""
    group = (getattr(result(make_optimizer, nn.Linear(4, 3)), "param_groups", None) or [{}])[0]
    equal(group.get("lr"), torch.tensor(0.01), "the learning rate", "Make `lr` a float32 tensor of 0.01, on `device`.")
    require(group.get("fused"), "only a fused SGD reads the tensor on the device.", "Add `fused=True`.")
    equal(group.get("momentum"), 0.5, "the momentum", "Keep SGD and its momentum.")


_REPAIRS = {  # of the first tensor that differs, by its kind
    "the loss": "Read `images` and `targets` themselves, and put the net back after the warm-up, in place.",
    "the buffer": "The warm-up moved BatchNorm's buffers: `net.load_state_dict(snapshot)` puts them back in place.",
    "the gradient": "Backward and `clip_grad_norm_`, with a norm of 0.1, belong in the capture.",
    "AdamW's": "Warm up, then set each tensor of `optimizer.state` to zero in place: `step`, `exp_avg`, `exp_avg_sq`.",
    "the parameter": "The update belongs in the capture. Apart from `lr` and `capturable`, keep AdamW's defaults.",
}


def _own_state(net: nn.Module, optimizer: torch.optim.Optimizer, loss: Any) -> dict[str, Any]:
    """What a step changes, in the order in which it does."""
    names = dict(net.named_parameters())
    found = {f"the buffer `{name}`": buffer for name, buffer in net.named_buffers()} | {"the loss": loss}
    found |= {f"the gradient of `{name}`": p.grad for name, p in names.items()}
    for name, p in names.items():
        found |= {f"AdamW's `{key}` of `{name}`": value for key, value in optimizer.state.get(p, {}).items()}
    return found | {f"the parameter `{name}`": p for name, p in names.items()}


@check("06.2", "In eight steps every tensor that a step changes is eager's: your graph trains your net.")
def check_06_2(capture_step: Callable[..., Any]) -> None:
    """Eager next to replay: a net with BatchNorm, AdamW, clipped gradients, and a schedule outside of the graph."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    batches = [(torch.randn(32, 8), torch.randint(4, (32,))) for _ in range(8)]
    twin, static = copy.deepcopy(net), [part.clone() for part in batches[0]]
    graph, optimizer, loss = _captured("graph, optimizer, loss", capture_step, net, *static)
    require(isinstance(optimizer, torch.optim.AdamW), "the second of what it returns is no AdamW.", "Keep AdamW.")
    group, hint = optimizer.param_groups[0], "Make `lr` a float32 tensor of 0.01 on `images.device`, not a number."
    equal(group["lr"], torch.tensor(0.01), "the learning rate", hint)
    how = {key: group[key] for key in ("foreach", "fused", "capturable")}
    eager = torch.optim.AdamW(twin.parameters(), lr=torch.tensor(0.01), **how)
    for step, batch in enumerate(batches, start=1):
        for memory, part in zip(static, batch, strict=True):
            memory.copy_(part)
        call(graph.replay)
        eager.zero_grad(set_to_none=True)
        expected_loss = nn.functional.cross_entropy(twin(batch[0]), batch[1])
        expected_loss.backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        eager.step()
        actual = _own_state(net, optimizer, loss)
        for name, expected in _own_state(twin, eager, expected_loss).items():
            same = isinstance(actual.get(name), Tensor) and torch.equal(actual[name], expected)
            require(same, f"at step {step}, {name} is not eager's.", _REPAIRS[next(k for k in _REPAIRS if k in name)])
        for rate in (eager.param_groups[0]["lr"], group["lr"]):
            rate.mul_(0.5)  # in place, as a scheduler does; one made after the capture would warn
