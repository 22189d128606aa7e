"""How the stand-in records: the state of a capture, and the modes that see what happens in it.

:mod:`tutorial_utils.cuda_stand_in` holds the names of :mod:`torch.cuda` and says what this can and cannot see.

A CPU has one kind of tensor, a GPU program two. Made inside a capture they can be told apart, as a GPU would: a tensor
made from Python data, or by a factory without ``device=``, is a *host* tensor. Operations on host tensors alone run at
once, may be read, and are baked in where a recorded operation takes one. All other tensors are *device* tensors.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NoReturn

import torch
import torch.utils._device
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .foresee import DEPENDS_ON_VALUES, Foreseen, predict

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
PREVIOUS_ERROR = "CUDA error: operation failed due to a previous error during capture"
PAGEABLE = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
SAME_DEVICE = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
OTHER_SEED = (
    "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the "
    "original seed."
)

_aten = torch.ops.aten
# They launch nothing, so that they leave no operation in a recording, whose memory stays alive anyway.
_LAUNCH_NOTHING = {
    _aten.record_stream,
    _aten.empty,
    _aten.empty_like,
    _aten.empty_strided,
    _aten.new_empty,
    _aten.new_empty_strided,
}
# Their results share the argument's memory, which their schemas do not say.
_UNDECLARED_VIEWS = {_aten._unsafe_view, _aten.unsafe_split, _aten.unsafe_split_with_sizes}
_INDEX_WRITES = {_aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index_put}

_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm}

# What a GPU waits for inside of the operation (observed on an H200): error checks, sizes, and the search for zeros.
_READS = {_aten._linalg_check_errors.default, _aten._linalg_eigh.default, _aten.linalg_eig.default}
_READS |= {_aten.linalg_eigvals.default, _aten.linalg_lstsq.default}
_READS |= {_aten.normal.Tensor_Tensor, _aten.normal.float_Tensor}
_READING_GRADIENTS = {"ProdBackward0", "ProdBackward1", "CumprodBackward0"}
# What copies to or from pageable host memory inside of the operation, unless its input is empty.
_COPIES_INSIDE = {_aten._linalg_svd, _aten.linalg_pinv, _aten.linalg_matrix_exp, _aten.bincount, _aten._ctc_loss}
# With a host operand of any size they copy it to the device; other operations take a single number.
_COPIES_OPERANDS = {_aten.copy_, _aten.index, _aten.where, *_INDEX_WRITES}

# Host reads that dispatch no ATen operation on the CPU, and constructors that read Python data.
_CHECKED_ON_A_CPU = {"quantile", "nanquantile"}
_PRINTS, _NUMPY = {"__repr__", "__format__"}, {"numpy", "__array__"}
_READ_ON_HOST = {"cpu", "tolist", *_PRINTS, *_NUMPY}
_FROM_HOST = {"tensor", "as_tensor", "asarray", "new_tensor"}
_FACTORIES = torch.utils._device._device_constructors()


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
    _call: Callable[[], Any] = field(repr=False)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    shape: tuple[int, ...] | None = None
    _results: list | tuple = field(repr=False, default=())  # where to copy what the call returns; None: nowhere
    _modes: tuple = field(repr=False, default=(True, None))  # whether gradients are on, and what autocast casts to

    def run(self) -> None:
        """Execute the operation on the recorded storages.

        Raises:
            NotImplementedError: the result has another shape or dtype than the capture foresaw.
        """
        fresh = self._call()
        if not self._results:
            return
        for result, value in zip(self._results, tree_leaves(fresh), strict=True):
            if result is None or value is None:  # a gradient that nobody needs is foreseen, and not computed
                continue
            if result.shape != value.shape or result.dtype != value.dtype:
                raise NotImplementedError(f"{self.name} returned another shape or dtype than the capture foresaw.")
            result.copy_(value)


@cache
def _out_variant(func: Any) -> tuple[Any, str] | None:
    """Return the overload of `func` that writes its one result into a given tensor, and that one's name, or None.

    Only pointwise operations and products: others may resize what they are given (`binary_cross_entropy` does).
    """
    if torch.Tag.pointwise not in func.tags and func.overloadpacket not in _PRODUCTS:
        return None
    arguments = [(a.name, str(a.type)) for a in func._schema.arguments]
    for overload in (getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads()):
        outs = [a.name for a in overload._schema.arguments if a.is_out and str(a.type) == "Tensor"]
        if len(outs) == 1 and [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out] == arguments:
            return overload, outs[0]
    return None


class Generator:
    """What :mod:`torch.random` takes for the default generator in a capture: the graph's state on its streams."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def __getattr__(self, name: str) -> Any:
        own = getattr(torch.default_generator, name)
        return getattr(self._capture, name, own) if self._capture.is_here() else own


class Capture:
    """A capture underway.

    Args:
        streams: tells the number of the stream that receives an operation, in a backward pass its forward's stream,
            and that of the calling thread's current stream, in a backward pass as well.
        generators: random generators that the graph may draw from.
    """

    def __init__(self, streams: Callable[[], tuple[int, int]], generators: list) -> None:
        self.streams, (self.origin, _) = streams, streams()
        self.thread = threading.get_ident()
        self.broken = False
        # Vector clocks: for each captured stream, how many operations of each stream it has waited for.
        self.seen: dict[int, Counter[int]] = {self.origin: Counter()}
        self.operations: list[Operation] = []
        # Of the function being called: whether it makes a host tensor (a factory without `device=`), whether a CPU
        # alone checks its values, and what autocast casts to in it.
        self.calling: tuple[bool, bool, torch.dtype | None] = (False, False, None)
        self.generators = {generator._cdata for generator in generators}
        self.rng_state = torch.default_generator.get_state()
        self._rng_tokens: list[Tensor] = []
        self._host: dict[int, Any] = {}  # storages of host tensors, kept so that no other gets their address
        self._storages: dict[int, int] = {}

    def is_here(self) -> bool:
        """Return whether the current stream is part of this capture."""
        return self.streams()[1] in self.seen

    def make_host(self, tensor: Tensor) -> None:
        """Remember that `tensor` is a host tensor."""
        if tensor.layout is torch.strided:
            self._host[tensor.untyped_storage()._cdata] = tensor

    def is_host(self, tensor: Tensor) -> bool:
        """Return whether `tensor` was made on the host inside of this capture."""
        plain = tensor.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return plain and tensor.untyped_storage()._cdata in self._host

    def join(self, stream_id: int, seen: Counter[int]) -> None:
        """Let `stream_id` wait for the work counted in `seen`; it thereby becomes part of the capture."""
        if stream_id == 0:
            self.refuse("CUDA error: operation would make the legacy stream depend on a capturing blocking stream")
        self.seen[stream_id] = self.seen.get(stream_id, Counter()) | seen  # the maximum of each count

    def has_unjoined_work(self) -> bool:
        """Return whether a forked stream holds an operation that the origin has not waited for."""
        return any(seen[stream_id] > self.seen[self.origin][stream_id] for stream_id, seen in self.seen.items())

    def refuse(self, message: str = NOT_PERMITTED) -> NoReturn:
        """Break the capture and raise at the offending line, as the driver does."""
        first, self.broken = not self.broken, True
        if not self.is_here():
            raise torch.AcceleratorError(
                f"{message}\nA capture on another stream was begun and not ended, so that no device value can be read. "
                "End it with `with cuda.stream(its_stream): its_graph.capture_end()`, or restart the kernel."
            )
        raise torch.AcceleratorError(message if first else PREVIOUS_ERROR)

    def note(self, name: str, call: Callable[[], Any], *details: Any) -> None:
        """Record `call` on the current stream; `details` are the other fields of :class:`Operation`."""
        stream_id, _ = self.streams()
        self.seen[stream_id][stream_id] += 1
        self.operations.append(Operation(name, list(self.seen).index(stream_id), call, *details))

    # --- the methods of `Generator` -------------------------------------------------------------------------------

    def get_state(self) -> Tensor:
        """Return a token for the generator's state at this point of every replay, which `set_state` takes back."""
        token = self.rng_state.clone()
        self._rng_tokens.append(token)
        self.make_host(token)
        self.note("get_rng_state", lambda: token.copy_(torch.default_generator.get_state()))
        return token

    def set_state(self, new_state: Tensor) -> None:
        """Record that the generator goes back to `new_state` at this point of every replay.

        Raises:
            NotImplementedError: `new_state` was not returned by `get_state` in this capture.
        """
        if not any(new_state is token for token in self._rng_tokens):
            raise NotImplementedError("The stand-in takes a generator's state back in the same capture only.")
        self.note("set_rng_state", lambda: torch.default_generator.set_state(new_state))

    def manual_seed(self, seed: int | None = None) -> torch.Generator:
        """Accept the seed that the generator has, without effect.

        Raises:
            RuntimeError: `seed` is another one, or to be chosen.
        """
        if seed is None or seed % 2**64 != torch.default_generator.initial_seed():
            raise RuntimeError(OTHER_SEED)
        return torch.default_generator

    seed = manual_seed

    # --- operations -----------------------------------------------------------------------------------------------

    def dispatch(self, mode: TorchDispatchMode, func: Any, args: tuple, kwargs: dict) -> Any:
        """Do in the capture what `func` asks for: run it, record it, or refuse it."""
        if threading.get_ident() != self.thread:
            self.broken = True
            raise NotImplementedError(f"{func} came from another thread (a scripted fork?): it cannot be recorded.")
        if not isinstance(func, torch._ops.OpOverload):
            raise NotImplementedError(f"{func} cannot be recorded by the CPU stand-in.")
        makes_host, unchecked, autocast = self.calling
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        host = [t for t in tensors if self.is_host(t)]
        if func is _aten.lift_fresh.default or (not tensors and makes_host) or (host and len(host) == len(tensors)):
            return self._run_on_host(func, args, kwargs)
        stream_id, calling = self.streams()
        if stream_id != calling and calling in self.seen:  # backward: its forward's stream waits for the caller,
            self.join(stream_id, self.seen[calling])
        if func.namespace == "profiler" or stream_id not in self.seen:
            if func is _aten._local_scalar_dense.default:
                self.refuse()
            return func(*args, **kwargs)  # not part of the capture: it runs at once, as on a GPU
        if self.broken:
            self.refuse()
        if sparse := [t.layout for t in tensors if t.layout is not torch.strided]:
            raise NotImplementedError(f"{func} takes a {sparse[0]} tensor: the stand-in records dense ones only.")
        if python := _python_of(func):
            with mode:
                return python(*args, **kwargs)
        schema = func._schema
        is_view = not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)
        if is_view or torch.Tag.inplace_view in func.tags or func.overloadpacket in _UNDECLARED_VIEWS:
            return func(*args, **kwargs)  # changes metadata alone
        if unchecked and func in (_aten._local_scalar_dense.default, _aten.equal.default):
            return True if func is _aten.equal.default else 0  # what passes the check
        self._refuse_reads(func, args, kwargs)
        self._refuse_host_operands(func, args, host)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "AutocastCPU"):
            autocast = None  # its arguments are cast already; others may call operations that cast inside
        try:
            predicted = predict(func, args, kwargs, autocast)
        except DEPENDS_ON_VALUES:
            self.refuse()
        result = self._record(func, args, kwargs, predicted, autocast)
        if stream_id != calling:
            self.join(calling, self.seen[stream_id])  # and at the end of the pass the caller waits for it
        return result

    def _run_on_host(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run `func` at once, and remember that its results are host tensors."""
        result = func(*args, **kwargs)
        tree_map_only(Tensor, self.make_host, result)
        if torch.Tag.nondeterministic_seeded in func.tags:  # a GPU draws it from the host's generator
            self.rng_state = torch.default_generator.get_state()
        return result

    def _refuse_reads(self, func: Any, args: tuple, kwargs: dict) -> None:
        """Refuse operations that wait for the device inside, and generators that the graph does not know."""
        node = torch._C._current_autograd_node()
        if func in _READS or (node is not None and node.name() in _READING_GRADIENTS):
            self.refuse()
        reads_range = func.overloadpacket is _aten.histc and not any(args[2:4])  # from the data
        if (func.overloadpacket in _COPIES_INSIDE or reads_range) and args[0].numel() > 0:
            raise RuntimeError(PAGEABLE)
        drawn_from = {value._cdata for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)}
        if drawn_from - self.generators:
            raise RuntimeError(
                "Attempt to increase offset for a CUDA generator not in capture mode.\n"
                "Call graph.register_generator_state(generator) before the capture."
            )

    def _refuse_host_operands(self, func: Any, args: tuple, host: list[Tensor]) -> None:
        """Refuse host tensors where a GPU needs a device tensor, and `x[mask] = t`, which counts the mask on the host.

        With a number, or a host tensor of one, `x[mask] = t` is a masked fill.
        """
        packet = func.overloadpacket
        if packet in _INDEX_WRITES:
            indices, value = [i for i in args[1] if i is not None], args[2]
            if any(i.dtype in (torch.bool, torch.uint8) for i in indices):
                if len(indices) > 1 or value.numel() != 1 or not self.is_host(value):
                    self.refuse()
                return
            host = [t for t in host if t is not value or t.dim() > 0]
        if host and packet in _COPIES_OPERANDS:
            raise RuntimeError(PAGEABLE)
        if any(t.dim() > 0 for t in host):
            raise RuntimeError(SAME_DEVICE)

    def _record(self, func: Any, args: tuple, kwargs: dict, predicted: Any, autocast: torch.dtype | None) -> Any:
        """Append `func` to the recording and return its result: mutated arguments, and new tensors without values."""
        schema = func._schema
        named = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        mutated = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write and a.name in named]
        written = {frozenset(a.alias_info.before_set): named[a.name] for a in mutated}
        if schema.returns and schema.returns[0].alias_info:  # no operation returns both arguments and new tensors
            results = [written[frozenset(r.alias_info.before_set)] for r in schema.returns]
            for mine, value in zip(results, tree_leaves(predicted), strict=False):
                if isinstance(value, Foreseen) and mine.shape != value.size:
                    mine.resize_(value.size)  # `out=` of another size gets the result's, as in eager
            result, fresh = results[0] if len(results) == 1 else tuple(results), []
        else:
            result = tree_map_only(Foreseen, Foreseen.allocate, predicted)
            # Aliases: `x.data = ...` on a result must not reach the recording.
            fresh = [t.detach() if isinstance(t, Tensor) else None for t in tree_leaves(result)]
        made = [t for t in fresh if t is not None]
        allocated.update(t.untyped_storage() for t in made)
        if func.overloadpacket in _LAUNCH_NOTHING:
            return result
        args, kwargs = tree_map_only(Tensor, self._held, (args, kwargs))
        call = partial(func._op, *args, **kwargs)
        if made and (variant := _out_variant(func)):  # faster than to make a result and to copy it
            call, fresh = partial(variant[0]._op, *args, **kwargs, **{variant[1]: made[0]}), []
        inputs, outputs = self._numbers((args, kwargs)), self._numbers((made, list(written.values())))
        shape, modes = tuple(made[0].shape) if made else None, (torch.is_grad_enabled(), autocast)
        self.note(str(func), call, inputs, outputs, shape, fresh if made else [], modes)
        return result

    def _held(self, tensor: Tensor) -> Tensor:
        """Return what a replay reads of an argument: its memory, or a copy where it is baked in."""
        return tensor.detach().clone() if self.is_host(tensor) else tensor.detach()

    def _numbers(self, values: Any) -> tuple[int, ...]:
        """Return the numbers of the storages of all tensors in `values`, each once; a new storage gets a new one."""
        keys = [t.untyped_storage()._cdata for t in tree_leaves(values) if isinstance(t, Tensor)]
        return tuple(dict.fromkeys(self._storages.setdefault(key, len(self._storages)) for key in keys))


def _python_of(func: Any) -> Callable | None:
    """Return the Python function that `func` is, if any: it runs once, and what it calls is recorded."""
    if func._schema.name in OPDEFS:
        by_device = OPDEFS[func._schema.name]._backend_fns
        return by_device.get("cpu", by_device.get(None))
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU")
    return None if has_kernel or not func._can_decompose() else func.decompose  # composite ones, in inference mode


active: Capture | None = None
"""The one capture underway in this process."""
allocated: weakref.WeakSet = weakref.WeakSet()
"""The storages that captures made and that are alive."""

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
        kwargs, capture = kwargs or {}, active
        name, device = getattr(func, "__name__", ""), kwargs.get("device")
        host = not (args and isinstance(args[0], Tensor)) or capture.is_host(args[0])
        if name in _READ_ON_HOST and not host:
            if name in _PRINTS or not capture.is_here():
                capture.refuse()
            raise TypeError(NUMPY) if name in _NUMPY else RuntimeError(PAGEABLE)
        moves = name == "to" and host and any(isinstance(value, torch.device) for value in (*args, *kwargs.values()))
        copies = name in _FROM_HOST and not (args and isinstance(args[-1], Tensor))
        if moves or (copies and not (host and device in (None, "cpu"))):
            raise RuntimeError(PAGEABLE)
        makes_host = device is None and torch.utils._device.CURRENT_DEVICE is None and func in _FACTORIES
        one_hot = name == "one_hot" and (*args[1:], kwargs.get("num_classes", -1))[0] > 0
        # `pinverse` casts its argument, and calls `linalg_pinv`, which by itself does not.
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") and name != "pinverse" else None
        before, capture.calling = capture.calling, (makes_host, one_hot or name in _CHECKED_ON_A_CPU, autocast)
        try:
            if func is Tensor.backward:  # Python runs below it, which is to be seen as well
                with self:
                    return torch.autograd.backward(*args, grad_tensors=kwargs.pop("gradient", None), **kwargs)
            return func(*args, **kwargs)
        finally:
            capture.calling = before


def check_optimizer(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Raise what ``torch.optim.Optimizer._cuda_graph_capture_health_check`` raises on a GPU; find host step counters.

    Raises:
        RuntimeError: a parameter group has ``capturable=False``.
    """
    for group in optimizer.param_groups:
        if not group.get("capturable", True):
            raise RuntimeError(
                f"Attempting CUDA graph capture of step() for an instance of {type(optimizer).__name__} "
                "but param_groups' capturable is False."
            )
        if "capturable" not in group and not group.get("fused"):  # Adagrad's step counter is a host tensor then
            for parameter in group["params"]:
                if isinstance(step := optimizer.state.get(parameter, {}).get("step"), Tensor):
                    active.make_host(step)
