"""Concurrent, broken and repeated productions leave one intact file."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from read_only import read_only
from rich.console import Console

from exporters.cache import Cache, CacheError, check_room, check_root, default_root, entries, shared, trim
from profiler.commands.listings import cache
from profiler.errors import ConfigError
from profiler.options import Cache as ClearedCache


def write_slowly(log: Path, path: Path) -> None:
    with log.open("a") as file:
        file.write("produced\n")
    path.write_text("half")
    time.sleep(0.3)
    path.write_text("the whole content")


def ask(root: Path, barrier: object, results: object) -> None:
    barrier.wait()
    path, cached = Cache(root).entry("kind", "key", ".txt", lambda target: write_slowly(root / "log", target))
    results.put((path.read_text(), cached))


@pytest.mark.slow
def test_two_processes_produce_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=ask, args=(tmp_path, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    answers = sorted(results.get() for _ in processes)
    for process in processes:
        process.join()
    assert answers == [("the whole content", False), ("the whole content", True)]
    assert (tmp_path / "log").read_text() == "produced\n"


def test_a_cache_in_use_is_not_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    path, _ = Cache().entry("kind", "key", ".txt", produce)
    clear = ClearedCache(action="clear")
    with shared(default_root()), shared(default_root()), pytest.raises(ConfigError, match="a run uses"):
        cache(clear, Console(quiet=True))
    assert path.exists()
    cache(clear, Console(quiet=True))
    assert not path.exists()


def test_a_cache_that_is_removed_meanwhile_is_made_again(tmp_path):
    def removed(path: Path) -> None:
        if not log.exists():
            log.touch()
            shutil.rmtree(tmp_path / "cache")
        produce(path)

    log, cache = tmp_path / "log", Cache(tmp_path / "cache")
    path, _ = cache.entry("kind", "key", ".txt", removed)
    assert path.read_text() == "content"
    assert cache.has(path) and cache.has(tmp_path / "of the user")
    path.write_text("")
    assert not cache.has(path)


def produce(path: Path) -> None:
    path.write_text("content")
    path.with_name(path.name + ".data").write_text("beside")


def filled(root: Path, **days: float) -> Cache:
    cache = Cache(root)
    for key, age in days.items():
        path, _ = cache.entry("kind", key, ".txt", lambda path: path.write_text("0123456789ABCDE") and None)
        used = time.time() - age * 86_400
        os.utime(path.with_name(path.name + ".json"), (used, used))
    return cache


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    cache = filled(tmp_path, old=9, older=10, used=0, recent=3)
    assert [entry.path.stem for entry in entries(tmp_path)] == ["used", "recent", "old", "older"]
    _, was_there = cache.entry("kind", "older", ".txt", produce)
    assert was_there
    assert [entry.path.stem for entry in trim(tmp_path, 2 * 15)] == ["recent", "old"]
    assert {entry.path.stem for entry in entries(tmp_path)} == {"used", "older"}
    assert trim(tmp_path, 0) == [], "used today: a run may need it"
    assert {entry.path.stem for entry in trim(tmp_path, 15, spared_seconds=0)} <= {"used", "older"}


def to_a_full_disk(path: Path) -> None:
    with Path("/dev/full").open("w") as file:
        file.write("content")


def without_saying_so(path: Path) -> None:
    """As torch does, which says only that its writer failed."""
    try:
        path.write_bytes(bytes(2**20))
    except OSError:
        raise RuntimeError("file write failed") from None


@pytest.mark.parametrize("fill", [to_a_full_disk, without_saying_so])
def test_a_full_disk_is_said(tmp_path, fill):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        with pytest.raises(CacheError, match=r"keep .*key.bin \((No space left on device|File too large)\)"):
            Cache(tmp_path).entry("kind", "key", ".bin", fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in (tmp_path / "kind").iterdir()] == ["key.bin.lock"]


def test_what_the_disk_cannot_hold_is_not_begun(tmp_path):
    with pytest.raises(CacheError, match=r"kind/key\.bin \(it takes at least 1048576\.0 GiB of the disk, and"):
        Cache(tmp_path).entry("kind", "key", ".bin", lambda path: check_room(path, 2**50))
    check_room(tmp_path / "key.bin", 1)


def rot(path: Path) -> None:
    """Change the content, and neither its size nor its time."""
    status = path.stat()
    path.write_text("CONTENT")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def manifest(text: str) -> Callable[[Path], None]:
    return lambda path: path.with_name(path.name + ".json").write_text(text) and None


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut off": lambda path: path.write_text("cont") and None,
    "a changed bit": rot,
    "a file beside it": lambda path: path.with_name(path.name + ".data").unlink(),
    **{f"manifest {text[:9]!r}": manifest(text) for text in ("{", "5", "null")},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_told_and_produced_again(tmp_path, damage, capsys):
    cache, told = Cache(tmp_path), list[Path]()
    path, cached = cache.entry("reference", "key", ".bin", produce, damaged=told.append)
    os.utime(path, ns=(1, 1))  # As of a copy.
    assert (cached, cache.entry("reference", "key", ".bin", produce)[1]) == (False, True)
    DAMAGE[damage](path)
    for entry in entries(tmp_path):
        assert entry.size > 0
    assert cache.entry("reference", "key", ".bin", produce, damaged=told.append) == (path, False)
    assert told == [path]
    assert capsys.readouterr().err == f"{path} in the cache was damaged; making it again\n"
    assert (path.read_text(), path.with_name("key.bin.data").read_text()) == ("content", "beside")


def test_an_entry_stands_until_the_new_one_is_complete(tmp_path):
    def fail(path: Path) -> None:
        path.write_text("half")
        assert trim(tmp_path, 0, -1) == [], "what is being produced stays"
        raise ValueError("no luck")

    cache = Cache(tmp_path)
    with pytest.raises(ValueError, match="no luck"):
        cache.entry("kind", "key", ".bin", fail)
    assert [file.name for file in (tmp_path / "kind").iterdir()] == ["key.bin.lock"]
    path, _ = cache.entry("kind", "key", ".bin", produce)
    with pytest.raises(ValueError, match="no luck"):
        cache.entry("kind", "key", ".bin", fail, again=True)
    assert cache.entry("kind", "key", ".bin", produce) == (path, True)
    assert cache.entry("kind", "key", ".bin", lambda p: p.write_text("other") and None, again=True) == (path, False)
    assert path.read_text() == "other"


def test_a_read_only_cache_serves_what_it_has_and_says_what_it_lacks(everyones_folder):
    cache = Cache(everyones_folder / "cache")
    cache.root.mkdir()
    with read_only(cache.root), pytest.raises(CacheError, match="Permission denied"):
        check_root(cache.root)
    path, _ = cache.entry("kind", "key", ".bin", produce)
    for lock in path.parent.glob("*.lock"):  # As of a cache that was copied.
        lock.unlink()
    with read_only(cache.root):
        check_root(cache.root)
        assert cache.entry("kind", "key", ".bin", produce) == (path, True)
        assert trim(cache.root, 0, 0) == []
        for kind in ("kind", "new"):
            with pytest.raises(CacheError, match=r"other.bin \(Permission denied\); name a writable folder"):
                cache.entry(kind, "other", ".bin", produce)
