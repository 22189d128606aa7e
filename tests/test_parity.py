"""What the stand-in and torch.cuda do alike: one test per behaviour, run on both backends.

On the stand-in every behaviour runs in the test process. On a GPU those marked ``own_process`` run in a process of
their own, because a failed capture leaves the capture stream current and the generator in an unclear state; all
others share the test process. Without a GPU the ``cuda`` half is skipped, and says so.
"""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import traceback
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_utils import cuda_stand_in
from tutorial_utils.models import MnistNet

NOT_PERMITTED = "operation not permitted when stream is capturing"
PREVIOUS_ERROR = "operation failed due to a previous error during capture"

BEHAVIOURS: dict[str, tuple[Callable, bool]] = {}


def behaviour(function: Callable | None = None, *, own_process: bool = False) -> Callable:
    """Register ``function(cuda, device)`` as a behaviour; ``own_process`` isolates it on a GPU."""

    def register(function: Callable) -> Callable:
        BEHAVIOURS[function.__name__] = (function, own_process)
        return function

    return register if function is None else register(function)


def _run_on_gpu(name: str, connection: multiprocessing.connection.Connection | None = None) -> None:
    try:
        torch.backends.cudnn.deterministic = True
        BEHAVIOURS[name][0](torch.cuda, torch.device("cuda"))
        answer = None
    except BaseException:
        answer = traceback.format_exc()
    if connection is not None:
        connection.send(answer)
    elif answer is not None:
        pytest.fail(answer, pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_behaviour:
        metafunc.parametrize("backend", ["stand_in", "cuda"])
        metafunc.parametrize("name", list(BEHAVIOURS))


def test_behaviour(name: str, backend: str) -> None:
    function, own_process = BEHAVIOURS[name]
    if backend == "stand_in":
        try:
            function(cuda_stand_in, torch.device("cpu"))
        finally:
            cuda_stand_in.set_stream(cuda_stand_in.default_stream())
        return
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if not own_process:
        _run_on_gpu(name)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run_on_gpu, args=(name, there))
    process.start()
    there.close()
    answer = here.recv() if here.poll(120) else "no answer within 120 seconds"
    process.join(10)
    process.kill()
    if answer is not None:
        pytest.fail(answer, pytrace=False)


# --- helpers of the behaviours ------------------------------------------------------------------------------------


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]


def refused(cuda, act: Callable, *, graph=None) -> tuple[BaseException, BaseException]:
    """Run `act` in a capture; return the error at the offending line, and the one that leaves the ``with``."""
    first = None
    graph = cuda.CUDAGraph() if graph is None else graph
    with pytest.raises(Exception) as outer:
        with cuda.graph(graph):
            try:
                act()
            except BaseException as error:
                first = error
                raise
    assert first is not None, "the action was accepted; the error came from the end of the capture alone"
    return first, outer.value


def assert_refused_as_host_read(cuda, act: Callable) -> None:
    first, second = refused(cuda, act)
    assert isinstance(first, torch.AcceleratorError) and NOT_PERMITTED in first_line(first), repr(first)
    assert isinstance(second, torch.AcceleratorError) and PREVIOUS_ERROR in first_line(second), repr(second)


def assert_usable(cuda, device) -> None:
    """A new capture works and replays."""
    x = torch.ones(3, device=device)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x * 2
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10, 10, 10]


def warm_up(cuda, step: Callable, iterations: int = 3) -> None:
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        for _ in range(iterations):
            step()
    cuda.current_stream().wait_stream(stream)


def training_step_of(layer: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> Callable[[], None]:
    """Return a function that trains `layer` once on the sum of its outputs."""

    def step() -> None:
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

    return step


def captured(cuda, step: Callable):
    """Warm up, capture and return (graph, result)."""
    warm_up(cuda, step)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        result = step()
    return graph, result


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def assert_trains_alike(cuda, device, make_model, inputs, make_optimizer, loss_of, steps: int = 4) -> None:
    """Train by replay and eagerly with the same seed; every parameter and loss agrees bitwise at every step."""
    torch.manual_seed(0)
    eager = make_model().to(device)
    graphed = make_model().to(device)  # not a deep copy, which would scatter the weights of a cuDNN LSTM
    graphed.load_state_dict(eager.state_dict())
    optimizer = make_optimizer(graphed.parameters())
    static = [x.clone() for x in inputs(0)]

    def step(model, optimizer, tensors):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, *tensors)
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = snapshot(graphed)
    warm_up(cuda, lambda: step(graphed, optimizer, static))
    graphed.load_state_dict(before)
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    optimizer.zero_grad(set_to_none=True)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        static_loss = step(graphed, optimizer, static)
    assert same(before, snapshot(graphed))

    torch.manual_seed(1)
    by_replay = []
    for i in range(steps):
        for target, source in zip(static, inputs(i), strict=True):
            target.copy_(source)
        graph.replay()
        by_replay.append((static_loss.clone(), snapshot(graphed)))
    torch.manual_seed(1)
    optimizer = make_optimizer(eager.parameters())
    for i, (loss, state) in enumerate(by_replay):
        assert torch.equal(step(eager, optimizer, inputs(i)), loss), f"loss of step {i}"
        assert same(snapshot(eager), state), f"parameters after step {i}"


def images_and_targets(device, *shape: int) -> Callable:
    def inputs(i: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(i)
        targets = torch.randint(0, 10, (shape[0],), generator=generator)
        return [torch.randn(shape, generator=generator).to(device), targets.to(device)]

    return inputs


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x), y)


# --- a capture runs nothing ---------------------------------------------------------------------------------------


@behaviour
def capture_leaves_parameters_buffers_and_momentum_unchanged(cuda, device):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = images_and_targets(device, 8, 1, 8, 8)(0)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    warm_up(cuda, step)
    before = snapshot(model)
    momentum = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        step()
    assert same(before, snapshot(model))
    assert all(torch.equal(m, s["momentum_buffer"]) for m, s in zip(momentum, optimizer.state.values(), strict=True))
    graph.replay()
    assert not same(before, snapshot(model))


@behaviour
def capture_leaves_the_generator_unchanged(cuda, device):
    torch.manual_seed(3)
    state = torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state()
    with cuda.graph(cuda.CUDAGraph()):
        torch.rand(5, device=device)
    after = torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state()
    assert torch.equal(state, after)


@behaviour
def outputs_hold_no_result_until_the_first_replay(cuda, device):
    x = torch.arange(12.0, device=device) + 0.37
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x.sin() * 3 + 1
    expected = x.sin() * 3 + 1
    assert not torch.equal(y, expected)
    graph.replay()
    assert torch.equal(y, expected)


@behaviour
def an_in_place_operation_first_happens_at_replay(cuda, device):
    x = torch.zeros(3, device=device)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        x += 1
    assert x.tolist() == [0, 0, 0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [2, 2, 2]


@behaviour
def python_runs_once(cuda, device):
    calls = []
    x = torch.zeros(3, device=device)

    def step():
        calls.append(len(calls))
        x.add_(1)

    graph, _ = captured(cuda, step)
    count = len(calls)
    for _ in range(5):
        graph.replay()
    assert len(calls) == count


@behaviour
def python_numbers_are_baked_in(cuda, device):
    factor = 2.0
    x = torch.ones(3, device=device)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x * factor
    factor = 7.0
    graph.replay()
    assert y.tolist() == [2, 2, 2] and factor == 7.0


@behaviour
def python_branches_are_baked_in(cuda, device):
    x, double = torch.ones(3, device=device), True
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x * 2 if double else x * 3
    double = False
    graph.replay()
    assert y.tolist() == [2, 2, 2] and not double


@behaviour
def attributes_change_at_capture_only(cuda, device):
    module = nn.Identity()
    module.steps = 0
    x = torch.ones(3, device=device)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        module.steps += 1
        module.last = x * 2
    for _ in range(3):
        graph.replay()
    assert module.steps == 1 and module.last.tolist() == [2, 2, 2]


@behaviour
def shapes_and_python_sizes_are_known_in_a_capture(cuda, device):
    x = torch.ones(4, 6, device=device)
    _ = x.view(3, -1) @ x.view(-1, 3)  # warm-up
    with cuda.graph(cuda.CUDAGraph()):
        y = x.view(3, -1) @ x.view(-1, 3)
        assert tuple(y.shape) == (3, 3) and y.dtype == torch.float32 and y.device.type == device.type
        assert y.numel() == 9 and len(y) == 3 and y.is_contiguous()


@behaviour
def is_current_stream_capturing_tells_the_truth(cuda, device):
    assert not cuda.is_current_stream_capturing()
    with cuda.graph(cuda.CUDAGraph()):
        torch.ones(1, device=device) * 2
        assert cuda.is_current_stream_capturing()
    assert not cuda.is_current_stream_capturing()


# --- a replay works on fixed addresses ----------------------------------------------------------------------------


@behaviour
def a_refilled_input_is_seen(cuda, device):
    x = torch.zeros(3, device=device)
    graph, y = captured(cuda, lambda: x + 1)
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    graph.replay()
    assert y.tolist() == [2, 3, 4]


@behaviour
def a_rebound_input_is_not_seen(cuda, device):
    x = torch.zeros(3, device=device)
    keep = x
    graph, y = captured(cuda, lambda: x + 1)
    x = torch.full((3,), 9.0, device=device)
    graph.replay()
    assert y.tolist() == [1, 1, 1] and keep.tolist() == [0, 0, 0] and x.tolist() == [9, 9, 9]


@behaviour
def a_view_of_a_static_input_follows_it(cuda, device):
    x = torch.zeros(2, 3, device=device)
    graph, y = captured(cuda, lambda: x.t()[1:] * 1)
    x.copy_(torch.arange(6.0).view(2, 3))
    graph.replay()
    assert y.tolist() == [[1, 4], [2, 5]]


@behaviour
def an_output_is_overwritten_by_the_next_replay(cuda, device):
    x = torch.zeros(1, device=device)
    graph, y = captured(cuda, lambda: x + 1)
    kept, cloned = [], []
    for value in range(3):
        x.fill_(value)
        graph.replay()
        kept.append(y)
        cloned.append(y.clone())
    assert [t.item() for t in kept] == [3, 3, 3]
    assert [t.item() for t in cloned] == [1, 2, 3]


@behaviour
def addresses_stay_the_same_over_replays(cuda, device):
    x = torch.zeros(64, device=device)
    graph, y = captured(cuda, lambda: x + 1)
    addresses = set()
    for _ in range(5):
        graph.replay()
        addresses.add((x.data_ptr(), y.data_ptr()))
    assert len(addresses) == 1


@behaviour
def an_output_may_be_written_to_between_replays(cuda, device):
    x = torch.zeros(3, device=device)
    graph, y = captured(cuda, lambda: x + 1)
    y.fill_(float("nan"))
    graph.replay()
    assert y.tolist() == [1, 1, 1]


@behaviour
def weights_loaded_in_place_are_seen(cuda, device):
    layer = nn.Linear(2, 1, bias=False).to(device)
    x = torch.ones(1, 2, device=device)
    with torch.no_grad():
        graph, y = captured(cuda, lambda: layer(x))
    layer.load_state_dict({"weight": torch.tensor([[3.0, 4.0]])})
    graph.replay()
    assert y.item() == 7


@behaviour
def rebound_weights_are_not_seen(cuda, device):
    layer = nn.Linear(2, 1, bias=False).to(device)
    with torch.no_grad():
        layer.weight.fill_(1)
    keep = layer.weight.data
    x = torch.ones(1, 2, device=device)
    with torch.no_grad():
        graph, y = captured(cuda, lambda: layer(x))
    layer.weight.data = torch.tensor([[3.0, 4.0]], device=device)
    graph.replay()
    assert y.item() == 2 and keep.sum().item() == 2


@behaviour
def load_state_dict_with_assign_is_not_seen(cuda, device):
    layer = nn.Linear(2, 1, bias=False).to(device)
    with torch.no_grad():
        layer.weight.fill_(1)
    keep = layer.weight
    x = torch.ones(1, 2, device=device)
    with torch.no_grad():
        graph, y = captured(cuda, lambda: layer(x))
    layer.load_state_dict({"weight": torch.tensor([[3.0, 4.0]], device=device)}, assign=True)
    graph.replay()
    assert y.item() == 2 and keep.sum().item() == 2


@behaviour
def a_python_list_of_inputs_is_captured_tensor_by_tensor(cuda, device):
    inputs = {"a": torch.zeros(2, device=device), "b": [torch.zeros(2, device=device)]}
    first = inputs["b"][0]
    graph, y = captured(cuda, lambda: inputs["a"] + inputs["b"][0])
    inputs["a"].fill_(1)
    inputs["b"][0] = torch.full((2,), 5.0, device=device)  # a new tensor in the list: never copied
    graph.replay()
    assert y.tolist() == [1, 1] and first.tolist() == [0, 0]


@behaviour
def two_graphs_share_the_weights(cuda, device):
    layer = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.ones(4, 3, device=device)
    step = training_step_of(layer, optimizer, x)

    train, _ = captured(cuda, step)
    with torch.no_grad():
        evaluate, y = captured(cuda, lambda: layer(x))
    evaluate.replay()
    before = y.clone()
    train.replay()
    evaluate.replay()
    assert torch.equal(y, layer(x)) and not torch.equal(y, before)


@behaviour
def a_graph_replays_on_the_default_stream_and_on_a_side_stream(cuda, device):
    x = torch.zeros(3, device=device)
    graph, _ = captured(cuda, lambda: x.add_(1))
    x.zero_()
    graph.replay()
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        graph.replay()
    cuda.current_stream().wait_stream(stream)
    assert x.tolist() == [2, 2, 2]


@behaviour
def a_graph_may_share_the_pool_of_another(cuda, device):
    x = torch.ones(3, device=device)
    first, y = captured(cuda, lambda: x + 1)
    second = cuda.CUDAGraph()
    with cuda.graph(second, pool=first.pool()):
        z = y * 2
    first.replay()
    second.replay()
    assert z.tolist() == [4, 4, 4] and second.pool() == first.pool()


@behaviour
def a_pool_handle_may_be_given(cuda, device):
    handle = cuda.graph_pool_handle()
    graph = cuda.CUDAGraph()
    x = torch.ones(3, device=device)
    with cuda.graph(graph, pool=handle):
        y = x + 1
    graph.replay()
    assert y.tolist() == [2, 2, 2] and tuple(graph.pool()) == tuple(handle)


# --- random numbers -----------------------------------------------------------------------------------------------


@behaviour
def every_replay_draws_a_fresh_dropout_mask(cuda, device):
    x = torch.ones(1000, device=device)
    graph, y = captured(cuda, lambda: F.dropout(x, 0.5))
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)
    assert 300 < (y == 0).sum().item() < 700


@behaviour
def a_seed_set_before_a_replay_is_honoured(cuda, device):
    graph, y = captured(cuda, lambda: torch.rand(100, device=device))
    torch.manual_seed(5)
    graph.replay()
    first = y.clone()
    graph.replay()
    second = y.clone()
    torch.manual_seed(5)
    graph.replay()
    assert torch.equal(first, y) and not torch.equal(first, second)


@behaviour
def a_replay_draws_what_eager_draws(cuda, device):
    graph, y = captured(cuda, lambda: torch.rand(100, device=device) + torch.rand(100, device=device))
    torch.manual_seed(5)
    expected = [torch.rand(100, device=device) + torch.rand(100, device=device) for _ in range(3)]
    torch.manual_seed(5)
    for value in expected:
        graph.replay()
        assert torch.equal(y, value)


@behaviour(own_process=True)
def another_seed_in_a_capture_is_refused(cuda, device):
    torch.manual_seed(1)
    with pytest.raises(RuntimeError, match="can be called during stream capture only if new seed is the same"):
        with cuda.graph(cuda.CUDAGraph()):
            torch.rand(3, device=device)
            torch.manual_seed(2)


# --- host reads ---------------------------------------------------------------------------------------------------


def _host_read(act: Callable) -> Callable:
    def run(cuda, device):
        x = torch.arange(4.0, device=device)
        assert_refused_as_host_read(cuda, lambda: act(x))

    return run


for _name, _act in {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "print": lambda x: print(x),
    "repr": lambda x: repr(x),
    "format": lambda x: f"{x.sum():.3f}",
    "in": lambda x: 3.0 in x,
    "an_index_from_a_tensor": lambda x: [0, 1, 2, 3, 4, 5, 6][x.sum().long()],
    "a_range_from_a_tensor": lambda x: range(x.sum().long()),
    "torch_equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
}.items():
    BEHAVIOURS[f"host_read_by_{_name}_is_refused"] = (_host_read(_act), True)

for _name, _act in {
    "a_boolean_mask": lambda x: x[x > 1],
    "nonzero": lambda x: x.nonzero(),
    "where_of_a_condition": lambda x: torch.where(x > 1),
    "masked_select": lambda x: x.masked_select(x > 1),
    "unique": lambda x: torch.unique(x),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "a_masked_write_of_a_tensor": lambda x: x.__setitem__(x > 1, x[:2] * 2),
}.items():
    BEHAVIOURS[f"a_size_that_depends_on_data_is_refused_in_{_name}"] = (_host_read(_act), True)


def assert_refused_as_pageable_copy(cuda, act: Callable) -> None:
    first, _ = refused(cuda, act)
    assert isinstance(first, RuntimeError) and "unless the CPU tensor is pinned" in first_line(first), repr(first)


@behaviour(own_process=True)
def a_copy_to_the_host_by_cpu_is_refused(cuda, device):
    x = torch.ones(3, device=device)
    assert_refused_as_pageable_copy(cuda, lambda: (x * 2).cpu())


@behaviour(own_process=True)
def a_copy_to_the_host_by_tolist_is_refused(cuda, device):
    x = torch.ones(3, device=device)
    assert_refused_as_pageable_copy(cuda, lambda: (x * 2).tolist())


@behaviour(own_process=True)
def after_a_refused_copy_to_the_host_the_capture_goes_on(cuda, device):
    x = torch.ones(3, device=device)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x * 2
        with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
            y.cpu()
        z = y + 1
    graph.replay()
    assert z.tolist() == [3, 3, 3]


@behaviour(own_process=True)
def numpy_is_refused_as_on_any_gpu_tensor(cuda, device):
    x = torch.ones(3, device=device)
    first, _ = refused(cuda, lambda: (x * 2).numpy())
    assert isinstance(first, TypeError) and "can't convert cuda:0 device type tensor to numpy" in first_line(first)


@behaviour
def a_masked_write_of_a_number_is_captured(cuda, device):
    x = torch.arange(4.0, device=device)

    def step():
        y = x.clone()
        y[y > 1] = 0.0
        return y

    graph, y = captured(cuda, step)
    x.copy_(torch.tensor([5.0, 1.0, -1.0, 7.0]))
    graph.replay()
    assert y.tolist() == [0, 1, -1, 0]


@behaviour
def torch_where_and_masked_fill_replace_a_branch(cuda, device):
    x = torch.arange(4.0, device=device)
    graph, y = captured(cuda, lambda: torch.where(x > 1, x * 10, x.masked_fill(x < 1, -1)))
    x.copy_(torch.tensor([5.0, 1.0, -3.0, 7.0]))
    graph.replay()
    assert y.tolist() == [50, 1, -1, 70]


@behaviour(own_process=True)
def the_first_error_is_the_context_of_the_second(cuda, device):
    x = torch.ones(3, device=device)
    with pytest.raises(torch.AcceleratorError) as caught:
        with cuda.graph(cuda.CUDAGraph()):
            (x * 2).sum().item()
    assert PREVIOUS_ERROR in first_line(caught.value)
    assert isinstance(caught.value.__context__, torch.AcceleratorError)
    assert NOT_PERMITTED in first_line(caught.value.__context__)
    assert isinstance(caught.value, RuntimeError)


@behaviour(own_process=True)
def after_a_failed_capture_the_capture_stream_stays_current(cuda, device):
    x = torch.ones(3, device=device)
    refused(cuda, lambda: (x * 2).sum().item())
    assert cuda.current_stream() != cuda.default_stream()
    assert not cuda.is_current_stream_capturing()
    cuda.set_stream(cuda.default_stream())
    assert cuda.current_stream() == cuda.default_stream()


@behaviour(own_process=True)
def after_a_failed_capture_the_next_one_works(cuda, device):
    x = torch.ones(3, device=device)
    refused(cuda, lambda: (x * 2).sum().item())
    assert_usable(cuda, device)
    cuda.set_stream(cuda.default_stream())
    assert_usable(cuda, device)


@behaviour(own_process=True)
def after_a_refused_read_nothing_more_is_captured(cuda, device):
    x = torch.ones(3, device=device)
    errors = []
    with pytest.raises(torch.AcceleratorError, match=PREVIOUS_ERROR):
        with cuda.graph(cuda.CUDAGraph()):
            for act in (lambda: x.sum().item(), lambda: x * 2):
                try:
                    act()
                except torch.AcceleratorError as error:
                    errors.append(first_line(error))
    assert len(errors) == 2 and NOT_PERMITTED in errors[0] and PREVIOUS_ERROR in errors[1], errors


@behaviour(own_process=True)
def after_a_failed_capture_the_same_graph_object_may_capture(cuda, device):
    x = torch.ones(3, device=device)
    graph = cuda.CUDAGraph()
    refused(cuda, lambda: (x * 2).sum().item(), graph=graph)
    cuda.set_stream(cuda.default_stream())
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


@behaviour(own_process=True)
def device_synchronize_is_refused(cuda, device):
    assert_refused_as_host_read(cuda, lambda: cuda.synchronize())


@behaviour(own_process=True)
def stream_synchronize_is_refused(cuda, device):
    assert_refused_as_host_read(cuda, lambda: cuda.current_stream().synchronize())


@behaviour(own_process=True)
def event_synchronize_is_refused(cuda, device):
    def act():
        event = cuda.Event()
        event.record()
        event.synchronize()

    first, second = refused(cuda, act)
    assert isinstance(first, torch.AcceleratorError) and isinstance(second, torch.AcceleratorError)


@behaviour(own_process=True)
def a_tensor_from_python_data_is_refused(cuda, device):
    assert_refused_as_pageable_copy(cuda, lambda: torch.tensor([1.0, 2.0], device=device))


@behaviour(own_process=True)
def after_a_refused_tensor_from_python_data_the_next_capture_works(cuda, device):
    refused(cuda, lambda: torch.tensor([1.0, 2.0], device=device))
    cuda.set_stream(cuda.default_stream())
    assert_usable(cuda, device)


@behaviour
def a_tensor_filled_on_the_device_is_captured(cuda, device):
    graph, y = captured(cuda, lambda: torch.full((2,), 3.0, device=device) + torch.arange(2, device=device))
    graph.replay()
    assert y.tolist() == [3, 4]


# --- wrong use of a graph -----------------------------------------------------------------------------------------


@behaviour
def capture_on_the_default_stream_is_refused(cuda, device):
    with pytest.raises(RuntimeError, match="CUDA graphs must be captured on a non-default stream"):
        cuda.CUDAGraph().capture_begin()
    assert_usable(cuda, device)


@behaviour
def the_raw_calls_capture_on_a_side_stream(cuda, device):
    x = torch.zeros(3, device=device)
    graph, stream = cuda.CUDAGraph(), cuda.Stream()
    cuda.synchronize()
    with cuda.stream(stream):
        graph.capture_begin()
        y = x + 1
        graph.capture_end()
    graph.replay()
    assert y.tolist() == [1, 1, 1]


@behaviour(own_process=True)
def recapture_without_reset_is_refused(cuda, device):
    x = torch.ones(3, device=device)
    graph, _ = captured(cuda, lambda: x + 1)
    with pytest.raises(RuntimeError, match="This CUDAGraph instance already owns a captured graph"):
        with cuda.graph(graph):
            x + 2


@behaviour
def recapture_after_reset_works(cuda, device):
    x = torch.ones(3, device=device)
    graph, _ = captured(cuda, lambda: x + 1)
    graph.reset()
    with cuda.graph(graph):
        y = x + 2
    graph.replay()
    assert y.tolist() == [3, 3, 3]


@behaviour
def replay_before_a_capture_is_refused(cuda, device):
    with pytest.raises(RuntimeError, match="Called CUDAGraph::replay without a preceding successful capture"):
        cuda.CUDAGraph().replay()


@behaviour
def replay_after_reset_is_refused(cuda, device):
    x = torch.ones(3, device=device)
    graph, _ = captured(cuda, lambda: x + 1)
    graph.reset()
    with pytest.raises(RuntimeError, match="Called CUDAGraph::replay without a preceding successful capture"):
        graph.replay()


@behaviour(own_process=True)
def replay_of_a_graph_in_a_capture_is_refused(cuda, device):
    x = torch.ones(3, device=device)
    graph, _ = captured(cuda, lambda: x + 1)
    first, _ = refused(cuda, lambda: graph.replay())
    assert isinstance(first, RuntimeError) and "Cannot prepare for replay during capturing stage" in first_line(first)


@behaviour(own_process=True)
def a_nested_capture_is_refused(cuda, device):
    x = torch.ones(3, device=device)

    def act():
        with cuda.graph(cuda.CUDAGraph()):
            x + 1

    first, second = refused(cuda, act)
    assert isinstance(first, torch.AcceleratorError) and NOT_PERMITTED in first_line(first), repr(first)
    assert isinstance(second, torch.AcceleratorError) and PREVIOUS_ERROR in first_line(second), repr(second)


@behaviour
def an_empty_graph_warns_and_may_be_replayed(cuda, device):
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            pass
    graph.replay()


@behaviour
def work_on_a_stream_outside_the_capture_is_not_captured(cuda, device):
    x = torch.zeros(3, device=device)
    other = cuda.Stream()
    other.wait_stream(cuda.current_stream())
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            with cuda.stream(other):
                x.add_(1)
    other.synchronize()
    assert x.tolist() == [1, 1, 1]
    graph.replay()
    assert x.tolist() == [1, 1, 1]


@behaviour
def a_nonempty_graph_does_not_warn(cuda, device):
    x = torch.zeros(3, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cuda.graph(cuda.CUDAGraph()):
            x + 1


@behaviour
def an_unknown_capture_error_mode_is_refused(cuda, device):
    stream = cuda.Stream()
    with cuda.stream(stream), pytest.raises(RuntimeError, match="Unknown capture error mode"):
        cuda.CUDAGraph().capture_begin(capture_error_mode="strict")
    assert_usable(cuda, device)


@behaviour(own_process=True)
def ending_a_capture_on_another_stream_is_refused(cuda, device):
    x, graph, stream = torch.ones(3, device=device), cuda.CUDAGraph(), cuda.Stream()
    with cuda.stream(stream):
        graph.capture_begin()
        x * 2
    with cuda.stream(cuda.Stream()), pytest.raises(RuntimeError, match="must end on the same stream it began on"):
        graph.capture_end()
    with cuda.stream(stream):  # the capture goes on
        graph.capture_end()


@behaviour
def an_unknown_keyword_is_refused(cuda, device):
    with pytest.raises(TypeError, match="unexpected keyword argument 'steam'"):
        cuda.graph(cuda.CUDAGraph(), steam=cuda.Stream())


@behaviour
def a_graph_can_be_neither_pickled_nor_copied(cuda, device):
    for act in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot pickle"):
            act(cuda.CUDAGraph())


@behaviour
def keep_graph_and_instantiate(cuda, device):
    x = torch.ones(3, device=device)
    graph = cuda.CUDAGraph(keep_graph=True)
    with cuda.graph(graph):
        y = x + 1
    graph.instantiate()
    graph.replay()
    assert y.tolist() == [2, 2, 2]


@behaviour
def a_shape_error_is_raised_at_its_line_and_the_capture_survives(cuda, device):
    x, y = torch.ones(3, device=device), torch.ones(4, device=device)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        with pytest.raises(RuntimeError, match="size of tensor a .3. must match the size of tensor b .4."):
            x + y
        z = x + 1
    graph.replay()
    assert z.tolist() == [2, 2, 2]


@behaviour
def an_error_of_the_user_passes_through_and_ends_the_capture(cuda, device):
    x = torch.ones(3, device=device)
    with pytest.raises(KeyError):
        with cuda.graph(cuda.CUDAGraph()):
            x + 1
            raise KeyError("mine")
    assert cuda.current_stream() == cuda.default_stream()
    assert_usable(cuda, device)


# --- streams and events -------------------------------------------------------------------------------------------


@behaviour
def a_stream_context_sets_and_restores_the_current_stream(cuda, device):
    a, b = cuda.Stream(), cuda.Stream()
    assert a != b and a == a and hash(a) == hash(a)
    with cuda.stream(a):
        assert cuda.current_stream() == a
        with cuda.stream(b), cuda.stream(None):
            assert cuda.current_stream() == b
        assert cuda.current_stream() == a
    assert cuda.current_stream() == cuda.default_stream()


@behaviour
def the_capture_runs_on_a_side_stream(cuda, device):
    x = torch.ones(3, device=device)
    chosen = cuda.Stream()
    with cuda.graph(cuda.CUDAGraph()):
        x + 1
        assert cuda.current_stream() != cuda.default_stream()
    with cuda.graph(cuda.CUDAGraph(), stream=chosen):
        x + 1
        assert cuda.current_stream() == chosen
    assert cuda.current_stream() == cuda.default_stream()


@behaviour
def a_joined_side_stream_becomes_part_of_the_graph(cuda, device):
    x = torch.ones(3, device=device)
    side = cuda.Stream()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        main = cuda.current_stream()
        side.wait_stream(main)
        with cuda.stream(side):
            assert cuda.is_current_stream_capturing()
            left = x * 2
        right = x * 3
        main.wait_stream(side)
        y = left + right
    x.fill_(10)
    graph.replay()
    assert y.tolist() == [50, 50, 50]


@behaviour
def a_side_stream_may_be_joined_through_another(cuda, device):
    x = torch.ones(3, device=device)
    a, b = cuda.Stream(), cuda.Stream()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        main = cuda.current_stream()
        a.wait_stream(main)
        with cuda.stream(a):
            y = x * 2
        event = a.record_event()
        b.wait_event(event)
        with cuda.stream(b):
            z = y + 1
        main.wait_stream(b)
        w = z * 1
    graph.replay()
    assert w.tolist() == [3, 3, 3]


@behaviour(own_process=True)
def an_unjoined_side_stream_fails_the_capture(cuda, device):
    x = torch.ones(3, device=device)
    side = cuda.Stream()
    with pytest.raises(torch.AcceleratorError, match="capturing stream has unjoined work"):
        with cuda.graph(cuda.CUDAGraph()):
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                x * 2
            x * 3


@behaviour(own_process=True)
def waiting_in_a_capture_for_work_outside_of_it_is_refused(cuda, device):
    x = torch.ones(3, device=device)
    event = cuda.Event()
    x.mul_(2)
    event.record()

    def act():
        x * 3
        cuda.current_stream().wait_event(event)

    first, second = refused(cuda, act)
    assert "dependency created on uncaptured work in another stream" in first_line(first), repr(first)
    assert PREVIOUS_ERROR in first_line(second), repr(second)


@behaviour
def events_measure_milliseconds(cuda, device):
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    x = torch.ones(256, 256, device=device)
    start.record()
    for _ in range(20):
        x = x @ x * 1e-3
    end.record()
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000 and end.query()


@behaviour
def events_without_timing_cannot_be_asked(cuda, device):
    start, end = cuda.Event(), cuda.Event()
    start.record()
    end.record()
    cuda.synchronize()
    with pytest.raises((ValueError, RuntimeError), match="enable_timing=True"):
        start.elapsed_time(end)


@behaviour(own_process=True)
def timing_events_of_a_capture_cannot_be_asked(cuda, device):
    x = torch.ones(3, device=device)
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        start.record()
        x * 2
        end.record()
    graph.replay()
    with pytest.raises(torch.AcceleratorError, match="invalid argument"):
        start.elapsed_time(end)


# --- optimizers and gradients -------------------------------------------------------------------------------------


def _mnist_step_is_bitwise_eager(**kwargs) -> Callable:
    def run(cuda, device):
        assert_trains_alike(
            cuda,
            device,
            MnistNet,
            images_and_targets(device, 16, 1, 28, 28),
            lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.5, **kwargs),
            lambda model, x, y: F.nll_loss(model(x), y),
        )

    return run


for _name, _kwargs in {
    "plain": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "nesterov_and_weight_decay": {"nesterov": True, "weight_decay": 0.01},
}.items():
    BEHAVIOURS[f"mnist_trained_by_replay_is_bitwise_eager_with_sgd_{_name}"] = (
        _mnist_step_is_bitwise_eager(**_kwargs),
        False,
    )


@behaviour
def adam_with_capturable_trains_as_in_eager(cuda, device):
    torch.backends.cudnn.deterministic = True
    assert_trains_alike(
        cuda,
        device,
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 10)),
        images_and_targets(device, 8, 4, 4),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True, capturable=True),
        cross_entropy,
    )


@behaviour(own_process=True)
def adam_without_capturable_is_refused(cuda, device):
    layer = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    x = torch.ones(4, 3, device=device)
    step = training_step_of(layer, optimizer, x)

    warm_up(cuda, step)
    first, _ = refused(cuda, step)
    assert "Attempting CUDA graph capture of step() for an instance of Adam" in first_line(first), repr(first)


@behaviour(own_process=True)
def sgd_with_a_tensor_learning_rate_reads_it_unless_fused(cuda, device):
    layer = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=torch.tensor(0.1, device=device))
    x = torch.ones(4, 3, device=device)
    step = training_step_of(layer, optimizer, x)

    warm_up(cuda, step)
    assert_refused_as_host_read(cuda, step)


@behaviour
def fused_sgd_sees_a_tensor_learning_rate_change(cuda, device):
    layer = nn.Linear(1, 1, bias=False).to(device)
    rate = torch.tensor(0.5, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate, fused=True)
    x = torch.ones(1, 1, device=device)
    step = training_step_of(layer, optimizer, x)

    graph, _ = captured(cuda, step)
    with torch.no_grad():
        layer.weight.zero_()
    graph.replay()
    after_one = layer.weight.item()
    rate.fill_(0.25)
    graph.replay()
    assert after_one == -0.5 and layer.weight.item() == -0.75


@behaviour
def a_float_learning_rate_is_baked_in(cuda, device):
    layer = nn.Linear(1, 1, bias=False).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    x = torch.ones(1, 1, device=device)
    step = training_step_of(layer, optimizer, x)

    graph, _ = captured(cuda, step)
    with torch.no_grad():
        layer.weight.zero_()
    optimizer.param_groups[0]["lr"] = 0.0
    graph.replay()
    assert layer.weight.item() == -0.5


@behaviour
def momentum_made_inside_the_capture_is_lost(cuda, device):
    layer = nn.Linear(1, 1, bias=False).to(device)
    x = torch.ones(1, 1, device=device)
    warm_up(cuda, lambda: layer(x).sum().backward())  # the libraries, not the optimizer
    layer.weight.grad = None
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.5)
    graph = cuda.CUDAGraph()
    with torch.no_grad():
        layer.weight.zero_()
    with cuda.graph(graph):
        layer(x).sum().backward()
        optimizer.step()
    for _ in range(3):
        graph.replay()
    assert layer.weight.item() == -3.0  # with momentum: -(1 + 1.5 + 1.75)


@behaviour
def gradients_made_in_the_capture_are_overwritten(cuda, device):
    layer = nn.Linear(1, 1, bias=False).to(device)
    x = torch.ones(1, 1, device=device)
    warm_up(cuda, lambda: layer(x).sum().backward())
    layer.weight.grad = None
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        layer(x).sum().backward()
    for _ in range(3):
        graph.replay()
    assert layer.weight.grad.item() == 1.0


@behaviour
def gradients_alive_at_capture_accumulate(cuda, device):
    layer = nn.Linear(1, 1, bias=False).to(device)
    x = torch.ones(1, 1, device=device)
    warm_up(cuda, lambda: layer(x).sum().backward())
    layer.weight.grad.zero_()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        layer(x).sum().backward()
    for _ in range(3):
        graph.replay()
    assert layer.weight.grad.item() == 3.0


@behaviour
def gradient_clipping_is_captured(cuda, device):
    layer = nn.Linear(2, 1, bias=False).to(device)
    x = torch.full((1, 2), 3.0, device=device)

    def step():
        layer.weight.grad = None
        layer(x).sum().backward()
        return nn.utils.clip_grad_norm_(layer.parameters(), 1.0)

    graph, norm = captured(cuda, step)
    x.fill_(30.0)
    graph.replay()
    assert abs(norm.item() - 30 * 2**0.5) < 1e-3 and abs(layer.weight.grad.norm().item() - 1) < 1e-4


@behaviour(own_process=True)
def gradient_clipping_that_checks_for_nonfinite_values_is_refused(cuda, device):
    layer = nn.Linear(2, 1, bias=False).to(device)
    x = torch.ones(1, 2, device=device)

    def step():
        layer.weight.grad = None
        layer(x).sum().backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)

    warm_up(cuda, step)
    assert_refused_as_host_read(cuda, step)


# --- layers and modes ---------------------------------------------------------------------------------------------


@behaviour
def batch_norm_counts_and_averages_once_per_replay(cuda, device):
    norm = nn.BatchNorm1d(4).to(device)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).to(device)
    reference = copy.deepcopy(norm)
    before = snapshot(norm)
    warm_up(cuda, lambda: norm(x))
    norm.load_state_dict(before)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        norm(x)
    assert same(before, snapshot(norm))
    for _ in range(3):
        graph.replay()
        reference(x)
    assert norm.num_batches_tracked.item() == 3 and same(snapshot(reference), snapshot(norm))


@behaviour
def the_mode_of_dropout_is_baked_in(cuda, device):
    dropout = nn.Dropout(0.5).to(device)
    x = torch.ones(100, device=device)
    dropout.eval()
    graph, y = captured(cuda, lambda: dropout(x) * 1)
    dropout.train()
    graph.replay()
    assert torch.equal(y, x)


@behaviour
def inference_mode_is_captured(cuda, device):
    net = MnistNet().to(device).eval()
    x = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0)).to(device)
    torch.backends.cudnn.deterministic = True
    with torch.inference_mode():
        graph, y = captured(cuda, lambda: net(x))
        expected = net(x)
    graph.replay()
    assert torch.equal(y, expected)


@behaviour
def autocast_is_baked_in(cuda, device):
    layer = nn.Linear(8, 8).to(device)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to(device)

    def forward():
        with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
            return layer(x)

    with torch.no_grad():
        graph, y = captured(cuda, forward)
        expected = forward()
    graph.replay()
    assert y.dtype == torch.bfloat16 and torch.equal(y, expected)


def _layer_is_bitwise_eager(make: Callable, *shape: int) -> Callable:
    def run(cuda, device):
        assert_trains_alike(
            cuda,
            device,
            make,
            images_and_targets(device, *shape),
            lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
            cross_entropy,
            steps=3,
        )

    return run


class NormFirst(nn.Module):
    """BatchNorm of an input ``[B, 5]`` that needs no gradient, two activations and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.hidden, self.classify = nn.BatchNorm1d(5), nn.Linear(5, 6), nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(F.mish(F.silu(self.hidden(self.norm(x)))))


class Recurrent(nn.Module):
    """An LSTM of two layers, both directions, and a classifier; input ``[B, T, 8]``.

    Without dropout: cuDNN's LSTM keeps a dropout state of its own, which no seed set later resets.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.classify = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    """An encoder layer with dropout and a classifier; input ``[B, T, 8]``."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.classify = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.encode(x).mean(1))


class Bags(nn.Module):
    """Embeddings of the rounded input ``[B, T]``, with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.classify = nn.Embedding(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(F.dropout(self.norm(self.embed((x.abs() * 3).long().clamp(0, 7)).sum(1)), 0.3))


for _name, _make, _shape in (
    ("a_bidirectional_lstm", Recurrent, (4, 6, 8)),
    ("a_transformer_encoder_layer", Attention, (4, 6, 8)),
    ("embedding_and_batch_norm", Bags, (16, 5)),
    ("batch_norm_in_front", NormFirst, (16, 5)),
):
    BEHAVIOURS[f"{_name}_trained_by_replay_is_bitwise_eager"] = (_layer_is_bitwise_eager(_make, *_shape), False)


@behaviour
def views_splits_and_multiple_outputs_are_captured(cuda, device):
    x = torch.arange(12.0, device=device).view(3, 4)

    def step():
        a, b = x.chunk(2, dim=1)
        values, indices = (a * b).max(dim=1)
        mean, variance = torch.var_mean(x, dim=0)
        parts = x.flatten().unfold(0, 3, 3).unbind()
        return torch.cat([values, indices.float(), mean, variance, *parts])

    graph, y = captured(cuda, step)
    x.copy_(torch.arange(12.0).flip(0).view(3, 4).sqrt())
    graph.replay()
    assert torch.equal(y, step())


@behaviour
def in_place_chains_on_views_are_captured(cuda, device):
    x = torch.arange(6.0, device=device).view(2, 3)

    def step():
        y = x.clone()
        y[0].mul_(2)
        y[:, 1] += 10
        y.t()[2].copy_(y.t()[0])
        y.index_add_(0, torch.arange(2, device=device), x)
        return y.unsqueeze_(0)

    graph, y = captured(cuda, step)
    x.add_(1)
    graph.replay()
    assert torch.equal(y, step()) and tuple(y.shape) == (1, 2, 3)


@behaviour
def writes_through_undeclared_views_are_captured(cuda, device):
    x, y = torch.ones(2, 3, device=device), torch.full((3,), 2.0, device=device)
    product = torch.zeros(2, 9, device=device)

    def step():
        torch.kron(x, y, out=product)
        for part in torch.unsafe_split(product, 1):
            part.add_(1)

    graph, _ = captured(cuda, step)
    product.zero_()
    x.fill_(3)
    graph.replay()
    assert product.tolist() == [[7.0] * 9] * 2


@behaviour
def an_out_tensor_gets_the_size_of_the_result(cuda, device):
    x = torch.arange(6.0, device=device).view(2, 3)
    total, values, graph = torch.empty(0, device=device), torch.empty(0, device=device), cuda.CUDAGraph()
    indices = torch.empty(0, dtype=torch.int64, device=device)
    with cuda.graph(graph):
        torch.add(x, x, out=total)
        torch.max(x, 1, out=(values, indices))
    assert tuple(total.shape) == (2, 3) and tuple(values.shape) == tuple(indices.shape) == (2,)
    x.add_(1)
    graph.replay()
    assert torch.equal(total, 2 * x) and values.tolist() == [3, 6] and indices.tolist() == [2, 2]


class Labelled(torch.Tensor):
    """A subclass that changes nothing."""


@behaviour
def a_subclass_of_tensor_is_captured(cuda, device):
    x, graph = torch.ones(3, device=device).as_subclass(Labelled), cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x * 2 + 1
    x.fill_(4)
    graph.replay()
    assert type(y) is Labelled and y.tolist() == [9, 9, 9]


@behaviour
def an_autograd_function_is_captured(cuda, device):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 2 + 0 * x

    x = torch.ones(3, device=device, requires_grad=True)

    def step():
        x.grad = None
        (Twice.apply(x) ** 2).sum().backward()

    graph, _ = captured(cuda, step)
    with torch.no_grad():
        x.fill_(3)
    graph.replay()
    assert x.grad.tolist() == [24, 24, 24]


# --- host tensors and device tensors ------------------------------------------------------------------------------


@behaviour
def a_tensor_made_on_the_host_may_be_read_in_a_capture(cuda, device):
    x = torch.ones(3, device=device)
    with cuda.graph(cuda.CUDAGraph()):
        x * 2
        assert torch.tensor(3.0).item() == 3 and (torch.zeros(3) + 1).tolist() == [1, 1, 1]
        assert torch.arange(4)[1:].sum() == 6 and torch.full((2,), 5).numpy().tolist() == [5, 5]
        assert 0 <= float(torch.rand(1)) < 1 and "tensor([1, 2])" in repr(torch.as_tensor([1, 2]))


@behaviour
def a_host_tensor_of_one_number_is_baked_in(cuda, device):
    x, graph = torch.ones(3, device=device), cuda.CUDAGraph()
    with cuda.graph(graph):
        factor, summand = torch.tensor(2.0), torch.zeros(())
        y, z = x * factor, (x + summand).fill_(torch.tensor(7.0))
    factor.fill_(5)
    summand.fill_(9)
    graph.replay()
    assert y.tolist() == [2, 2, 2] and z.tolist() == [7, 7, 7]


@behaviour
def one_hot_of_a_given_width_is_captured(cuda, device):
    t = torch.tensor([0, 2, 1], device=device)
    graph, y = captured(cuda, lambda: (F.one_hot(t, 3), F.one_hot(t, num_classes=4)))
    t.fill_(2)
    graph.replay()
    assert y[0].tolist() == [[0, 0, 1]] * 3 and y[1].tolist() == [[0, 0, 1, 0]] * 3


BEHAVIOURS["host_read_by_one_hot_of_unknown_width_is_refused"] = (_host_read(lambda x: F.one_hot(x.long())), True)


def _refused_with(act: Callable, message: str, on_gpu: str = "") -> Callable:
    """Return a behaviour: `act` on tensors works eagerly, and raises `message` (or `on_gpu`) in a capture."""

    def run(cuda, device):
        a = torch.eye(4, device=device) * 2 + torch.full((4, 4), 0.1, device=device)
        tensors = a, torch.arange(4.0, device=device), torch.ones(4, device=device, requires_grad=True)
        if message is not SAME_DEVICE:  # which is refused eagerly on a GPU, too
            warm_up(cuda, lambda: act(*tensors), 1)
        first, _ = refused(cuda, lambda: act(*tensors))
        assert message in first_line(first) or on_gpu and on_gpu in first_line(first), repr(first)

    return run


PAGEABLE = "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned"
SAME_DEVICE = "Expected all tensors to be on the same device, but "

for _name, _act, _message in (
    ("linalg_inv", lambda a, x, w: torch.linalg.inv(a), NOT_PERMITTED),
    ("linalg_cholesky", lambda a, x, w: torch.linalg.cholesky(a), NOT_PERMITTED),
    ("linalg_solve", lambda a, x, w: torch.linalg.solve(a, x), NOT_PERMITTED),
    ("linalg_lu_factor", lambda a, x, w: torch.linalg.lu_factor(a), NOT_PERMITTED),
    ("linalg_eigh", lambda a, x, w: torch.linalg.eigh(a), NOT_PERMITTED),
    ("linalg_eig", lambda a, x, w: torch.linalg.eig(a), NOT_PERMITTED),
    ("linalg_lstsq", lambda a, x, w: torch.linalg.lstsq(a, a), NOT_PERMITTED),
    ("linalg_svd", lambda a, x, w: torch.linalg.svd(a), PAGEABLE),
    ("linalg_svdvals", lambda a, x, w: torch.linalg.svdvals(a), PAGEABLE),
    ("linalg_pinv", lambda a, x, w: torch.linalg.pinv(a), PAGEABLE),
    ("linalg_cond", lambda a, x, w: torch.linalg.cond(a), PAGEABLE),
    ("linalg_matrix_exp", lambda a, x, w: torch.linalg.matrix_exp(a), PAGEABLE),
    ("bincount", lambda a, x, w: torch.bincount(x.long(), minlength=9), PAGEABLE),
    ("histc_of_the_range_of_the_data", lambda a, x, w: torch.histc(x, 4), PAGEABLE),
    ("normal_of_two_tensors", lambda a, x, w: torch.normal(x, x), NOT_PERMITTED),
    ("normal_of_a_deviation", lambda a, x, w: torch.normal(0.0, x), NOT_PERMITTED),
    ("the_gradient_of_prod", lambda a, x, w: torch.autograd.grad(w.prod(), w), NOT_PERMITTED),
    ("the_gradient_of_cumprod", lambda a, x, w: torch.autograd.grad(w.cumprod(0).sum(), w), NOT_PERMITTED),
    ("an_index_list", lambda a, x, w: x[[0, 2]], PAGEABLE),
    ("index_lists", lambda a, x, w: a[[0, 1], [1, 0]], PAGEABLE),
    ("an_index_list_behind_a_slice", lambda a, x, w: a[:, [0, 2]], PAGEABLE),
    ("a_write_through_an_index_list", lambda a, x, w: x.__setitem__([0, 2], 1.0), PAGEABLE),
    ("an_index_on_the_host", lambda a, x, w: x[torch.tensor([1, 2])], PAGEABLE),
    ("a_masked_write_of_one_element", lambda a, x, w: x.__setitem__(x > 1, x[:1].clone()), NOT_PERMITTED),
    ("a_copy_from_the_host", lambda a, x, w: x.copy_(torch.ones(4)), PAGEABLE),
    ("a_copy_of_a_number_from_the_host", lambda a, x, w: x.copy_(torch.tensor(2.0)), PAGEABLE),
    ("a_host_tensor_moved_to_the_device", lambda a, x, w: torch.ones(3).to(x.device), PAGEABLE),
    ("a_layer_moved_to_the_device", lambda a, x, w: nn.Linear(4, 4).to(x.device), PAGEABLE),
    ("where_of_a_number_on_the_host", lambda a, x, w: torch.where(x > 1, x, torch.tensor(0.0)), PAGEABLE),
    ("a_product_with_a_host_tensor", lambda a, x, w: x * torch.ones(4), SAME_DEVICE),
    ("a_concatenation_with_a_host_tensor", lambda a, x, w: torch.cat([x, torch.zeros(1)]), SAME_DEVICE),
):
    _own_words = "CUSOLVER_STATUS_INTERNAL_ERROR" if _name == "linalg_eigh" else ""  # cuSOLVER's, on an H200
    BEHAVIOURS[f"a_wait_inside_is_refused_in_{_name}"] = (_refused_with(_act, _message, _own_words), True)


@behaviour
def what_waits_for_nothing_is_captured(cuda, device):
    a = torch.eye(4, device=device) * 2
    x, q = torch.arange(4.0, device=device) + 1, torch.tensor(0.5, device=device)

    def step():
        y = x.clone()
        y[y > 3] = torch.tensor(3.0)
        y[y > 2] = 1.0
        y[1:] = 2.0
        torch.distributions.Categorical(logits=x, validate_args=False).sample()
        torch.multinomial(x, 2, replacement=True)
        torch.multinomial(x, 1)
        factors = torch.linalg.cholesky_ex(a)[0], torch.linalg.inv_ex(a)[0], torch.linalg.qr(a)[1].abs()
        sums = torch.linalg.det(a), torch.linalg.slogdet(a)[1], torch.quantile(x, 0.5), torch.quantile(x, q)
        of_nothing = torch.linalg.svd(a[:0, :0])
        return *factors, *sums, *of_nothing, torch.histc(x, 4, 0, 5), y, torch.scalar_tensor(2.0, device=device)

    graph, results = captured(cuda, step)
    a.add_(0.1)
    x.mul_(1.1)
    graph.replay()
    for result, expected in zip(results, step(), strict=True):
        torch.testing.assert_close(result, expected)


# --- kinds of numbers ---------------------------------------------------------------------------------------------


def _half_precision_is_bitwise_eager(make: Callable, *shape: int) -> Callable:
    def run(cuda, device):
        torch.manual_seed(0)
        model, x = make().to(device), torch.randn(shape).to(device)

        def step():
            model.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
                y = model(x)
            y.float().pow(2).sum().backward()

        graph, _ = captured(cuda, step)  # gradients of the warm-up are gone: the capture makes its own
        gradients = [p.grad for p in model.parameters()]
        x.mul_(1.5)
        graph.replay()
        mine = [g.clone() for g in gradients]
        step()
        assert all(torch.equal(a, p.grad) for a, p in zip(mine, model.parameters(), strict=True))

    return run


for _name, _make, _shape in (
    ("layer_norm", lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), (4, 8)),
    ("group_norm", lambda: nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8)), (4, 8)),
    ("batch_norm", lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), (4, 8)),
    ("a_convolution", lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU()), (2, 2, 6, 6)),
    ("attention", lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 3, 8)),
):
    BEHAVIOURS[f"bfloat16_autocast_of_{_name}_is_bitwise_eager"] = (
        _half_precision_is_bitwise_eager(_make, *_shape),
        False,
    )


@behaviour
def autocast_of_the_forward_does_not_reach_the_backward(cuda, device):
    w = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    a, b = torch.ones(4, 5, device=device) / 3, torch.ones(4, 6, device=device) / 7

    def step():
        w.grad = None
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            loss = F.bilinear(a, b, w).float().pow(2).sum()
        torch.autograd.backward(loss)

    graph, _ = captured(cuda, step)
    gradient = w.grad
    graph.replay()
    step()
    assert torch.equal(gradient, w.grad)


@behaviour
def bfloat16_in_front_of_a_float32_batch_norm_updates_its_statistics(cuda, device):
    norm = nn.BatchNorm1d(3).to(device)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    reference = copy.deepcopy(norm)

    def forward(norm):
        with torch.autocast(device.type, torch.bfloat16):
            return norm(x)

    warm_up(cuda, lambda: forward(norm))
    norm.load_state_dict(reference.state_dict())
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = forward(norm)
    assert same(snapshot(reference), snapshot(norm))
    graph.replay()
    assert torch.equal(y, forward(reference)) and same(snapshot(reference), snapshot(norm))


@behaviour(own_process=True)
def a_size_that_depends_on_data_is_refused_in_half_precision_too(cuda, device):
    x = torch.arange(4.0, device=device).bfloat16()
    assert_refused_as_host_read(cuda, lambda: x.nonzero())


@behaviour
def transforms_of_functions_are_captured(cuda, device):
    x = torch.arange(3.0, device=device)
    graph, results = captured(
        cuda, lambda: (torch.func.grad(lambda x: (x**3).sum())(x), torch.vmap(lambda a: a * 2)(x.view(3, 1)))
    )
    x.add_(1)
    graph.replay()
    assert results[0].tolist() == [3, 12, 27] and results[1].flatten().tolist() == [2, 4, 6]


@behaviour
def autocast_reaches_operations_inside_of_operations(cuda, device):
    theta = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0)).to(device)

    def forward():
        with torch.autocast(device.type, torch.bfloat16):
            return F.affine_grid(theta, (4, 3, 8, 8), align_corners=False)

    graph, y = captured(cuda, forward)
    graph.replay()
    expected = forward()
    assert y.dtype == expected.dtype and torch.equal(y, expected)


# --- the generator in a capture -----------------------------------------------------------------------------------


def _checkpoint_is_right(use_reentrant: bool) -> Callable:
    def run(cuda, device):
        w = torch.randn(100, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()

        def step():
            w.grad = None
            y = checkpoint(lambda w: F.dropout(w * w) * w, w, use_reentrant=use_reentrant)
            y.sum().backward()
            return y.detach()

        graph, y = captured(cuda, step)
        gradient, seen = w.grad, []
        torch.manual_seed(5)
        for _ in range(3):
            graph.replay()
            seen.append(gradient.clone())
            torch.testing.assert_close(gradient, 3 * y / w.detach())  # the same mask in the recomputation
        torch.manual_seed(5)
        for expected in seen:
            step()
            assert torch.equal(w.grad, expected)

    return run


for _reentrant in (True, False):
    BEHAVIOURS[f"a_checkpoint_round_dropout_draws_the_same_mask_reentrant_{_reentrant}"] = (
        _checkpoint_is_right(_reentrant),
        False,
    )


@behaviour
def a_state_of_the_generator_may_be_taken_back_in_a_capture(cuda, device):
    def step():
        state = cuda.get_rng_state()
        a = torch.rand(10, device=device)
        cuda.set_rng_state(state)
        return a, torch.rand(10, device=device)

    graph, (a, b) = captured(cuda, step)
    before = cuda.get_rng_state()
    graph.replay()
    first = a.clone()
    assert torch.equal(a, b)
    graph.replay()
    assert torch.equal(a, b) and not torch.equal(a, first) and not torch.equal(cuda.get_rng_state(), before)


@behaviour
def the_seed_that_the_generator_has_is_accepted_in_a_capture(cuda, device):
    cuda.manual_seed(7)
    with cuda.graph(cuda.CUDAGraph()):
        torch.rand(3, device=device)
        torch.manual_seed(cuda.initial_seed())
    state = cuda.get_rng_state()
    cuda.manual_seed_all(7)
    assert torch.equal(state, cuda.get_rng_state())


@behaviour(own_process=True)
def another_seed_inside_fork_rng_is_refused_in_a_capture(cuda, device):
    first, _ = refused(cuda, lambda: _fork_and_seed(device))
    assert "can be called during stream capture only if new seed is the same" in first_line(first), repr(first)


def _fork_and_seed(device) -> None:
    with torch.random.fork_rng(devices=[0] if device.type == "cuda" else []):
        torch.manual_seed(42)
        torch.rand(3, device=device)


@behaviour(own_process=True)
def a_new_seed_in_a_capture_is_refused(cuda, device):
    first, _ = refused(cuda, lambda: torch.seed())
    assert "can be called during stream capture only if new seed is the same" in first_line(first), repr(first)


@behaviour(own_process=True)
def an_unregistered_generator_is_refused(cuda, device):
    if device.type == "cuda" and torch.__version__ >= "2.14":
        return  # it registers the generator by itself; the list of limits says so
    x, generator = torch.ones(3, device=device), torch.Generator(device)
    first, _ = refused(cuda, lambda: x.uniform_(generator=generator))
    assert "Attempt to increase offset for a CUDA generator not in capture mode" in first_line(first), repr(first)


@behaviour
def a_registered_generator_draws_fresh_numbers(cuda, device):
    x, generator, graph = torch.ones(100, device=device), torch.Generator(device).manual_seed(3), cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with cuda.graph(graph):
        x.uniform_(generator=generator)
        y = F.dropout(x)
    by_replay = []
    for _ in range(2):
        graph.replay()
        by_replay.append(x.clone())
    generator.manual_seed(3)
    for expected in by_replay:
        assert torch.equal(expected, torch.empty_like(x).uniform_(generator=generator))
    assert not torch.equal(*by_replay) and 20 < (y == 0).sum().item() < 80
    with pytest.raises(TypeError):
        graph.register_generator_state(5)


# --- every optimizer with a flag for captures ---------------------------------------------------------------------


def _optimizer_is_bitwise_eager(name: str, **kwargs) -> Callable:
    def run(cuda, device):
        def make():
            torch.manual_seed(0)
            layer = nn.Linear(6, 4).to(device)
            return layer, getattr(torch.optim, name)(layer.parameters(), lr=0.01, **kwargs)

        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).to(device)
        (graphed, optimizer), (eager, other) = make(), make()

        def step(layer, optimizer):
            optimizer.zero_grad()
            layer(x).pow(2).sum().backward()
            optimizer.step()

        warm_up(cuda, lambda: step(eager, other))
        graph, _ = captured(cuda, lambda: step(graphed, optimizer))
        for _ in range(3):
            graph.replay()
            step(eager, other)
            assert same(snapshot(eager), snapshot(graphed))

    return run


for _name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "RMSprop", "Rprop", "Adagrad"):
    _implementations = [{"foreach": False}, {"foreach": True}]
    _implementations += [{"fused": True}] if _name in ("Adam", "AdamW") else []
    for _kwargs in _implementations:
        _label = next(f"{key}_{value}" for key, value in _kwargs.items())
        BEHAVIOURS[f"an_optimizer_replays_bitwise_as_eager_{_name}_{_label}"] = (
            _optimizer_is_bitwise_eager(_name, **_kwargs, **({} if _name == "Adagrad" else {"capturable": True})),
            False,
        )


# --- the streams of a backward pass -------------------------------------------------------------------------------


class _Witness(torch.autograd.Function):
    """Doubles its input, and notes the streams of its forward and its backward."""

    @staticmethod
    def forward(ctx, x, cuda, seen):
        ctx.cuda, ctx.seen = cuda, seen
        seen.append(cuda.current_stream())
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        ctx.seen.append(ctx.cuda.current_stream())
        return 2 * gradient, None, None


@behaviour
def a_backward_operation_runs_on_its_forwards_stream(cuda, device):
    x, side, graph, seen = torch.ones(3, device=device, requires_grad=True), cuda.Stream(), cuda.CUDAGraph(), []
    with cuda.graph(graph):
        main = cuda.current_stream()
        side.wait_stream(main)
        with cuda.stream(side):
            left = _Witness.apply(x, cuda, seen)
        right = _Witness.apply(x, cuda, seen)
        main.wait_stream(side)
        (gradient,) = torch.autograd.grad((left * right).sum(), x)
        assert cuda.current_stream() == main
    assert seen[:2] == [side, main] and sorted(s == side for s in seen[2:]) == [False, True]
    graph.replay()
    assert gradient.tolist() == [8, 8, 8]


@behaviour(own_process=True)
def a_backward_whose_forward_ran_on_the_default_stream_is_refused(cuda, device):
    x = torch.ones(3, device=device, requires_grad=True)
    loss = (x * x).sum()
    first, _ = refused(cuda, loss.backward)
    assert "would make the legacy stream depend on a capturing blocking stream" in first_line(first), repr(first)


@behaviour(own_process=True)
def the_default_stream_may_not_wait_for_a_capture(cuda, device):
    x = torch.ones(3, device=device)

    def act():
        x * 2
        cuda.default_stream().wait_stream(cuda.current_stream())

    first, _ = refused(cuda, act)
    assert "would make the legacy stream depend on a capturing blocking stream" in first_line(first), repr(first)


# --- more of the interface ----------------------------------------------------------------------------------------


@behaviour
def make_graphed_callables_trains_as_in_eager(cuda, device):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).to(device)

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).to(device)
    states = []
    for graphed in (True, False):
        model = cuda.make_graphed_callables(make(), (x.clone(),)) if graphed else make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(5)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
        states.append(snapshot(model))
    torch.testing.assert_close(*states)


@behaviour
def a_stream_is_a_context_manager_and_a_torch_stream(cuda, device):
    stream, x = cuda.Stream(priority=-99), torch.ones(3, device=device)
    with stream, cuda.Stream() as inner:
        assert cuda.current_stream() == inner != stream
    assert cuda.current_stream() == cuda.default_stream() and isinstance(stream, torch.Stream)
    x.record_stream(stream)
    low, high = cuda.Stream.priority_range()
    assert low == 0 > high == stream.priority and cuda.Stream(priority=5).priority == 0
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x * 2
        y.record_stream(cuda.current_stream())
    graph.replay()
    assert y.tolist() == [2, 2, 2]


@behaviour
def unknown_keywords_of_graphs_streams_and_events_are_refused(cuda, device):
    for make in (cuda.CUDAGraph, cuda.Stream, cuda.Event):
        with pytest.raises(TypeError, match="foo"):
            make(foo=1)


@behaviour
def an_external_event_happens_at_each_replay(cuda, device):
    start, end = (cuda.Event(enable_timing=True, external=True) for _ in range(2))
    x, graph = torch.ones(64, 64, device=device), cuda.CUDAGraph()
    warm_up(cuda, lambda: x @ x)
    with cuda.graph(graph):
        start.record()
        x @ x
        end.record()
    graph.replay()
    cuda.synchronize()
    assert 0 < start.elapsed_time(end) < 10_000


@behaviour
def an_event_of_a_finished_capture_is_refused_until_it_is_recorded_anew(cuda, device):
    x, event = torch.ones(3, device=device), cuda.Event()
    with cuda.graph(cuda.CUDAGraph()):
        x * 2
        event.record()
    for act in (event.synchronize, event.query, lambda: cuda.current_stream().wait_event(event)):
        with pytest.raises(torch.AcceleratorError, match="invalid argument"):
            act()
    event.record()
    event.synchronize()


@behaviour(own_process=True)
def an_event_of_the_capture_cannot_be_waited_for_on_the_host(cuda, device):
    x = torch.ones(3, device=device)

    def act():
        event = cuda.Event()
        x * 2
        event.record()
        event.query()

    first, _ = refused(cuda, act)
    assert "not permitted on an event last recorded in a capturing stream" in first_line(first), repr(first)


@behaviour
def an_event_never_recorded_holds_nobody_up(cuda, device):
    x, event = torch.ones(3, device=device), cuda.Event()
    with cuda.graph(cuda.CUDAGraph()):
        x * 2
        assert event.query()
        event.synchronize()
        cuda.current_stream().wait_event(event)


@behaviour
def instantiate_needs_keep_graph(cuda, device):
    x, graph = torch.ones(3, device=device), cuda.CUDAGraph()
    with cuda.graph(graph):
        x + 1
    with pytest.raises(RuntimeError, match="intended to be called by the user only when keep_graph=true"):
        graph.instantiate()
    graph.reset()
    with pytest.raises(RuntimeError, match="capture_end.. must have been called before calling instantiate"):
        graph.instantiate()


@behaviour
def a_pool_is_a_pair_of_numbers(cuda, device):
    with cuda.stream(cuda.Stream()), pytest.raises(TypeError, match="incompatible function arguments"):
        cuda.CUDAGraph().capture_begin(pool=5)
    assert_usable(cuda, device)


@behaviour
def a_capture_holds_memory_until_reset(cuda, device):
    gc.collect()  # what earlier captures left
    x, graph = torch.ones(1000, device=device), cuda.CUDAGraph()
    cuda.empty_cache()
    before = cuda.memory_allocated()
    with cuda.graph(graph):
        y = x * 2
    assert cuda.memory_allocated() - before >= 4000
    graph.reset()
    del y
    assert cuda.memory_allocated() <= before + 1024  # what an H200 keeps


@behaviour
def there_is_a_current_device(cuda, device):
    with cuda.graph(cuda.CUDAGraph()):
        torch.ones(3, device=device) * 2
        assert 0 <= cuda.current_device() < cuda.device_count()
        cuda.memory_allocated()
        cuda.empty_cache()


@behaviour(own_process=True)
def a_capture_left_open_by_an_error_goes_on(cuda, device):
    x, graph, stream = torch.ones(2, device=device), cuda.CUDAGraph(), cuda.Stream()
    with pytest.raises(KeyError), cuda.stream(stream):
        graph.capture_begin()
        x * 2
        raise KeyError("mine")
    assert not cuda.is_current_stream_capturing() and "2., 2." in repr(torch.ones(2) + 1)  # the host is free
    with pytest.raises(torch.AcceleratorError, match=NOT_PERMITTED):
        repr(x)
    with cuda.stream(stream), pytest.raises(torch.AcceleratorError, match=PREVIOUS_ERROR):
        graph.capture_end()
    assert x.tolist() == [1, 1]


@behaviour
def an_operator_of_ones_own_is_captured_without_a_fake_kernel(cuda, device):
    calls, name = [], f"parity::twice_{device.type}_{id(device)}"

    @torch.library.custom_op(name, mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return x * 2

    x, graph = torch.ones(3, device=device), cuda.CUDAGraph()
    with cuda.graph(graph):
        y = twice(x)
    x.fill_(4)
    for _ in range(2):
        graph.replay()
    assert y.tolist() == [8, 8, 8] and len(calls) == 1  # Python runs once


def test_there_are_at_least_forty_behaviours() -> None:
    """A parametrised family counts as one behaviour."""
    families = ("host_read_by_", "a_size_that_depends_on_data_", "mnist_trained_by_replay_")
    single = [name for name in BEHAVIOURS if not name.startswith(families) and not name.endswith("is_bitwise_eager")]
    assert len(single) >= 40, len(single)
    assert len(BEHAVIOURS) > len(single) + 3
