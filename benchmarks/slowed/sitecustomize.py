"""Slow every session by the share SLOWED_BY, such as 0.05, in any Python that starts with
this folder on its PYTHONPATH.

On the CPU a call spins on for that share of what it took. On a GPU a spin kernel follows it, for that share of the
device time that SLOWED_FROM tells of the case: a JSON file with milliseconds by id, without the replicate.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import engines
from engines.base import Job, Mark
from engines.catalog import ENGINES

_SHARE = float(os.environ.get("SLOWED_BY", "0"))
_CYCLES = 2_000_000
_open = engines.open_session


def key_of(row: Mapping[str, Any]) -> str:
    """Return the key that a job and a row of results.parquet share; `options` may leave out defaults."""
    options = asdict(ENGINES[row["engine"]].options(**row["options"]))
    cell = "/".join(str(row[name]) for name in ("model", "engine", "pass", "precision", "batch_size"))
    return f"{cell}/{json.dumps(options, sort_keys=True)}"


def _open_slowed(engine: str, job: Job[Any]) -> Any:
    session: Any = _open(engine, job)
    session.run = _on_gpu(session.run, engine, job) if job.device == "cuda" else _on_cpu(session.run)
    return session


def _on_cpu(run: Callable[[Mark], None]) -> Callable[[Mark], None]:
    def slowed(mark: Mark) -> None:
        start = time.perf_counter()
        run(mark)
        end = start + (time.perf_counter() - start) * (1 + _SHARE)
        while time.perf_counter() < end:
            pass

    return slowed


def _on_gpu(run: Callable[[Mark], None], engine: str, job: Job[Any]) -> Callable[[Mark], None]:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        start.record()
        torch.cuda._sleep(_CYCLES)
        end.record()
    end.synchronize()
    cell = {"model": job.source.name, "engine": engine, "pass": job.pass_, "batch_size": job.batch_size}
    key = key_of({**cell, "precision": job.precision, "options": asdict(job.options)})
    milliseconds = json.loads(Path(os.environ["SLOWED_FROM"]).read_text())[key] * _SHARE
    cycles = int(milliseconds * _CYCLES / start.elapsed_time(end))

    def slowed(mark: Mark) -> None:
        run(mark)
        torch.cuda._sleep(cycles)

    return slowed


if _SHARE:
    engines.open_session = _open_slowed
