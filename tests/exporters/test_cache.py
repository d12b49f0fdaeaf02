"""Concurrent, broken and repeated productions leave one intact file."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from read_only import read_only

from exporters.cache import Cache, CacheError, check_room, check_root, default_root, entries, trim
from exporters.source import digest


def write_slowly(log: Path, path: Path) -> None:
    with log.open("a") as file:
        file.write("produced\n")
    path.write_text("half")
    time.sleep(0.3)
    path.write_text("the whole content")


def ask(root: Path, barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    path, cached = Cache(root).entry("kind", "key", ".txt", lambda target: write_slowly(root / "log", target))
    results.put((path.read_text(), cached))  # type: ignore[attr-defined]


@pytest.mark.slow
def test_two_processes_produce_once(tmp_path: Path) -> None:
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


def produce(path: Path) -> None:
    path.write_text("content")
    path.with_name(path.name + ".data").write_text("beside")


def damage_truncate(path: Path) -> None:
    path.write_text("cont")


def damage_same_size(path: Path) -> None:
    path.write_text("CONTENT")
    os.utime(path, ns=(0, 0))


def damage_companion(path: Path) -> None:
    path.with_name(path.name + ".data").unlink()


def damage_manifest(path: Path) -> None:
    path.with_name(path.name + ".json").write_text("{")


@pytest.mark.parametrize("damage", [damage_truncate, damage_same_size, damage_companion, damage_manifest])
def test_damaged_entry_is_told_and_produced_again(tmp_path: Path, damage: object) -> None:
    cache, told = Cache(tmp_path), []  # type: ignore[var-annotated]
    path, cached = cache.entry("kind", "key", ".bin", produce, damaged=told.append)
    assert not cached
    assert cache.entry("kind", "key", ".bin", produce, damaged=told.append) == (path, True)
    assert told == []
    damage(path)  # type: ignore[operator]
    assert cache.entry("kind", "key", ".bin", produce, damaged=told.append) == (path, False)
    assert told == [path]
    assert path.read_text() == "content"
    assert path.with_name("key.bin.data").read_text() == "beside"


def test_entry_is_produced_again_on_demand(tmp_path: Path) -> None:
    cache, told = Cache(tmp_path), []  # type: ignore[var-annotated]
    path, _ = cache.entry("kind", "key", ".bin", produce)
    again = cache.entry("kind", "key", ".bin", lambda path: path.write_text("other") and None, True, told.append)
    assert (again, path.read_text(), told) == ((path, False), "other", [])
    assert cache.entry("kind", "key", ".bin", produce) == (path, True)


def fail(path: Path) -> None:
    path.write_text("half")
    raise ValueError("disk full")


def test_entry_stands_until_the_new_one_is_complete(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    path, _ = cache.entry("kind", "key", ".bin", produce)
    with pytest.raises(ValueError, match="disk full"):
        cache.entry("kind", "key", ".bin", fail, again=True)
    assert cache.entry("kind", "key", ".bin", produce) == (path, True)
    assert path.read_text() == "content"


def test_copied_entry_is_served(tmp_path: Path) -> None:
    """A copy has another time of modification, and the same content."""
    path, _ = Cache(tmp_path).entry("kind", "key", ".bin", produce)
    os.utime(path, ns=(1, 1))
    assert Cache(tmp_path).entry("kind", "key", ".bin", produce) == (path, True)


def test_failed_production_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="disk full"):
        Cache(tmp_path).entry("kind", "key", ".bin", fail)
    assert [file.name for file in (tmp_path / "kind").iterdir()] == ["key.bin.lock"]
    assert Cache(tmp_path).entry("kind", "key", ".bin", produce)[1] is False


def test_default_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROFILER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_root() == Path("/x/runtime-profiler")
    monkeypatch.setenv("PROFILER_CACHE", "/y")
    assert Cache().root == Path("/y")


def filled(root: Path, **days: float) -> Cache:
    """A cache with an entry of 15 bytes in two files for each name, last used so many days ago."""
    cache = Cache(root)
    for key, age in days.items():
        path, _ = cache.entry("kind", key, ".txt", lambda path: path.write_text("0123456789ABCDE") and None)
        used = time.time() - age * 86_400
        os.utime(path.with_name(path.name + ".json"), (used, used))
    return cache


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = filled(tmp_path, old=9, older=10, used=0, recent=3)
    assert [entry.path.stem for entry in entries(tmp_path)] == ["used", "recent", "old", "older"]
    _, was_there = cache.entry("kind", "older", ".txt", produce)
    assert was_there
    assert [entry.path.stem for entry in trim(tmp_path, 2 * 15)] == ["recent", "old"]
    assert {entry.path.stem for entry in entries(tmp_path)} == {"used", "older"}
    assert trim(tmp_path, 0) == [], "used today: a run may need it"
    assert {entry.path.stem for entry in trim(tmp_path, 15, spared_seconds=0)} <= {"used", "older"}


def test_an_entry_goes_with_all_of_its_files_and_is_made_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    path, _ = cache.entry("kind", "key", ".json", produce)
    (entry,) = entries(tmp_path)
    assert entry.size == len("content") + len("beside")
    assert entry.remove()
    assert {file.name for file in path.parent.iterdir()} == {"key.json.lock"}
    assert cache.entry("kind", "key", ".json", produce) == (path, False)


def test_what_is_being_produced_stays(tmp_path: Path) -> None:
    cache = filled(tmp_path, one=9)
    (entry,) = entries(tmp_path)

    def while_produced(path: Path) -> None:
        produce(path)
        assert trim(tmp_path, 0) == []

    cache.entry("kind", "one", ".txt", while_produced, again=True)
    assert entry.path.read_text() == "content"


def test_what_cannot_be_removed_stays_and_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, taken=9, locked=9)
    by_name = {entry.path.stem: entry for entry in entries(tmp_path)}
    assert by_name["taken"].remove()
    assert not by_name["taken"].remove(), "another run was quicker"

    def refuse(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(path)

    for name in ("open", "unlink"):  # Of the lock in a read-only cache; of what is somebody else's.
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, refuse)
            assert not by_name["locked"].remove()
    assert trim(tmp_path, 0) == [by_name["locked"]]


def test_a_read_only_cache_serves_what_it_has(everyones_folder: Path) -> None:
    cache = Cache(everyones_folder / "cache")
    path, _ = cache.entry("kind", "key", ".bin", produce)
    for lock in path.parent.glob("*.lock"):  # As of a cache that was copied.
        lock.unlink()
    with read_only(cache.root):
        assert cache.entry("kind", "key", ".bin", produce) == (path, True)
        assert trim(cache.root, 0, 0) == []


@pytest.mark.parametrize("kind", ["kind", "new"])
def test_what_a_read_only_cache_lacks_is_an_error_in_words(everyones_folder: Path, kind: str) -> None:
    cache = Cache(everyones_folder / "cache")
    cache.entry("kind", "key", ".bin", produce)
    with read_only(cache.root), pytest.raises(CacheError) as caught:
        cache.entry(kind, "other", ".bin", produce)
    assert str(caught.value) == (
        f"the cache cannot keep {cache.root / kind / 'other.bin'} (Permission denied); name a writable "
        "folder in PROFILER_CACHE"
    )


def test_only_an_empty_cache_has_to_be_writable(everyones_folder: Path) -> None:
    cache = Cache(everyones_folder / "cache")
    cache.root.mkdir()
    with read_only(cache.root), pytest.raises(CacheError, match="Permission denied"):
        check_root(cache.root)
    cache.entry("kind", "key", ".bin", produce)
    with read_only(cache.root):
        check_root(cache.root)
    with pytest.raises(CacheError, match=r"\(No such file or directory\); name a writable folder"):
        check_root(Path("/proc/nope"))


def to_a_full_disk(path: Path) -> None:
    with Path("/dev/full").open("w") as file:
        file.write("content")


def wrapped(path: Path) -> None:
    try:
        to_a_full_disk(path)
    except OSError as error:
        raise RuntimeError("it failed") from error


def without_saying_so(path: Path) -> None:
    """As torch does, which says only that its writer failed."""
    try:
        path.write_bytes(bytes(2**20))
    except OSError:
        raise RuntimeError("file write failed") from None


@pytest.mark.parametrize("fill", [to_a_full_disk, wrapped, without_saying_so])
def test_a_full_disk_is_said(tmp_path: Path, fill: Callable[[Path], None]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        with pytest.raises(CacheError, match=r"keep .*key.bin \((No space left on device|File too large)\)"):
            Cache(tmp_path).entry("kind", "key", ".bin", fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in (tmp_path / "kind").iterdir()] == ["key.bin.lock"]


@pytest.mark.parametrize(
    ("number", "name", "kind"),
    [
        (errno.EIO, "model.onnx", OSError),
        (errno.EROFS, "model.onnx", OSError),
        (errno.ENOSPC, "elsewhere", OSError),
        (errno.EIO, None, OSError),
        (errno.EIO, "cache/kind/.key.bin.tmp/key.bin", CacheError),
    ],
)
def test_only_what_the_caches_own_disk_says_is_the_caches(
    tmp_path: Path, number: int, name: str | None, kind: type[Exception]
) -> None:
    """A model is read, and others write, while its export is written."""

    def fail(path: Path) -> None:
        raise OSError(number, os.strerror(number), name and str(tmp_path / name))

    with pytest.raises(kind, match=os.strerror(number)):
        Cache(tmp_path / "cache").entry("kind", "key", ".bin", fail)


def test_what_the_disk_cannot_hold_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"kind/key\.bin \(it takes at least 1048576\.0 GiB of the disk, and"):
        Cache(tmp_path).entry("kind", "key", ".bin", lambda path: check_room(path, 2**50))
    check_room(tmp_path / "key.bin", 1)


def rot(path: Path) -> None:
    """Change the content, and neither its size nor its time."""
    status = path.stat()
    path.write_text("CONTENT")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_changed_bit_is_found_by_the_digest_made_again_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = Cache(tmp_path)
    path, _ = cache.entry("reference", "key", ".bin", produce)
    rot(path)
    assert cache.entry("reference", "key", ".bin", produce) == (path, False)
    assert path.read_text() == "content"
    assert cache.rebuilt == ["reference"]
    assert capsys.readouterr().err == f"the cache's {path} was damaged, and is made again\n"


@pytest.mark.parametrize("text", ["5", "[5]", '{"../key.bin": {}}', "[" * 50_000, "null", "\x00", '{"key.bin": 7}'])
def test_any_manifest_is_borne(tmp_path: Path, text: str) -> None:
    cache = Cache(tmp_path)
    path, _ = cache.entry("kind", "key", ".bin", produce)
    path.with_name("key.bin.json").write_text(text)
    for entry in entries(tmp_path):
        entry.remove()
    trim(tmp_path, 0, 0)
    assert cache.entry("kind", "key", ".bin", produce) == (path, False)


def test_parts_of_a_key_do_not_run_together() -> None:
    assert len({digest(["a", "b"]), digest(["a\nb"]), digest(["a", "", "b"]), digest(["a", "b", ""])}) == 4
    assert digest(["\udc80"]) != digest(["\udc81"])
