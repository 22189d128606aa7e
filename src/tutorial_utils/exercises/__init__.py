"""The checks that the notebooks' exercises call: ``check_NN_k`` for exercise ``k`` of notebook ``NN``.

A check prints its verdict and never raises on an answer; see :mod:`tutorial_utils.checks`.
"""

from .part1 import *  # noqa: F403
from .part2 import *  # noqa: F403
