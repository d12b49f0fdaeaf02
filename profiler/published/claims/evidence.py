"""Hold what statements are answered with: the published rows, and the runs' results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import polars as pl

from profiler.published import conclusions, references, setups
from profiler.published.conclusions import Subject
from profiler.published.studies import STUDIES, Study

Claim = Mapping[str, Any]
"""A row of references/conclusions.csv: what is named in several is a list."""


class Outcome(StrEnum):
    """What the published rows say of a statement, its `verdict`."""

    HOLDS = "Holds"
    IN_PART = "Not quite"
    FAILS = "Does not hold"
    UNDECIDED = "Cannot be checked"


@dataclass(frozen=True, eq=False)
class Evidence:
    """The rows of a study and those of runs."""

    study: str
    results: pl.DataFrame

    @property
    def row(self) -> Study:
        return STUDIES[self.study]

    def claims(self, kind: str) -> list[Claim]:
        return [claim for claim in references.claims(self.study) if claim["kind"] == kind]

    @cached_property
    def names(self) -> dict[str, str]:
        """Printed names of its networks by the catalog's."""
        return references.network_names(self.study)

    @cached_property
    def published(self) -> pl.DataFrame:
        return conclusions.published_times(self.study)

    @cached_property
    def errors(self) -> dict[str, float]:
        """Top-5 errors in percent by network, of its own list or of that of the study whose releases it needs."""
        return references.top5_errors(self.row.releases_of or self.study)

    @cached_property
    def times(self) -> dict[Subject, pl.DataFrame]:
        """Published and own times of one image, by what they are of; only where some are own."""
        return conclusions.times_of(self.study, self.results)

    @cached_property
    def own(self) -> pl.DataFrame:
        """Own rows of its networks, measured or not, without those of batch sweeps; sentences rest on `ms`."""
        own = setups.network_cells(self.results).filter(~pl.col("swept"))
        cells = setups.of_study(self.study, own)
        named = pl.col("model").replace_strict(self.names, default=None, return_dtype=pl.String)
        return cells.with_columns(
            ms="judged_ms", published_network=named, counterpart=setups.counterpart(self.row.counterpart)
        )

    def name(self, network: str) -> str:
        return self.names.get(network, network)


def sound() -> pl.Expr:
    """Whether a row has a time that may be held against another: undisturbed, and not set by the host."""
    return pl.col("ms").is_not_null() & pl.col("disturbed").is_null() & ~pl.col("host_set")
