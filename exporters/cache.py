"""Make a file once for all runs, under a key of its content."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


def default_root() -> Path:
    """$PROFILER_CACHE, else cnn-profiler in the XDG cache directory (~/.cache)."""
    if root := os.environ.get("PROFILER_CACHE"):
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cnn-profiler"


_MOST_GIB = 20.0


def most_bytes() -> int:
    """How large the cache may be after a run: $PROFILER_CACHE_GIB, else 20 GiB. Raises ValueError for no number."""
    return int(float(os.environ.get("PROFILER_CACHE_GIB") or _MOST_GIB) * 2**30)


def key_of(*parts: str) -> str:
    """A key for `Cache.entry`: the sha256, in hexadecimal, of all that the content depends on."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Cache:
    """Content-addressed files in `root`/kind/key+suffix, shared by concurrent runs.

    A key must change whenever the content would. `trim` removes what was used least recently.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = default_root() if root is None else root

    def entry(
        self,
        kind: str,
        key: str,
        suffix: str,
        produce: Callable[[Path], None],
        again: bool = False,
        damaged: Callable[[Path], None] = lambda path: None,
    ) -> tuple[Path, bool]:
        """The entry's file, and whether it was there already.

        `produce` writes to the path it is given, whose file name is the final one; files it puts next to it (an ONNX
        file's external data) belong to the entry. One run produces while others that need the same key wait. A file
        whose size or content is not what was produced is produced again, after `damaged` has been called with it; with
        `again` an intact one is too, and stays until the new one is complete. What `produce` raises is passed on, and
        leaves no entry behind but that.
        """
        folder = self.root / kind
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (key + suffix)
        manifest = path.with_name(path.name + ".json")
        with locked(path.with_name(path.name + ".lock")):
            intact = is_intact(manifest)
            if intact and not again:
                with contextlib.suppress(OSError):  # Somebody else's cache may be read-only.
                    manifest.touch()
                return path, True
            if not intact and (path.exists() or manifest.exists()):
                damaged(path)
            replace_files(path, manifest, produce)
        return path, False


@dataclass(frozen=True)
class Entry:
    """A file of the cache with those that belong to it: `size` in bytes, `used` in seconds since the epoch."""

    kind: str
    path: Path
    size: int
    used: float

    def remove(self) -> bool:
        """Delete its files; returns whether that was done.

        Not while a run is producing them, where another run has removed them, or where the cache cannot be written.
        """
        manifest = self.path.with_name(self.path.name + ".json")
        try:
            with locked(self.path.with_name(self.path.name + ".lock"), wait=False) as free:
                if free:
                    names = json.loads(manifest.read_text())
                    # First, so that an entry of which a part is left is none.
                    manifest.unlink()
                    for name in names:
                        self.path.with_name(name).unlink(missing_ok=True)
                return free
        except OSError:
            return False


def entries(root: Path) -> list[Entry]:
    """Every complete entry of the cache in `root`, the most recently used first."""
    found = []
    for manifest in root.glob("*/*.json"):
        path = manifest.with_suffix("")
        if path.exists():  # Else it is an entry whose content is JSON.
            with contextlib.suppress(OSError, ValueError):
                size = sum(manifest.with_name(name).stat().st_size for name in json.loads(manifest.read_text()))
                found.append(Entry(manifest.parent.name, path, size, manifest.stat().st_mtime))
    return sorted(found, key=lambda entry: -entry.used)


def trim(root: Path, most: int, spared_seconds: float = 86_400.0) -> list[Entry]:
    """Remove the entries that were used least recently until at most `most` bytes are left; returns what was removed.

    What was used in the last `spared_seconds` stays: a run under way may need it.
    """
    kept, removed, latest = 0, [], time.time() - spared_seconds
    for entry in entries(root):
        kept += entry.size
        if kept > most and entry.used < latest and entry.remove():
            kept -= entry.size
            removed.append(entry)
    return removed


def replace_files(path: Path, manifest: Path, produce: Callable[[Path], None]) -> None:
    """Have `produce` write the entry's files, and put them and their manifest into place once they are complete."""
    # A fixed name, in the same file system as the target: what a killed run left behind is cleared by the next.
    scratch = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        produce(scratch / path.name)
        if not (scratch / path.name).is_file():
            raise RuntimeError(f"{produce!r} did not write {scratch / path.name}")
        files = sorted(scratch.iterdir())
        record = {file.name: fingerprint(file) for file in files}
        manifest.unlink(missing_ok=True)
        for file in files:
            os.replace(file, path.with_name(file.name))
        (scratch / manifest.name).write_text(json.dumps(record))
        # Last, so that an entry with a manifest is complete.
        os.replace(scratch / manifest.name, manifest)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold an exclusive lock, which the kernel frees when its holder dies; yields whether it is held.

    Without `wait` it is not where somebody else holds it.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def fingerprint(path: Path) -> dict[str, int | str]:
    status = path.stat()
    return {"size": status.st_size, "modified_ns": status.st_mtime_ns, "sha256": file_sha256(path)}


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_intact(manifest: Path) -> bool:
    """Whether every file of the entry is as it was produced.

    The content is hashed only where the time of modification differs: VGG-16's half gigabyte would cost 0.4 s
    a look-up.
    """
    try:
        record = json.loads(manifest.read_text())
        for name, expected in record.items():
            file = manifest.with_name(name)
            status = file.stat()
            if status.st_size != expected["size"]:
                return False
            if status.st_mtime_ns != expected["modified_ns"] and file_sha256(file) != expected["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(record)
