"""Define conditions on cases, as `--only` and `exclude` have them: the same for a plan and for results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engines.catalog import ENGINES, OPTIMIZERS, PASSES, PRECISIONS, PRESETS
from exporters.catalog import CATALOG
from exporters.single_layers import LAYERS
from exporters.source import shape_words
from profiler.errors import ConfigError, nearest
from profiler.job.case import Case
from profiler.job.config_errors import check_word, mistake, nearest_engine, read_option, validate_option
from profiler.job.yaml_lines import Location

KEYS = ("model", "engine", "variant", "pass", "precision", "batch_size", "shape", "replicate", "optimizer")


class Filter(BaseModel):
    """Conditions on a case: values under one key are alternatives, several keys must all hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    model: list[str] | None = None
    engine: list[str] | None = None
    variant: list[str] | None = None
    pass_: list[str] | None = Field(default=None, alias="pass")
    precision: list[str] | None = None
    batch_size: list[int] | None = None
    shape: list[str] | None = None
    """As ids end, such as "sequence=128" or "height=224/width=224"."""
    replicate: list[int] | None = None
    optimizer: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not data:
            raise mistake(f"expected conditions such as {{engine: compiled, pass: training}}; keys: {', '.join(KEYS)}")
        return {key: value if isinstance(value, list) else [value] for key, value in data.items()}

    def __str__(self) -> str:
        """As `--only` takes it."""
        return ",".join(f"{key}={value}" for key, values in self._given().items() for value in values)

    def tests(self) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
        """What must hold: one of these columns has one of these values. All of the tests must."""
        for key, values in self._given().items():
            # People write a variant's name for its engine.
            yield ("engine", "variant") if key == "engine" else (key,), values

    def matches(self, case: Case) -> bool:
        """Whether all of the conditions hold for a case."""
        return all(any(_value(case, column) in values for column in columns) for columns, values in self.tests())

    def unknown(self, cases: Sequence[Case]) -> str | None:
        """What to say of a value that none of the cases has, even beside others that some have; None without one."""
        for columns, values in self.tests():
            known = list(dict.fromkeys(str(_value(case, column)) for case in cases for column in reversed(columns)))
            if missing := [word for word in map(str, values) if word not in known]:
                key, word = columns[0], missing[0]
                hint = nearest_engine(word, known) if key in ("engine", "variant") else nearest(word, known)
                listed = f" It has {', '.join(known)}" if hint.endswith("?") else ""
                return f"the config has no {key} {word}{hint}{listed}"
        return None

    def why_none(self, cases: Sequence[Case]) -> str:
        """Which values go with the other conditions, where none of the cases has all of these."""
        given = self._given()
        for key in reversed(given):
            others = {name: values for name, values in given.items() if name != key}
            if found := [case for case in cases if others and Filter.model_validate(others).matches(case)]:
                with_it = ", ".join(dict.fromkeys(str(_value(case, key)) for case in found))
                return f"no case has all of these; with {Filter.model_validate(others)} there is only {key} {with_it}"
        return f"no case has all of these; --dry-run without it lists the {len(cases)} of the config"

    def check_words(self, names: Iterable[str], labels: Iterable[str], at: Location) -> None:
        """Raises for a misspelt value, which would exclude nothing and say nothing; `names` are the job's models or
        layers, `labels` its engines', `at` is the filter's place in the job."""
        engines = [*labels, *PRESETS, *ENGINES]
        valid: dict[str, Iterable[str]] = {
            "model": [*names, *CATALOG, *LAYERS],
            "engine": engines,
            "variant": engines,
            "pass": PASSES,
            "precision": PRECISIONS,
            "optimizer": OPTIMIZERS,
        }
        for key, values in self._given().items():
            for number, word in enumerate(values if key in valid else ()):
                check_word(word, valid[key], key, at=(*at, key, number))

    def _given(self) -> dict[str, list[Any]]:
        return self.model_dump(exclude_none=True, by_alias=True)


def parse_only(conditions: Sequence[str]) -> Filter | None:
    """`--only model=resnet50,precision=fp16` as a Filter; raises ConfigError for an unknown key."""
    given: dict[str, list[str]] = {}
    for condition in conditions:
        for key, value in read_option("--only", condition, KEYS):
            given.setdefault(key, []).append(value)
    if not given:
        if conditions:
            raise ConfigError("--only: no condition is given; write for example --only model=resnet50")
        return None
    return validate_option("--only", Filter, given)


def _value(case: Case, column: str) -> Any:
    if column == "shape":
        return "/".join(shape_words(case.shape))
    return case.training.optimizer if column == "optimizer" else getattr(case, "pass_" if column == "pass" else column)
