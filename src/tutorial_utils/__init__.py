"""Helpers of the course on CUDA graphs and fork/wait.

What nearly every notebook needs::

    from tutorial_utils import cuda, device

``cuda`` is :mod:`torch.cuda` where a usable GPU is present, and
:mod:`tutorial_utils.cuda_stand_in` elsewhere; ``device`` is the matching :class:`torch.device`.
"""

import torch

# pip refuses a Python outside requires-python; an old torch it overlooks where it installs without dependencies.
if torch.__version__ < (2, 9):
    raise ImportError(
        f"This course needs PyTorch 2.9 or later; this is {torch.__version__}. "
        "Update it, for example with `pip install --upgrade torch torchvision`."
    )

if torch.cuda.is_available():
    from torch import cuda

    device = torch.device("cuda")
else:
    from . import cuda_stand_in as cuda

    device = torch.device("cpu")

from .data import batches, load_mnist

__all__ = ["batches", "cuda", "device", "load_mnist"]
