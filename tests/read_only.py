"""Folders that cannot be written, for the administrator neither."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing in the folder can be written meanwhile, by the administrator neither, who becomes somebody else."""
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    is_administrator = os.geteuid() == 0
    if is_administrator:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_administrator:
            os.seteuid(0)
        for path in everything:
            path.chmod(0o755)
