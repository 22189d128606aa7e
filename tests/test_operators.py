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
    samples = list(op.sample_inputs(torch.device(device), dtype, requires_grad=differentiable))
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
    """Return the outputs and the gradients of all inputs; what an operator makes without `device=` is on the device."""
    with torch.device(device), torch.autocast(device, torch.bfloat16, enabled=mode in ("autocast", "mixed")):
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


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def first_error(error: Exception) -> Exception:
    """Return the error at the offending line, where another one left the capture."""
    return error.__context__ if "previous error" in str(error) and error.__context__ else error


def is_a_refusal(error: Exception) -> bool:
    documented = isinstance(error, (RuntimeError, TypeError)) and any(text in str(error) for text in DOCUMENTED)
    return documented or isinstance(error, (NotImplementedError, torch.AcceleratorError))


def try_sample(op: Any, mode: str, sample: Any, fresh: Any) -> str | Exception | None:
    """Return "same", "differs", or the error of the capture or the replay; None where eager has no one result."""

    def eager() -> list[Tensor | None]:
        torch.manual_seed(1)
        return forward_and_backward(op, fresh, mode)

    try:
        expected, again = eager(), eager()
    except Exception:
        return None
    if not all(map(same, expected, again)):
        return None
    static = sample if alike(sample, fresh) else fresh
    graph = cuda.CUDAGraph()
    try:
        with cuda.graph(graph):
            results = forward_and_backward(op, static, mode)
        poison(results, static)
        if static is sample:
            refill(sample, fresh)
        torch.manual_seed(1)
        graph.replay()
    except Exception as error:
        return first_error(error)
    finally:
        cuda.set_stream(cuda.default_stream())
    by_value = name_of(op) in EQUAL_BY_VALUE
    agree = len(results) == len(expected) and all(same(a, b, by_value) for a, b in zip(results, expected, strict=True))
    return "same" if agree else "differs"


def outcomes(op: Any, mode: str) -> list[str | Exception | None]:
    """Return what became of each sample of an operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = zip(samples_of(op, mode), samples_of(op, mode, seed=1), strict=True)
        return [try_sample(op, mode, sample, fresh) for sample, fresh in samples]


@pytest.mark.release
@pytest.mark.parametrize("mode", MODES)
def test_no_operator_differs_silently(mode: str) -> None:
    sweep = Sweep()
    for op in operators():
        for outcome in outcomes(op, mode):
            if outcome == "same":
                sweep.same[name_of(op)] += 1
            elif outcome == "differs":
                sweep.faults.append(f"{name_of(op)} differs")
            elif outcome is not None:
                line = f"{type(outcome).__name__}: {str(outcome).partition(chr(10))[0]}"
                if is_a_refusal(outcome):
                    sweep.refused.setdefault(name_of(op), []).append(line)
                else:
                    sweep.faults.append(f"{name_of(op)} fails: {line}")
    print(f"\n{mode}: {sweep}")
    assert sweep.same.total() > 1000
    assert not sweep.faults
