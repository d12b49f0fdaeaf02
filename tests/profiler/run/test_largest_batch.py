"""The search for the largest batch, on memory that is a function: it finds the boundary, and needs few probes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

import pytest

from exporters.inputs import TensorSpec
from exporters.source import ModelSource
from profiler.job.case import Budget, Case, CaseId
from profiler.job.config import LargestBatch
from profiler.job.plan import searched
from profiler.nvml import Gpu
from profiler.processes.messages import Status
from profiler.results.result import Result
from profiler.run.largest_batch import Probe, Search, bounds, next_batch, predicted_mib, short


@dataclass
class Device:
    """Where `boundary` is the largest batch that fits, and memory in MiB is a function of the batch."""

    boundary: int
    memory: Callable[[int], float | None]
    capacity_mib: float | None
    failure: Status = "oom"
    limit: int = 65536
    resolution: float = 0.05
    start: int = 1
    probes: list[Probe] = field(default_factory=list)

    def next(self) -> int | None:
        return next_batch(self.probes, self.limit, self.resolution, self.capacity_mib, self.start)

    def probe(self, batch: int) -> None:
        fits = batch <= self.boundary
        self.probes.append(Probe(batch, "ok" if fits else self.failure, self.memory(batch) if fits else None))

    def search(self) -> list[Probe]:
        while (batch := self.next()) is not None:
            assert 1 <= batch <= self.limit
            assert batch not in [probe.batch for probe in self.probes], "nothing is tried twice"
            self.probe(batch)
            assert len(self.probes) < 50
        return self.probes

    def check(self) -> None:
        """The bounds that were found hold the boundary, and are as close as was asked for."""
        good, bad = bounds(self.probes)
        assert good <= self.boundary
        if bad is None:
            assert good == self.limit
        else:
            assert self.boundary < bad.batch <= good + max(1, int(self.resolution * good))


def random_device(rng: random.Random, resolution: float) -> Device:
    """From 60 MiB an item down to 100 KiB, on a device of 6 to 160 GiB."""
    slope, base, capacity = 10 ** rng.uniform(-1, 3.5), 10 ** rng.uniform(1, 3.5), 10 ** rng.uniform(3.8, 5.2)
    boundary = max(1, int((capacity - base) / slope))
    limit = rng.choice([65536, 65536, 1000])
    start = min(rng.choice([1, 1, 2, 16, 64]), boundary, limit)
    return Device(boundary, lambda b: base + slope * b, capacity, limit=limit, resolution=resolution, start=start)


def counts(resolution: float, alter: Callable[[Device, random.Random], None], devices: int = 2000) -> list[int]:
    """How many probes each of many searches took; each was right."""
    rng = random.Random(20170401)
    found = []
    for _ in range(devices):
        device = random_device(rng, resolution)
        alter(device, rng)
        device.start = min(device.start, device.boundary)
        found.append(len(device.search()))
        device.check()
    return found


def as_it_is(device: Device, rng: random.Random) -> None:
    pass


def noisy(device: Device, rng: random.Random) -> None:
    line = device.memory
    device.memory = lambda b: (line(b) or 0.0) * rng.uniform(0.98, 1.02)


def in_steps(device: Device, rng: random.Random) -> None:
    """Workspaces that come and go."""
    line = device.memory
    device.memory = lambda b: (line(b) or 0.0) + 200 * (b.bit_length() % 3)


def saving_at_the_edge(device: Device, rng: random.Random) -> None:
    """Algorithms with less workspace are taken as memory gets scarce."""
    device.boundary = device.boundary * 3 // 2


def sated(device: Device, rng: random.Random) -> None:
    """An arena that takes twice what it needs as long as there is that much, as ONNX Runtime's does."""
    line, capacity = device.memory, device.capacity_mib or 0.0
    device.memory = lambda b: min(2 * (line(b) or 0.0), 0.99 * capacity)


def with_holes(device: Device, rng: random.Random) -> None:
    """Memory that is free, but not in one piece."""
    device.boundary = max(1, device.boundary * 85 // 100)


def blind(device: Device, rng: random.Random) -> None:
    device.capacity_mib = None


def without_figures(device: Device, rng: random.Random) -> None:
    device.memory = lambda b: None


def with_short_indices(device: Device, rng: random.Random) -> None:
    """A library's own limit, far below the memory's."""
    device.boundary, device.failure = max(1, device.boundary // rng.randint(2, 40)), "failed"


@pytest.mark.parametrize("resolution", [1e-9, 0.01, 0.05, 0.3])
def test_on_a_line_the_boundary_is_found_in_a_handful_of_probes(resolution: float) -> None:
    """Measured: 4.2 on average and 7 at most, at any resolution; the first is the largest case's batch again."""
    found = counts(resolution, as_it_is)
    assert mean(found) < 4.5
    assert max(found) <= 7


@pytest.mark.parametrize(
    ("alter", "average", "most"),
    [
        (noisy, 5.0, 11),
        (in_steps, 5.5, 18),
        (sated, 10.0, 16),
        (saving_at_the_edge, 9.0, 13),
        (with_holes, 7.5, 12),
        (blind, 12.5, 22),
        (without_figures, 12.5, 22),
        (with_short_indices, 8.0, 12),
    ],
)
def test_where_the_line_is_wrong_the_boundary_is_found_all_the_same(
    alter: Callable[[Device, random.Random], None], average: float, most: int
) -> None:
    found = counts(0.05, alter)
    assert mean(found) < average
    assert max(found) <= most


@pytest.mark.parametrize("boundary", [1, 2, 3, 7, 100, 65535, 65536, 10**9])
@pytest.mark.parametrize("limit", [1, 2, 64, 65536])
def test_boundaries_at_the_ends(boundary: int, limit: int) -> None:
    device = Device(boundary, lambda b: 10.0 * b, 10.0 * boundary, limit=limit, resolution=1e-9)
    device.search()
    device.check()
    assert bounds(device.probes)[0] == min(boundary, limit)


def test_where_not_even_one_item_fits_nothing_else_is_tried() -> None:
    assert Device(0, lambda b: 1.0, 100.0).search() == [Probe(1, "oom")]


def test_a_start_that_does_not_fit_is_searched_below() -> None:
    device = Device(5, lambda b: None, None, start=64, resolution=1e-9)
    device.search()
    device.check()


@pytest.mark.parametrize("status", ["timeout", "unsupported"])
def test_a_failure_that_a_smaller_batch_does_not_cure_ends_the_search(status: Status) -> None:
    probes = [Probe(4, "ok", 100.0), Probe(64, status)]
    assert next_batch(probes, 65536, 0.05, 1e6) is None
    assert bounds(probes) == (4, probes[1])


def test_a_failure_below_a_batch_that_fitted_says_nothing() -> None:
    assert bounds([Probe(8, "oom"), Probe(16, "ok"), Probe(32, "oom")]) == (16, Probe(32, "oom"))


@pytest.mark.parametrize("alter", [as_it_is, noisy, blind, saving_at_the_edge])
def test_a_search_goes_on_where_it_was_interrupted(alter: Callable[[Device, random.Random], None]) -> None:
    """The journal is all it has: in whatever order its lines come, the next batch is the same."""
    rng = random.Random(7)
    for _ in range(200):
        device = random_device(rng, 0.02)
        alter(device, rng)
        while (batch := device.next()) is not None:
            rng.shuffle(device.probes)
            assert device.next() == batch
            device.probe(batch)
        device.check()


def test_memory_is_predicted_along_the_line_and_overestimated_from_a_single_batch() -> None:
    assert predicted_mib([], 8) is None
    assert predicted_mib([Probe(4, "oom")], 8) is None
    assert predicted_mib([Probe(4, "ok", 140.0)], 8) == 280.0
    assert predicted_mib([Probe(4, "ok", 140.0), Probe(1, "ok", 110.0)], 8) == pytest.approx(180.0)


# Its cases, and what the journal has of it.


def case(batch: int, model: str = "alexnet", **other: Any) -> Case:
    one = Case(model, "eager", "eager", "inference", "fp32", batch, "cpu", 0, ModelSource(model))
    return replace(one, **other)


def test_one_case_of_each_configuration_is_searched() -> None:
    plan = [case(1), case(2), case(1, "vgg16"), case(1, replicate=1), case(1, "resnet18", unsupported="no")]
    assert searched(plan) == [plan[0], plan[2]]


def results(measured: Mapping[int, Status]) -> dict[CaseId, Result]:
    return {case(batch).id: Result(case(batch).id, status) for batch, status in measured.items()}


def tried(batch: int, status: Status = "ok", **memory: float) -> Result:
    return Result(case(batch).id, status, figures=memory)


def test_a_search_starts_at_the_largest_case_that_ran() -> None:
    limits = LargestBatch()
    assert Search(case(1), limits, None, results({1: "ok", 64: "ok", 128: "oom"})).next_batch(None) == 64
    assert Search(case(1), limits, None, results({32: "oom"})).next_batch(None) == 1
    assert Search(case(1), limits, None, results({1: "failed", 2: "timeout"})).next_batch(None) is None
    assert Search(case(1), limits, None, {}).next_batch(None) is None


def test_a_search_goes_on_with_its_own_tries() -> None:
    other = Result(case(9, "vgg16").id, "oom")
    assert (
        Search(case(1), LargestBatch(), None, results({8: "ok"}), [tried(8), tried(16, "oom"), other]).next_batch(None)
        == 12
    )
    assert Search(case(1), LargestBatch(), None, results({8: "ok"}), [tried(8)]).next_batch(None) == 16


def test_the_capacity_is_the_cards_without_what_was_in_use_before() -> None:
    gpu = Gpu(0, "GPU-0", "a card", 10_000.0, "driver")
    one = case(1, device="cuda")
    tries = [tried(1, peak_memory_mib=1000.0, baseline_mib=2000.0)]
    search = Search(one, LargestBatch(resolution=0.001), gpu, results({1: "ok"}), tries)
    assert search.next_batch(500.0) == 7, "8 would take 8000 of the 8000 MiB, by a line that overestimates"


def test_on_a_cpu_memory_is_the_most_of_setting_up_and_measuring() -> None:
    tries = [tried(1, peak_memory_mib=100.0, set_up_peak_mib=250.0)]
    search = Search(case(1), LargestBatch(), None, results({1: "ok"}), tries)
    assert search.refuse(2, [], 626.0) is None
    assert search.refuse(2, [], 624.0) is not None


def test_inputs_that_the_host_cannot_hold_are_not_tried_on_a_gpu_either() -> None:
    specs = [TensorSpec("x", ("batch", 3, 512, 512), "float32"), TensorSpec("n", (4,), "int64")]
    search = Search(case(1, device="cuda"), LargestBatch(), None, results({1: "ok"}))
    assert search.refuse(100, specs, 400.0) is None
    refused = search.refuse(120, specs, 400.0)
    assert refused is not None
    assert refused.reason == (
        "not tried: its inputs would take about 360 MiB, more than 80 % of the 400 MiB of main memory that are "
        "available"
    )


def test_a_try_is_history() -> None:
    search = Search(case(1), LargestBatch(), None, results({1: "ok"}))
    search.add(tried(4, "crashed"))
    search.add(tried(2, peak_memory_mib=5.0))
    assert search.tried == [Probe(4, "crashed"), Probe(2, "ok", 5.0)]


def test_a_probe_keeps_the_limits_of_its_job_and_takes_few_samples() -> None:
    assert short(Budget(timeout=60.0)) == Budget(0.3, 3, 3, timeout=60.0)
    assert short(Budget(seconds=0.1)).seconds == 0.1


def test_a_process_that_takes_some_mib_more_does_not_lead_a_search_beyond_the_memory() -> None:
    """Processes on the CPU differ by 12 MiB and more at the same batch, here 4 MiB an item of 500 MiB."""
    rng = random.Random(20170401)
    for _ in range(300):
        search, peaks = Search(case(1), LargestBatch(), None, results({1: "ok"})), [0.0]
        while (batch := search.next_batch(500.0)) is not None:
            result = search.refuse(batch, [], 500.0)
            if result is None:
                peaks.append(30.0 + 4.0 * batch + rng.choice([0.0, rng.uniform(0, 24)]))
                result = tried(batch, peak_memory_mib=peaks[-1])
            search.add(result)
        assert 0.7 * 500 < max(peaks) < 0.9 * 500
