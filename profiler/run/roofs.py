"""Keep a run's roofs: measured before its first case, and once more after its last one where that can mend them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler.job.case import Case
from profiler.machine import Target
from profiler.nvml import Nvml
from profiler.processes.process import Call, run_one
from profiler.results.result import Result
from profiler.results.roofline import Excess, Roofs, excess, raised, widened
from profiler.results.run_folder import RunFolder
from profiler.run.progress import Display
from profiler.run.quiet import other_work
from profiler.worker.roofline import Measured, precisions_needed

_TIMEOUT = 60.0


class RunRoofs:
    """The roofs of one run in its `environment`: `roofs` are the most that was measured or reached, `measured_roofs`
    what was measured alone. Neither is ever lowered. `roofs_disturbance` is there while one of them was measured only
    beside what it names, so that it may be too low."""

    def __init__(
        self, run: RunFolder, target: Target, seconds: float, environment: dict[str, Any], display: Display
    ) -> None:
        self._run, self._target, self._seconds = run, target, seconds
        self._environment, self._display = environment, display

    @property
    def roofs(self) -> Roofs:
        return self._environment.get("roofs") or {}

    @property
    def measured(self) -> Roofs:
        # A run of an older version has only those that were measured.
        return self._environment.get("measured_roofs") or self.roofs

    def measure(self, cases: Sequence[Case]) -> None:
        """Measure the roofs that these cases need; a resumed run's own are kept, and those that it lacks added."""
        precisions = precisions_needed(self._target.kind, cases)
        if cases and not self.measured.keys() >= {"copy_gb_s", *(f"{each}_tflops" for each in precisions)}:
            self._measure(precisions)
            self.raise_to([])

    def confirm(self, cases: Sequence[Case]) -> None:
        """Measure the roofs once more where other work lowered them, or a row of these cases reached more than they
        say; fail the rows that are still far above.

        A busy machine would lower them again: it measures nothing, and fails no row. Where nobody can tell whether it
        is busy, the better of two measurements counts.
        """
        doubted = self.measured and (self._environment.get("roofs_disturbance") or self._above(cases))
        if not doubted or other_work(Nvml(self._target.gpu.uuid if self._target.gpu else None)):
            return
        known = [name.removesuffix("_tflops") for name in self.measured if name.endswith("_tflops")]
        quiet = self._measure(known)
        self.raise_to(cases)
        for case, result, over in self._above(cases) if quiet is not False else ():
            if over.is_impossible:
                result.fail(over.rejection())
                self._run.append(result)
                self._display.ended(case, result)

    def raise_to(self, cases: Sequence[Case]) -> None:
        """Raise the roofs to what rows of these cases reached."""
        if self.measured:
            self._environment["roofs"] = widened(_most(self.roofs, raised(self.measured, self._rows(cases))))
            self._run.write_environment(self._environment)

    def _above(self, cases: Sequence[Case]) -> list[tuple[Case, Result, Excess]]:
        """The rows that reached more than the roofs say."""
        rows = ((case, result, excess(case, result, self.roofs)) for case, result in self._rows(cases))
        return [(case, result, over) for case, result, over in rows if over is not None]

    def _rows(self, cases: Sequence[Case]) -> list[tuple[Case, Result]]:
        """What the journal holds of these cases, as far as it is ok."""
        results = self._run.results() if cases else {}
        return [(case, results[case.id]) for case in cases if case.id in results and results[case.id].status == "ok"]

    def _measure(self, precisions: Sequence[str]) -> bool | None:
        """Add a measurement to those of the run; returns whether nothing disturbed it, None if nobody can tell."""
        what = "measuring peak FLOP/s and bandwidth"
        self._display.preparing(what, 0, 1)
        log, argument = self._run.logs / "roofs.log", (self._target.kind, precisions, self._seconds)
        variables = {"CUDA_VISIBLE_DEVICES": self._target.gpu.uuid if self._target.gpu else ""}
        call = Call("profiler.worker.roofline:measure_roofs", argument, log, _TIMEOUT, environment=variables)
        outcome = run_one(call)
        found: Measured = outcome.value or Measured({}, False)
        if not found.roofs:
            what = f"no roofline: peak FLOP/s and bandwidth could not be measured: {outcome.reason or f'see {log}'}"
        self._display.preparing(what, 1, 1)
        if found.disturbance and not self.measured:  # Not again after the last case.
            self._display.announce(f"peak FLOP/s and bandwidth may be too low: {found.disturbance}")
        if found.disturbance and found.roofs.keys() - self.measured.keys():
            self._environment["roofs_disturbance"] = found.disturbance
        elif found.quiet and found.roofs.keys() >= self.measured.keys():
            self._environment.pop("roofs_disturbance", None)
        self._environment["measured_roofs"] = _most(self.measured, found.roofs)
        return found.quiet


def _most(*roofs: Roofs) -> dict[str, float]:
    """The highest of each."""
    names = dict.fromkeys(name for each in roofs for name in each)
    return {name: max(each[name] for each in roofs if name in each) for name in names}
