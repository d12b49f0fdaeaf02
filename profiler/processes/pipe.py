"""Carry messages from a process to the one that started it: whole, of bounded length, never waiting for the rest."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from typing import Any

_HEADER = struct.Struct("!4sI")
_MARK = b"\x00CRP"
MOST_BYTES = 256 * 2**20
"""The longest message: a case's samples take 9 bytes each, and a thousand times as many as usual fit."""
_READS = 64
"""How often one look reads: what writes without end is not to keep its reader from looking at the clock."""


class BrokenMessage(Exception):
    """What came is no message; the text says why, as what its sender did."""


def frame(data: bytes) -> bytes:
    """The bytes of a message as they go through a pipe. Raises ValueError for one that is too long."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data) / 2**20:.0f} MiB, more than the {MOST_BYTES >> 20} that a message may have")
    return _HEADER.pack(_MARK, len(data)) + data


class Sender:
    """Sends messages by a descriptor, from the process that made it; not from a copy that a model has forked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._process = descriptor, os.getpid()

    def __call__(self, message: Any) -> None:
        """Send it, waiting until there is room. Raises what pickling raises, ValueError and OSError."""
        if os.getpid() != self._process:
            return
        left = memoryview(frame(pickle.dumps(message)))
        while left:
            left = left[os.write(self._descriptor, left) :]


class Receiver:
    """Takes the messages that have come whole from a descriptor, which no longer blocks."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._came = descriptor, bytearray()

    def messages(self) -> Iterator[Any]:
        """Yield what is there. Raises EOFError once nobody can send any more, and BrokenMessage."""
        for _ in range(_READS):
            try:
                read = os.read(self._descriptor, 2**20)
            except BlockingIOError:
                return
            if not read:
                raise EOFError
            self._came += read
            while (data := self._whole()) is not None:
                try:
                    message = pickle.loads(data)
                except Exception as error:
                    raise BrokenMessage(f"sent what cannot be read ({type(error).__name__}: {error})") from None
                yield message

    def _whole(self) -> bytes | None:
        """Take the first message off what came, if all of it is there."""
        if not _MARK.startswith(self._came[: len(_MARK)]):
            raise BrokenMessage("wrote into the profiler's pipe what is no message of its own")
        if len(self._came) < _HEADER.size:
            return None
        length = _HEADER.unpack_from(self._came)[1]
        if length > MOST_BYTES:
            raise BrokenMessage(f"announced a message of {length / 2**20:.0f} MiB")
        end = _HEADER.size + length
        if len(self._came) < end:
            return None
        data = bytes(self._came[_HEADER.size : end])
        del self._came[:end]
        return data
