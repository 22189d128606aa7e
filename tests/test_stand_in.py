"""What only the stand-in has: its recording, its limits, and whole networks trained bitwise as in eager on the CPU."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.test_parity import assert_trains_alike, captured, cross_entropy, images_and_targets
from tutorial_utils import cuda_stand_in as cuda

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _default_stream():
    yield
    cuda.set_stream(cuda.default_stream())


# --- whole networks -----------------------------------------------------------------------------------------------


def _resnet18() -> nn.Module:
    return pytest.importorskip("torchvision").models.resnet18(num_classes=10)


def _vit() -> nn.Module:
    models = pytest.importorskip("torchvision").models
    return models.VisionTransformer(64, 16, 2, 2, 32, 64, dropout=0.1, attention_dropout=0.1, num_classes=10)


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.classify = nn.LSTM(8, 16, 2, bidirectional=True, dropout=0.2), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.lstm(x.transpose(0, 1))[0][-1])


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.classify = nn.TransformerEncoderLayer(8, 2, 16), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.encode(x).mean(1))


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.classify = nn.EmbeddingBag(20, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.bag((x.abs() * 5).long().clamp(0, 19)))


class _Convolutions(nn.Module):
    """Transposed, grouped and 1-d convolutions, norms of several kinds, pooling, padding, interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(4, 8, 3, stride=2, groups=2), nn.ConvTranspose2d(8, 4, 3, stride=2)
        self.group, self.layer, self.instance = nn.GroupNorm(2, 8), nn.LayerNorm([4, 15, 15]), nn.InstanceNorm2d(4)
        self.line, self.classify = nn.Conv1d(4, 4, 5), nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.instance(self.layer(self.up(F.gelu(self.group(self.down(x))))))
        x = F.interpolate(F.pad(F.avg_pool2d(x, 2), (1, 1, 1, 1), mode="reflect"), size=(6, 6), mode="bilinear")
        return self.classify(self.line(x.flatten(2)).mean(2))


@pytest.mark.parametrize(
    ("make", "shape", "implementation"),
    [
        (_resnet18, (2, 3, 32, 32), {}),
        (_resnet18, (2, 3, 32, 32), {"foreach": True}),
        (_resnet18, (2, 3, 32, 32), {"fused": True}),
        (_vit, (2, 3, 64, 64), {"foreach": True}),
        (_Lstm, (4, 7, 8), {"fused": True}),
        (_Encoder, (4, 7, 8), {}),
        (_Bag, (4, 6), {"foreach": True}),
        (_Convolutions, (4, 4, 15, 15), {"fused": True}),
    ],
)
def test_a_network_trains_bitwise_as_in_eager(make, shape, implementation) -> None:
    assert_trains_alike(
        cuda,
        CPU,
        make,
        images_and_targets(CPU, *shape),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, **implementation),
        cross_entropy,
        steps=3,
    )


@pytest.mark.parametrize("activation", [F.silu, F.mish])
def test_a_gradient_with_a_kernel_of_its_own_is_recorded_as_one_operation(activation) -> None:
    x = torch.linspace(-4, 4, 101, requires_grad=True)
    (expected,) = torch.autograd.grad(activation(x).sum(), x)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        (gradient,) = torch.autograd.grad(activation(x).sum(), x)
    graph.replay()
    assert torch.equal(gradient, expected)
    assert graph.operations[-1].name == f"aten.{activation.__name__}_backward.default"


# --- the recording ------------------------------------------------------------------------------------------------


def test_operations_list_what_was_recorded() -> None:
    x, w = torch.ones(2, 3), torch.ones(3, 4)
    graph = cuda.CUDAGraph()
    assert graph.operations == []
    with cuda.graph(graph):
        y = (x @ w).t().relu_()
    names = [operation.name for operation in graph.operations]
    assert names == ["aten.mm.default", "aten.relu_.default"]  # a transposition changes metadata alone
    product, relu = graph.operations
    assert product.shape == (2, 4) and relu.shape is None and product.stream == relu.stream == 0
    assert product.outputs == relu.inputs == relu.outputs and len(product.inputs) == 2
    graph.replay()
    assert y.tolist() == [[3.0, 3.0]] * 4


def test_operations_name_their_stream() -> None:
    x, side, graph = torch.ones(3), cuda.Stream(), cuda.CUDAGraph()
    with cuda.graph(graph):
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            x * 2
        x * 3
        cuda.current_stream().wait_stream(side)
    assert [operation.stream for operation in graph.operations] == [1, 0]


def test_results_hold_nan_or_zero_until_the_first_replay() -> None:
    x = torch.ones(3)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y, z = x * 2, (x > 0).long() + 4
    assert y.isnan().all() and z.tolist() == [0, 0, 0]
    graph.replay()
    assert y.tolist() == [2, 2, 2] and z.tolist() == [5, 5, 5]


def test_what_a_capture_made_lives_until_reset() -> None:
    x, graph = torch.ones(1000), cuda.CUDAGraph()
    gc.collect()
    before = cuda.memory_allocated()
    with cuda.graph(graph):
        alive = [weakref.ref(y.untyped_storage()) for y in (x * 2, x.sin(), x.cumsum(0))]
    gc.collect()
    assert all(r() is not None for r in alive) and cuda.memory_allocated() - before == 3 * 4000
    graph.reset()
    gc.collect()
    assert all(r() is None for r in alive) and cuda.memory_allocated() == before


def test_rebinding_data_of_a_result_does_not_reach_the_recording() -> None:
    x, graph = torch.ones(3), cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x * 2
    held = y.detach()
    y.data = torch.zeros(3)
    graph.replay()
    assert held.tolist() == [2, 2, 2] and y.tolist() == [0, 0, 0]


def test_a_replay_leaves_version_counters_and_modes_alone() -> None:
    x = torch.ones(3)
    graph, _ = captured(cuda, lambda: x.add_(1))
    version = x._version
    with torch.no_grad():
        graph.replay()
        assert not torch.is_grad_enabled()
    assert x._version == version and torch.is_grad_enabled()


def test_a_replay_ignores_a_default_device() -> None:
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = torch.zeros(3, device=CPU) + torch.arange(3, device=CPU)
    with torch.device("meta"):
        graph.replay()
    assert y.tolist() == [0, 1, 2]


def test_another_seed_in_a_capture_is_undone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="only if new seed is the same"), cuda.graph(cuda.CUDAGraph()):
        torch.ones(1, device=CPU) * 2
        torch.default_generator.manual_seed(2)
    assert torch.equal(state, torch.get_rng_state()) and torch.initial_seed() == 1


def test_reset_in_a_capture_leaves_the_capture_underway() -> None:
    x, graph = torch.ones(3), cuda.CUDAGraph()
    with cuda.graph(graph):
        y = x * 2
        graph.reset()
    graph.replay()
    assert y.tolist() == [2, 2, 2] and not cuda.is_current_stream_capturing()


# --- the limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [lambda x: x.numpy(), lambda x: x.__array__()], ids=["numpy", "array"])
def test_numpy_is_refused_in_a_capture_only(read) -> None:
    x = torch.ones(3)
    assert read(x).tolist() == [1, 1, 1]
    with (
        pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"),
        cuda.graph(cuda.CUDAGraph()),
    ):
        read(x * 2)


def test_sparse_gradients_are_not_recorded_and_the_operation_is_named() -> None:
    embed = nn.Embedding(5, 3, sparse=True)
    indices = torch.tensor([1, 2])
    with pytest.raises(NotImplementedError, match=r"aten\.\S+"), cuda.graph(cuda.CUDAGraph()):
        embed(indices).sum().backward()


def test_a_scripted_fork_is_not_recorded_and_says_so(recwarn) -> None:
    @torch.jit.script
    def parallel(x: torch.Tensor) -> torch.Tensor:
        future = torch.jit.fork(torch.sin, x)
        return torch.cos(x) + torch.jit.wait(future)

    x = torch.ones(3)
    parallel(x)
    with pytest.raises(Exception, match="another thread|previous error"), cuda.graph(cuda.CUDAGraph()):
        parallel(x)


def test_a_control_flow_operator_is_not_recorded_and_is_named() -> None:
    x = torch.ones(3)
    with pytest.raises(Exception, match="cond"), cuda.graph(cuda.CUDAGraph()):
        torch.ops.higher_order.cond(x.sum() > 0, lambda x: (x * 2,), lambda x: (x * 3,), (x,))


@pytest.mark.parametrize(
    ("act", "named"),
    [(lambda x: x.to("meta"), "makes a meta tensor"), (lambda x: x.pin_memory(), r"aten\._?pin_memory|accelerator")],
)
def test_other_devices_and_pinned_memory_are_refused_by_name(act, named) -> None:
    x = torch.ones(3)
    with pytest.raises((NotImplementedError, RuntimeError), match=named), cuda.graph(cuda.CUDAGraph()):
        act(x * 2)


def test_a_wrong_argument_is_not_logged_beside_its_error() -> None:
    records, logger = [], logging.getLogger("torch._subclasses.fake_tensor")
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    try:
        with pytest.raises(RuntimeError, match="cannot be multiplied"), cuda.graph(cuda.CUDAGraph()):
            torch.ones(2, 3, device=CPU) @ torch.ones(2, 3, device=CPU)
    finally:
        logger.removeHandler(handler)
    assert records == []


def test_a_missing_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match="torch.cuda.nvtx has no stand-in on the CPU.*CUDAGraph"):
        _ = cuda.nvtx
    assert not hasattr(cuda, "get_device_name") and not cuda.is_available()


def test_capture_end_without_a_beginning_is_refused() -> None:
    with pytest.raises(RuntimeError, match="without a preceding capture_begin"):
        cuda.CUDAGraph().capture_end()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        cuda.CUDAGraph().pool()


def test_the_package_names_a_torch_that_it_does_not_support() -> None:
    old = "import torch; torch.__version__ = type(torch.__version__)('2.8.1+cpu'); import tutorial_utils"
    result = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "This course needs PyTorch 2.9 or later; this is 2.8.1" in result.stderr


def test_a_sparse_operand_is_refused_and_the_operation_is_named() -> None:
    eye, x = torch.eye(3), torch.ones(3, 3)
    for operand in (eye.to_sparse(), eye.to_sparse_csr()):
        with pytest.raises(NotImplementedError, match=r"aten\.\S+ takes a torch.sparse_\w+ tensor"):
            with cuda.graph(cuda.CUDAGraph()):
                torch.sparse.mm(operand, x)


def test_an_operator_of_an_extension_is_recorded_whole_without_a_fake_kernel() -> None:
    library = torch.library.Library("extension", "DEF")
    library.define("thrice(Tensor x) -> Tensor")
    library.impl("thrice", lambda x: x * 3, "CPU")
    x, graph = torch.ones(3), cuda.CUDAGraph()
    with cuda.graph(graph):
        y = torch.ops.extension.thrice(x)
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [12, 12, 12] and [o.name for o in graph.operations] == ["extension.thrice.default"]


def test_debug_dump_writes_the_recording_of_a_graph_that_keeps_it(tmp_path) -> None:
    x, graph, path = torch.ones(3), cuda.CUDAGraph(), tmp_path / "graph.dot"
    with cuda.graph(graph):
        (x * 2).add_(1)
    with pytest.warns(UserWarning, match="debug not enabled"):
        graph.debug_dump(str(path))
    assert not path.exists()
    graph.enable_debug_mode()
    graph.debug_dump(str(path))
    text = path.read_text()
    assert text.startswith("digraph") and '1 [label="aten.add_.Tensor"' in text and "0 -> 1;" in text


def test_a_state_from_outside_of_the_capture_is_not_set_in_it() -> None:
    state = torch.get_rng_state()
    with pytest.raises(NotImplementedError, match="in the same capture"), cuda.graph(cuda.CUDAGraph()):
        torch.rand(3, device=CPU)
        torch.set_rng_state(state)
    assert torch.equal(state, torch.get_rng_state())


def test_a_read_beside_an_open_capture_says_what_to_do() -> None:
    x, graph, stream = torch.ones(2), cuda.CUDAGraph(), cuda.Stream()
    with cuda.stream(stream):
        graph.capture_begin()
        x * 2
    for read in (lambda: print(x), x.sum().item, cuda.synchronize, x.tolist):
        with pytest.raises(torch.AcceleratorError, match=r"(?s)not permitted.*End it with .*graph.capture_end\(\)"):
            read()
    with cuda.stream(stream), pytest.raises(torch.AcceleratorError, match="previous error"):
        graph.capture_end()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_operation_whose_out_overload_resizes_is_replayed_right(reduction, recwarn) -> None:
    x, y, graph = torch.rand(4, 5), torch.rand(4, 5).round(), cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = F.binary_cross_entropy(x, y, reduction=reduction)
    x.copy_(torch.rand(4, 5))
    graph.replay()
    assert torch.equal(loss, F.binary_cross_entropy(x, y, reduction=reduction)) and not recwarn.list


@pytest.mark.parametrize(
    ("act", "shape"),
    [
        (torch.linalg.matrix_exp, (0, 0)),
        (torch.linalg.pinv, (0, 3)),
        (torch.linalg.svdvals, (0, 3, 3)),
        (lambda x: torch.bincount(x.long(), minlength=4), (0,)),
        (lambda x: torch.histc(x, 4), (0,)),
    ],
)
def test_what_copies_inside_does_not_copy_an_empty_input(act, shape) -> None:
    x, graph = torch.ones(shape), cuda.CUDAGraph()
    with cuda.graph(graph):
        y = act(x)
    graph.replay()
    assert torch.equal(y, act(x))


@pytest.mark.parametrize("pinv", [torch.pinverse, torch.linalg.pinv])
def test_an_empty_pseudoinverse_has_the_kind_of_numbers_of_eager_under_autocast(pinv) -> None:
    x, graph = torch.ones(0, 0), cuda.CUDAGraph()
    with torch.autocast("cpu", torch.bfloat16):
        with cuda.graph(graph):
            y = pinv(x)
        graph.replay()
        assert y.dtype == pinv(x).dtype


def test_the_list_of_limits_has_one_line_each() -> None:
    assert all(line.startswith("* ") and line.endswith((";", ".")) for line in cuda.LIMITS.splitlines())
    assert 8 <= len(cuda.LIMITS.splitlines()) <= 20
