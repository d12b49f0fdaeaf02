"""Draw the README's picture, docs/results/speedups.svg, from the published runs on an H200.

PYTHONPATH=. python benchmarks/picture.py
"""

from __future__ import annotations

from pathlib import Path

import altair as alt
import polars as pl
import vl_convert

from profiler import load

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
MODELS = {
    "bert": "BERT, batch 16",
    "vit-base": "ViT-B/16, batch 32",
    "convnext-tiny": "ConvNeXt-T, batch 32",
    "resnet50": "ResNet-50, batch 16",
    "whisper-encoder": "Whisper encoder, batch 8",
    "unet-step": "U-Net step, batch 2",
}
SOURCES = [("zoo/h200", set(MODELS) - {"resnet50"}), ("h200", {"resnet50"})]
"""Published folder and its models. The zoo's ResNet-50 lacked biases in ONNX Runtime (docs/method.md, Weights)."""
BATCH = {"resnet50": 16}
RUNTIMES = {
    "eager": "PyTorch",
    "eager-tuned": "PyTorch",
    "compiled": "torch.compile",
    "ort": "ONNX Runtime",
    "ort-tuned": "ONNX Runtime",
}
COLORS = {"PyTorch": "#e45756", "torch.compile": "#4c78a8", "ONNX Runtime": "#72b7b2"}


def best() -> pl.DataFrame:
    """Return the fastest cell of each model and runtime: model, runtime, variant, precision, factor and its ends."""
    frames: list[pl.DataFrame] = []
    for folder, models in SOURCES:
        frame, _ = load(str(RESULTS / folder), cells=True)
        cells = frame.collect().filter(pl.col("model").is_in(models), pl.col("pass") == "inference")
        batch = pl.col("model").replace_strict(BATCH, default=None, return_dtype=pl.Int64)
        cells = cells.filter(pl.col("batch_size") == batch.fill_null(pl.col("batch_size")), status="ok")
        frames.append(
            cells.select("model", "variant", "precision", "latency_ms", "factor", "factor_low", "factor_high")
        )
    rows = pl.concat(frames).filter(pl.col("variant").is_in(list(RUNTIMES)))
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
    x = alt.X("factor:Q", title="times as fast as plain PyTorch in fp32", scale=alt.Scale(domain=[0, 10.5]))
    color = alt.Color("runtime:N", title=None, scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values())))
    bars = base.mark_bar().encode(x=x, color=color)
    whiskers = base.mark_rule(strokeWidth=1.5).encode(x="factor_low:Q", x2="factor_high:Q")
    text = base.mark_text(align="left", dx=5).encode(x="factor_high:Q", text="text:N")
    unity = alt.Chart(alt.InlineData([{}])).mark_rule(strokeDash=[4, 3]).encode(x=alt.datum(1))
    subtitle = f"Inference; all bars are {' or '.join(sorted(rows['precision'].unique()))}; whiskers: 95 % intervals"
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


if __name__ == "__main__":
    (RESULTS / "speedups.svg").write_text(svg())
