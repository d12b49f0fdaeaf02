"""Draw a study's figures with those of runs: bars by machine and by library, time by minibatch, error against time.

What was published is muted, or a point of another shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

import polars as pl

from engines.catalog import PRECISIONS
from exporters.whole_file import write_whole
from profiler.published import picture_specs as specs
from profiler.published import references, setups
from profiler.published.setups import geometric_mean
from profiler.published.studies import PASSES, STUDIES
from profiler.published.tables import layer_times
from profiler.report import palette
from profiler.report.chart_specs import Spec
from profiler.results.columns import place
from profiler.tables.numbers import compact, listed
from profiler.tables.writers import escape_markdown, slug

Rows = Sequence[Mapping[str, Any]]

WIDTH = 760
PANEL = 230
"""Pixels of a panel at least, its axis included."""
PANEL_AXIS = 56
"""Of these, those of its axis and the space between panels."""
LEGEND = 190
"""Pixels of a column of a legend."""
_BAR, _BETWEEN = 14, 10
_MOST_APART = 100
"""Times of a network, by which factor: with more the shortest bars are no longer seen."""
_APART = 0.042
"""Names of networks, as a share of the logarithmic range of errors: a line's height."""


@dataclass(frozen=True)
class Picture:
    """One picture: how it is drawn (`spec`), its data, and the table (Printed.name) whose figures it shows.

    `height` in pixels, None where the specification has one; `panels` says whether it is made of several.
    """

    name: str
    title: str
    note: str
    table: str
    spec: Spec
    rows: Rows
    more: Mapping[str, Rows] = field(default_factory=dict)
    height: int | None = None
    panels: bool = False

    @property
    def file(self) -> str:
        return f"published-{slug(self.name)}.svg"

    @property
    def image(self) -> str:
        """It as a paragraph of Markdown, next to its file."""
        return f"![{escape_markdown(f'{self.title}. {self.note}')}]({self.file})"

    @property
    def data(self) -> dict[str, Rows]:
        return {"rows": self.rows, **self.more}

    def drawing(self) -> Spec:
        """The specification with data, colours and title, on white paper."""
        spec = palette.on_paper(self.spec, self.data, self.title, self.note, offset=16, columns=WIDTH // LEGEND)
        if self.panels:
            columns = WIDTH // PANEL
            return spec | {"columns": columns, "spec": {**spec["spec"], "width": WIDTH // columns - PANEL_AXIS}}
        return spec | {"width": WIDTH} | ({"height": self.height} if self.height else {})


def published_pictures(study: str, results: pl.DataFrame) -> list[Picture]:
    """Every picture to which the results have something to say."""
    times = setups.network_times(study, setups.network_cells(results))
    plain = _prepared(times.filter(~pl.col("swept")))
    swept = _prepared(times.filter("swept").with_columns(total_ms="device_ms"))
    made = [*_by_machine(study, plain), *_by_library(study, plain), *_over_batches(swept), *_errors(study, plain)]
    if "layers" in STUDIES[study].tables:
        more = {"pass": pl.lit("training"), "brief": pl.lit(None, pl.String)}
        known = _prepared(layer_times(results).with_columns(**more)).drop_nulls("ms")
        title = "L1 to L5: forward, gradInput and gradWeight"
        made += [_bars("layers", title, "layers", known)] if known["ours"].any() else []
    return made


def write(folder: Path, pictures: Sequence[Picture]) -> None:
    """Write each as an SVG file. Raises OSError."""
    import vl_convert

    for picture in pictures:
        write_whole(folder / picture.file, vl_convert.vegalite_to_svg(picture.drawing()))


def _prepared(times: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of networks that we ran, with `short`: preset and precision, or the published library.

    `ms` is the time of one image; `name` what a picture of machines calls the row.
    """
    machines = times.filter("ours")["machine"].n_unique()
    mine = pl.concat_str("implementation", "precision", separator=" ")
    return (
        times.filter(pl.col("ours").any().over("network", "pass"))
        .with_columns(
            pl.col("machine").str.strip_prefix("CPU: "),
            ms=pl.col("total_ms") / pl.col("batch_size"),
            short=pl.when("ours").then(mine).otherwise("library"),
        )
        .with_columns(
            name=pl.when(pl.col("ours") & (machines > 1))
            .then(pl.format("{} {}", "machine", "short"))
            .otherwise("short")
        )
    )


def _by_machine(study: str, rows: pl.DataFrame) -> list[Picture]:
    """A picture a pass and kind of device: the published machines, and the best of ours at each precision.

    Of a study with one machine, its libraries.
    """
    made = []
    for pass_, device, part in _by_device(rows):
        published, mine = _published(study, part.filter(~pl.col("ours"))), _best_of_each_precision(part.filter("ours"))
        if published.is_empty() or mine.is_empty() or "networks" not in STUDIES[study].tables:
            continue
        machines = published["machine"].unique(maintain_order=True).to_list()
        them = machines[0] if len(machines) == 1 else f"the published {'GPUs' if device == 'cuda' else 'CPUs'}"
        title = f"{listed([*mine['machine'].unique(maintain_order=True), them])}: {PASSES[pass_]} pass"
        both = pl.concat([mine, published], how="diagonal_relaxed")
        made.append(_bars(f"machines-{device}-{pass_}", title, "networks", both))
    return made


def _by_device(rows: pl.DataFrame) -> list[tuple[str, str, pl.DataFrame]]:
    """Rows by pass and kind of device, of the networks that one of ours ran there."""
    of_ours = rows.filter(pl.col("ours").any().over("network", "pass", "device"))
    return [
        (str(pass_), str(device), part)
        for (pass_, device), part in of_ours.group_by("pass", "device", maintain_order=True)
    ]


def _by_library(study: str, rows: pl.DataFrame) -> list[Picture]:
    """A picture an own machine and pass: every preset at every precision."""
    table = "frameworks" if "frameworks" in STUDIES[study].tables else "networks"
    made = []
    for (machine, pass_), part in rows.filter("ours").group_by("machine", "pass", maintain_order=True):
        if part["short"].n_unique() > 1:
            title = f"{machine}, by engine and precision: {PASSES[str(pass_)]} pass"
            named = part.with_columns(name="short")
            made.append(_bars(f"engines-{machine}-{pass_}", title, table, named))
    return made


def _published(study: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Each machine at its best for each network, as sentences compare them; of one machine every library."""
    known = rows.drop_nulls("ms")
    several = known["machine"].n_unique() > 1
    without = pl.when(library="None").then(pl.format("{}, without cuDNN", "machine"))
    name = pl.col("machine") if several else without.otherwise("library")
    return setups.one_each(known.with_columns(name=name), STUDIES[study].by_release, "name")


def _best_of_each_precision(rows: pl.DataFrame) -> pl.DataFrame:
    """Of each machine and precision the preset with the lowest mean of times among those that ran the most networks."""
    best = setups.fastest(rows, "short", "machine", "precision")
    return rows.join(best, on=["machine", "precision", "short"], how="semi", maintain_order="left")


def _bars(name: str, title: str, table: str, rows: pl.DataFrame) -> Picture:
    """Groups of bars; of several rows of a name and network the fastest counts. What has no time is a bar of none.

    Times that are too far apart are points on a logarithmic scale.
    """
    # Where each network has one batch size, the figures are those of the table.
    sizes = rows.group_by("network").agg(pl.col("batch_size").unique())["batch_size"].to_list()
    whole = max(map(len, sizes)) == 1
    unit = f"for {' or '.join(map(str, sorted({size for (size,) in sizes})))} images" if whole else "per image"
    ms = pl.col("ms")
    ranked = rows.sort("ms", nulls_last=True, maintain_order=True)
    fastest = ranked.unique(["name", "network"], keep="first", maintain_order=True)
    figures = fastest.with_columns(
        share=(ms / ms.max().over("network")).fill_null(0),
        away=ms / ms.min().over("network"),
        figure=pl.col("total_ms" if whole else "ms"),
    )
    far_apart = bool((figures["away"] > _MOST_APART).any())
    if far_apart:
        figure = pl.col("figure").log()
        figures = figures.drop_nulls("ms").with_columns(share=(figure - figure.min()) / (figure.max() - figure.min()))
    places = figures.group_by("name", "ours").agg(mean=geometric_mean(pl.col("away")))
    places = places.sort("mean", "name", nulls_last=True).with_row_index("place", offset=1)
    text = pl.coalesce(_figures("figure") + " ms", "brief", pl.lit("no figure"))
    drawn = figures.join(places.select("name", "place"), on="name", maintain_order="left").select(
        *("name", "place", "share", "figure"),
        network="published_network",
        text=pl.format("{}: {}", "name", text),
    )
    networks = rows["published_network"].unique(maintain_order=True).to_list()
    own, others = _names(figures)
    spec = specs.groups(networks, own, others, far_apart)
    scale = "The scale is logarithmic." if far_apart else "Every network has a scale of its own, from zero."
    names = [{"network": network, "place": 0} for network in networks]
    height = len(networks) * (_BAR * (len(places) + 1) + _BETWEEN)
    note = f"Milliseconds {unit}, lowest mean over the networks first. {scale}"
    return Picture(
        name, title, note, table, spec, drawn.sort("place", maintain_order=True).to_dicts(), {"names": names}, height
    )


def _over_batches(rows: pl.DataFrame) -> list[Picture]:
    """A picture a pass and kind of device: a sample's time by the minibatch, a panel a network, a line a machine."""
    made = []
    for pass_, device, part in _by_device(rows.drop_nulls("ms")):
        line = (
            pl.when("ours")
            .then(pl.format("{} {}", "machine", "short"))
            .otherwise(pl.format("{}, {}", "machine", "library"))
        )
        part = part.with_columns(name=line).sort("batch_size", maintain_order=True)
        drawn = part.select(*("name", "batch_size", "ms"), network="published_network", figure=_figures("ms"))
        networks = part["published_network"].unique(maintain_order=True).to_list()
        own, others = _names(part)
        sizes = part["batch_size"].unique().sort().to_list()
        ranges = drawn.group_by("network").agg(apart=pl.col("ms").max() / pl.col("ms").min())["apart"].to_list()
        spec = specs.over_batches(networks, own, others, sizes, max(ranges))
        title = f"Milliseconds per sample by samples per minibatch: {PASSES[pass_]} pass"
        note = "Both scales are logarithmic. Every network has a scale of its own."
        note += " Own times are the device's own where it is known." if part["gpu_ms"].count() else ""
        made.append(
            Picture(f"minibatch-{device}-{pass_}", title, note, "minibatch", spec, drawn.to_dicts(), panels=True)
        )
    return made


def _errors(study: str, rows: pl.DataFrame) -> list[Picture]:
    """The published top-5 error of each network against its time, for the networks whose errors are of one set."""
    errors = references.top5_errors(STUDIES[study].releases_of or study)
    error = pl.col("network").replace_strict(errors, default=None, return_dtype=pl.Float64)
    rows = rows.filter(pl.col("pass") == "training").with_columns(error=error).drop_nulls(["ms", "error"])
    published = _published(study, rows.filter(~pl.col("ours")))
    if published.is_empty() or not STUDIES[study].by_release:
        return []
    mine = _best_of_each_precision(rows.filter("ours")).with_columns(name=pl.format("{} {}", "machine", "short"))
    both = pl.concat([mine, published], how="diagonal_relaxed")
    drawn = both.select(*("name", "ms", "error"), network="published_network", figure=_figures("ms"))
    names, ends = _labels(drawn)
    own, others = _names(both)
    spec = specs.errors(own, others, ends)
    note = "Errors of one crop, of VGG by dense prediction, as printed. Both scales are logarithmic."
    return [
        Picture(
            "errors",
            "Top-5 error against the time of a forward and backward pass",
            note,
            "networks",
            spec,
            drawn.to_dicts(),
            {"names": names},
        )
    ]


def _labels(points: pl.DataFrame) -> tuple[Rows, tuple[float, float]]:
    """The networks with the `place` of their names, at least a line's height apart, and the ends of the axis of times.

    The names' room, left of all points, is a fourth of the axis.
    """
    ends = {"low": pl.col("ms").min(), "high": pl.col("ms").max()}
    lines = points.group_by("network", "error").agg(**ends).sort("error", "low")
    apart = _APART * log(lines["error"][-1] / lines["error"][0])
    places: list[float] = []
    for error in lines["error"]:
        places.append(max(log(error), places[-1] + apart) if places else log(error))
    low, high = points.select(pl.col("ms").min(), high=pl.col("ms").max()).row(0)
    span = log(high / low) or 1.0
    named = lines.with_columns(place=pl.Series(list(map(exp, places))), start=pl.lit(low * exp(-0.16 * span)))
    return named.to_dicts(), (low * exp(-0.34 * span), high * exp(0.04 * span))


def _names(rows: pl.DataFrame) -> tuple[list[str], list[str]]:
    """The names of our rows, by precision, and of the published ones."""
    own = rows.filter("ours").unique("name", keep="first", maintain_order=True)
    own = own.sort(place("precision", PRECISIONS), "name")
    return own["name"].to_list(), rows.filter(~pl.col("ours"))["name"].unique(maintain_order=True).to_list()


def _figures(column: str) -> pl.Expr:
    return pl.col(column).map_elements(lambda value: compact(value, 3), return_dtype=pl.String)
