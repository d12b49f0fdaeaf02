"""Keep lines in a file that is only ever appended to, each safe from what happens to the others: a JSON object whose
last key is the CRC-32 of what stands before it."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

from profiler.results.run_files import open_run_file

_SEAL = re.compile(rb', "crc32": "([0-9a-f]{8})"\}')


def append(journal: Path, line: str) -> None:
    """Add a JSON object, on the disk when this returns. Raises OSError."""
    with journal.open("ab+") as file:
        # A line that a crash cut off must not swallow this one.
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.write(b"\n")
        sealed = line.encode()
        file.write(sealed[:-1] + b', "crc32": "%08x"}\n' % zlib.crc32(sealed))
        file.flush()
        os.fsync(file.fileno())


def read_lines(journal: Path) -> tuple[list[str], int]:
    """Read every line that is as it was written, and count the others; a last line that a crash cut off is none.

    Raises OSError.
    """
    if not journal.exists():
        return [], 0
    with open_run_file(journal) as file:
        *ended, last = file.read().split(b"\n")
    read = [_unsealed(line) for line in ended if line]
    lines = [line for line in [*read, _unsealed(last)] if line]
    return lines, read.count(None)


def _unsealed(line: bytes) -> str | None:
    """The line without its checksum; None if it is not what was written."""
    seal = _SEAL.fullmatch(line, len(line) - 22)
    if seal is None:
        return None
    line = line[: seal.start()] + b"}"
    return line.decode() if int(seal[1], 16) == zlib.crc32(line) else None
