"""Draw the README's picture from the stored results: ``python scripts/make_overview.py``."""

from pathlib import Path

import matplotlib.pyplot as plt

from tutorial_utils import plots, results

FORMS = {
    "eager PyTorch": "step_eager",
    "torch.compile, reduce-overhead": "kernels_reduce_overhead/without_profiler",
    "one CUDA graph of the whole step": "step_graph",
    "torch.compile, then one CUDA graph": "step_compile_and_capture",
}

if __name__ == "__main__":
    graphs = results.load("graphs")
    steps = {label: graphs[name] for label, name in FORMS.items()}
    xlabel = f"time of a step (µs); median and quartiles\n{graphs.source_line()}"
    plt.style.use("tutorial_utils.course")
    plots.bars(steps, unit="µs", title="One MNIST training step, batch 64", xlabel=xlabel)
    plt.savefig(Path(__file__).resolve().parents[1] / "docs" / "overview.png", dpi=110)
