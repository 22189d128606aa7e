"""The checks that the notebooks' exercises call.

A check prints one line when the answer is right. Otherwise it raises :class:`NotYet`, whose message says what is wrong
and gives a hint. One section per notebook holds its ``check_NN_k`` functions, where ``NN`` is the notebook and ``k``
the exercise; what they are made of stands in :mod:`tutorial_utils.checking`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from tutorial_utils import cuda, device
from tutorial_utils.checking import (
    NotYet,  # noqa: F401  part of this module's interface
    _short,
    call,
    expect_callable,
    expect_equal,
    expect_filled,
    expect_letters,
    expect_raises,
    expect_result,
    expect_same_storage,
    expect_tensor,
    fail,
    passed,
)
from tutorial_utils.exercises_fork import (
    SCHEDULES,
    EagerRun,
    HeldPool,
    count,
    expect_instance,
    expect_one_lstm_per_task,
    expect_own_tasks,
    expect_work_in_tasks,
    instance,
    run_eagerly,
    scripted,
)
from tutorial_utils.models import BidirectionalLSTM, LSTMEnsemble
from tutorial_utils.timeline import Span, Timeline

# --- 02 · Static buffers --------------------------------------------------------------------------------------------


def check_02_1(refill_both: Callable[[Tensor, Tensor], Any], static_images: Tensor, static_targets: Tensor) -> None:
    """`refill_both` copies a full batch and refuses others with ValueError, leaving both buffers as they were."""
    expect_callable("02.1", "refill_both", refill_both)
    buffers = (static_images, static_targets)
    images, targets = torch.randn_like(static_images), torch.randint_like(static_targets, 10)
    refill_both(images, targets)
    expect_equal("02.1", "static_images", static_images, images, "Copy into the buffer; `=` would rebind a local name.")
    expect_equal(
        "02.1", "static_targets", static_targets, targets, "The targets belong to the images: refill them, too."
    )
    images, targets = images + 1, targets + 1  # others than the buffers hold, so that half a refill shows
    for batch in ((images[:10], targets[:10]), (images[:1], targets[:1]), (images, targets[:1]), (images[:1], targets)):
        before = [buffer.clone() for buffer in buffers]
        what = f"refill_both with {len(batch[0])} images and {len(batch[1])} targets"
        hint = "`copy_` repeats a batch of one without a message: compare the shapes and raise ValueError yourself."
        expect_raises("02.1", what, lambda batch=batch: refill_both(*batch), ValueError, hint=hint)
        if not all(map(torch.equal, buffers, before)):
            fail("02.1", f"`{what}` was refused, but a buffer had changed.", "Check both shapes before the first copy.")
    passed("02.1", "Whole batches are copied; all others are refused with both buffers untouched.")


def check_02_2(update: Callable[[Tensor, Tensor], Any]) -> None:
    """`update(mean, loss)` changes `mean` in place to 0.9 * mean + 0.1 * loss and leaves `loss` alone."""
    expect_callable("02.2", "update", update)
    mean, loss, expected = torch.tensor(2.0), torch.tensor(1.0), 2.0
    address = mean.data_ptr()
    for _ in range(3):
        update(mean, loss)
        expected = 0.9 * expected + 0.1
        hint = "`mean = ...` binds a local name; `mul_`, `add_`, `copy_` and `mean += ...` write into the tensor."
        expect_equal("02.2", "mean", mean.item(), expected, hint, tolerance=1e-5)
    expect_same_storage("02.2", "mean", mean, address)
    expect_equal("02.2", "loss", loss.item(), 1.0, "Only `mean` may change.")
    passed("02.2", "Three updates, the right value each time, and the same address.")


def check_02_3(seen: set[str]) -> None:
    """The letters of the lines that write into the captured tensor's memory."""
    hint = "Ask of every line: does it write into the memory that the graph knows, or put other memory behind the name?"
    expect_equal("02.3", "seen", seen, {"b", "d", "f"}, hint)
    passed("02.3", "These three write into the captured memory; a view shares it. The others leave it as it was.")


# --- 03 · Warm-up -------------------------------------------------------------------------------------------------


def check_03_1(restore: Callable[[torch.nn.Module, torch.optim.Optimizer, dict[str, Tensor]], Any]) -> None:
    """`restore` writes the snapshot into the net and zeros into the momentum, and moves no tensor."""
    expect_callable("03.1", "restore", restore)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    snapshot = {name: value.clone() for name, value in net.state_dict().items()}
    net(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    old = {name: value.detach() for name, value in net.state_dict().items()}
    momentum = [optimizer.state[p]["momentum_buffer"] for p in net.parameters()]
    restore(net, optimizer, {name: value.clone() for name, value in snapshot.items()})
    for name, value in net.state_dict().items():
        expect_equal("03.1", name, value, snapshot[name], "Restore all of `state_dict()`, parameters and buffers.")
        expect_same_storage("03.1", name, value, old[name], "`net.load_state_dict(snapshot)` copies, without `assign`.")
    for parameter, buffer in zip(net.parameters(), momentum, strict=True):
        if optimizer.state.get(parameter, {}).get("momentum_buffer") is not buffer:
            fail("03.1", "A momentum buffer is gone or was replaced.", "Write zeros into the buffer: `.zero_()`.")
        expect_equal("03.1", "momentum", buffer, torch.zeros_like(buffer), "Every entry of `optimizer.state` has one.")
    passed("03.1", "Weights, running statistics and momentum are restored, and nothing has moved.")


def check_03_2(warm_ups_needed: int) -> None:
    """The mean is created by the third step, so that the fourth is the first that a replay may repeat."""
    expect_filled("03.2", "warm_ups_needed", warm_ups_needed)
    hint = "Which branch of `update` would a capture after that many steps record, and what would a replay of it do?"
    expect_equal("03.2", "warm_ups_needed", warm_ups_needed, 3, hint)
    passed("03.2", "The third step creates the mean; only a capture after it records the branch that updates.")


# --- notebook 06 --------------------------------------------------------------------------------------------------


def check_06_1(found: Any) -> None:
    """`found` is what the proof says of a graph captured without a warm-up: a Difference at step 2."""
    hint = "Compare `first_eight` with `train_by_replay(8, warm_up=no_warm_up)`, and store all that the proof returns."
    if not hasattr(found, "step"):
        fail("06.1", f"`found` is {_short(found)}, not a difference between two runs.", hint)
    expect_equal("06.1", "found.step", found.step, 2, hint)
    passed("06.1", "The first step needs no momentum, so it is right; from the second on, the momentum is lost.")


def check_06_2(optimizer: torch.optim.Optimizer, repaired: Any) -> None:
    """The optimizer is a fused SGD whose learning rate is a tensor, and the proof found no difference."""
    expect_filled("06.2", "optimizer", optimizer)
    group = optimizer.param_groups[0]
    hint = "Write `lr=torch.tensor(0.01, device=device)`; a graph reads a tensor at every replay, a number only once."
    if not isinstance(group["lr"], Tensor):
        fail("06.2", "The learning rate is still a Python number.", hint)
    expect_equal("06.2", "lr", group["lr"], torch.tensor(0.01), "Keep the value: a float32 tensor without dimensions.")
    if not group["fused"]:
        fail("06.2", "The learning rate is a tensor, but SGD is not fused.", "Add `fused=True`.")
    if repaired is not None:
        fail("06.2", f"The proof still finds a difference: {_short(repaired)}.", "Let both runs use `make_model`.")
    passed("06.2", "The scheduler writes into the tensor, the graph reads it, and no bit differs.")


# --- notebook 05 --------------------------------------------------------------------------------------------------


def check_05_1(replay_all: Callable[..., Any]) -> None:
    """`replay_all` keeps the results of five replays of a graph that doubles its input."""
    expect_callable("05.1", "replay_all", replay_all)
    static_input = torch.zeros(3, device=device)
    inputs = [torch.full_like(static_input, float(k)) for k in range(1, 6)]
    doubling = cuda.CUDAGraph()
    with cuda.graph(doubling):
        static_result = static_input * 2
    results = replay_all(doubling, static_input, static_result, inputs)
    expect_tensor("05.1", "the returned value", results, (5, 3), torch.float32)
    hint = "Refill, replay, then clone: each replay overwrites the one static result."
    expect_equal("05.1", "the returned tensor", results, torch.stack(inputs) * 2, hint)
    passed("05.1", "Every result was copied before the next replay overwrote it.")


def check_05_2(
    prediction_graph: Any, static_test_images: Tensor, static_predictions: Any, net: torch.nn.Module
) -> None:
    """The graph predicts as `net` does in evaluation mode, before and after the weights change in place."""
    expect_filled("05.2", "prediction_graph", prediction_graph)
    expect_tensor("05.2", "static_predictions", static_predictions, (len(static_test_images),), torch.int64)
    if not net.training:
        fail("05.2", "`net` is in evaluation mode.", "Call `net.train()` after the capture: the graph keeps its mode.")
    bias = next(module.bias for module in reversed(list(net.modules())) if isinstance(module, torch.nn.Linear))
    weights = bias.detach().clone()
    with torch.no_grad():
        for shift in (0.0, 5.0):
            bias[3] += shift  # class 3 becomes much more likely
            prediction_graph.replay()
            expected, got = net.eval()(static_test_images).argmax(dim=1), static_predictions.clone()
            net.train()
            bias.copy_(weights)
            hint = "Capture in evaluation mode, with `net` itself and `static_test_images` itself, not with copies."
            expect_equal("05.2", "static_predictions", got, expected, hint)
    passed("05.2", "It predicts without dropout, and follows the weights that training changes in place.")


# --- notebook 04 --------------------------------------------------------------------------------------------------


def check_04_1(at_each_replay: Any) -> None:
    """`at_each_replay` holds the letters of the lines that are operations on the device."""
    hint = "A replay runs the recorded operations on tensors, and no Python: no number, branch, list or print."
    expect_equal("04.1", "at_each_replay", at_each_replay, {"b", "c", "f"}, hint)
    passed("04.1", "Operations on tensors are replayed; counters, branches, lists and prints were Python's, once.")


def check_04_2(capture_scaling: Callable[[Tensor], Any]) -> None:
    """`capture_scaling` captures a product whose factor is read at each replay."""
    expect_callable("04.2", "capture_scaling", capture_scaling)
    static_x = torch.arange(1.0, 6.0, device=device)
    returned = capture_scaling(static_x)
    if not isinstance(returned, tuple) or len(returned) != 3:
        fail("04.2", "`capture_scaling` should return three things.", "`return graph, factor, scaled`")
    graph, factor, scaled = returned
    expect_tensor("04.2", "factor", factor, (), torch.float32)
    expect_tensor("04.2", "the static result", scaled, (5,), torch.float32)
    for value in (7.0, -2.0):
        factor.fill_(value)
        graph.replay()
        hint = "Multiply by the tensor itself: `.item()` or a Python number would be baked in."
        expect_equal("04.2", "the static result", scaled, static_x * value, hint)
    passed("04.2", "The factor is read from its address at each replay, so it can change in place.")


# --- notebook 01 --------------------------------------------------------------------------------------------------


def check_01_1(largest_gain: Callable[[float, float], float]) -> None:
    """`largest_gain(host_us, kernel_us)` is max(host, kernel) / kernel."""
    expect_callable("01.1", "largest_gain", largest_gain)
    for host_us, kernel_us, gain in ((2000.0, 200.0, 10.0), (300.0, 300.0, 1.0), (100.0, 400.0, 1.0)):
        name = f"largest_gain({host_us:g}, {kernel_us:g})"
        hint = "Before, the step takes the larger of the two times; afterwards, it takes the kernels' time."
        expect_equal("01.1", name, largest_gain(host_us, kernel_us), gain, hint, tolerance=1e-6)
    passed("01.1", "The gain is large where the host is the limit, and 1 where the kernels are.")


class _CountedReads(Tensor):
    """A tensor that counts how often the host reads a value that depends on it."""

    reads = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.reads += getattr(func, "__name__", "") in {"item", "tolist", "__float__", "__bool__", "cpu", "numpy"}
        return super().__torch_function__(func, types, args, kwargs or {})


def check_01_2(mean_loss: Callable[[Callable[[], Tensor], int], float]) -> None:
    """`mean_loss(step, steps)` returns the mean as a number, calls step as often as told, and reads once."""
    expect_callable("01.2", "mean_loss", mean_loss)
    losses = iter([3.0, 2.0, 1.0, 0.5])
    _CountedReads.reads = 0
    mean = mean_loss(lambda: torch.tensor(next(losses), requires_grad=True).as_subclass(_CountedReads), 4)
    if isinstance(mean, Tensor):
        fail("01.2", "It returns a tensor.", "Call `.item()` once, on the mean, after the loop.")
    expect_equal("01.2", "mean_loss(step, 4)", mean, 1.625, "Add up the losses, divide by `steps`.", tolerance=1e-6)
    if _CountedReads.reads != 1:
        hint = "Add up tensors in the loop, for example `total += step().detach()`; call `.item()` after it."
        fail("01.2", f"The mean is right, but the host read from the device {_CountedReads.reads} times.", hint)
    passed("01.2", "The same mean, and the host waits once.")


# --- notebook 00 --------------------------------------------------------------------------------------------------


def check_00_1(values: list[float]) -> None:
    """Three replays of y = 2 * x with x = 1, 2, 3 leave y = 2, 4, 6."""
    hint = "In the loop: fill `x` in place, replay, and append `y.item()`. `x = ...` only moves the name."
    expect_equal("00.1", "values", values, [2.0, 4.0, 6.0], hint)
    passed("00.1", "One recording, three inputs, three results.")


# --- notebook 20 --------------------------------------------------------------------------------------------------


@torch.random.fork_rng(devices=[])
def check_20_1(column_norms: Callable[[Tensor], Tensor]) -> None:
    """`column_norms` forks one task per column, all before the first wait, and returns what the tasks return."""
    scripted_norms, hint = scripted("20.1", "column_norms", column_norms), "One task for each column: `x[:, k]`."
    loops = "Fork `norm` in one loop, keep the futures, and wait in a second loop."
    for columns in (3, 7):
        x = torch.arange(4.0 * columns).reshape(4, columns)
        expect_result("20.1", "column_norms(x)", scripted_norms, [x], x.norm(dim=0), hint, tolerance=1e-5)
        run = run_eagerly("20.1", "column_norms", column_norms, x)
        if run.started != columns:
            what = f"The norms are right, but {count(run.started, 'task')} had started before the first wait"
            fail("20.1", f"{what}, not {columns}.", loops)
        changed = run_eagerly("20.1", "column_norms", column_norms, x, added=1.0)
        work = "Give each task a column, `torch.jit.fork(norm, x[:, k])`, and return what `wait` gives for it."
        expect_work_in_tasks("20.1", changed, x.norm(dim=0), work)
    passed("20.1", "As many tasks as columns, and all of them start before the first wait.")


@torch.random.fork_rng(devices=[])
def check_20_2(noisy_pair: Callable[[Tensor], Tensor]) -> None:
    """`noisy_pair` adds two noises in two tasks, and gives the same whenever its tasks run."""
    scripted_pair = scripted("20.2", "noisy_pair", noisy_pair)
    for size in (5, 3):
        name, zeros = f"noisy_pair(torch.zeros({size}))", torch.zeros(size)
        result = call("20.2", name, scripted_pair, zeros, hint="It takes one argument, `x`; draw noise of its length.")
        expect_tensor("20.2", name, result, (2, size), torch.float32)

    def run(x: Tensor, seed: int = 0, **options: Any) -> EagerRun:
        torch.default_generator.manual_seed(seed)
        return run_eagerly("20.2", "noisy_pair", noisy_pair, x, **options)

    x = torch.arange(1.0, 6.0)
    runs = [run(x, schedule=schedule) for schedule in SCHEDULES]
    one, tasks = runs[1].result, runs[1].started
    if tasks != 2:
        what = f"`noisy_pair` forks {count(tasks, 'task')} before the first wait; it should fork 2."
        fail("20.2", what, "Fork `add_noise` twice, then wait.")
    if torch.equal(one[0], one[1]):
        fail("20.2", "Both rows have the same noise.", "Draw a tensor of shape [2, len(x)], one row for each task.")
    if not all(torch.equal(run.result, one) for run in runs):
        what = "With one seed, the result depends on which task runs first, or on when it runs."
        fail("20.2", what, "Draw all random numbers before the first fork, and pass them to the tasks.")
    if torch.equal(run(x, seed=1).result, one):
        what = "Two seeds give the same result, so nothing was drawn."
        fail("20.2", what, "Draw the noise with `torch.rand`, in the caller.")
    if not torch.allclose(run(x + 10 * x).result - 10 * x, one, atol=1e-4):
        fail("20.2", "The result is not `x` plus noise.", "Pass `x` itself and one row of noise to `add_noise`.")
    work = "Give each task `x` and a row of noise, with `add_noise` as its function, and return what `wait` gives."
    expect_work_in_tasks("20.2", run(x, added=1.0), one, work)
    passed("20.2", "The caller draws, in a fixed order; the tasks only compute, in any order.")


def check_20_3(true_statements: Any) -> None:
    """The letters of the true statements on fork and wait."""
    hint = "Each statement was shown by a cell above: which sections are about it?"
    expect_letters("20.3", "true_statements", true_statements, {"a", "c", "e", "f"}, hint)
    passed("20.3", "A scripted task's error comes as RuntimeError at wait, and a wait blocks no thread of the pool.")


# --- notebook 21 --------------------------------------------------------------------------------------------------


@torch.random.fork_rng(devices=[])
def check_21_1(from_library: Callable[[torch.nn.LSTM], torch.nn.Module]) -> None:
    """`from_library` returns a BidirectionalLSTM with the weights, and the output, of a bidirectional nn.LSTM."""
    expect_callable("21.1", "from_library", from_library)
    hint = "The backward direction's weights have the same names with `_reverse` at the end."
    for size in (3, 16):
        library, x = torch.nn.LSTM(size, size, bidirectional=True), torch.randn(6, 2, size)
        name = "from_library(library)"
        model = call("21.1", name, from_library, library, hint="It takes one argument, the library's module. " + hint)
        make = "Make one with `BidirectionalLSTM(library.input_size)`, and copy the weights into it."
        expect_instance("21.1", name, model, BidirectionalLSTM, make)
        for dtype in {parameter.dtype for parameter in model.parameters()} - {torch.float32}:
            what = f"The weights of `{name}` have dtype {dtype}; it should be torch.float32."
            fail("21.1", what, "Keep the library's dtype: leave out `.double()`, `.half()` and `.to(...)`.")
        weights = dict(library.named_parameters())
        for part, end in (("forward_lstm", ""), ("backward_lstm", "_reverse")):
            for key, value in getattr(model, part).named_parameters():
                expect_equal("21.1", f"{name}.{part}.{key}", value, weights[key + end], hint)
        with torch.no_grad():
            expect_result("21.1", f"{name}(x)", model, [x], library(x)[0], hint)
    passed("21.1", "The same weights in two modules, and the same output bit for bit.")


def check_21_2(multiply_adds: Callable[[int, int, int, int], int]) -> None:
    """`multiply_adds` counts both matrices, four gates, two directions, and every step, sequence and model."""
    expect_callable("21.2", "multiply_adds", multiply_adds)
    hint = "Two matrices of 4 * size rows and size columns; for each step, sequence, direction and model."
    for steps, batch, size, models in ((1, 1, 1, 1), (3, 1, 1, 1), (1, 5, 7, 2), (50, 50, 1024, 4)):
        name = f"multiply_adds({steps}, {batch}, {size}, {models})"
        expected = 16 * steps * batch * size**2 * models
        expect_result("21.2", name, multiply_adds, (steps, batch, size, models), expected, hint)
    passed("21.2", f"At the source's size these are {expected / 1e9:.0f} billion, half of them in each direction.")


# --- notebook 22 --------------------------------------------------------------------------------------------------


def check_22_1(overlapping: Any) -> None:
    """The bodies in which one direction's work stands between the other's fork and its wait."""
    hint = "Between a fork and its own wait, does anything start that takes long?"
    expect_letters("22.1", "overlapping", overlapping, {"b", "d"}, hint)
    passed("22.1", "Only there does one direction start between the other's fork and its wait.")


@torch.random.fork_rng(devices=[])
def check_22_2(model_class: Callable[[int], torch.nn.Module]) -> None:
    """The class forks both directions before it waits for any, and gives what the unforked class gives."""
    forks = "Fork `run_forward` and `run_backward`, and only then wait for the two futures."
    model = instance("22.2", "BothForked", model_class, BidirectionalLSTM, 8, forks)
    x, plain = torch.randn(5, 2, 8), BidirectionalLSTM(8)
    call("22.2", "loading its weights into a BidirectionalLSTM", plain.load_state_dict, model.state_dict(), hint=forks)
    with torch.no_grad():
        hint = "The forward direction comes first in the output, whichever task is ready first."
        expect_result("22.2", "BothForked(8)(x)", scripted("22.2", "BothForked(8)", model), [x], plain(x), hint)
        parts = {"the forward direction": [model.forward_lstm], "the backward direction": [model.backward_lstm]}
        expect_own_tasks("22.2", run_eagerly("22.2", "BothForked(8)", model, x, parts=parts), forks)
    passed("22.2", "Both are tasks before anything waits, and no bit differs.")


# --- notebook 24 --------------------------------------------------------------------------------------------------


@torch.random.fork_rng(devices=[])
def check_24_1(ensemble: Callable[[list[torch.nn.Module]], torch.nn.Module]) -> None:
    """The ensemble forks all of its models before it waits, and returns the maximum of their outputs."""
    loops = "Fork in one loop and append the future to a typed list; wait in a second loop."
    x, models = torch.randn(5, 2, 6), [BidirectionalLSTM(6) for _ in range(3)]
    net = instance("24.1", "LargestEnsemble", ensemble, LSTMEnsemble, models, loops)
    with torch.no_grad():
        largest, hint = torch.stack([model(x) for model in models]).amax(dim=0), "Take the maximum over all models."
        name = "LargestEnsemble(models)"
        expect_result("24.1", f"{name}(x)", scripted("24.1", name, net), [x], largest, hint)
        parts = {f"model {k}": [model.forward_lstm, model.backward_lstm] for k, model in enumerate(models)}
        expect_own_tasks("24.1", run_eagerly("24.1", name, net, x, parts=parts), loops)
    passed("24.1", "All models are tasks before anything waits, and a maximum is exact in any order.")


def check_24_2(largest_speed_up: Callable[[int, int], float]) -> None:
    """The tasks go in rounds of at most `cores`; the last round may be short."""
    expect_callable("24.2", "largest_speed_up", largest_speed_up)
    hint = "How many tasks does the busiest core run, one after another?"
    for tasks, cores, gain in ((8, 16, 8.0), (8, 4, 4.0), (8, 3, 8 / 3), (5, 2, 5 / 3), (1, 8, 1.0)):
        name = f"largest_speed_up({tasks}, {cores})"
        expect_result("24.2", name, largest_speed_up, (tasks, cores), gain, hint, tolerance=1e-6)
    passed("24.2", "The busiest core decides: never more than the tasks, never more than the cores.")


# --- notebook 26 --------------------------------------------------------------------------------------------------


@torch.random.fork_rng(devices=[])
def check_26_1(run_directions: Callable[..., Any]) -> None:
    """`run_directions` runs each direction in a task of the pool, all before the first wait, without gradients."""
    expect_callable("26.1", "run_directions", run_directions)
    models, x = [BidirectionalLSTM(4) for _ in range(4)], torch.randn(3, 2, 4)
    submit = "Submit both directions of every model first, and keep the futures."
    ran: list[tuple[int | None, bool]] = []  # for each call of an LSTM its task, and whether it built a graph
    with torch.no_grad(), HeldPool(8) as pool:
        expected = torch.stack([model(x) for model in models]).sum(dim=0)
        for lstm in (lstm for model in models for lstm in (model.forward_lstm, model.backward_lstm)):
            lstm.register_forward_hook(lambda _, __, output: ran.append((pool.task, output[0].requires_grad)))
        try:
            output = call("26.1", "run_directions(models, x, pool)", run_directions, models, x, pool, hint=submit)
        finally:
            pool.begin()  # whatever is still held back, so that the pool can end
    expect_one_lstm_per_task("26.1", pool, ran, submit)
    expect_equal("26.1", "the result", output, expected, "Concatenate directions in dimension 2, and sum the models.")
    passed("26.1", "Eight tasks start before the first wait, none builds a graph, and no bit differs.")


@torch.random.fork_rng(devices=[])
def check_26_2(rnn: Callable[..., Tensor]) -> None:
    """`rnn` computes what nn.RNN does, also under vmap with stacked weights."""
    expect_callable("26.2", "rnn", rnn)
    zeros = "Begin with a hidden state of zeros, of shape [B, H], and keep the state of every step."
    lists = (
        "Under `vmap`, what is made from `x` alone belongs to all networks at once, and nothing that depends on the "
        "weights can be written into it: collect the states in a list, and stack them after the loop."
    )
    for steps, batch, features, hidden in ((7, 2, 3, 5), (4, 3, 6, 2)):
        networks, x = [torch.nn.RNN(features, hidden) for _ in range(3)], torch.randn(steps, batch, features)
        stacked = zip(*(network.parameters() for network in networks), strict=True)
        weights = [torch.stack([weight.detach() for weight in same]) for same in stacked]
        with torch.no_grad():
            expected = torch.stack([network(x)[0] for network in networks])
        single = [x, *(weight[0] for weight in weights)]
        expect_result("26.2", "rnn(x, ...)", rnn, single, expected[0], zeros, tolerance=1e-5)
        together = torch.func.vmap(rnn, in_dims=(None, 0, 0, 0, 0))
        expect_result("26.2", "rnn under vmap", together, [x, *weights], expected, lists, tolerance=1e-5)
    passed("26.2", "It agrees with nn.RNN, and vmap runs three networks as one.")


# --- notebook 23 --------------------------------------------------------------------------------------------------


def check_23_1(overlap: Callable[[list[tuple[float, float]]], float]) -> None:
    """`overlap` divides the sum of the intervals by the length of their union."""
    expect_callable("23.1", "overlap", overlap)
    hint = "Sort by start; only what lies beyond the latest end so far adds to the time in which any is busy."
    cases = {1.0: [(20.0, 30.0), (0.0, 10.0)], 4 / 3: [(0.0, 100.0), (50.0, 150.0)]}
    cases |= {1.5: [(200.0, 300.0), (0.0, 100.0), (0.0, 100.0)], 1.2: [(0.0, 100.0), (10.0, 20.0), (30.0, 40.0)]}
    cases |= {2.0: [(0.0, 90.0), (0.0, 60.0), (30.0, 60.0)]}  # three at once
    for expected, intervals in cases.items():
        expect_result("23.1", f"overlap({intervals})", overlap, [list(intervals)], expected, hint, tolerance=1e-6)
    passed("23.1", "Order, gaps and intervals inside others change nothing.")


def check_23_2(alone_us: Callable[[Any], float]) -> None:
    """`alone_us` returns the time in which exactly one lane is busy: twice the busy time minus the work."""
    expect_callable("23.2", "alone_us", alone_us)
    cases = [(100.0, {"a": [(0, 100)], "b": [(50, 150)]}), (0.0, {"a": [(0, 100)], "b": [(0, 100)]})]
    cases += [(200.0, {"a": [(0, 100)], "b": [(400, 500)]}), (250.0, {"a": [(0, 300)], "b": [(100, 150)]})]
    cases += [(250.0, {"a": [(0, 100), (300, 350)], "b": [(50, 250)]})]  # a lane with a gap
    cases += [(100.0, {"a": [(0, 100)], "b": [(50, 100)], "c": [(200, 250)]})]
    for expected, lanes in cases:
        spans = [Span("work", lane, start, end - start, "operator") for lane in lanes for start, end in lanes[lane]]
        trace = Timeline(sorted(spans, key=lambda span: span.start_us), list(lanes))
        works = [f"{a} to {b} µs in lane {lane}" for lane, busy in lanes.items() for a, b in busy]
        hint = "The work counts the time in which two threads are busy twice, the busy time counts it once."
        hint += f" The check's trace has work from {', '.join(works)}."
        expect_result("23.2", "alone_us(trace)", alone_us, [trace], expected, hint, tolerance=1e-6)
    passed("23.2", "The less time a thread works alone, the nearer is the overlap to 2.")


# --- notebook 25 --------------------------------------------------------------------------------------------------


def check_25_1(best_fork: Callable[[dict[str, dict[str, float]]], tuple[str, str, float]]) -> None:
    """`best_fork` finds the fastest forked variant and setting, and its gain over the fastest unforked setting."""
    expect_callable("25.1", "best_fork", best_fork)
    slow = {"no fork": {"1/4": 8.0, "4/4": 2.0}, "models": {"1/4": 3.0, "4/4": 4.0}, "directions": {"2/2": 5.0}}
    both = {"no fork": {"1/4": 3.0, "2/2": 2.0, "4/4": 6.0}, "directions": {"2/2": 1.6}, "models": {"1/4": 4.0}}
    cases = [
        (slow, ("models", "1/4", 2 / 3)),
        (slow | {"directions": {"2/2": 1.25}}, ("directions", "2/2", 1.6)),
        (both | {"directions and models": {"1/4": 1.5, "4/4": 1.0}}, ("directions and models", "4/4", 2.0)),
    ]
    for medians, expected in cases:
        hint = "Look for the smallest time over all settings, once among `no fork` and once among the other variants."
        hint += f" Not every variant has every setting; here `medians` is {medians}."
        result = call("25.1", "best_fork(medians)", best_fork, deepcopy(medians), hint=hint)
        expect_filled("25.1", "best_fork(medians)", result)
        if not isinstance(result, (tuple, list)) or len(result) != 3:
            what = f"`best_fork(medians)` is {_short(result)}, no tuple of three."
            fail("25.1", what, "`return variant, setting, gain`")
        for k, what in enumerate(("variant", "setting", "gain")):
            expect_equal("25.1", f"{what} of best_fork(medians)", result[k], expected[k], hint, tolerance=1e-6)
    passed("25.1", "Each side had its own best setting, which is the only fair comparison.")


def check_25_2(threads_for: Callable[[int, int], tuple[int, int]]) -> None:
    """`threads_for(cores, tasks)` is (cores // inter-op, inter-op) with as many inter-op threads as tasks or cores."""
    expect_callable("25.2", "threads_for", threads_for)
    hint = "Inter-op: one thread for each task, but not more than cores. Intra-op: what is left for each, at least 1."
    for cores, tasks, expected in ((16, 8, (2, 8)), (16, 4, (4, 4)), (2, 8, (1, 2)), (6, 4, (1, 4)), (16, 1, (16, 1))):
        name = f"threads_for({cores}, {tasks})"
        result = expect_result("25.2", name, threads_for, (cores, tasks), expected, hint)
        if not all(isinstance(number, Integral) for number in result):
            fail("25.2", f"`{name}` is {_short(result)}, which are no integers.", f"Divide with `//`. {hint}")
    passed("25.2", "Intra-op times inter-op never exceeds the cores.")
