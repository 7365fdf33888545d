"""Messages are cut and joined again to the byte, and what is not cut like that is refused."""

import struct

import pytest

from cesar.base.errors import Refusal
from cesar.peer.net import chunks
from cesar.peer.net.chunks import CHUNK, Assembly, Message


def joined(kind, messages):
    """What a receiver makes of the messages of one payload."""
    first, *more = messages
    got, body = chunks.read(first)
    assert got is kind
    coming = Assembly(got, body)
    coming.check(coming.length)
    coming.begin()
    for message in more:
        assert coming.whole is None
        got, body = chunks.read(message)
        assert got is Message.MORE
        coming.add(body)
    return coming.whole


@pytest.mark.parametrize("length", [0, 1, 3, 4, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 7])
@pytest.mark.parametrize("kind", chunks.LONG)
def test_cut_and_joined(kind, length):
    payload = bytes(i % 251 for i in range(1000)) * (length // 1000 + 1)
    payload = payload[:length]
    messages = list(chunks.written(kind, payload))
    assert len(messages) == max(1, -(-length // CHUNK))
    assert messages[0][:9] == bytes([kind]) + struct.pack("<Q", length)
    assert all(len(message) <= CHUNK + 9 for message in messages)
    assert bytes(joined(kind, messages)) == payload


@pytest.mark.parametrize("kind", [Message.HELLO, Message.STATUS, Message.REFUSED])
def test_short_messages_are_one(kind):
    assert list(chunks.written(kind, b"body")) == [bytes([kind]) + b"body"]
    read, body = chunks.read(bytes([kind]) + b"body")
    assert (read, bytes(body)) == (kind, b"body")


def test_a_payload_ends_where_words_can_be_read_in_place():
    whole = joined(Message.FRAME, chunks.written(Message.FRAME, bytes(1001)))
    assert (whole.obj.ctypes.data + whole.obj.nbytes) % 4 == 0


@pytest.mark.parametrize("message", [b"", b"\0", b"\7", b"\xff"])
def test_what_is_no_message(message):
    with pytest.raises(Refusal, match="not a message of this protocol"):
        chunks.read(message)


def begun(length, first):
    return Assembly(Message.FRAME, memoryview(struct.pack("<Q", length) + first))


def test_a_length_is_needed_and_has_a_limit():
    with pytest.raises(Refusal, match="a FRAME begins without its length"):
        Assembly(Message.FRAME, memoryview(bytes(7)))
    with pytest.raises(Refusal, match="a FRAME of 4611686018427387904 bytes; none here has over 99"):
        begun(2**62, bytes(5)).check(99)
    begun(99, bytes(99)).check(99)


@pytest.mark.parametrize("length, first", [(10, 9), (10, 11), (CHUNK + 1, CHUNK - 1), (CHUNK + 1, CHUNK + 1)])
def test_a_beginning_that_is_not_a_whole_chunk(length, first):
    with pytest.raises(Refusal, match="a FRAME that does not come in whole chunks"):
        begun(length, bytes(first)).check(2 * CHUNK)


@pytest.mark.parametrize("more", [0, 1, 6, 8, CHUNK])
def test_a_rest_that_is_not_what_is_missing(more):
    coming = begun(CHUNK + 7, bytes(CHUNK))
    coming.begin()
    with pytest.raises(Refusal, match="a MORE message where none can be"):
        coming.add(memoryview(bytes(more)))
    assert coming.whole is None
