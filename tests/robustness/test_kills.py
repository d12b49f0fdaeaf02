"""Runs that are killed and resumed, at random moments, and one that two resume at once.

No row is lost, and one process measures.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from robustness.command_runs import Run
from runs import until

pytestmark = pytest.mark.slow
JOB = """
models: [{name: net, factory: "net:net", input: [8]}]
engines: [eager]
device: cpu
batch_sizes: [1, 2]
budget: {seconds: 0.02, min_samples: 3, repeats: 0}
"""
ROWS = 6
"""Two batch sizes of a base, each in three processes."""
SECONDS = 600
"""Within which whatever was not killed for good has to end."""
ENDS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
PARTS = ("a worker", "the forkserver", "the tracker")
CHAINS, KILLS_A_CHAIN, SIDE_BY_SIDE = (1, 2.2), (2, 10), (1, 6)
STARTING_SECONDS = 8
"""In which a run that begins has got to any of its steps before the first row."""


@dataclass
class Chain:
    """Runs in one folder, killed and resumed, and what was found wrong with them."""

    folder: Path
    rng: random.Random
    kills: list[str] = field(default_factory=list)
    ended: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """By run the rows that had ended, by case."""
    touched: set[Path] = field(default_factory=set)
    """Runs of which a worker was killed, whose rows need not be ok."""
    problems: list[tuple[str, str]] = field(default_factory=list)

    def until(self, kills: int) -> None:
        """Kill so often, then finish."""
        while len(self.kills) < kills:
            self.once()
        self.finish()

    def once(self) -> None:
        """Start or resume the run, kill parts of it and then most often all of it, and look at what is left."""
        path = next((each for each in self._begun() if len(journal(each)) < ROWS), None)
        run, before = self._start(path), {path: dict(rows) for path, rows in self.ended.items()}
        ended, kills = self._ended(), []
        if not self.kills:  # The process that looks at the libraries.
            kills.append(self._kill_part(run, "SIGKILL", PARTS[0]))
        for more, part in enumerate(self.rng.sample(PARTS, self.rng.randint(1, 2)), 1):
            self._wait(run, ended + more)
            kills.append(self._kill_part(run, self.rng.choice((*ENDS, "SIGSEGV")), part))
        if not self.kills or self.rng.random() < 0.7:
            self._wait(run, ended + self.rng.randint(0, ROWS - 1 - ended % ROWS))
            kills.append(self._kill_whole(run))
        self.kills += [kill for kill in kills if kill]
        killed = kills[-1] or "nothing"
        self._look(run, killed)
        for path, rows in before.items():
            lost = [case for case, row in rows.items() if row["status"] == "ok" and self.ended[path].get(case) != row]
            self.problems += [("rows_lost", f"{path.name}: {case} after {killed}") for case in lost]

    def finish(self) -> None:
        """Resume whatever has not been finished, and compare its tables with what had ended."""
        for path in self._begun():
            if len(table := rows_of(path)) < ROWS:
                self._look(self._start(path), "nothing")
                table = rows_of(path)
            missing = set(self.ended[path]) ^ set(table)
            twice = {c for c, rows in journal(path).items() if sum(row["status"] == "ok" for row in rows) > 1}
            wrong = {c for c, row in table.items() if row["status"] != "ok" and path not in self.touched}
            lost = [*missing, *twice, *wrong, *(["too few"] if len(table) != ROWS else [])]
            self.problems += [("rows_lost", f"{path.name}: {case}, {len(table)} rows") for case in lost]

    def _start(self, path: Path | None) -> Run:
        arguments = ["job.yaml"] if path is None else ["--resume", str(path)]
        return Run(*arguments, cwd=self.folder, PROFILER_CACHE=str(self.folder / "cache"))

    def _begun(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.glob("results/*/bench.yaml"))

    def _ended(self) -> int:
        return sum(len(rows) for path in self._begun() for rows in journal(path).values())

    def _wait(self, run: Run, ended: int) -> None:
        """Wait until so many rows have ended, and a moment more."""
        while run.code is None and self._ended() < ended:
            time.sleep(0.01)
        time.sleep(self.rng.uniform(0, 0.5 if self._ended() else STARTING_SECONDS))

    def _kill_part(self, run: Run, name: str, part: str) -> str:
        """Wait for such a part, of which a worker lives shortest."""
        while run.code is None:
            pid = next((pid for pid in run.others() if run.part(pid) == part), None)
            if pid is not None:
                self.touched |= set(self._begun())
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, getattr(signal, name))
                    return f"{name} to {part}"
        return ""

    def _kill_whole(self, run: Run) -> str:
        if run.code is not None:
            return ""
        name, whom = self.rng.choice(ENDS), "the run"
        if self.rng.random() < 0.3:  # As a terminal does it: all of its processes, and twice.
            whom = "all processes"
            for _ in range(2):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run.pid, getattr(signal, name))
                time.sleep(self.rng.uniform(0, 0.2))
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.pid, getattr(signal, name))
        return f"{name} to {whom}"

    def _look(self, run: Run, killed: str) -> None:
        code = run.wait(SECONDS)
        whole = killed.endswith(("the run", "all processes"))
        allowed = {0, 1, 130, *(-getattr(signal, name) for name in ENDS)} if whole else {0, 1}
        if code is None:
            self.problems.append(("hangs", f"{killed}: {run.out[-500:]}"))
            os.kill(run.pid, signal.SIGKILL)
        elif code not in ({0} if killed == "nothing" and not self.touched else allowed) or "Traceback" in run.err:
            self.problems.append(("tracebacks", f"{killed}: code {code}: {run.out[-300:]} {run.err[-1500:]}"))
        if left := run.left_behind():
            self.problems.append(("orphans", f"{killed}: {left}"))
        self.ended |= {path: {case: rows[-1] for case, rows in journal(path).items()} for path in self._begun()}


def journal(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows that have ended, by case, as one reads the file who knows nothing of how it is written."""
    found: dict[str, list[dict[str, Any]]] = {}
    file = run / "journal.jsonl"
    for line in file.read_bytes().splitlines() if file.exists() else []:
        with contextlib.suppress(ValueError):  # The last one, that a kill cut off.
            row = json.loads(line)
            found.setdefault(row["case_id"], []).append(row)
    return found


def rows_of(run: Path) -> dict[str, dict[str, Any]]:
    file = run / "results.parquet"
    return {row["case_id"]: row for row in pl.read_parquet(file).to_dicts()} if file.exists() else {}


NET = """
from torch import nn

def net():
    return nn.Linear(8, 4)
"""


def workplace(folder: Path) -> Path:
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "job.yaml").write_text(JOB)
    return folder


def test_whatever_is_killed_no_row_is_lost(soak, tmp_path):
    def chain(rng: Any) -> Chain:
        place = workplace(tmp_path / str(rng.trial))
        done = Chain(place, rng)
        try:
            done.until(KILLS_A_CHAIN[soak.is_large])
        except Exception as error:  # The other chains go on.
            done.problems.append(("tracebacks", f"of the chain itself: {error!r}"))
        if not done.problems:
            shutil.rmtree(place)
        return done

    with ThreadPoolExecutor(SIDE_BY_SIDE[soak.is_large]) as pool:
        chains = list(pool.map(chain, soak.trials(*CHAINS)))
    problems = [problem for done in chains for problem in done.problems]
    print(*(text for _, text in problems), sep="\n")
    found, kills = Counter(kind for kind, _ in problems), [kill for done in chains for kill in done.kills]
    soak.count("kills of a run or a part of it", len(kills), len(kills) - len(problems), set(kills), **found)


# Side by side.


def test_one_run_writes_into_a_folder(soak, tmp_path):
    tried, wrong, twice = 0, list[str](), 0
    for rng in soak.trials(1, 0.4):
        place = workplace(tmp_path / str(rng.trial))
        variables = {"PROFILER_CACHE": str(tmp_path / "cache")}
        first, count = Run("job.yaml", "--no-report", cwd=place, **variables), rng.randint(0, 1)
        path = until(lambda: [*place.glob("results/*/bench.yaml")])[0].parent  # noqa: B023
        until(lambda: len(journal(path)) >= count)  # noqa: B023
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(SECONDS)
        both = [Run("--resume", str(path), "--no-report", cwd=place, **variables) for _ in range(2)]
        codes = [each.wait(SECONDS) for each in both]
        if not set(codes) <= {0, 2} or 0 not in codes or any("Traceback" in each.err for each in both):
            wrong.append(f"two: {codes} {both[0].err[-500:]} {both[1].err[-500:]}")
        measured = journal(path)
        twice += sum(len(rows) - 1 for rows in measured.values()) + ROWS - len(measured)
        tried += 2
    print(*wrong, sep="\n")
    soak.count("writers beside a run", tried=tried, survived=tried - len(wrong), rows_lost=twice)
