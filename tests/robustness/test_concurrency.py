"""A run that is read in a loop, and resumed by two at once: readers see whole rows, one process measures."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import pytest
from robustness.forked_runs import Run, Runs
from robustness.test_kills import ROWS, SECONDS, journal, workplace

from profiler.errors import ConfigError
from profiler.results.reading import read_runs

pytestmark = pytest.mark.slow


def read_until_the_end(run: Run, path: Path) -> tuple[int, list[str]]:
    """How often the folder could be read while the run was going on, and what was wrong with what it held."""
    looks, wrong, seen = 0, [], set[str]()
    while run.code is None:
        try:
            found = read_runs([path]).results.collect()
        except ConfigError as error:
            if seen or ("nothing yet" not in str(error) and "ended before" not in str(error)):
                wrong.append(str(error))
            continue
        except Exception as error:
            wrong.append(repr(error))
            continue
        looks += 1
        cases = set(found["case_id"])
        if seen - cases or len(cases) != len(found) or found.filter(pl.col("latency_ms").is_null()).height:
            wrong.append(f"after {sorted(seen)}: {sorted(found['case_id'])}")
        seen |= cases
    return looks, wrong


def folder_of(place: Path) -> Path:
    """The run's folder, once it holds a job."""
    end = time.monotonic() + SECONDS
    while not (found := list(place.glob("results/*/bench.yaml"))):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found[0].parent


def wait_for_rows(path: Path, count: int) -> None:
    end = time.monotonic() + SECONDS
    while len(journal(path)) < count:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_who_reads_sees_whole_rows_and_one_writes(soak, runs: Runs, tmp_path: Path) -> None:
    tried, wrong, twice = 0, [], 0
    for rng in soak.trials(1):
        place = workplace(tmp_path / str(rng.trial))
        variables = {"PROFILER_CACHE": str(tmp_path / "cache")}
        first = runs.start("job.yaml", cwd=place, **variables)
        path = folder_of(place)
        wait_for_rows(path, rng.randint(0, 1))
        beside = runs.start("--resume", str(path), cwd=place, **variables)
        looks, problems = read_until_the_end(first, path)
        if beside.wait(SECONDS) != 2 or "measures into it" not in beside.err:
            problems.append(f"beside: {beside.code} {beside.err[-500:]}")
        if first.code != 0 or not looks:
            problems.append(f"first: {first.code}, {looks} looks: {first.err[-500:]}")
        both = [runs.start("--resume", str(path), "--retry", cwd=place, **variables) for _ in range(2)]
        codes = [each.wait(SECONDS) for each in both]
        if not set(codes) <= {0, 2} or 0 not in codes or any("Traceback" in each.err for each in both):
            problems.append(f"two: {codes} {both[0].err[-500:]} {both[1].err[-500:]}")
        measured = journal(path)
        twice += sum(len(rows) - 1 for rows in measured.values()) + ROWS - len(measured)
        tried += looks + 3
        wrong += problems
    print(*wrong, sep="\n")
    soak.count("looks and writers beside a run", tried=tried, survived=tried - len(wrong), rows_lost=twice)
