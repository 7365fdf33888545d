"""Frames: every message there and back, every byte counted, and anything else refused."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cesar.base.errors import EncodingError, VersionError
from cesar.crypto.keys import RoundId
from cesar.kernels import packing, ring
from cesar.protocol import wire

u32 = st.integers(0, 2**32 - 1)
sixteen = st.binary(min_size=16, max_size=16)
exponents = st.lists(st.integers(-127, 128), min_size=1, max_size=5).map(tuple)
index_bytes = st.binary(max_size=60)
views = st.lists(u32, unique=True, max_size=20).map(lambda nodes: tuple(sorted(nodes)))
round_ids = st.builds(RoundId, session=sixteen, round_=u32)


def headers(kind):
    return st.builds(wire.Header, kind=st.just(kind), round_id=round_ids, sender=u32)


def body_of(frame, header):
    """The body of a frame that has that header, and whose sections cover every byte."""
    read, body = wire.read_header(frame.payload)
    assert read == header
    assert frame.kind is header.kind
    assert sum(frame.sections.values()) == len(frame.payload)
    assert set(frame.sections) <= set(wire.CATEGORIES)
    return body


@st.composite
def members_of(draw):
    view = draw(views)
    chosen = draw(st.sets(st.sampled_from(view))) if view else set()
    return view, tuple(node for node in view if node in chosen)


# ── headers ─────────────────────────────────────────────────────────────────────────────────────────────


@given(st.sampled_from(wire.Kind).flatmap(headers), st.binary(max_size=50))
def test_headers(header, body):
    data = header.to_bytes()
    assert len(data) == wire.HEADER_BYTES
    read, rest = wire.read_header(data + body)
    assert read == header
    assert rest == body


GOOD = wire.Header(kind=wire.Kind.SHARE, round_id=RoundId(session=b"s" * 16, round_=3), sender=4).to_bytes()


@given(st.integers(0, wire.HEADER_BYTES - 1))
def test_short_frames_are_refused(length):
    with pytest.raises(EncodingError, match=f"at least 28 bytes, this one has {length}"):
        wire.read_header(GOOD[:length])


@pytest.mark.parametrize("magic", [b"CF", b"EC", b"\x00\x00", b"ce"])
def test_other_protocols_are_refused(magic):
    with pytest.raises(EncodingError, match="not a cesar frame"):
        wire.read_header(magic + GOOD[2:])


@pytest.mark.parametrize("version", [0, 1, 2, 255])
def test_other_versions_are_refused(version):
    with pytest.raises(VersionError, match=f"version {version}.*install the same cesar release"):
        wire.read_header(GOOD[:2] + bytes([version]) + GOOD[3:])


@pytest.mark.parametrize("kind", [0, 15, 255])
def test_other_kinds_are_refused(kind):
    with pytest.raises(EncodingError, match=f"no frame kind {kind}"):
        wire.read_header(GOOD[:3] + bytes([kind]) + GOOD[4:])


@given(st.binary(max_size=100))
def test_any_bytes_are_a_header_or_refused(data):
    for start in (b"", GOOD[:2], GOOD[:4]):
        try:
            header, body = wire.read_header(start + data)
        except EncodingError:
            continue
        assert header.to_bytes() + bytes(body) == start + data


# ── bitmaps over neighbours ─────────────────────────────────────────────────────────────────────────────


@given(members_of())
def test_members(pair):
    view, members = pair
    data = wire.members_to_bytes(members, view)
    assert len(data) == -(-len(view) // 8)
    assert wire.members_from_bytes(data, view) == members


@given(views, st.data())
def test_members_that_do_not_exist_are_refused(view, data):
    width = 8 * -(-len(view) // 8)
    if width > len(view):
        bit = data.draw(st.integers(len(view), width - 1))
        with pytest.raises(EncodingError, match="does not exist"):
            wire.members_from_bytes((1 << bit).to_bytes(width // 8, "little"), view)


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────

tokens = st.builds(wire.Token, seed=sixteen, ephemeral=st.binary(min_size=32, max_size=32))
announces = st.builds(wire.Announce, token=tokens, exponents=exponents, indices=index_bytes)
relay_items = st.builds(wire.RelayItem, token=tokens, indices=index_bytes)


@given(tokens, st.binary(max_size=20))
def test_token(token, behind):
    data = token.to_bytes()
    assert len(data) == wire.TOKEN_BYTES == 48
    assert wire.Token.take(memoryview(data + behind)) == (token, behind)


@given(headers(wire.Kind.ANNOUNCE), announces)
def test_announce(header, message):
    frame = message.encode(header)
    assert frame.sections == {"coordination": len(frame.payload)}
    assert wire.Announce.decode(body_of(frame, header), len(message.exponents)) == message


@given(headers(wire.Kind.RELAY), members_of(), exponents, st.lists(relay_items, max_size=5))
def test_relay(header, pair, scale, items):
    view, group = pair
    message = wire.Relay(exponents=scale, group=group, items=tuple(items))
    frame = message.encode(header, view)
    assert frame.sections == {"coordination": len(frame.payload)}
    if len(items) > len(view):
        with pytest.raises(EncodingError, match=f"more partners than the {len(view)} neighbours"):
            wire.Relay.decode(body_of(frame, header), view, len(scale))
        return
    assert wire.Relay.decode(body_of(frame, header), view, len(scale)) == message


@st.composite
def shares(draw):
    view, partners = draw(members_of())
    bits = draw(st.sampled_from(ring.RING_BITS))
    words = np.array(draw(st.lists(st.integers(0, (1 << bits) - 1), max_size=40)), dtype=np.uint32)
    return {
        "header": draw(headers(wire.Kind.SHARE)),
        "view": view,
        "facts": draw(st.binary(min_size=8, max_size=8)),
        "checks": {partner: draw(st.binary(min_size=4, max_size=4)) for partner in reversed(partners)},
        "indices": draw(st.none() | index_bytes),
        "bits": bits,
        "words": words,
    }


def allocate(share):
    """A share's frame with its values written."""
    words, bits = share["words"], share["bits"]
    out, frame = wire.Share.allocate(
        share["header"],
        share["view"],
        facts=share["facts"],
        checks=share["checks"],
        indices=share["indices"],
        parameters=len(words),
        values=packing.packed_size(len(words), bits),
    )
    assert out.ctypes.data % 4 == 0, "words are written in place"
    packing.pack(words, bits, out)
    return frame


@settings(deadline=None)
@given(shares())
def test_share(share):
    frame, bits, words = allocate(share), share["bits"], share["words"]
    size = packing.packed_size(len(words), bits)
    assert frame.sections["values"] == size
    assert frame.sections["control"] == wire.HEADER_BYTES
    assert frame.parameters == len(words)
    body = body_of(frame, share["header"])
    read = wire.Share.decode(body, share["view"], share["indices"] is not None)
    assert read.facts == share["facts"]
    assert read.partners == tuple(sorted(share["checks"]))
    assert dict(zip(read.partners, read.checks, strict=True)) == share["checks"]
    assert read.indices == share["indices"]
    assert packing.unpack(read.values, bits, len(words)).tolist() == words.tolist()


@given(
    headers(wire.Kind.PLAIN_SHARE), index_bytes, st.lists(st.floats(width=32, allow_nan=False), max_size=20)
)
def test_plain_share(header, indices, values):
    raw = np.array(values, dtype="<f4").view(np.uint8)
    frame = wire.PlainShare(indices=indices, values=raw).encode(header)
    assert frame.sections == {"control": 28, "metadata": 4 + len(indices), "values": 4 * len(values)}
    assert frame.parameters == len(values)
    read = wire.PlainShare.decode(body_of(frame, header))
    assert read.indices == indices
    assert read.values.tobytes() == raw.tobytes()


# ── bodies that are not what they should be ─────────────────────────────────────────────────────────────

VIEW = (1, 2, 3, 5, 8, 13, 21, 34, 55)
decoders = {
    "announce": lambda body: wire.Announce.decode(body, 2),
    "relay": lambda body: wire.Relay.decode(body, VIEW, 1),
    "share": lambda body: wire.Share.decode(body, VIEW, explicit=False),
    "explicit share": lambda body: wire.Share.decode(body, VIEW, explicit=True),
    "plain share": wire.PlainShare.decode,
}


@pytest.mark.parametrize("kind", decoders)
@given(data=st.binary(max_size=120))
def test_any_body_is_a_message_or_refused(kind, data):
    try:
        message = decoders[kind](memoryview(data))
    except EncodingError:
        return
    held = sum(len(getattr(message, name, None) or b"") for name in ("indices", "others"))
    held += len(getattr(message, "values", b""))
    assert held <= len(data), "nothing is longer than what arrived"


@pytest.mark.parametrize(
    ("kind", "body", "missing"),
    [
        ("announce", b"", "a seed and a key"),
        ("announce", bytes(47), "a seed and a key"),
        ("announce", bytes(48), "the exponents"),
        ("announce", bytes(49), "the exponents"),
        ("relay", b"", "the exponents"),
        ("relay", bytes(2), "the group"),
        ("relay", bytes(3) + bytes(47), "a seed and a key"),
        ("relay", bytes(3) + bytes(48) + bytes(3), "a length"),
        ("relay", bytes(3) + bytes(48) + struct.pack("<I", 5) + bytes(4), "an index set"),
        ("share", bytes(7), "the facts"),
        ("share", bytes(9), "the partners"),
        ("share", bytes(8) + b"\x01\x00" + bytes(3), "the checks"),
        ("explicit share", bytes(10) + bytes(3), "a length"),
        ("explicit share", bytes(10) + struct.pack("<I", 1), "the indices"),
        ("plain share", bytes(3), "a length"),
        ("plain share", struct.pack("<I", 9) + bytes(8), "the indices"),
    ],
)
def test_truncated_bodies_say_where_they_end(kind, body, missing):
    with pytest.raises(EncodingError, match=f"ends inside {missing}"):
        decoders[kind](memoryview(body))


@pytest.mark.parametrize("kind", ["relay", "explicit share", "plain share"])
def test_a_length_of_gigabytes_reserves_nothing(kind):
    lead = {"relay": bytes(3) + bytes(48), "explicit share": bytes(10), "plain share": b""}[kind]
    with pytest.raises(EncodingError, match="the frame ends inside"):
        decoders[kind](memoryview(lead + b"\xff\xff\xff\xff" + bytes(100)))


def test_partners_that_do_not_exist_are_refused():
    with pytest.raises(EncodingError, match="does not exist"):
        decoders["share"](memoryview(bytes(8) + b"\x00\x02" + bytes(40)))
    with pytest.raises(EncodingError, match="does not exist"):
        decoders["relay"](memoryview(b"\0\x00\x02"))


def test_contents_do_not_show_in_logs():
    """Masked values are harmless but large; seeds of index sets are not for logs."""
    out, frame = wire.Share.allocate(
        wire.Header(kind=wire.Kind.SHARE, round_id=RoundId(session=b"s" * 16, round_=3), sender=4),
        VIEW,
        facts=bytes(8),
        checks={},
        indices=None,
        parameters=1000,
        values=4000,
    )
    out[:] = 0
    assert len(repr(frame)) < 200
    assert "values" not in repr(wire.PlainShare(indices=b"", values=out)).replace("PlainShare", "")
    token = wire.Token(b"a seed of 16 byt", bytes(32))
    for message in (
        token,
        wire.Announce(token=token, exponents=(0,), indices=b"the indices"),
    ):
        assert "a seed" not in repr(message)
        assert "the indices" not in repr(message)
