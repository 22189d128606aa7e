"""For the unit tests alone: pictures are drawn without a display. Kernels keep Jupyter's inline backend."""

import matplotlib

# Not through MPLBACKEND, which the kernels of the notebook tests would inherit.
matplotlib.use("Agg")
