"""Draw the README's picture from the stored results: ``python scripts/make_overview.py``."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tutorial_utils import plots, results

OUT = Path(__file__).resolve().parents[1] / "docs" / "overview.png"
BARS = {
    "eager PyTorch": "step_eager",
    "torch.compile, reduce-overhead": "step_reduce_overhead",
    "one CUDA graph of the whole step": "step_graph",
    "torch.compile, then one CUDA graph": "step_compile_and_capture",
}


def main(out: Path = OUT) -> None:
    graphs = results.load("graphs")
    plt.style.use("tutorial_utils.course")
    figure, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
    plots.bars(
        {label: graphs[name] for label, name in BARS.items()},
        unit="µs",
        title="One MNIST training step, batch 64",
        xlabel=f"time of a step (µs); median and quartiles\n{graphs.source_line()}",
        ax=axes,
    )
    out.parent.mkdir(exist_ok=True)
    figure.savefig(out, dpi=110)
    print(f"{out.name}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
