"""Tell what a Parquet file comes to in memory before it is read: a kilobyte can claim to hold a trillion rows.

The form: https://parquet.apache.org/docs/file-format/, and Thrift's compact protocol,
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

_MAGIC = b"PAR1"
_MOST_FOOTER = 2 << 20
"""Bytes, which take some seconds to parse; a run's results, which have the most columns, come to 20,000."""
_MOST_PAGES = 100_000
"""Of all columns, which may claim the same ones. A page has a MiB where it can."""
_PAGE_HEADER = 1 << 16
"""Bytes that are read for the header of a page, which has a few numbers and the least and largest value."""
_VALUE = 16
"""Bytes of a value in memory, of which a text has so many next to its characters."""
_ANY = 1 << 30
"""Bytes in memory that any file may come to."""
_FACTOR = 100
"""Times its own size that a larger file may come to: a run's samples come to some thirty."""
_DEPTH = 32

Struct = dict[int, Any]
"""A struct of Thrift: its fields by their numbers."""


class _Reader:
    """Reads values of Thrift's compact protocol. What is cut off or none of them raises IndexError or ValueError."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("a number that is too long")

    def number(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise IndexError("cut off")

    def struct(self, depth: int = 0) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self.number()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _byte(self) -> int:
        self.skip(1)
        return self.data[self.at - 1]

    def _value(self, kind: int, depth: int, in_list: bool = False) -> Any:
        if depth > _DEPTH:
            raise ValueError("nested too deeply")
        if kind in (1, 2) and not in_list:
            return kind == 1
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self.number()
        if kind in (9, 10):
            return self._list(depth + 1)
        if kind == 12:
            return self.struct(depth + 1)
        if kind in (7, 8):
            return self.skip(8 if kind == 7 else self.varint())
        raise ValueError(f"no value is of type {kind}")  # The maps of Thrift are in no file of Parquet.

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self.varint()
        if count > len(self.data) - self.at:
            raise ValueError("a list that is longer than its file")
        return [self._value(head & 15, depth, in_list=True) for _ in range(count)]


def check_size(file: BinaryIO) -> None:
    """Raises ValueError, which says why, for a file that is no Parquet, contradicts itself, or comes to too much."""
    try:
        size, needed = _size(file)
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ValueError("it is no whole Parquet file") from None
    if needed > max(_ANY, _FACTOR * size):
        raise ValueError(f"it has {size} bytes and would take {needed / 2**30:.1f} GiB of memory")


def _size(file: BinaryIO) -> tuple[int, int]:
    """The bytes of the file, and what its columns come to in memory."""
    size = file.seek(0, 2)
    file.seek(max(size - 8, 0))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length + 8 > size:
        raise ValueError("it is no whole Parquet file")
    if length > _MOST_FOOTER:
        raise ValueError("its list of columns is too long")
    file.seek(size - 8 - length)
    footer = _Reader(file.read(length)).struct()
    groups = footer[4]
    if footer[3] != sum(group[3] for group in groups):
        raise ValueError("it does not have as many rows as it says")
    needed = 0
    pages = (page for group in groups for column in group[1] for page in _page_sizes(file, column[3], group[3]))
    for number, page in enumerate(pages):
        if number == _MOST_PAGES:
            raise ValueError("it has too many pages")
        needed += page
    return size, needed


def _page_sizes(file: BinaryIO, column: Struct, rows: int) -> Iterator[int]:
    """What each page of the column comes to in memory, by its header."""
    values, at = column[5], column[9]
    if 11 in column and 0 < column[11] < at:
        at = column[11]
    end, found = at + column[7], 0
    while found < values and at < end:
        file.seek(at)
        reader = _Reader(file.read(_PAGE_HEADER))
        page = reader.struct()
        if page[2] < 0 or page[3] < 0:
            raise ValueError("a page of a negative size")
        of_data = page.get(5) or page.get(8)
        count = (of_data or page[7])[1]
        found += count if of_data else 0
        yield page[2] + _VALUE * count
        at += reader.at + page[3]
    if not 0 <= rows <= values or found != values or at > end:
        raise ValueError("it does not have as many values as it says")
