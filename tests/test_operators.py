"""Every operator of PyTorch's own samples: captured, replayed on new values, and compared bitwise with eager.

``torch.testing`` describes some 700 operators, with inputs for each (``op_db``). The stand-in may refuse one, clearly;
it may never replay to something else than eager computes.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from tutorial_utils import cuda_stand_in as cuda

SAMPLES = 3  # of each operator and mode
# autocast: all in float32, under bfloat16 autocast; mixed: the same with the input in bfloat16.
MODES = ("float32", "bfloat16", "autocast", "mixed")
# Their gradient multiplies by a mask in a capture, as on a GPU, and fills by one in eager on a CPU: -0.0, not 0.0.
EQUAL_BY_VALUE = {"max.reduction_no_dim", "median", "min.reduction_no_dim", "nanmedian"}
DOCUMENTED = ("during CUDA graph capture", "during stream capture", "convert cuda:0", "not in capture mode")


@dataclass
class Sweep:
    """What became of the samples."""

    same: Counter = field(default_factory=Counter)
    refused: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        refusals = sum(map(len, self.refused.values()))
        return (
            f"{len(self.same.keys() | self.refused.keys())} operators, {self.same.total() + refusals} samples: "
            f"{self.same.total()} bitwise as in eager, {refusals} refused of {len(self.refused)} operators, "
            f"{len(self.faults)} faults\n"
            + "".join(f"  {name}: {reasons[0]}\n" for name, reasons in sorted(self.refused.items()))
            + "\n".join(self.faults)
        )


def operators() -> list:
    pytest.importorskip("expecttest", reason="torch.testing._internal needs it")
    from torch.testing._internal import common_methods_invocations

    # Random operators are wrapped to seed themselves, which a capture refuses. Uninitialised memory may hold anything.
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return [
        op for op in common_methods_invocations.op_db if "empty" not in op.name
    ]  # uninitialised memory may hold anything


def samples_of(op: Any, mode: str, device: str = "cpu", seed: int = 0) -> list:
    """Return up to SAMPLES samples, spread over all: the first ones often have no or one element."""
    dtype = torch.bfloat16 if mode == "bfloat16" else torch.float32
    if dtype not in op.supported_dtypes(device):
        return []
    torch.manual_seed(seed)
    random.seed(0)
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes(device)
    samples = list(op.sample_inputs(device, dtype, requires_grad=differentiable))
    chosen = sorted({i * (len(samples) - 1) // max(SAMPLES - 1, 1) for i in range(SAMPLES)}) if samples else []
    samples = [samples[i] for i in chosen]
    for sample in samples if mode == "mixed" else ():
        sample.input = tree_map_only(Tensor, _to_bfloat16, sample.input)
    return samples


def _to_bfloat16(x: Tensor) -> Tensor:
    return x.detach().bfloat16().requires_grad_(x.requires_grad) if x.dtype == torch.float32 else x


def tensors_of(*values: Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def inputs_of(sample: Any) -> list[Tensor]:
    return tensors_of(sample.input, sample.args, sample.kwargs)


def forward_and_backward(op: Any, sample: Any, mode: str, device: str = "cpu") -> list[Tensor | None]:
    """Return the outputs and the gradients of all inputs."""
    with torch.autocast(device, torch.bfloat16, enabled=mode in ("autocast", "mixed")):
        result = op(sample.input, *sample.args, **sample.kwargs)
    roots = [x for x in tensors_of(sample.output_process_fn_grad(result)) if x.requires_grad]
    leaves = [x for x in inputs_of(sample) if x.requires_grad]
    if not (roots and leaves):
        return tensors_of(result)
    gradients = torch.autograd.grad(roots, leaves, [x.detach().cos() for x in roots], allow_unused=True)
    return tensors_of(result) + list(gradients)


def alike(sample: Any, other: Any) -> bool:
    """Return whether two samples differ in the values of their tensors alone."""

    def describe(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return repr(x)
        if x.layout is not torch.strided:
            return object()  # equal to nothing
        return x.dtype, x.shape, x.stride(), x.storage_offset(), x.untyped_storage().nbytes()

    ours, theirs = (tree_leaves((s.input, s.args, s.kwargs)) for s in (sample, other))
    return list(map(describe, ours)) == list(map(describe, theirs))


def refill(sample: Any, fresh: Any) -> None:
    """Copy the values of `fresh` into the tensors of `sample`, whatever their strides and overlaps."""
    for target, source in zip(inputs_of(sample), inputs_of(fresh), strict=True):
        target.untyped_storage().copy_(source.untyped_storage())


def poison(results: list[Tensor | None], sample: Any) -> None:
    """Overwrite the results, so that only a replay can make them right; those that are views of an input stay."""
    inputs = {x.untyped_storage().data_ptr() for x in inputs_of(sample) if x.layout is torch.strided}
    for x in results:
        if x is not None and x.layout is torch.strided and x.untyped_storage().data_ptr() not in inputs:
            x.untyped_storage().fill_(0x7F)


def same(a: Tensor | None, b: Tensor | None, by_value: bool = False) -> bool:
    """Return whether two results agree in their metadata and in every bit, or in every value."""
    if a is None or b is None:
        return a is b
    if (a.dtype, a.shape, a.layout) != (b.dtype, b.shape, b.layout):
        return False
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return torch.equal(a, b) if by_value else torch.equal(_bytes_of(a), _bytes_of(b))


def _bytes_of(x: Tensor) -> Tensor:
    x = x.detach().resolve_conj().resolve_neg()
    return x.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def is_a_refusal(error: BaseException) -> bool:
    if isinstance(error, (NotImplementedError, torch.AcceleratorError)):
        return True
    return isinstance(error, (RuntimeError, TypeError)) and any(text in str(error) for text in DOCUMENTED)


def try_sample(op: Any, mode: str, sample: Any, fresh: Any, sweep: Sweep) -> None:
    name = f"{op.name}.{op.variant_test_name}".rstrip(".")

    def step(sample: Any) -> list[Tensor | None]:
        torch.manual_seed(1)
        return forward_and_backward(op, sample, mode)

    try:
        expected, again = step(fresh), step(fresh)
    except Exception:
        return  # eager refuses it
    if not all(map(same, expected, again)):
        return  # it has no one result
    static = sample if alike(sample, fresh) else fresh
    graph, during = cuda.CUDAGraph(), "capture"
    try:
        with cuda.graph(graph):
            results = forward_and_backward(op, static, mode)
        during = "replay"
        poison(results, static)
        if static is not fresh:
            refill(static, fresh)
        torch.manual_seed(1)
        graph.replay()
    except Exception as error:
        first = error.__context__ if isinstance(error.__context__, Exception) else error
        line = f"{type(first).__name__}: {str(first).splitlines()[0][:150] if str(first) else ''}"
        if is_a_refusal(first):
            sweep.refused.setdefault(name, []).append(line)
        else:
            sweep.faults.append(f"{name} ({mode}) in {during}: {line}")
        return
    finally:
        cuda.set_stream(cuda.default_stream())
    by_value = name in EQUAL_BY_VALUE
    if len(results) == len(expected) and all(same(a, b, by_value) for a, b in zip(results, expected, strict=True)):
        sweep.same[name] += 1
    else:
        sweep.faults.append(f"{name} ({mode}): differs")


def sweep_over(mode: str, ops: list | None = None) -> Sweep:
    """Try every operator in `mode`."""
    sweep = Sweep()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in operators() if ops is None else ops:
            for sample, fresh in zip(samples_of(op, mode), samples_of(op, mode, seed=1), strict=False):
                try_sample(op, mode, sample, fresh, sweep)
    return sweep


@pytest.mark.release
@pytest.mark.parametrize("mode", MODES)
def test_no_operator_differs_silently(mode: str) -> None:
    sweep = sweep_over(mode)
    print(f"\n{mode}: {sweep}")
    assert sweep.same.total() > 1000
    assert not sweep.faults
