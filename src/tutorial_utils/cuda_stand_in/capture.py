"""How the stand-in records: the state of a capture, and the modes that see what happens in it.

:mod:`tutorial_utils.cuda_stand_in` holds the names of :mod:`torch.cuda` and says what this can and cannot see.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
PREVIOUS_ERROR = "CUDA error: operation failed due to a previous error during capture"
PAGEABLE = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."

_aten = torch.ops.aten
# They allocate and launch nothing, so that they leave no operation in a recording.
_ALLOCATIONS = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
# Their results share the argument's memory, which their schemas do not say.
_UNDECLARED_VIEWS = {_aten._unsafe_view, _aten.unsafe_split, _aten.unsafe_split_with_sizes}
_INDEX_WRITES = {_aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index_put}
# The size of its workspace is known to oneDNN alone: FakeTensor predicts an empty one.
_METADATA_BY_RUNNING = {_aten.mkldnn_rnn_layer.default}
# Host reads that dispatch no ATen operation on the CPU, and constructors that read Python data.
_HOST_READS = {"__repr__", "__format__"}
_HOST_COPIES = {"cpu", "tolist"}
_NUMPY = {"numpy", "__array__"}
_FROM_HOST = {"tensor", "as_tensor", "asarray", "new_tensor"}


@dataclass
class Operation:
    """One recorded operation. Only the stand-in has these; ``graph.operations`` lists them.

    Attributes:
        name: the ATen overload, for example ``aten.addmm.default``.
        stream: 0 for the stream on which the capture began, 1, 2, ... for those forked from it, in order.
        inputs: numbers of the storages that it reads; a storage keeps its number over the whole recording.
        outputs: numbers of the storages that it writes.
        shape: the sizes of its first result, or None where it has no result of its own.
    """

    name: str
    stream: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    shape: tuple[int, ...] | None
    _func: Any = field(repr=False)
    _args: tuple = field(repr=False)
    _kwargs: dict = field(repr=False)
    _results: list = field(repr=False)
    _grad_enabled: bool = field(repr=False)

    def run(self) -> None:
        """Execute the operation on the recorded storages.

        Raises:
            NotImplementedError: the result has another shape than the capture foresaw.
        """
        torch._C._set_grad_enabled(self._grad_enabled)
        fresh = self._func(*self._args, **self._kwargs)
        for result, value in zip(self._results, tree_leaves(fresh) if self._results else (), strict=True):
            if result is None or value is None:  # a gradient that nobody needs is foreseen, and not computed
                continue
            if result.shape != value.shape:
                raise NotImplementedError(
                    f"{self.name} returned shape {tuple(value.shape)} where the capture foresaw {tuple(result.shape)}: "
                    "the stand-in cannot replay operations whose result's shape depends on data."
                )
            result.copy_(value)


class Capture:
    """A capture underway.

    Args:
        stream_id: the stream on which it begins.
        current_stream_id: tells the stream that receives an operation.
    """

    def __init__(self, stream_id: int, current_stream_id: Callable[[], int]) -> None:
        self.origin = stream_id
        self.current_stream_id = current_stream_id
        self.thread = threading.get_ident()
        self.broken = False
        # Vector clocks: for each captured stream, how many operations of each stream it has waited for.
        self.seen: dict[int, dict[int, int]] = {stream_id: {}}
        self.operations: list[Operation] = []
        self.allocated: list[Tensor] = []
        self.seed = torch.initial_seed()
        self.rng_state = torch.get_rng_state()
        self._storages: dict[int, int] = {}
        self._fake_mode = FakeTensorMode(allow_non_fake_inputs=True)

    def includes(self, stream_id: int) -> bool:
        """Return whether `stream_id` began this capture or was forked into it."""
        return stream_id in self.seen

    def join(self, stream_id: int, seen: dict[int, int]) -> None:
        """Let `stream_id` wait for the work counted in `seen`; it thereby becomes part of the capture."""
        mine = self.seen.setdefault(stream_id, {})
        for other, count in seen.items():
            mine[other] = max(count, mine.get(other, 0))

    def has_unjoined_work(self) -> bool:
        """Return whether a forked stream holds an operation that the origin has not waited for."""
        origin = self.seen[self.origin]
        return any(seen.get(stream_id, 0) > origin.get(stream_id, 0) for stream_id, seen in self.seen.items())

    def refuse(self, message: str = NOT_PERMITTED) -> NoReturn:
        """Break the capture and raise at the offending line, as the driver does."""
        first, self.broken = not self.broken, True
        raise torch.AcceleratorError(message if first else PREVIOUS_ERROR)

    def dispatch(self, mode: TorchDispatchMode, func: Any, args: tuple, kwargs: dict) -> Any:
        """Do in the capture what `func` asks for: run it, record it, or refuse it."""
        if threading.get_ident() != self.thread:
            self.broken = True
            raise NotImplementedError(f"{func} came from another thread (a scripted fork?): it cannot be recorded.")
        if getattr(func, "namespace", "") == "profiler" or not self.includes(self.current_stream_id()):
            return func(*args, **kwargs)  # not part of the capture: it runs at once, as on a GPU
        if self.broken:
            self.refuse()
        if not isinstance(func, torch._ops.OpOverload):
            raise NotImplementedError(f"{func} cannot be recorded by the CPU stand-in.")
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU")
        if func._can_decompose() and not has_kernel:  # composite operations arrive whole in inference mode
            with mode:
                return func.decompose(*args, **kwargs)
        schema = func._schema
        is_view = not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)
        if is_view or torch.Tag.inplace_view in func.tags or func.overloadpacket in _UNDECLARED_VIEWS:
            return func(*args, **kwargs)  # changes metadata alone
        self._refuse_masked_write(func, args)
        return self._record(func, args, kwargs, self._predict(func, args, kwargs))

    def _predict(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Return `func`'s result as metadata; raise what it would raise for these arguments."""
        if func in _METADATA_BY_RUNNING:
            return func(*args, **kwargs)
        try:
            plain = tree_map_only(Tensor, lambda t: t.as_subclass(Tensor), (args, kwargs))
            with self._fake_mode:
                fake_args, fake_kwargs = tree_map_only(Tensor, lambda t: self._fake_mode.from_tensor(t.detach()), plain)
                return func(*fake_args, **fake_kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            self.refuse()
        except (UnsupportedOperatorException, NotImplementedError, AssertionError) as error:
            if func._schema.is_mutable and all(r.alias_info is not None for r in func._schema.returns):
                return None  # it only mutates its arguments: there is nothing to foresee
            raise NotImplementedError(f"{func} cannot be recorded by the CPU stand-in: {error}") from error
        except (RuntimeError, ValueError, IndexError, TypeError):
            # Wrong arguments: on tensors of zeros the operation itself refuses them in eager's words.
            zeros = tree_map_only(Tensor, torch.zeros_like, (args, kwargs))
            func(*zeros[0], **zeros[1])
            raise

    def _refuse_masked_write(self, func: Any, args: tuple) -> None:
        """Refuse `x[mask] = tensor`, which counts the mask on the host; with a number it is a masked fill."""
        if func.overloadpacket not in _INDEX_WRITES:
            return
        indices = [i for i in args[1] if i is not None]
        if any(i.dtype in (torch.bool, torch.uint8) for i in indices) and (len(indices) > 1 or args[2].numel() != 1):
            self.refuse()

    def _record(self, func: Any, args: tuple, kwargs: dict, predicted: Any) -> Any:
        """Append `func` to the recording and return its result: mutated arguments, and new tensors without values."""
        schema = func._schema
        named = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        written = {
            frozenset(a.alias_info.before_set): named[a.name]
            for a in schema.arguments
            if a.alias_info is not None and a.alias_info.is_write and a.name in named
        }
        fresh: list[Tensor | None] = []

        def allocate(value: Any) -> Any:
            if not isinstance(value, Tensor):
                fresh.append(None)
                return value
            if value.layout is not torch.strided or value.device.type != "cpu":
                kind = value.layout if value.layout is not torch.strided else value.device.type
                raise NotImplementedError(f"{func} makes a {kind} tensor: the stand-in records dense CPU ones only.")
            result = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
            result.fill_(float("nan") if value.dtype.is_floating_point or value.dtype.is_complex else 0)
            fresh.append(result.detach())  # an alias: `x.data = ...` on the result must not reach the recording
            return result

        def result_of(declared: Any, value: Any) -> Any:
            if declared.alias_info is None:
                return tree_map(allocate, value)
            fresh.append(None)
            mine = written[frozenset(declared.alias_info.before_set)]
            if isinstance(value, Tensor) and isinstance(mine, Tensor) and mine.shape != value.shape:
                mine.resize_(value.shape)  # `out=` of another size gets the result's, as in eager
            return mine

        if len(schema.returns) == 1:
            result = result_of(schema.returns[0], predicted)
        else:
            values = predicted or [None] * len(schema.returns)
            result = tuple(result_of(r, v) for r, v in zip(schema.returns, values, strict=True))
        self.allocated += [t for t in fresh if t is not None]
        if func.overloadpacket not in _ALLOCATIONS:
            self._append(func, args, kwargs, fresh, list(written.values()))
        return result if schema.returns else None

    def _append(self, func: Any, args: tuple, kwargs: dict, fresh: list, written: list) -> None:
        def number(values: Any) -> tuple[int, ...]:
            keys = (t.untyped_storage()._cdata for t in tree_leaves(values) if isinstance(t, Tensor))
            return tuple(dict.fromkeys(self._storages.setdefault(key, len(self._storages)) for key in keys))

        stream_id = self.current_stream_id()
        clock = self.seen[stream_id]
        clock[stream_id] = clock.get(stream_id, 0) + 1
        args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        results = [t for t in fresh if t is not None]
        self.operations.append(
            Operation(
                name=str(func),
                stream=list(self.seen).index(stream_id),
                inputs=number((args, kwargs)),
                outputs=number((results, written)),
                shape=tuple(results[0].shape) if results else None,
                _func=func,
                _args=args,
                _kwargs=kwargs,
                _results=fresh if results else [],
                _grad_enabled=torch.is_grad_enabled(),
            )
        )


active: Capture | None = None
"""The one capture underway in this process."""

# It logs a traceback for every wrong argument, beside the error that is raised for it.
logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: active is None)


def refuse_in_capture() -> None:
    """Raise :class:`torch.AcceleratorError` if a capture is underway: the host may not wait for the device then."""
    if active is not None:
        active.refuse()


class Recorder(TorchDispatchMode):
    """Hands every ATen operation, below autograd, to the capture underway."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) if active is None else active.dispatch(self, func, args, kwargs or {})


class HostReads(TorchFunctionMode):
    """Refuses the host reads that dispatch nothing on the CPU, and tensors made on the device from Python data."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], Tensor):
            if name in _HOST_READS:
                refuse_in_capture()
            if name in _HOST_COPIES:
                raise RuntimeError(PAGEABLE)
            if name in _NUMPY:
                raise TypeError(NUMPY)
        on_device = name in _FROM_HOST and (name == "new_tensor" or kwargs.get("device") is not None)
        if on_device and not isinstance(args[-1] if args else None, Tensor):
            raise RuntimeError(PAGEABLE)
        return func(*args, **kwargs)


def check_optimizer(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Raise what ``torch.optim.Optimizer._cuda_graph_capture_health_check`` raises on a GPU.

    Raises:
        RuntimeError: a parameter group has ``capturable=False``.
    """
    if not all(group.get("capturable", True) for group in optimizer.param_groups):
        raise RuntimeError(
            f"Attempting CUDA graph capture of step() for an instance of {type(optimizer).__name__} "
            "but param_groups' capturable is False."
        )
