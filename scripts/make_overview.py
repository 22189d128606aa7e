"""Draw the README's picture from the recorded measurements: ``python scripts/make_overview.py``."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tutorial_utils import plots, reference

OUT = Path(__file__).resolve().parents[1] / "docs" / "overview.png"
FORMS = {
    "eager PyTorch": "step_eager",
    "torch.compile, reduce-overhead": "step_reduce_overhead",
    "one CUDA graph of the whole step": "step_graph",
    "torch.compile, then one CUDA graph": "step_compile_and_capture",
}


def main() -> None:
    recorded = reference.load("h200")
    plots.use_style()
    axes = plots.new_axes(None, 9, 2.8)
    values = {label: (recorded.median(name), *recorded.quartiles(name)) for label, name in FORMS.items()}
    plots.bars(
        values,
        unit="µs",
        title="One MNIST training step, batch 64",
        xlabel=f"time of a step (µs); median and quartiles\n{recorded.source_line()}",
        ax=axes,
    )
    OUT.parent.mkdir(exist_ok=True)
    plt.savefig(OUT, dpi=110)
    print(f"{OUT.name}: {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
