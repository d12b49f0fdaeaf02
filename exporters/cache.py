"""Make a file once for all runs, under a key of its content."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


def default_root() -> Path:
    """$PROFILER_CACHE, else cnn-profiler in the XDG cache directory (~/.cache)."""
    if root := os.environ.get("PROFILER_CACHE"):
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cnn-profiler"


def key_of(*parts: str) -> str:
    """A key for `Cache.entry`: the sha256, in hexadecimal, of all that the content depends on."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Cache:
    """Content-addressed files in `root`/kind/key+suffix, shared by concurrent runs.

    A key must change whenever the content would. Nothing expires: delete the folder to empty it.
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
                return path, True
            if not intact and (path.exists() or manifest.exists()):
                damaged(path)
            replace_files(path, manifest, produce)
        return path, False


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
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, which the kernel frees when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
