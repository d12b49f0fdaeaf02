"""Make a file once for all runs, under a key of its content."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from exporters.errors import ConfigError, chain
from exporters.named_files import FULL
from exporters.source import ModelError

_MOST_GIB = 20.0
_USERS = "users.lock"
_MIB = 2**20
_HASHED_BYTES = 2**25
"""Largest file to hash at every look-up: it takes 0.05 s; VGG-16's weights would take 0.9 s."""
_COMPARED = ("reference", "gradients")
"""Kinds to hash at any size: a damaged reference would make right outputs look wrong."""


def default_root() -> Path:
    """Return $PROFILER_CACHE, else runtime-profiler in the XDG cache directory (~/.cache)."""
    if root := os.environ.get("PROFILER_CACHE"):
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runtime-profiler"


def most_bytes() -> int:
    """Return the cache's size limit after a run: $PROFILER_CACHE_GIB, else 20 GiB. Raises ConfigError."""
    try:
        return int(min(float(os.environ.get("PROFILER_CACHE_GIB") or _MOST_GIB), 2.0**30) * 2**30)
    except ValueError as error:
        raise ConfigError(f"PROFILER_CACHE_GIB: {error}; give a number of GiB, such as 20") from None


def code_of(*files: str) -> list[str]:
    """Return the sha256 of files of this package, for keys that change with the code."""
    return [file_sha256(Path(__file__).parent / file) for file in files]


class CacheError(ModelError):
    """The cache cannot take a file: its disk is full or read-only."""

    def __init__(self, path: Path, why: str, full: bool = True) -> None:
        room = "make room, as `cache clear` does, or " if full else ""
        super().__init__(f"the cache cannot keep {path} ({why}); {room}name a writable folder in PROFILER_CACHE")


def check_root(root: Path) -> None:
    """Raise CacheError for an empty folder that cannot be written; a filled one may be read-only."""
    with _writing(root):
        if not (root.is_dir() and any(root.iterdir())):
            root.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=root).close()


@contextlib.contextmanager
def shared(root: Path) -> Iterator[None]:
    """Keep others from clearing the cache meanwhile, if it exists and can be written."""
    with contextlib.ExitStack() as closing:
        with contextlib.suppress(OSError):
            file = closing.enter_context((root / _USERS).open("ab"))
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Keep others from using the cache meanwhile. Raises ConfigError while a run uses it."""
    with (root / _USERS).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"cache: a run uses {root}; clear it once that has ended") from None
        yield


def check_room(path: Path, size: float) -> None:
    """Raise CacheError if the disk has no room for `size` bytes, before minutes are spent on the file."""
    free = shutil.disk_usage(path.parent).free
    if size > free:
        figures = f"it takes at least {size / 2**30:.1f} GiB of the disk, and {free / 2**30:.1f} GiB are free"
        raise CacheError(path.parent.parent / path.name, figures)


class Cache:
    """Content-addressed files in `root`/kind/key+suffix, shared by concurrent runs.

    A key (see `exporters.source.digest`) must change whenever the content would. A read-only cache serves its entries.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = default_root() if root is None else root

    def entry(
        self,
        kind: str,
        key: str,
        suffix: str,
        produce: Callable[[Path], object],
        again: bool = False,
        damaged: Callable[[Path], None] = lambda path: None,
    ) -> tuple[Path, bool]:
        """Return the entry's file, and True if the cache had it.

        `produce` writes to its path, which has the final file name; files beside it (an ONNX file's external data)
        belong to the entry. One run produces while others that need the same key wait. A damaged file is produced
        again, after `damaged` has been called with it; with `again` an intact one is too, and stays until the new one
        is complete. Errors of `produce` pass through.
        """
        folder = self.root / kind
        path = folder / (key + suffix)
        manifest = path.with_name(path.name + ".json")
        if not again and _is_intact(manifest):  # No lock, since a read-only cache cannot have one.
            return path, True
        with contextlib.ExitStack() as locks:
            with _writing(path):
                folder.mkdir(parents=True, exist_ok=True)
                locks.enter_context(FileLock(f"{path}.lock"))
            intact = _is_intact(manifest)
            if intact and not again:
                return path, True
            if not intact and (path.exists() or manifest.exists()):
                print(f"{path} in the cache was damaged; making it again", file=sys.stderr)
                damaged(path)
            try:
                replace_files(path, manifest, produce)
            except Exception:
                if folder.is_dir():
                    raise
                folder.mkdir(parents=True)  # Someone removed it meanwhile.
                replace_files(path, manifest, produce)
        return path, False

    def has(self, path: Path) -> bool:
        """Return True if an entry is intact; files outside the cache always count as intact."""
        return not path.is_relative_to(self.root) or _is_intact(path.with_name(f"{path.name}.json"))


@dataclass(frozen=True)
class Entry:
    """A file of the cache and its companions: `size` in bytes, `used` in seconds since the epoch."""

    path: Path
    size: int
    used: float

    def remove(self) -> bool:
        """Delete the files unless a run is producing them; return True if they are gone."""
        manifest = self.path.with_name(self.path.name + ".json")
        try:
            with FileLock(f"{self.path}.lock", timeout=0):
                names = json.loads(manifest.read_text())
                # The manifest first: an entry without it is incomplete.
                manifest.unlink()
                for name in names:
                    self.path.with_name(name).unlink(missing_ok=True)
            return True
        except (OSError, ValueError, TypeError, Timeout):
            return False


def entries(root: Path) -> list[Entry]:
    """Return every complete entry of the cache in `root`, the most recently used first."""
    complete = []
    for manifest in root.glob("*/*.json"):
        path = manifest.with_suffix("")
        if path.exists():  # Else the file is no manifest, but an entry in JSON.
            with contextlib.suppress(OSError, ValueError, TypeError):
                size = sum(manifest.with_name(name).stat().st_size for name in json.loads(manifest.read_text()))
                complete.append(Entry(path, size, manifest.stat().st_mtime))
    return sorted(complete, key=lambda entry: -entry.used)


def trim(root: Path, limit: int, spared_seconds: float = 86_400.0) -> list[Entry]:
    """Remove and return the least recently used entries beyond `limit` bytes, except those that a run may use now."""
    total, removed, latest = 0, [], time.time() - spared_seconds
    for entry in entries(root):
        total += entry.size
        if total > limit and entry.used < latest and entry.remove():
            total -= entry.size
            removed.append(entry)
    return removed


def replace_files(path: Path, manifest: Path, produce: Callable[[Path], object]) -> None:
    """Produce the entry's files, then move them and their manifest into place."""
    # A fixed name on the target's file system, so that the next run clears a killed one's files.
    scratch = path.with_name(f".{path.name}.tmp")
    with _writing(path):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
    try:
        try:
            produce(scratch / path.name)
        except Exception as error:
            full = (e.strerror for e in chain(error) if isinstance(e, OSError) and e.errno in FULL and not e.filename)
            if why := next(full, None) or _no_room(scratch):
                raise CacheError(path, why) from error
            raise
        if not (scratch / path.name).is_file():
            raise RuntimeError(f"{produce!r} did not write {scratch / path.name}")
        files = sorted(scratch.iterdir())
        record = {file.name: [file.stat().st_size, file.stat().st_mtime_ns, file_sha256(file)] for file in files}
        with _writing(path):
            (scratch / manifest.name).write_text(json.dumps(record))
            manifest.unlink(missing_ok=True)
            for file in files:
                os.replace(file, path.with_name(file.name))
            # The manifest last: an entry with it is complete.
            os.replace(scratch / manifest.name, manifest)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise an OSError as CacheError."""
    try:
        yield
    except OSError as error:
        raise CacheError(path, error.strerror or str(error), full=error.errno in FULL) from error


def _no_room(folder: Path) -> str | None:
    """Return why the folder takes no file, or None: libraries do not always say that the disk is full."""
    try:
        (folder / "probe").write_bytes(bytes(_MIB))
    except OSError as full:
        return full.strerror
    return None


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_MIB):
            digest.update(piece)
    return digest.hexdigest()


def _is_intact(manifest: Path) -> bool:
    """Return True if every file is as produced, and note its use; hash a large one only if it was modified."""
    try:
        record = json.loads(manifest.read_text())
        for name, (size, modified, sha256) in record.items():
            file = manifest.with_name(name)
            status = file.stat()
            hashed = size <= _HASHED_BYTES or manifest.parent.name in _COMPARED or status.st_mtime_ns != modified
            if status.st_size != size or (hashed and file_sha256(file) != sha256):
                return False
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    with contextlib.suppress(OSError):  # The cache may be read-only.
        manifest.touch()
    return bool(record)
