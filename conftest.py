"""For every pytest run: what the kernels inherit, and pictures of the unit tests without a display."""

import kernels
import matplotlib

kernels.prepare()
matplotlib.use("Agg")  # in this process alone; kernels keep Jupyter's inline backend
