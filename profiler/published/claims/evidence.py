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
from profiler.published.tables import LAYERS

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
        """Own cells of its networks, measured or not."""
        return self._own.filter(~pl.col("swept"))

    @cached_property
    def swept(self) -> pl.DataFrame:
        """Own cells of networks that ran at several batch sizes, smaller ones first."""
        return self._own.filter("swept").sort("batch_size", maintain_order=True)

    @cached_property
    def layers(self) -> pl.DataFrame:
        """Own cells of the study's single layers."""
        return self.all.filter(pl.col("model_kind") == "layer", pl.col("model").is_in(LAYERS))

    @cached_property
    def _own(self) -> pl.DataFrame:
        cells = setups.of_study(self.study, self.all.filter(pl.col("model_kind") != "layer"))
        named = pl.col("model").replace_strict(self.names, default=None, return_dtype=pl.String)
        return cells.with_columns(
            ms="latency_ms", published_network=named, counterpart=setups.counterpart(self.row.counterpart)
        )

    @cached_property
    def all(self) -> pl.DataFrame:
        return setups.times(self.results)

    def name(self, network: str) -> str:
        return self.names.get(network, network)
