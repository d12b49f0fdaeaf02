"""Draw the README's pictures, speedups.svg and terminal.svg in docs/results, from the published runs on an H200.

PYTHONPATH=. python benchmarks/picture.py
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import altair as alt
import polars as pl
import vl_convert
from rich.console import Console
from rich.terminal_theme import MONOKAI

from profiler import load
from profiler.recommend.command import conclude
from profiler.results.cells import cells
from profiler.results.choice import MAX_ERROR

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
BATCH = 16
MODELS = {
    "alexnet": "AlexNet",
    "overfeat": "OverFeat",
    "vgg16": "VGG-16",
    "googlenet": "GoogLeNet",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "resnet152": "ResNet-152",
}
SOURCE = "h200-networks"
RUNTIMES = {
    "eager": "PyTorch",
    "eager-tuned": "PyTorch",
    "compiled": "torch.compile",
    "ort": "ONNX Runtime",
    "ort-tuned": "ONNX Runtime",
    "trt": "TensorRT",
}
COLORS = {"PyTorch": "#e45756", "torch.compile": "#4c78a8", "ONNX Runtime": "#72b7b2", "TensorRT": "#54a24b"}


def best() -> pl.DataFrame:
    """Return each runtime's fastest cell of each model among those whose outputs are right."""
    results, _ = load(str(RESULTS / SOURCE))
    ok = cells(results, by=()).filter(pl.col("model").is_in(list(MODELS)), batch_size=BATCH, status="ok")
    right = ok.filter(pl.col("variant").is_in(list(RUNTIMES)), pl.col("error") <= MAX_ERROR)
    rows = right.select("model", "variant", "precision", "latency_ms", "factor", "factor_low", "factor_high")
    # Processors differ in the last digit of a logarithm.
    factors = pl.col("factor", "factor_low", "factor_high").round(4)
    rows = rows.with_columns(factors, runtime=pl.col("variant").replace_strict(RUNTIMES))
    rows = rows.sort("latency_ms").unique(["model", "runtime"], keep="first", maintain_order=True)
    return rows.with_columns(label=pl.col("model").replace_strict(MODELS))


def chart(rows: pl.DataFrame) -> alt.LayerChart | alt.FacetChart:
    """Return one bar a model and runtime, with the factor's 95 % interval as a whisker."""
    rows = rows.with_columns(text=pl.format("{}×", pl.col("factor").round(1)))
    base = alt.Chart(alt.InlineData(rows.to_dicts())).encode(
        y=alt.Y("label:N", title=None, sort=list(MODELS.values()), axis=alt.Axis(labelLimit=220, ticks=False)),
        yOffset=alt.YOffset("runtime:N", sort=list(COLORS)),
    )
    x = alt.X("factor:Q", title="times as fast as plain PyTorch in fp32", scale=alt.Scale(domain=[0, 17.5]))
    color = alt.Color("runtime:N", title=None, scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values())))
    bars = base.mark_bar().encode(x=x, color=color)
    whiskers = base.mark_rule(strokeWidth=1.5).encode(x="factor_low:Q", x2="factor_high:Q")
    text = base.mark_text(align="left", dx=5).encode(x="factor_high:Q", text="text:N")
    unity = alt.Chart(alt.InlineData([{}])).mark_rule(strokeDash=[4, 3]).encode(x=alt.datum(1))
    precisions = " or ".join(sorted(rows["precision"].unique()))
    subtitle = f"Inference, batch {BATCH}; all bars are {precisions}; whiskers: 95 % intervals"
    title = alt.TitleParams(
        "The fastest configuration of each runtime on an NVIDIA H200", subtitle=subtitle, anchor="start"
    )
    return alt.layer(bars, whiskers, text, unity, title=title).properties(width=560, height=alt.Step(14))


def svg() -> str:
    """Return the picture."""
    legend = alt.LegendConfig(orient="top", labelFontSize=12)
    config = alt.Config(
        background="white", font="sans-serif", legend=legend, axis=alt.AxisConfig(labelFontSize=12, titleFontSize=12)
    )
    drawn: str = vl_convert.vegalite_to_svg(chart(best()).properties(config=config).to_dict())
    return drawn


def terminal() -> str:
    """Return the end of a run of three networks as a terminal shows it; the picture loads no fonts."""
    rows = load(str(RESULTS / "h200"))[0].filter(pl.col("model").is_in(["alexnet", "resnet18", "resnet50"])).collect()
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    conclude(Path("results/run"), rows.filter(pl.col("batch_size").is_in([1, 16])), console)
    made = console.export_svg(title="python -m profiler bench.yaml", theme=MONOKAI, unique_id="terminal")
    return re.sub(r"@font-face {.*?}\n", "", made, flags=re.DOTALL)


if __name__ == "__main__":
    (RESULTS / "speedups.svg").write_text(svg())
    (RESULTS / "terminal.svg").write_text(terminal())
