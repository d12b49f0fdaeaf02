"""Make rows of a laptop's CPU by hand, with intervals, for tests of the report."""

from __future__ import annotations

from typing import Any

import handmade


def row(variant: str, ms: float | None, **more: Any) -> dict[str, Any]:
    """Make one case, whose interval reaches the share `spread` (0.01) to both sides."""
    spread = more.pop("spread", 0.01)
    figures = {"latency_low_ms": ms * (1 - spread), "latency_high_ms": ms * (1 + spread), "samples": 40} if ms else {}
    base = {"is_base": (variant, more.get("precision", "fp32")) == ("eager", "fp32"), "setting": ""}
    return handmade.row(variant, ms=ms, **{"machine": "laptop", "device": "cpu", **base, **figures, **more})
