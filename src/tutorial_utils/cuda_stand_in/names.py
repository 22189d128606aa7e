"""The names of :mod:`torch.cuda` that have nothing to do with a capture, and what the CPU lacks of PyTorch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as _optimizers

__all__ = [
    "current_device", "device_count", "empty_cache", "get_rng_state", "initial_seed", "manual_seed", "manual_seed_all",
    "set_rng_state",
]  # fmt: skip

_library = torch.library.Library("aten", "IMPL")
_library.impl("record_stream", lambda tensor, stream: None, "CPU")


def device_count() -> int:
    """Return 1: the CPU stands for one device."""
    return 1


def current_device() -> int:
    """Return the number of the one device."""
    return 0


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


def empty_cache() -> None:
    """Do nothing: there is no cache."""


def _capturable_devices(supports_xla: bool = True) -> list[str]:
    return ["cpu", "cuda", "xpu", "hpu", "xla"]


# Every optimizer's module has its own name for this function: only its code can be replaced for all of them.
_optimizers._get_capturable_supported_devices.__code__ = _capturable_devices.__code__
