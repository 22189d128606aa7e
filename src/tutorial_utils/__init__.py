"""Helpers of the course on CUDA graphs and fork/wait.

What nearly every notebook needs::

    from tutorial_utils import cuda, device

``cuda`` is :mod:`torch.cuda` where a usable GPU is present, and
:mod:`tutorial_utils.cuda_stand_in` elsewhere; ``device`` is the matching :class:`torch.device`.
"""

import sys as _sys

if not (3, 11) <= _sys.version_info[:2] <= (3, 13):
    raise ImportError(
        f"This course needs Python 3.11, 3.12 or 3.13; this is Python {_sys.version.split()[0]}. "
        "TorchScript does not run on 3.14 and later. Create an environment with one of these versions, "
        "for example `conda env create -f environment.yml`."
    )

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError(
        "This course needs PyTorch 2.9 or later, and `import torch` failed: "
        f"{_error}. Install it first, for example with `pip install torch torchvision`."
    ) from _error

if tuple(int(part) for part in _torch.__version__.split("+")[0].split(".")[:2]) < (2, 9):
    raise ImportError(
        f"This course needs PyTorch 2.9 or later; this is {_torch.__version__}. "
        "Update it, for example with `pip install --upgrade torch torchvision`."
    )

if _torch.cuda.is_available():
    from torch import cuda

    device = _torch.device("cuda")
else:
    from . import cuda_stand_in as cuda

    device = _torch.device("cpu")

from .data import batches, load_mnist

__all__ = ["batches", "cuda", "device", "load_mnist"]
