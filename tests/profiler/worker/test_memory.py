"""The parts of device memory, from recorded readings."""

from __future__ import annotations

from engines.base import Memory
from profiler.worker.memory import DeviceMeter, declared_parts

MIB = 2**20


def meter(*readings: float) -> DeviceMeter:
    """A meter that has read: before the context, with it, with the model, and at the end."""
    left = list(readings)
    meter = DeviceMeter(lambda: left.pop(0))
    meter.context_created()
    meter.loaded()
    meter.read()
    return meter


def test_the_parts_add_up_to_the_peak() -> None:
    parts = meter(600, 1100, 1200, 1500).parts(Memory(90 * MIB, 210 * MIB, 40 * MIB, 300 * MIB, 340 * MIB))
    assert parts["peak_memory_mib"] == 900
    assert parts["context_mib"] == 500
    assert parts["other_mib"] == 900 - 500 - 90 - 210
    assert parts["slack_mib"] == 40
    assert parts["library_mib"] == 60
    assert parts["baseline_mib"] == 600
    assert (parts["torch_allocated_mib"], parts["torch_reserved_mib"]) == (300, 340)


def test_activations_that_are_not_declared_are_what_came_after_loading() -> None:
    parts = meter(0, 500, 700, 950).parts(Memory(weights=150 * MIB))
    assert parts["activations_mib"] == 250
    assert parts["other_mib"] == 50
    assert (parts["slack_mib"], parts["library_mib"]) == (None, None)


def test_without_nvml_there_are_no_figures_of_the_device() -> None:
    meter = DeviceMeter(lambda: None)
    meter.context_created()
    meter.loaded()
    parts = meter.parts(Memory(weights=MIB, slack=MIB))
    assert parts["weights_mib"] == 1
    assert [parts.get(name) for name in ("peak_memory_mib", "other_mib", "library_mib")] == [None] * 3


def test_gradients_and_optimizer_are_parts_of_their_own() -> None:
    declared = Memory(90 * MIB, 210 * MIB, 40 * MIB, gradients=80 * MIB, optimizer=160 * MIB)
    parts = meter(600, 1100, 1200, 1800).parts(declared)
    assert (parts["gradients_mib"], parts["optimizer_mib"]) == (80, 160)
    names = ("context", "weights", "gradients", "optimizer", "activations", "other")
    assert sum(parts[f"{name}_mib"] or 0 for name in names) == parts["peak_memory_mib"] == 1200
    assert (parts["slack_mib"] or 0) + (parts["library_mib"] or 0) == parts["other_mib"]


def test_inference_has_neither_gradients_nor_an_optimizer() -> None:
    parts = meter(600, 1100, 1200, 1500).parts(Memory(90 * MIB, 210 * MIB, 40 * MIB))
    assert (parts["gradients_mib"], parts["optimizer_mib"]) == (None, None)


def test_an_engine_declares_its_parts_on_any_device() -> None:
    declared = declared_parts(Memory(weights=3 * MIB, gradients=2 * MIB, optimizer=0))
    assert declared == {"weights_mib": 3, "gradients_mib": 2, "optimizer_mib": 0}
