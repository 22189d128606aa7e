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
* ``torch.linalg.svdvals``, ``eigvalsh`` and the gradient of ``prod`` take another algorithm, equal to rounding, in a
  capture; ``torch.linalg.matrix_rank`` does not fill ``out=``;
* ``torch.get_rng_state`` and ``set_rng_state``, so that ``torch.utils.checkpoint`` draws other masks in its backward;
* ``nn.TransformerEncoderLayer`` in eval mode without gradients leaves its fast path while a function mode is active.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from contextlib import ExitStack
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import capture as capturing
from .capture import Operation, refuse_in_capture

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

_UNJOINED = "CUDA error: capturing stream has unjoined work"
_UNCAPTURED = "CUDA error: dependency created on uncaptured work in another stream"
_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
)


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
        capture = capturing.active
        if capture is None or event._time is None:
            return
        if event._capture is capture:
            capture.join(self.stream_id, event._seen)
        elif capture.includes(self.stream_id):
            capture.refuse(_UNCAPTURED)

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event` (a new one if None) after the present work of this stream and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Return True: work on the CPU is complete when its call returns."""
        refuse_in_capture()
        return True

    def synchronize(self) -> None:
        """Wait for the work of this stream.

        Raises:
            torch.AcceleratorError: a capture is underway.
        """
        refuse_in_capture()

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
        self._capture: capturing.Capture | None = None
        self._seen: dict[int, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        """Record the event in `stream` (the current one if None)."""
        stream = current_stream() if stream is None else stream
        self._time = time.perf_counter()
        capture = capturing.active
        captured = capture is not None and capture.includes(stream.stream_id)
        self._capture = capture if captured else None
        self._seen = dict(capture.seen[stream.stream_id]) if captured else {}

    def wait(self, stream: Stream | None = None) -> None:
        """Make all future work of `stream` (the current one if None) wait for this event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Return True: work on the CPU is complete when its call returns."""
        refuse_in_capture()
        return True

    def synchronize(self) -> None:
        """Wait for the event.

        Raises:
            torch.AcceleratorError: a capture is underway.
        """
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
    refuse_in_capture()


# --- capture and replay -----------------------------------------------------------------------------------------------


def is_current_stream_capturing() -> bool:
    """Return True if a capture is underway on the current stream."""
    return capturing.active is not None and capturing.active.includes(current_stream().stream_id)


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
        self._exit_stack: ExitStack | None = None
        self._reset()

    def _reset(self) -> None:
        self._operations: list[Operation] | None = None
        self._allocated: list[Tensor] = []
        self._pool: tuple[int, int] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'CUDAGraph' object")

    @property
    def operations(self) -> list[Operation]:
        """The recording, in order. Only the stand-in has it."""
        return list(self._operations or [])

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
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
        if current_stream() == _default_stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay "
                "them on the default stream.)"
            )
        refuse_in_capture()
        self._pool = graph_pool_handle() if pool is None else pool
        self._exit_stack = ExitStack()
        capturing.active = capturing.Capture(current_stream().stream_id, lambda: current_stream().stream_id)
        self._exit_stack.enter_context(capturing.Recorder())
        self._exit_stack.enter_context(capturing.HostReads())
        self._exit_stack.callback(register_optimizer_step_pre_hook(capturing.check_optimizer).remove)

    def capture_end(self) -> None:
        """End the recording.

        Raises:
            torch.AcceleratorError: an operation was refused during the capture, or a forked stream was not joined.
            RuntimeError: the random generator was seeded anew during the capture, or another stream is current.
        """
        capture = capturing.active
        if capture is None or self._exit_stack is None:
            raise RuntimeError("Called CUDAGraph::capture_end without a preceding capture_begin.")
        capturing.active = None
        self._exit_stack.close()
        self._exit_stack = None
        if current_stream().stream_id != capture.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if capture.broken:
            raise torch.AcceleratorError(capturing.PREVIOUS_ERROR)
        if capture.has_unjoined_work():
            raise torch.AcceleratorError(_UNJOINED)
        if torch.initial_seed() != capture.seed:
            torch.manual_seed(capture.seed)
            torch.set_rng_state(capture.rng_state)
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same "
                "as the original seed."
            )
        self._operations, self._allocated = capture.operations, capture.allocated
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
        if capturing.active is not None:
            raise RuntimeError("Cannot prepare for replay during capturing stage.")
        self._require_recording("replay")
        grad_enabled = torch.is_grad_enabled()
        with (
            torch._C._DisableTorchDispatch(),
            torch._C.DisableTorchFunction(),
            torch._C._DisableAutocast(),
            torch._C._AutoDispatchBelowADInplaceOrView(),
        ):
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


class graph:
    """Context manager that captures the work of its block into `cuda_graph`.

    Args:
        cuda_graph: the graph to fill.
        pool: token of a memory pool to share, accepted and carried along.
        stream: the stream to capture; a side stream of its own if None.
        capture_error_mode: "global", "thread_local" or "relaxed"; without effect on the CPU.
        enable_annotations: accepted and ignored.
        check_input_liveness: accepted and ignored: inputs stay alive.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
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
