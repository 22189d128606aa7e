"""The graph and stream names of :mod:`torch.cuda`, recorded and replayed on the CPU.

On a machine without a GPU ``from tutorial_utils import cuda`` gives this module, and the same code runs that a GPU
would run. It teaches **semantics, not speed**: a replay here issues the recorded ATen operations one by one.

How it works. :meth:`CUDAGraph.capture_begin` turns on a ``TorchDispatchMode``, which receives every ATen operation
below autograd. No data operation runs during a capture: views are formed, operations that mutate their arguments are
only noted, and the results of all others are allocated from the metadata that a ``FakeTensor`` run predicts, filled
with NaN (integers with zero). :meth:`CUDAGraph.replay` runs the recorded operations on the recorded storages. A
``TorchFunctionMode`` refuses the host reads that dispatch nothing on the CPU, such as ``.tolist()``.

Names, signatures, error classes and messages follow ``torch/cuda/graphs.py`` and ``torch/cuda/streams.py`` of
PyTorch 2.9 to 2.14; ``tests/test_parity.py`` runs one test per behaviour on both backends.

What no mode can see on a CPU, and what therefore passes here although a GPU refuses it or behaves otherwise:

* reads and copies that leave no trace: ``.to("cpu")``, ``torch.from_numpy``, pickling, ``data_ptr()`` arithmetic;
  whether host memory is pinned or pageable; ``torch.tensor(...)`` without ``device=`` is taken for a host tensor;
* the inside of functions compiled by ``torch.compile`` (their kernels are called directly);
* work and errors of another Python thread (``capture_error_mode`` is accepted and ignored);
* ``torch.manual_seed`` with another seed is reported when the capture ends, not at its line;
* memory that is freed or reused: everything a capture touches stays alive until :meth:`CUDAGraph.reset`;
* ``nn.TransformerEncoderLayer`` in eval mode without gradients leaves its fast path while a function mode is active.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from contextlib import ExitStack
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
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

__all__ = [
    "CUDAGraph",
    "Event",
    "Operation",
    "Stream",
    "current_stream",
    "default_stream",
    "graph",
    "graph_pool_handle",
    "is_available",
    "is_current_stream_capturing",
    "set_stream",
    "stream",
    "synchronize",
]

_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
_PREVIOUS_ERROR = "CUDA error: operation failed due to a previous error during capture"
_UNJOINED = "CUDA error: capturing stream has unjoined work"
_UNCAPTURED = "CUDA error: dependency created on uncaptured work in another stream"
_PAGEABLE = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
)

_aten = torch.ops.aten
# They allocate and launch nothing, so that they leave no operation in a recording.
_ALLOCATIONS = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
_INDEX_WRITES = {_aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index_put}
# The size of its workspace is known to oneDNN alone: FakeTensor predicts an empty one.
_METADATA_BY_RUNNING = {_aten.mkldnn_rnn_layer.default}
_HOST_READS = {"tolist", "numpy", "__array__", "cpu", "__repr__", "__format__"}
_FROM_HOST = {"tensor", "as_tensor", "asarray", "new_tensor"}


def is_available() -> bool:
    """Return False: this module is not a GPU."""
    return False


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"torch.cuda.{name} has no stand-in on the CPU. The stand-in offers: {', '.join(__all__)}. "
        "Run this part on a machine with a GPU, or test `torch.cuda.is_available()` first."
    )


# --- streams and events -------------------------------------------------------------------------------------------

_stream_ids = itertools.count()
_thread = threading.local()


class Stream:
    """A stand-in for :class:`torch.cuda.Stream`: an order of work with an identity, executed in program order.

    Args:
        device: accepted for compatibility and ignored.
        priority: accepted for compatibility and ignored.
    """

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.stream_id = next(_stream_ids)
        self.device = torch.device("cpu")
        self.priority = priority

    @property
    def cuda_stream(self) -> int:
        """The handle of the stream, an int; 0 for the default stream."""
        return self.stream_id

    def wait_stream(self, stream: Stream) -> None:
        """Make all future work of this stream wait for the present work of `stream`."""
        self.wait_event(stream.record_event())

    def wait_event(self, event: Event) -> None:
        """Make all future work of this stream wait for `event`.

        Raises:
            torch.AcceleratorError: this stream is being captured and `event` was recorded outside of the capture.
        """
        capture = _capture
        if capture is None or event._time is None:
            return
        if event._capture is capture:
            mine = capture.seen.setdefault(self.stream_id, {})
            for stream_id, count in event._seen.items():
                mine[stream_id] = max(count, mine.get(stream_id, 0))
        elif capture.includes(self):
            capture.refuse(_UNCAPTURED)

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event` (a new one if None) after the present work of this stream and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Return True: work on the CPU is complete when its call returns."""
        _refuse_in_capture()
        return True

    def synchronize(self) -> None:
        """Wait for the work of this stream.

        Raises:
            torch.AcceleratorError: a capture is underway.
        """
        _refuse_in_capture()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<Stream {self.stream_id} of the CPU stand-in>"


class Event:
    """A stand-in for :class:`torch.cuda.Event`.

    Args:
        enable_timing: whether :meth:`elapsed_time` may be asked.
        blocking: accepted for compatibility and ignored.
        interprocess: accepted for compatibility and ignored.
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **kwargs: Any):
        self._enable_timing = enable_timing
        self._time: float | None = None
        self._capture: _Capture | None = None
        self._seen: dict[int, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        """Record the event in `stream` (the current one if None)."""
        stream = current_stream() if stream is None else stream
        self._time = time.perf_counter()
        captured = _capture is not None and _capture.includes(stream)
        self._capture = _capture if captured else None
        self._seen = dict(_capture.seen[stream.stream_id]) if captured else {}

    def wait(self, stream: Stream | None = None) -> None:
        """Make all future work of `stream` (the current one if None) wait for this event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Return True: work on the CPU is complete when its call returns."""
        _refuse_in_capture()
        return True

    def synchronize(self) -> None:
        """Wait for the event.

        Raises:
            torch.AcceleratorError: a capture is underway.
        """
        _refuse_in_capture()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the time from this event to `end_event` in milliseconds.

        Raises:
            ValueError: an event was made without ``enable_timing=True``, or was not recorded.
            torch.AcceleratorError: an event was recorded in a capture, where no time passes.
        """
        if not (self._enable_timing and end_event._enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or end_event._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if self._capture is not None or end_event._capture is not None:
            raise torch.AcceleratorError("CUDA error: invalid argument")
        return (end_event._time - self._time) * 1e3


_default_stream = Stream()


def default_stream(device: Any = None) -> Stream:
    """Return the default stream."""
    return _default_stream


def current_stream(device: Any = None) -> Stream:
    """Return the stream that receives the work of the calling thread."""
    return getattr(_thread, "stream", _default_stream)


def set_stream(stream: Stream) -> None:
    """Make `stream` the current stream of the calling thread."""
    _thread.stream = stream


class StreamContext:
    """Context manager that makes a stream the current one; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self._previous = current_stream()
        if self.stream is not None:
            set_stream(self.stream)

    def __exit__(self, *args: object) -> None:
        set_stream(self._previous)


def stream(stream: Stream | None) -> StreamContext:
    """Return a context manager that makes `stream` the current stream."""
    return StreamContext(stream)


def synchronize(device: Any = None) -> None:
    """Wait for all work of the device.

    Raises:
        torch.AcceleratorError: a capture is underway.
    """
    _refuse_in_capture()


# --- capture ------------------------------------------------------------------------------------------------------


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
        """Execute the operation on the recorded storages."""
        torch._C._set_grad_enabled(self._grad_enabled)
        fresh = self._func(*self._args, **self._kwargs)
        if not self._results:
            return
        for result, value in zip(self._results, tree_leaves(fresh), strict=True):
            if result is None or not isinstance(value, Tensor):
                continue
            if result.shape != value.shape:
                raise NotImplementedError(
                    f"{self.name} returned shape {tuple(value.shape)} where the capture foresaw {tuple(result.shape)}: "
                    "the stand-in cannot replay operations whose result's shape depends on data."
                )
            result.copy_(value)


class _Capture:
    """The state of the one capture underway."""

    def __init__(self, graph: CUDAGraph) -> None:
        self.graph = graph
        self.stream = current_stream()
        self.thread = threading.get_ident()
        self.broken = False
        # Vector clocks: for each captured stream, how many operations of each stream it has waited for.
        self.seen: dict[int, dict[int, int]] = {self.stream.stream_id: {}}
        self.storages: dict[int, int] = {}
        self.operations: list[Operation] = []
        self.seed = torch.initial_seed()
        self.rng_state = torch.get_rng_state()
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)

    def includes(self, stream: Stream) -> bool:
        return stream.stream_id in self.seen

    def refuse(self, message: str = _NOT_PERMITTED) -> NoReturn:
        """Break the capture and raise at the offending line, as the driver does."""
        first, self.broken = not self.broken, True
        raise torch.AcceleratorError(message if first else _PREVIOUS_ERROR)

    def unjoined(self) -> bool:
        origin = self.seen[self.stream.stream_id]
        return any(seen.get(s, 0) > origin.get(s, 0) for s, seen in self.seen.items() if s != self.stream.stream_id)

    def dispatch(self, mode: TorchDispatchMode, func: Any, args: tuple, kwargs: dict) -> Any:
        if threading.get_ident() != self.thread:
            self.broken = True
            raise NotImplementedError(f"{func} came from another thread (a scripted fork?): it cannot be recorded.")
        if not self.includes(current_stream()):
            return func(*args, **kwargs)  # not part of the capture: it runs at once, as on a GPU
        if self.broken:
            self.refuse()
        if func._can_decompose():  # composite operations arrive whole in inference mode
            with mode:
                return func.decompose(*args, **kwargs)
        schema = func._schema
        is_view = not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)
        if is_view or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)  # changes metadata alone
        return self.record(func, args, kwargs)

    def record(self, func: Any, args: tuple, kwargs: dict) -> Any:
        self.refuse_masked_write(func, args)
        predicted = self.predict(func, args, kwargs)
        written = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        named = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
        fresh: list[Tensor | None] = []

        def allocate(value: Any) -> Any:
            if not isinstance(value, Tensor):
                fresh.append(None)
                return value
            if value.layout is not torch.strided:
                raise NotImplementedError(f"{func} returns a {value.layout} tensor: the stand-in records dense ones only.")
            result = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
            result.fill_(float("nan") if value.dtype.is_floating_point or value.dtype.is_complex else 0)
            fresh.append(result.detach())  # an alias: `x.data = ...` on the result must not reach the recording
            return result

        if written and len(func._schema.returns) <= 1:
            result = named[func._schema.returns[0].name or next(iter(written))] if func._schema.returns else None
            if func._schema.returns and func._schema.returns[0].alias_info is None:
                result = tree_map(allocate, predicted)
        elif written and any(r.alias_info is not None for r in func._schema.returns):
            by_alias = {frozenset(a.alias_info.before_set): a.name for a in func._schema.arguments if a.name in written}
            result = tuple(
                tree_map(allocate, value) if r.alias_info is None else named[by_alias[frozenset(r.alias_info.before_set)]]
                for r, value in zip(func._schema.returns, predicted)
            )
        else:
            result = tree_map(allocate, predicted)
        if func.overloadpacket not in _ALLOCATIONS:
            self.append(func, args, kwargs, fresh, [named[name] for name in written if name in named])
        else:
            self.graph._keep_alive.extend(fresh)
        return result

    def append(self, func: Any, args: tuple, kwargs: dict, fresh: list, written: list) -> None:
        def number(values: Any) -> tuple[int, ...]:
            keys = (t.untyped_storage()._cdata for t in tree_leaves(values) if isinstance(t, Tensor))
            return tuple(dict.fromkeys(self.storages.setdefault(key, len(self.storages)) for key in keys))

        stream_id = current_stream().stream_id
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

    def predict(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Return `func`'s result as metadata; raise what it would raise for these arguments."""
        if func in _METADATA_BY_RUNNING:
            return func(*args, **kwargs)
        try:
            with self.fake_mode:
                fake = tree_map_only(Tensor, lambda t: self.fake_mode.from_tensor(t.detach()), (args, kwargs))
                return func(*fake[0], **fake[1])
        except (DataDependentOutputException, DynamicOutputShapeException):
            self.refuse()
        except (UnsupportedOperatorException, NotImplementedError) as error:
            if func._schema.is_mutable and all(r.alias_info is not None for r in func._schema.returns):
                return None  # it only mutates its arguments: there is nothing to foresee
            raise NotImplementedError(f"{func} cannot be recorded by the CPU stand-in: {error}") from error

    def refuse_masked_write(self, func: Any, args: tuple) -> None:
        """`x[mask] = number` is a masked fill on a GPU; with a tensor on the right it must count the mask on the host."""
        if func.overloadpacket not in _INDEX_WRITES:
            return
        indices = [i for i in args[1] if i is not None]
        if any(i.dtype in (torch.bool, torch.uint8) for i in indices) and (len(indices) > 1 or args[2].numel() != 1):
            self.refuse()


_capture: _Capture | None = None


def _refuse_in_capture() -> None:
    if _capture is not None:
        _capture.refuse()


class _Recorder(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        return func(*args, **(kwargs or {})) if _capture is None else _capture.dispatch(self, func, args, kwargs or {})


class _HostReads(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _HOST_READS and args and isinstance(args[0], Tensor):
            _refuse_in_capture()
        if name in _FROM_HOST and (name == "new_tensor" or kwargs.get("device") is not None):
            if not isinstance(args[-1] if args else None, Tensor):
                raise RuntimeError(_PAGEABLE)
        return func(*args, **kwargs)


def _check_optimizer(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Raise what ``Optimizer._cuda_graph_capture_health_check`` raises on a GPU."""
    if not all(group.get("capturable", True) for group in optimizer.param_groups):
        raise RuntimeError(
            f"Attempting CUDA graph capture of step() for an instance of {type(optimizer).__name__} "
            "but param_groups' capturable is False."
        )


def is_current_stream_capturing() -> bool:
    """Return True if a capture is underway on the current stream."""
    return _capture is not None and _capture.includes(current_stream())


_pool_ids = itertools.count(1)


def graph_pool_handle() -> tuple[int, int]:
    """Return a new token for a memory pool; the stand-in has no pools and only carries it along."""
    return (0, next(_pool_ids))


class CUDAGraph:
    """A stand-in for :class:`torch.cuda.CUDAGraph`.

    Args:
        keep_graph: accepted as on a GPU; :meth:`instantiate` then may be called before the first replay.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep_graph = keep_graph
        self._reset()

    def _reset(self) -> None:
        self._operations: list[Operation] | None = None
        self._keep_alive: list[Tensor | None] = []
        self._pool: tuple[int, int] | None = None
        self._exit_stack: ExitStack | None = None

    @property
    def operations(self) -> list[Operation]:
        """The recording, in order. Only the stand-in has it."""
        return list(self._operations or [])

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **kwargs: Any) -> None:
        """Begin to record the current stream.

        Raises:
            RuntimeError: the current stream is the default one, this graph owns a recording already, or
                `capture_error_mode` is unknown.
            torch.AcceleratorError: another capture is underway.
        """
        global _capture
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, "
                f"got {capture_error_mode}"
            )
        if self._operations is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        if current_stream() == _default_stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay "
                "them on the default stream.)"
            )
        _refuse_in_capture()
        self._pool = graph_pool_handle() if pool is None else pool
        self._exit_stack = ExitStack()
        _capture = _Capture(self)
        self._exit_stack.enter_context(_Recorder())
        self._exit_stack.enter_context(_HostReads())
        self._exit_stack.callback(register_optimizer_step_pre_hook(_check_optimizer).remove)

    def capture_end(self) -> None:
        """End the recording.

        Raises:
            torch.AcceleratorError: an operation was refused during the capture, or a forked stream was not joined.
            RuntimeError: the random generator was seeded anew during the capture.
        """
        global _capture
        if _capture is None or self._exit_stack is None:
            raise torch.AcceleratorError("CUDA error: operation failed: capture_end without a capture underway")
        capture, _capture = _capture, None
        self._exit_stack.close()
        self._exit_stack = None
        if capture.broken:
            raise torch.AcceleratorError(_PREVIOUS_ERROR)
        if capture.unjoined():
            raise torch.AcceleratorError(_UNJOINED)
        if torch.initial_seed() != capture.seed:
            torch.manual_seed(capture.seed)
            torch.set_rng_state(capture.rng_state)
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same "
                "as the original seed."
            )
        self._operations = capture.operations
        if not capture.operations:
            warnings.warn(_EMPTY, UserWarning, stacklevel=2)

    def instantiate(self) -> None:
        """Make the recording executable; needed by hand only with ``keep_graph=True``."""
        self._require_recording("instantiate")

    def replay(self) -> None:
        """Run the recording on the recorded storages.

        Raises:
            RuntimeError: nothing was captured, the graph was reset, or a capture is underway.
        """
        if _capture is not None:
            raise RuntimeError("Cannot prepare for replay during capturing stage.")
        self._require_recording("replay")
        grad_enabled = torch.is_grad_enabled()
        with torch._C._DisableTorchDispatch(), torch._C._DisableAutocast(), torch._C._AutoDispatchBelowADInplaceOrView():
            try:
                for operation in self._operations:
                    operation.run()
            finally:
                torch._C._set_grad_enabled(grad_enabled)

    def reset(self) -> None:
        """Delete the recording and let go of its memory."""
        self._reset()

    def pool(self) -> Any:
        """Return the token of this graph's memory pool.

        Raises:
            RuntimeError: nothing was captured.
        """
        self._require_recording("pool")
        return self._pool

    def _require_recording(self, method: str) -> None:
        if self._operations is None:
            raise RuntimeError(f"Called CUDAGraph::{method} without a preceding successful capture.")


class graph:  # noqa: N801 - the name is torch.cuda's
    """Context manager that captures the work of its block into `cuda_graph`.

    Args:
        cuda_graph: the graph to fill.
        pool: token of a memory pool to share, accepted and carried along.
        stream: the stream to capture; a side stream of its own if None.
        capture_error_mode: "global", "thread_local" or "relaxed"; without effect on the CPU.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        **kwargs: Any,
    ) -> None:
        if stream is None and graph.default_capture_stream is None:
            graph.default_capture_stream = Stream()
        self.pool = pool
        self.stream_ctx = StreamContext(graph.default_capture_stream if stream is None else stream)
        self.cuda_graph = cuda_graph
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        synchronize()
        self.stream_ctx.__enter__()
        self.cuda_graph.capture_begin(self.pool, capture_error_mode=self.capture_error_mode)

    def __exit__(self, *args: object) -> None:
        # As in torch.cuda: when capture_end raises, the capture stream stays the current one.
        self.cuda_graph.capture_end()
        self.stream_ctx.__exit__(*args)
