"""Measure a run's roofs before its first case, and judge each row by them as it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler.job.case import Case
from profiler.machine import Target
from profiler.processes.process import Call, run_one
from profiler.results.result import Result
from profiler.results.roofline import Roofs, excess
from profiler.results.run_folder import RunFolder
from profiler.run.progress import Display
from profiler.worker.roofline import Measured, precisions_needed

_TIMEOUT = 60.0


class RunRoofs:
    """The roofs of one run, kept in its `environment`; `roofs_quiet` is true where no other work ran beside them."""

    def __init__(
        self, run: RunFolder, target: Target, seconds: float, environment: dict[str, Any], display: Display
    ) -> None:
        self._run, self._target, self._seconds = run, target, seconds
        self._environment, self._display = environment, display

    @property
    def roofs(self) -> Roofs:
        return self._environment.get("roofs") or {}

    def measure(self, cases: Sequence[Case]) -> None:
        """Measure the roofs that these cases need; a resumed run keeps its own and adds those that it lacks."""
        precisions = precisions_needed(self._target.kind, cases)
        if not cases or self.roofs.keys() >= {"copy_gb_s", *(f"{each}_tflops" for each in precisions)}:
            return
        what = "measuring peak FLOP/s and bandwidth"
        self._display.preparing(what, 0, 1)
        log, argument = self._run.logs / "roofs.log", (self._target.kind, precisions, self._seconds)
        variables = {"CUDA_VISIBLE_DEVICES": self._target.gpu.uuid if self._target.gpu else ""}
        outcome = run_one(
            Call("profiler.worker.roofline:measure_roofs", argument, log, _TIMEOUT, environment=variables)
        )
        found: Measured = outcome.value or Measured({}, quiet=False)
        if not found.roofs:
            what = f"no roofline: peak FLOP/s and bandwidth could not be measured: {outcome.reason or f'see {log}'}"
        self._display.preparing(what, 1, 1)
        was_quiet = self._environment.get("roofs_quiet", True)
        self._environment |= {"roofs": {**found.roofs, **self.roofs}, "roofs_quiet": was_quiet and found.quiet}
        self._run.write_environment(self._environment)

    def judge(self, case: Case, result: Result) -> None:
        """Fail a row that is far faster than the roofs allow, if nothing can have lowered them."""
        over = excess(case, result, self.roofs) if result.status == "ok" else None
        if over is not None and over.is_impossible and self._environment.get("roofs_quiet"):
            result.fail(over.rejection())
