"""The messages of a stream: one kind byte and a body each. Long ones travel in chunks, which are joined again here.

HELLO    JSON: who speaks, with which version, roster and settings; the first message of either side
STATUS   where the speaker stands (see `messages`)
FRAME    u64 length of a frame, then its first bytes
ROSTER   the same for a signed roster, for a peer whose own is older
MORE     further bytes of what was begun
REFUSED  why the speaker ends this conversation, in words
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from cesar.base import memory
from cesar.base.errors import Refusal
from cesar.base.types import Buffer, ByteArray

CHUNK = 1 << 20
_LENGTH = struct.Struct("<Q")


class Message(IntEnum):
    HELLO = 1
    STATUS = 2
    FRAME = 3
    MORE = 4
    ROSTER = 5
    REFUSED = 6


LONG = (Message.FRAME, Message.ROSTER)


def written(kind: Message, payload: Buffer) -> Iterator[bytes]:
    """The messages that carry a payload."""
    if kind not in LONG:
        yield bytes([kind]) + payload
        return
    view = memoryview(payload).cast("B")
    yield bytes([kind]) + _LENGTH.pack(len(view)) + view[:CHUNK]
    for start in range(CHUNK, len(view), CHUNK):
        yield bytes([Message.MORE]) + view[start : start + CHUNK]


def read(message: bytes) -> tuple[Message, memoryview]:
    """Kind and body of a message."""
    try:
        return Message(message[0]), memoryview(message)[1:]
    except (IndexError, ValueError):
        raise Refusal("it sends something that is not a message of this protocol") from None


def misplaced(kind: Message) -> Refusal:
    return Refusal(f"a {kind.name} message where none can be")


class Assembly:
    """A long payload while it comes: as many bytes as were announced, in whole chunks.

    Nothing is allocated before `begin`, so that the length can be checked and room be waited for.
    """

    def __init__(self, kind: Message, body: memoryview) -> None:
        if len(body) < _LENGTH.size:
            raise Refusal(f"a {kind.name} begins without its length")
        self.kind = kind
        self.length: int = _LENGTH.unpack_from(body)[0]
        self._first = body[_LENGTH.size :]
        self._buffer, self._filled = memoryview(b""), 0

    def check(self, most: int) -> None:
        """Refuse what is longer than `most` bytes, or not cut as it must be."""
        if self.length > most:
            raise Refusal(f"a {self.kind.name} of {self.length} bytes; none here has over {most}")
        if len(self._first) != min(self.length, CHUNK):
            raise Refusal(f"a {self.kind.name} that does not come in whole chunks")

    def begin(self) -> None:
        """Take the first bytes, which came with the length.

        The memory ends at a multiple of four, so that words at the end of a share are read in place.
        """
        space: ByteArray = memory.empty(self.length + -self.length % 4, np.uint8)
        self._buffer = space[-self.length % 4 :].data
        self.add(self._first)
        self._first = memoryview(b"")

    def add(self, body: memoryview) -> None:
        if len(body) != min(CHUNK, self.length - self._filled):
            raise misplaced(Message.MORE)
        self._buffer[self._filled : self._filled + len(body)] = body
        self._filled += len(body)

    @property
    def whole(self) -> memoryview | None:
        """The payload, once all of it has come."""
        return self._buffer if self._filled == self.length else None
