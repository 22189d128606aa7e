"""The graph and stream names of :mod:`torch.cuda`, recorded and replayed on the CPU.

On a machine without a GPU ``from tutorial_utils import cuda`` gives this module, and the same code runs that a GPU
would run. It teaches **semantics, not speed**: a replay here issues the recorded ATen operations one by one.

How it works. :meth:`CUDAGraph.capture_begin` turns on a ``TorchDispatchMode``, which receives every ATen operation
below autograd. No data operation runs during a capture: views are formed, operations that mutate their arguments are
only noted, and the results of all others are allocated from predicted metadata, filled with NaN (integers with zero).
:meth:`CUDAGraph.replay` runs the recorded operations on the recorded storages. A ``TorchFunctionMode`` refuses the
host reads that dispatch nothing on the CPU, such as ``.tolist()``.

Names, signatures, error classes and messages follow ``torch/cuda/graphs.py`` and ``torch/cuda/streams.py`` of
PyTorch 2.9 to 2.14; ``tests/test_parity.py`` runs one test per behaviour on both backends.

Importing it changes two things of PyTorch for the process: optimizers accept ``capturable=True`` on the CPU, and
``Tensor.record_stream`` does nothing there instead of raising.

What no mode can see on a CPU, and what therefore passes here although a GPU refuses it or behaves otherwise:

* a tensor made before the capture counts as a device tensor, also where it is a host tensor on a GPU;
* `.to("cpu")`, `torch.from_numpy`, pickling and `data_ptr()` leave no trace, and `.numpy()` works outside of a capture;
* host memory is neither pageable nor pinned: a copy from a tensor made before the capture is captured;
* a library (cuBLAS, cuDNN) may be used for the first time in a capture: a missing warm-up is not noticed;
* a warm-up on the default stream whose loss is still alive is not refused;
* everything runs in order: a missing `wait_stream` never shows (on an H200 it did not in 200 tries either);
* a failed capture that drew random numbers spoils a GPU's process on PyTorch 2.11 (restart the kernel), not this one;
* other threads are not part of a capture and do not break it: `capture_error_mode` has no effect;
* code of `torch.compile` runs uncompiled in a capture;
* memory of a capture is kept until `reset` and never reused: sharing a pool saves nothing here;
* a graph keeps alive what it reads: a static buffer that nobody holds any more goes on working here alone;
* an own generator is to be registered before the capture, as on 2.11; 2.14 does it by itself;
* not recorded, and refused by name: sparse tensors, control flow, scripted forks, `pack_padded_sequence`;
* gradients of `max()`, `min()` and `median()` are computed the GPU's way: a zero may change its sign;
* GRU and LSTM replay bitwise as in eager, which cuDNN's do not.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import types
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor
from torch.optim.optimizer import _get_capturable_supported_devices, register_optimizer_step_pre_hook

from . import capture as capturing
from .capture import Operation, refuse_in_capture

LIMITS = __doc__[__doc__.index("* ") :]
"""What no mode can see on a CPU, one line each: the end of this module's docstring."""

_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
)

# What the CPU lacks. Every optimizer's module has its own name for this function: its code is replaced for all.
torch.library.impl("aten::record_stream", "cpu", lambda tensor, stream: None)
_get_capturable_supported_devices.__code__ = (lambda supports_xla: ["cpu", "cuda", "xpu", "hpu", "xla"]).__code__


def __getattr__(name: str) -> NoReturn:
    here = [key for key, value in globals().items() if key[0] != "_" and getattr(value, "__module__", "") == __name__]
    raise AttributeError(
        f"torch.cuda.{name} has no stand-in on the CPU. The stand-in offers: {', '.join(sorted(here))}. "
        "Run this part on a machine with a GPU, or test `torch.cuda.is_available()` first."
    )


# --- the device ---------------------------------------------------------------------------------------------------


def is_available() -> bool:
    """Return False: this module is not a GPU."""
    return False


def device_count() -> int:
    """Return 1: the CPU stands for one device."""
    return 1


def current_device() -> int:
    """Return the number of the one device."""
    return 0


def empty_cache() -> None:
    """Do nothing: there is no cache."""


def get_rng_state(device: Any = None) -> Tensor:
    """Return the state of the default generator; in a capture, its state at this point of each replay."""
    return torch.get_rng_state()


def set_rng_state(new_state: Tensor, device: Any = None) -> None:
    """Set the state of the default generator; in a capture, at this point of each replay."""
    torch.set_rng_state(new_state)


def manual_seed(seed: int) -> None:
    """Seed the default generator."""
    torch.manual_seed(seed)


manual_seed_all, initial_seed = manual_seed, torch.initial_seed


# --- streams and events -------------------------------------------------------------------------------------------

_stream_ids = itertools.count()


class Stream(torch.Stream):
    """A stand-in for :class:`torch.cuda.Stream`: an order of work with an identity, executed in program order.

    Args:
        device: accepted for compatibility and ignored.
        priority: kept within :meth:`priority_range`, without effect.
    """

    def __new__(cls, device: Any = None, priority: int = 0) -> Stream:
        low, high = cls.priority_range()
        stream = super().__new__(cls, stream_id=next(_stream_ids), device_index=0, device_type=0)
        stream.priority = max(high, min(low, priority))
        return stream

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority, as on an H200."""
        return (0, -3)

    cuda_stream = property(lambda self: self.stream_id, doc="The handle of the stream, an int; 0 for the default one.")

    def is_capturing(self) -> bool:
        """Return whether this stream is part of a capture (on a GPU from PyTorch 2.14 on)."""
        return capturing.active is not None and self.stream_id in capturing.active.seen

    # PyTorch's own: `self.wait_event(stream.record_event())` and `event.wait(self)`.
    wait_stream, wait_event = torch.cuda.Stream.wait_stream, torch.cuda.Stream.wait_event

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event` (a new one if None) after the present work of this stream and return it."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Return True: work on the CPU is complete when its call returns."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Wait for the work of this stream.

        Raises:
            torch.AcceleratorError: a capture is underway.
        """
        refuse_in_capture()

    def __enter__(self) -> Stream:
        _thread.left.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *args: object) -> None:
        set_stream(_thread.left.pop())


class Event:
    """A stand-in for :class:`torch.cuda.Event`.

    Args:
        enable_timing: whether :meth:`elapsed_time` may be asked.
        blocking: accepted for compatibility and ignored.
        interprocess: accepted for compatibility and ignored.
        external: whether a capture records the event itself, to happen at each replay, not a dependency.
    """

    _time: float | None = None
    _capture: capturing.Capture | None = None  # the one that recorded it last

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self._enable_timing = enable_timing
        self._external = external

    def record(self, stream: Stream | None = None) -> None:
        """Record the event in `stream` (the current one if None)."""
        stream = stream or current_stream()
        capture = capturing.active if stream.is_capturing() else None
        if capture is not None and self._external:
            capture.note("record_event", lambda: self.record(stream))
            return
        self._time = time.perf_counter()
        self._capture = capture
        self._seen = capture and capture.seen[stream.stream_id].copy()

    def _refuse_if_captured(self, underway: capturing.Capture | None) -> None:
        """Raise if a capture that is not `underway` recorded this event last: on a GPU it does not exist then."""
        if self._capture is not None and self._capture is not underway:
            raise torch.AcceleratorError("CUDA error: invalid argument")

    def wait(self, stream: Stream | None = None) -> None:
        """Make all future work of `stream` (the current one if None) wait for this event.

        Raises:
            torch.AcceleratorError: `stream` is being captured and this event was recorded outside of the capture;
                `stream` is the default one and this event was recorded in one; this event's capture is over.
        """
        stream = stream or current_stream()
        self._refuse_if_captured(capturing.active)
        if self._capture is not None:
            self._capture.join(stream.stream_id, self._seen)
        elif self._time is not None and not self._external and stream.is_capturing():
            capturing.active.refuse("CUDA error: dependency created on uncaptured work in another stream")

    query = Stream.query

    def synchronize(self) -> None:
        """Wait for the event.

        Raises:
            torch.AcceleratorError: the event was recorded, and a capture is underway or recorded it last.
        """
        self._refuse_if_captured(capturing.active)
        if self._capture is not None:
            self._capture.refuse("CUDA error: operation not permitted on an event last recorded in a capturing stream")
        if self._time is not None:
            refuse_in_capture()

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
        self._refuse_if_captured(None)
        end_event._refuse_if_captured(None)
        return (end_event._time - self._time) * 1e3


_default_stream, _capture_stream = Stream(), Stream()


def default_stream(device: Any = None) -> Stream:
    """Return the default stream."""
    return _default_stream


class _Thread(threading.local):
    """The streams of one thread. Autograd numbers its nodes in order: `history` says from which one on a stream ran."""

    def __init__(self) -> None:
        self.chosen: dict[int | None, Stream] = {None: _default_stream}  # by the node whose backward runs, if any
        self.history: list[tuple[int, Stream]] = [(0, _default_stream)]
        self.left: list[Stream] = []  # by `with`, to go back to


_thread = _Thread()


def _backward_node() -> int | None:
    """Return the number of the node whose backward is running; None outside, and where gradients are accumulated."""
    node = torch._C._current_autograd_node()
    return None if node is None or node._sequence_nr() >= 2**63 else node._sequence_nr()


def current_stream(device: Any = None) -> Stream:
    """Return the stream that receives the work of the calling thread; in a backward pass, its forward's stream."""
    number = _backward_node()
    if number in _thread.chosen:
        return _thread.chosen[number]
    return _thread.history[bisect_right(_thread.history, number, key=lambda entry: entry[0]) - 1][1]


def _streams() -> tuple[int, int]:
    """Return the numbers of the current stream and of the one outside of any backward pass."""
    return current_stream().stream_id, _thread.chosen[None].stream_id


def set_stream(stream: Stream) -> None:
    """Make `stream` the current stream of the calling thread."""
    _thread.chosen[_backward_node()] = stream
    following = torch.autograd._get_sequence_nr()
    if _thread.history[-1][0] == following:
        _thread.history.pop()
    _thread.history.append((following, stream))


def stream(stream: Stream | None) -> AbstractContextManager:
    """Return a context manager that makes `stream` the current stream; None changes nothing."""
    return nullcontext() if stream is None else stream


def synchronize(device: Any = None) -> None:
    """Wait for all work of the device.

    Raises:
        torch.AcceleratorError: a capture is underway.
    """
    refuse_in_capture()


# --- capture and replay -------------------------------------------------------------------------------------------


def is_current_stream_capturing() -> bool:
    """Return True if a capture is underway on the current stream."""
    return current_stream().is_capturing()


_pool_ids = itertools.count(1)


def graph_pool_handle() -> tuple[int, int]:
    """Return a new token for a memory pool; the stand-in has no pools and only carries it along."""
    return (0, next(_pool_ids))


def memory_allocated(device: Any = None) -> int:
    """Return the bytes that captures hold. What eager code holds is not counted: the CPU's allocator does not say."""
    return sum(storage.nbytes() for storage in capturing.allocated)


class CUDAGraph:
    """A stand-in for :class:`torch.cuda.CUDAGraph`.

    Args:
        keep_graph: accepted as on a GPU; :meth:`instantiate` then may be called before the first replay.
    """

    _operations: list[Operation] | None = None
    _modes: ExitStack | None = None  # those of the capture underway

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep_graph = keep_graph
        self._generators = [torch.default_generator]

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'CUDAGraph' object")

    @property
    def operations(self) -> list[Operation]:
        """The recording, in order. Only the stand-in has it."""
        return list(self._operations or [])

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin to record the current stream.

        Raises:
            RuntimeError: the current stream is the default one, this graph owns a recording already, or
                `capture_error_mode` is unknown.
            torch.AcceleratorError: another capture is underway.
        """
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                f"Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {capture_error_mode}"
            )
        if self._operations is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        if pool is not None and not (isinstance(pool, tuple) and [type(part) for part in pool] == [int, int]):
            raise TypeError(f"capture_begin(): incompatible function arguments: pool={pool!r} is no pool of a graph.")
        if current_stream() == _default_stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay "
                "them on the default stream.)"
            )
        refuse_in_capture()
        self._pool = pool or graph_pool_handle()
        capture = capturing.active = capturing.Capture(_streams, self._generators)
        self._modes = ExitStack()
        self._modes.enter_context(capturing.Recorder())
        self._modes.enter_context(capturing.HostReads())
        self._modes.callback(register_optimizer_step_pre_hook(capturing.check_optimizer).remove)
        self._modes.enter_context(mock.patch.object(torch.random, "default_generator", capturing.Generator(capture)))

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let captures into this graph draw from `generator`, and its replays advance it.

        Raises:
            TypeError: `generator` is none.
        """
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"expected a Generator, but got {type(generator).__name__}")
        self._generators.append(generator)

    def capture_end(self) -> None:
        """End the recording.

        Raises:
            torch.AcceleratorError: an operation was refused during the capture, or a forked stream was not joined.
            RuntimeError: the random generator was seeded anew during the capture, or another stream is current.
        """
        capture = capturing.active
        if capture is None or self._modes is None:
            raise RuntimeError("Called CUDAGraph::capture_end without a preceding capture_begin.")
        if current_stream().stream_id != capture.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        self._modes.close()
        self._modes = capturing.active = None
        if capture.broken:
            raise torch.AcceleratorError(capturing.PREVIOUS_ERROR)
        if capture.has_unjoined_work():
            raise torch.AcceleratorError("CUDA error: capturing stream has unjoined work")
        if not torch.equal(torch.get_rng_state(), capture.rng_state):
            torch.set_rng_state(capture.rng_state)
            raise RuntimeError(capturing.OTHER_SEED)
        self._operations = capture.operations
        if not capture.operations:
            warnings.warn(_EMPTY, UserWarning, stacklevel=2)

    def instantiate(self) -> None:
        """Make the recording executable; by hand with ``keep_graph=True`` only.

        Raises:
            RuntimeError: nothing was captured, or ``keep_graph`` is False.
        """
        if self._operations is None:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if not self._keep_graph:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")

    def enable_debug_mode(self) -> None:
        """Keep the recording for :meth:`debug_dump`."""
        self._keep_graph = True

    def debug_dump(self, debug_path: str) -> None:
        """Write the recording to `debug_path` as a DOT file: an arrow leads to an operation that reads a result.

        Without ``keep_graph=True`` or :meth:`enable_debug_mode` it warns and writes nothing.
        """
        self._require_recording("debug_dump")
        if not self._keep_graph:
            warnings.warn("CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()", stacklevel=2)
            return
        lines, written_by = ["digraph recording {"], {}
        for number, operation in enumerate(self._operations):
            lines.append(f'  {number} [label="{operation.name}", shape=box];')
            sources = {written_by[storage] for storage in operation.inputs if storage in written_by}
            lines += [f"  {source} -> {number};" for source in sorted(sources)]
            written_by |= dict.fromkeys(operation.outputs, number)
        Path(debug_path).write_text("\n".join([*lines, "}"]))

    def replay(self) -> None:
        """Run the recording on the recorded storages.

        Raises:
            RuntimeError: nothing was captured, the graph was reset, or a capture is underway.
        """
        if capturing.active is not None:
            raise RuntimeError("Cannot prepare for replay during capturing stage.")
        self._require_recording("replay")
        with (
            torch.set_grad_enabled(torch.is_grad_enabled()),  # these two give back what the operations set
            torch.autocast("cpu", enabled=False),
            torch._C._DisableTorchDispatch(),
            torch._C.DisableTorchFunction(),
            torch._C._AutoDispatchBelowADInplaceOrView(),
        ):
            for (grad_enabled, dtype), operations in itertools.groupby(self._operations, lambda one: one._modes):
                torch._C._set_grad_enabled(grad_enabled)
                torch.set_autocast_enabled("cpu", dtype is not None)
                torch.set_autocast_dtype("cpu", dtype or torch.bfloat16)
                for operation in operations:
                    operation.run()

    def reset(self) -> None:
        """Delete the recording and let go of its memory."""
        self._operations = None

    def pool(self) -> tuple[int, int]:
        """Return the token of this graph's memory pool.

        Raises:
            RuntimeError: nothing was captured.
        """
        self._require_recording("pool")
        return self._pool

    def _require_recording(self, method: str) -> None:
        if self._operations is None:
            raise RuntimeError(f"Called CUDAGraph::{method} without a preceding successful capture.")


@contextmanager
def graph(
    cuda_graph: CUDAGraph,
    pool: Any = None,
    stream: Stream | None = None,
    capture_error_mode: str = "global",
    enable_annotations: bool = False,
    check_input_liveness: bool = False,
) -> Iterator[None]:
    """Return a context manager that captures the work of its block into `cuda_graph`.

    Args:
        cuda_graph: the graph to fill.
        pool: token of a memory pool to share, accepted and carried along.
        stream: the stream to capture; a side stream of its own if None.
        capture_error_mode: "global", "thread_local" or "relaxed"; without effect on the CPU.
        enable_annotations: accepted and ignored.
        check_input_liveness: accepted and ignored: inputs stay alive.
    """
    synchronize()
    before = current_stream()
    set_stream(stream or _capture_stream)
    cuda_graph.capture_begin(pool, capture_error_mode)
    try:
        yield
    finally:
        cuda_graph.capture_end()
        set_stream(before)  # as in torch.cuda: when capture_end raises, the capture stream stays the current one


def make_graphed_callables(*args: Any, **kwargs: Any) -> Any:
    """Replace callables by graphed ones: PyTorch's own :func:`torch.cuda.make_graphed_callables` on these names."""
    own = torch.cuda.graphs.make_graphed_callables
    here = types.SimpleNamespace(**{**vars(torch), "cuda": sys.modules[__name__]})
    names = {**vars(torch.cuda.graphs), "torch": here, "graph_pool_handle": graph_pool_handle}
    return types.FunctionType(own.__code__, names, argdefs=own.__defaults__)(*args, **kwargs)
