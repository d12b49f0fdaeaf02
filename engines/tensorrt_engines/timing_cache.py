"""Keep the kernel timings of TensorRT's builds on disk for later builds.

Two builds of one network can choose different kernels; with the timings of the first, the second chooses as it did, and
is done sooner. The file is shared by concurrent runs: each adds what it has measured. Its first 32 bytes are the
SHA-256 of the rest, since not every version of the library tells a damaged cache from an empty one.
TensorRT for RTX measures nothing when it builds, and its timing cache is without effect:
https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/timing-cache-migration.html
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from engines.base import Warning
from exporters.cache import locked
from exporters.whole_file import write_whole

_DIGEST_BYTES = 32


def attach_timings(config: Any, path: Path) -> list[Warning]:
    """Give `config` the timing cache in `path`, or an empty one; returns warnings."""
    data, intact = _read(path)
    warnings = [] if intact else [Warning("timing-cache", "a damaged file was dropped")]
    timings = config.create_timing_cache(data)
    if data and (timings is None or not config.set_timing_cache(timings, ignore_mismatch=False)):
        reason = "the library refuses the file, as of another device or version; it was dropped"
        warnings.append(Warning("timing-cache", reason))
        data = b""
    if not data:
        config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
    return warnings


def keep_timings(config: Any, path: Path) -> list[Warning]:
    """Write the timing cache of `config` to `path`, with what another run has written there meanwhile; returns
    warnings: an engine that was built is not lost where that fails."""
    timings = config.get_timing_cache()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(path.name + ".lock")):
            data, _ = _read(path)
            others = config.create_timing_cache(data) if data else None
            merges = others is None or timings.combine(others, ignore_mismatch=False)
            merged = bytes(timings.serialize())
            write_whole(path, hashlib.sha256(merged).digest() + merged)
    except OSError as error:
        return [Warning("timing-cache", f"the timings of this build cannot be kept: {error.strerror}")]
    return [] if merges else [Warning("timing-cache", "the library does not merge the file: other builds' are dropped")]


def _read(path: Path) -> tuple[bytes, bool]:
    """The timing cache in the file, empty where there is none, and whether the file is as it was written."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b"", True
    except OSError:
        return b"", False
    data = content[_DIGEST_BYTES:]
    intact = hashlib.sha256(data).digest() == content[:_DIGEST_BYTES]
    return (data if intact else b""), intact
