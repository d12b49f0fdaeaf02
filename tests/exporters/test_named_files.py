from __future__ import annotations

import errno
import os
import resource
from contextlib import contextmanager

import pytest

from exporters.named_files import scratch_beside, write_whole


def test_text_and_bytes_are_written_and_nothing_is_left_beside_them(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "link").symlink_to("a")
    write_whole(tmp_path / "link", "12 µs\n")
    write_whole(tmp_path / "b", b"\x00\xff")
    assert (tmp_path / "a").read_bytes() == "12 µs\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "link"]


def test_what_is_no_regular_file_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)


@contextmanager
def files_of_1_kb():
    """A limit on the size of files stands for a full disk: both end a write in its middle. It holds for no longer than
    that, since pytest's own output may be a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path):
    kept = tmp_path / "results.parquet"
    kept.write_text("old")
    with files_of_1_kb(), pytest.raises(OSError, match="too large") as raised:
        write_whole(kept, "n" * 5000)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(kept))
    assert kept.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["results.parquet"]


def test_what_a_killed_process_left_beside_a_file_is_removed(tmp_path):
    left, new, ours = (tmp_path / f".deploy.{pid}.tmp" for pid in (2**22 + 1, 2**22 + 2, os.getpid()))
    for folder in (left, new, ours):
        folder.mkdir()
        os.utime(folder, None if folder is new else (0, 0))
    (tmp_path / ".report.4194305.tmp").touch()
    assert scratch_beside(tmp_path / "deploy") == ours
    assert sorted(tmp_path.iterdir()) == sorted([new, ours, tmp_path / ".report.4194305.tmp"])
