"""A record of all frames that a peer sent and received, for audits and tests; off unless peer.toml asks for it.

It holds what neighbours could write down too: sets, seeds and masked values, no key and no model.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cesar.base.types import Buffer, NodeId

_ENTRY = struct.Struct("<BIQ")


@dataclass(frozen=True, slots=True)
class Entry:
    """One frame; `sent` tells in which direction."""

    sent: bool
    peer: NodeId
    payload: bytes = field(repr=False)


class Transcript:
    """Appends to a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", 0)
        self._end = self._whole()
        self._file.truncate(self._end)

    def _whole(self) -> int:
        """Where the last whole entry ends: a crash may have cut one short, and what follows must be readable."""
        size, end = os.fstat(self._file.fileno()).st_size, 0
        while len(head := self._file.read(_ENTRY.size)) == _ENTRY.size:
            after = self._file.seek(_ENTRY.unpack(head)[2], os.SEEK_CUR)
            if after > size:
                break
            end = after
        return end

    def sent(self, peers: Iterable[NodeId], payload: Buffer) -> None:
        for peer in peers:
            self._write(True, peer, payload)

    def received(self, peer: NodeId, payload: Buffer) -> None:
        self._write(False, peer, payload)

    def _write(self, sent: bool, peer: NodeId, payload: Buffer) -> None:
        entry = memoryview(_ENTRY.pack(sent, peer, len(payload)) + bytes(payload))
        handle, left = self._file.fileno(), entry
        try:
            while left:
                left = left[os.write(handle, left) :]
        except OSError:
            os.ftruncate(handle, self._end)  # the disk is full: what follows must be readable
            raise
        self._end += len(entry)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Entry]:
    """The frames of a record; a last one that was cut short is left out."""
    data = memoryview(path.read_bytes())
    start = 0
    while start + _ENTRY.size <= len(data):
        sent, peer, length = _ENTRY.unpack_from(data, start)
        start += _ENTRY.size
        if start + length > len(data):
            return
        yield Entry(bool(sent), NodeId(peer), bytes(data[start : start + length]))
        start += length
