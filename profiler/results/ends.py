"""Name the figures that have a 95 % interval, and the columns of its ends; a worker reads this without polars."""

PARTS = ("forward_ms", "backward_ms", "step_ms", "grad_input_ms", "grad_weight_ms")
"""Parts of an iteration on the headline clock."""
WITH_ENDS = ("latency_ms", "gpu_ms", "throughput", *PARTS)


def ends_of(name: str) -> tuple[str, str]:
    """Return the columns of a figure's interval: latency_ms has latency_low_ms and latency_high_ms."""
    stem, unit = (name.removesuffix("_ms"), "_ms") if name.endswith("_ms") else (name, "")
    return f"{stem}_low{unit}", f"{stem}_high{unit}"
