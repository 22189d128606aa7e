"""What a recorded operation will return: the metadata, found without its values.

FakeTensor knows the sizes, strides and dtypes of nearly every operation. Where the CPU's kernels do otherwise, the
kernel itself is asked.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.utils._pytree import tree_leaves, tree_map_only

DEPENDS_ON_VALUES = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
"""What :func:`predict` raises where the result depends on values."""

# The size of its workspace is known to oneDNN alone: FakeTensor predicts an empty one.
# `bincount` comes here for an empty input alone, whose size of the result does not depend on values.
_METADATA_BY_RUNNING = {torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.bincount.default}
_TAGS_OF_THOSE = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_HALF = {torch.bfloat16, torch.float16}


@dataclass(frozen=True)
class Foreseen:
    """Metadata of a result that no operation has computed."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def allocate(self) -> Tensor:
        """Return a tensor of this kind without values: NaN, or zero in integers."""
        result = torch.empty_strided(self.size, self.stride, dtype=self.dtype)
        return result.fill_(float("nan") if self.dtype.is_floating_point or self.dtype.is_complex else 0)


_foreseen: dict[tuple, Any] = {}
"""Predictions by operation and metadata of its arguments, kept for all captures: predicting is slow."""
_fake_mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)


def _signature(value: Any) -> tuple:
    """Return what a prediction depends on, to be compared and hashed."""
    if isinstance(value, Tensor):
        return (value.size(), value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_signature, value))
    return (type(value), value)


def predict(func: Any, args: tuple, kwargs: dict, autocast: torch.dtype | None) -> Any:
    """Return `func`'s result with :class:`Foreseen` for tensors; raise what it would raise for these arguments.

    Raises:
        DEPENDS_ON_VALUES: the result depends on values.
        NotImplementedError: the operation cannot be recorded.
    """
    key = (func, torch.get_default_dtype(), autocast, _signature(args), _signature(tuple(kwargs.items())))
    if key not in _foreseen:
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            _foreseen[key] = tree_map_only(Tensor, lambda t: _foresee(func, t), _imagine(func, args, kwargs, autocast))
    return _foreseen[key]


def _foresee(func: Any, value: Tensor) -> Foreseen:
    kind = value.device.type if value.layout is torch.strided else value.layout
    if kind != "cpu":
        raise NotImplementedError(f"{func} makes a {kind} tensor: the stand-in records dense CPU ones only.")
    return Foreseen(tuple(value.size()), tuple(value.stride()), value.dtype)


def _imagine(func: Any, args: tuple, kwargs: dict, autocast: torch.dtype | None) -> Any:
    """Return tensors like `func`'s results, whose values mean nothing."""
    mutates = func._schema.is_mutable
    half = autocast or any(isinstance(t, Tensor) and t.dtype in _HALF for t in tree_leaves((args, kwargs)))
    makes = any(r.alias_info is None for r in func._schema.returns)
    if func in _METADATA_BY_RUNNING or (half and makes and not _TAGS_OF_THOSE & set(func.tags)):
        with suppress(RuntimeError):  # FakeTensor and the CPU's kernels disagree on statistics in half precision
            return _run_for_nothing(func, args, kwargs)
    try:
        with _fake_mode:
            return func(*tree_map_only(Tensor, _fake, args), **tree_map_only(Tensor, _fake, kwargs))
    except DEPENDS_ON_VALUES:
        raise
    except (fake_tensor.UnsupportedOperatorException, NotImplementedError, AssertionError) as error:
        if mutates and not makes:
            return None  # it only mutates its arguments: there is nothing to foresee
        if func.namespace != "aten" and not mutates:
            return _run_for_nothing(func, args, kwargs)  # an operator of an extension, without a fake kernel
        raise NotImplementedError(f"{func} cannot be recorded by the CPU stand-in: {error}") from error
    except (RuntimeError, ValueError, IndexError, TypeError):
        # Wrong arguments: on tensors of zeros the operation itself refuses them in eager's words.
        zeros = tree_map_only(Tensor, torch.zeros_like, (args, kwargs))
        func(*zeros[0], **zeros[1])
        raise


def _fake(t: Tensor) -> Tensor:
    return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu")


def _run_for_nothing(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run `func` on copies of its arguments, as `native_batch_norm` mutates some undeclared; restore the generator."""
    state = torch.default_generator.get_state()
    args, kwargs = tree_map_only(Tensor, torch.clone, (args, kwargs))
    try:
        return func(*args, **kwargs)
    finally:
        torch.default_generator.set_state(state)
