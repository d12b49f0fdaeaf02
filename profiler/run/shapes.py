"""Find out which of a job's `shapes` each model has."""

from __future__ import annotations

from collections.abc import Sequence

from exporters.shapes import dimensions_of, why_fixed
from exporters.source import ModelError, ModelSource
from profiler.errors import ConfigError, nearest
from profiler.job.config import Config
from profiler.processes.process import Call
from profiler.processes.temporary import own_folder
from profiler.run.fits import Tick, of_several, side_by_side, weight_mib

_SECONDS = 120.0
"""For importing a library of models."""


def with_shapes(config: Config, tick: Tick = lambda *_: None) -> Config:
    """The job with its `shapes` in each model that has such dimensions, so that what it measures is written down.

    `tick(what, done, total)` is called a few times a second, for the display.

    Raises ConfigError for a name that no model has, and for one that a model with `shapes` of its own lacks.
    """
    asking = [entry for entry in config.models if entry.shapes or (entry.shapes is None and config.shapes)]
    if not asking:
        return config
    sources = [entry.source() for entry in asking]
    known = dict(zip([entry.name for entry in asking], _dimensions(sources, config.path, tick), strict=True))
    models, used = [], set()
    for number, entry in enumerate(config.models):
        if entry.name not in known:
            models.append(entry)
            continue
        own = known[entry.name]
        if entry.shapes is not None and (strays := [name for name in entry.shapes if name not in own]):
            raise config.error(_lacks(entry.source(), strays[0], own), "models", number, "shapes", strays[0])
        shapes = config.shapes if entry.shapes is None else entry.shapes
        taken = {name: sizes for name, sizes in shapes.items() if name in own}
        used |= set(taken)
        models.append(entry.model_copy(update={"shapes": taken}))
    if strays := [name for name in config.shapes if name not in used and any(e.shapes is None for e in asking)]:
        every = list(dict.fromkeys(name for names in known.values() for name in names))
        if len(known) == 1:
            raise config.error(_lacks(asking[0].source(), strays[0], every), "shapes", strays[0])
        fixed = [why_fixed(entry.source()) for entry in asking if not known[entry.name]]
        why = f"no model's inputs have a dimension '{strays[0]}'{nearest(strays[0], every)}"
        raise config.error("; ".join([why, *fixed]), "shapes", strays[0])
    return config.model_copy(update={"models": models})


def _lacks(source: ModelSource, name: str, own: Sequence[str]) -> str:
    if not own:
        return why_fixed(source)
    return f"{source.name}'s inputs have no dimension '{name}'{nearest(name, own)}"


def _dimensions(sources: Sequence[ModelSource], path: tuple[str, ...], tick: Tick) -> list[list[str]]:
    """The names of each model's dimensions; of a library's model in another process, which imports the library."""
    foreign = {number: source for number, source in enumerate(sources) if source.library is not None}
    with own_folder() as folder:
        function, log = "profiler.worker.look_at_model:look_at_dimensions", folder / "log"
        calls = {n: Call(function, source, log, _SECONDS, path=path, threads=1) for n, source in foreign.items()}
        weights, what = map(weight_mib, foreign.values()), "models asked for their inputs"
        outcomes = side_by_side(calls, weights, of_several(tick, calls), what)
    if bad := next((outcome for outcome in outcomes.values() if outcome.status != "ok"), None):
        raise ConfigError(f"shapes: {bad.reason}")
    try:
        return [outcomes[n].value if n in outcomes else dimensions_of(source) for n, source in enumerate(sources)]
    except ModelError as error:
        raise ConfigError(str(error)) from None
