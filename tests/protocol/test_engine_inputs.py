"""Whatever bytes come in, at any moment: a node takes them, passes them over, or refuses them with
`RemoteProtocolError` and is exactly as before. And what it has taken never breaks it later.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cesar.base.errors import Reason
from cesar.protocol import FrameRejected
from cesar.protocol.wire import TOKEN_BYTES, Kind
from support.bench import (
    IDLE,
    ME,
    METHODS,
    PHASES,
    ROUND,
    STRANGER,
    Bench,
    donors,
    fingerprint,
    finish,
    header,
    kind_of,
    offer,
)
from support.harness import SESSIONS, outcome, refused

every_method = pytest.mark.parametrize("name", METHODS)


def test_the_fingerprint_sees_every_kind_of_change():
    @dataclass(slots=True)
    class Held:
        words: object

    def changes(value, change):
        before = fingerprint([value, partial(print, value)])
        change(value)
        return before != fingerprint([value, partial(print, value)])

    assert changes(Held(np.zeros(2)), lambda held: held.words.__setitem__(1, 1))
    assert changes(Held({1: {2}}), lambda held: held.words[1].add(3))
    assert changes(Held(deque([[1]])), lambda held: held.words[0].append(2))
    assert changes(Held(bytearray(2)), lambda held: held.words.__setitem__(0, 1))
    assert changes(Held(None), lambda held: setattr(held, "words", b""))
    assert changes(Bench.of("relay").node(2), lambda node: node.tick(1.0))
    assert not changes(Bench.of("relay").node(2), lambda node: node.tick(0.5))


# ── arbitrary bytes ─────────────────────────────────────────────────────────────────────────────────────

bodies = st.binary(max_size=80) | st.integers(0, 6).flatmap(
    lambda code: st.binary(max_size=60).map(lambda rest: bytes(TOKEN_BYTES + 1) + bytes([code]) + rest)
)


@every_method
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_arbitrary_bytes(name, data):
    bench = Bench.of(name)
    node = bench.node(data.draw(st.sampled_from(bench.moments)))
    for _ in range(data.draw(st.integers(1, 5))):
        sender = data.draw(st.integers(0, 6))
        honest = header(
            data.draw(st.sampled_from(Kind)), sender, round_=ROUND + data.draw(st.integers(-1, 2))
        )
        offer(
            node,
            sender,
            data.draw(st.binary(max_size=120) | bodies.map(lambda body, head=honest: head + body)),
        )
    finish(bench, node)


# ── mutants of honest frames ────────────────────────────────────────────────────────────────────────────


def mutate(rng, payload):
    """One random edit, often in the first bytes behind the header, where the structure is."""
    frame = bytearray(payload)
    at = int(rng.choice([rng.integers(4, 28), rng.integers(28, 110), rng.integers(len(frame) + 1)]))
    few = 1 + int(rng.integers(8))
    match rng.integers(8):
        case 0:
            del frame[at:]
        case 1:
            frame += rng.bytes(few)
        case 2:
            frame[at : at + 1] = bytes([payload[at] ^ 1 << rng.integers(8)]) if at < len(payload) else b"\0"
        case 3:
            frame[at : at + 4] = struct.pack(
                "<I", rng.choice([0, 1, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1])
            )
        case 4:
            del frame[at : at + few]
        case 5:
            frame[at:at] = rng.bytes(few)
        case 6:
            frame[at : at + 16] = rng.bytes(16)
        case _:
            frame[3:4] = bytes([rng.integers(1, 6)])
    return bytes(frame)


@every_method
def test_mutants_of_every_kind_at_every_moment(name):
    bench, rng = Bench.of(name), np.random.default_rng(list(METHODS).index(name))
    taken = 0
    for moment in bench.moments:
        node = bench.node(moment)
        before = fingerprint(node)
        for frames in donors(name).values():
            for _ in range(40):
                sender, payload = frames[rng.integers(len(frames))]
                for _ in range(1 + rng.integers(2)):
                    payload = mutate(rng, payload)
                error = refused(node, sender, payload)
                if fingerprint(node) != before:
                    assert error is None, f"changed by a frame it refused: {error}"
                    finish(bench, node)
                    node, taken = bench.node(moment), taken + 1
                    before = fingerprint(node)
    assert taken > 30


@every_method
def test_every_kind_at_every_moment(name):
    """Frames as they are: at their moment they are taken, and a second time never change anything."""
    bench = Bench.of(name)
    for moment in bench.moments:
        for frames in donors(name).values():
            for sender, payload in frames:
                node = bench.node(moment)
                known = (sender, payload) in bench.frames[: max(moment, 0)]
                before = fingerprint(node)
                offer(node, sender, payload)
                assert not known or fingerprint(node) == before
                after = fingerprint(node)
                offer(node, sender, payload)
                assert fingerprint(node) == after
                finish(bench, node)


@every_method
def test_headers_that_do_not_fit(name):
    bench = Bench.of(name)
    for moment in bench.moments[1:-1]:
        node = bench.node(moment)
        for sender, payload in {kind_of(item[1]): item for item in bench.frames}.values():
            kind, body = kind_of(payload), payload[28:]
            wrong = {
                header(kind, sender, magic=b"XX") + body: Reason.MALFORMED,
                header(99, sender) + body: Reason.MALFORMED,
                payload[:27]: Reason.MALFORMED,
                b"": Reason.MALFORMED,
                payload + bytes(1 << 20): Reason.MALFORMED,
                header(kind, sender, version=1) + body: Reason.VERSION,
                header(kind, sender, session=SESSIONS[1]) + body: Reason.SESSION,
                header(kind, sender + 1) + body: Reason.SENDER,
                header(kind, sender, round_=ROUND + 3) + body: Reason.TOO_EARLY,
            }
            for frame, reason in wrong.items():
                assert offer(node, sender, frame).reason is reason
            assert offer(node, ME, header(kind, ME) + body).reason is Reason.SENDER
            if moment < len(bench.frames):
                assert offer(node, STRANGER, header(kind, STRANGER) + body).reason is Reason.STRANGER


# ── index sets that are none ────────────────────────────────────────────────────────────────────────────


def gamma(*gaps):
    """Elias gamma as the wire has it: ⌊log2 gap⌋ zeros, a one, the low bits; bytes fill from the low end."""
    bits = ""
    for gap in gaps:
        size = gap.bit_length() - 1
        bits += "0" * size + "1" + f"{gap:b}"[1:][::-1]
    number = int(bits[::-1] or "0", 2)
    return bytes([4]) + struct.pack("<I", len(gaps)) + number.to_bytes(-(-len(bits) // 8), "little")


def rice(k, *gaps):
    bits = "".join(
        "0" * (gap - 1 >> k) + "1" + f"{(gap - 1) % (1 << k):0{k}b}"[::-1][: k or 0] for gap in gaps
    )
    number = int(bits[::-1] or "0", 2)
    return bytes([3]) + struct.pack("<IB", len(gaps), k) + number.to_bytes(-(-len(bits) // 8), "little")


HEAD = [1] * 34  # gaps of the positions 0..33; everybody selects 35 of 70
GOOD_SETS = {
    "bitmap": bytes([1]) + b"\xff" * 4 + b"\x03\0\0\0\x20",
    "gamma to the last position": gamma(*HEAD, 36),
    "rice to the last position": rice(3, *HEAD, 36),
}
BAD_SETS = {
    "nothing": b"",
    "unknown code": bytes([7]),
    "full with a body": bytes([0, 0]),
    "bitmap too short": GOOD_SETS["bitmap"][:-1],
    "bitmap too long": GOOD_SETS["bitmap"] + b"\0",
    "bitmap with a position past the end": GOOD_SETS["bitmap"][:-1] + b"\x40",
    "gamma past the end": gamma(*HEAD, 37),
    "gamma far past the end": gamma(*HEAD, 1 << 31),
    "rice past the end": rice(3, *HEAD, 37),
    "rice with an impossible parameter": bytes([3]) + struct.pack("<IB", 35, 200) + rice(3, *HEAD, 36)[6:],
    "fewer gaps than it says": bytes([4]) + struct.pack("<I", 35) + gamma(*HEAD)[5:],
    "more gaps than it says": bytes([4]) + struct.pack("<I", 35) + gamma(*HEAD, *HEAD)[5:],
    "gigabytes of gaps": bytes([4]) + b"\xff" * 4 + bytes(8),
    "gigabytes of rice": bytes([3]) + b"\xff" * 4 + bytes(8),
    "patterns without classes": bytes([2]),
    "patterns of no class": bytes([2, 0]) + bytes(9),
    "entropy cut off": bytes([5, 100, 1, 2, 3]),
    "a seed where none was agreed": bytes([6]) + bytes(16),
}  # No code can name a position twice: gaps are at least one.


@pytest.mark.parametrize("name", ["relay", "direct", "paper"])
def test_announced_sets(name):
    bench = Bench.of(name)
    sender, payload = bench.of_kind(Kind.ANNOUNCE)[0]
    for indices in GOOD_SETS.values():
        node = bench.node(0)
        assert offer(node, sender, payload[: bench.set_at] + indices) is None
        finish(bench, node)
    node = bench.node(0)
    for indices in BAD_SETS.values():
        assert offer(node, sender, payload[: bench.set_at] + indices).reason is Reason.MALFORMED


def test_sets_that_the_network_does_not_send():
    bench = Bench.of("random")
    sender, payload = bench.of_kind(Kind.ANNOUNCE)[0]
    node = bench.node(0)
    for indices in (*GOOD_SETS.values(), *BAD_SETS.values()):
        welcome = indices[:1] == b"\6"
        error = offer(node, sender, payload[: bench.set_at] + indices)
        assert (error is None) == welcome
        node = bench.node(0)


# ── frames with something missing or something more ─────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["relay", "direct", "random", "secure"])
def test_a_relay_frame_has_one_item_for_each_partner(name):
    bench, relays = Bench.of(name), Bench.of(name).of_kind(Kind.RELAY)
    node = bench.node(len(bench.of_kind(Kind.ANNOUNCE)))
    for sender, payload in relays:
        indices = bytes([6]) + bytes(16) if name == "random" else bytes([0])
        more = payload + bytes(TOKEN_BYTES) + struct.pack("<I", len(indices)) + indices
        assert offer(node, sender, more).reason is Reason.MALFORMED
        items_at = 28 + bench.exponents + 1  # header, scale and group
        if len(payload) > items_at:
            assert offer(node, sender, payload[:items_at]).reason is Reason.MALFORMED
    assert name == "direct" or any(len(payload) > items_at for _, payload in relays)


def test_padding_is_zero():
    """Words of 20 bits leave half a byte behind an odd number of them."""
    bench = Bench.of("direct")
    node = bench.node(bench.before(Kind.SHARE))
    padded = 0
    for sender, payload in bench.of_kind(Kind.SHARE):
        values = len(payload) - 28 - 8 - 1 - 4 * payload[36].bit_count()  # facts, partners, checks
        if values % 5 == 3:
            padded += 1
            assert offer(node, sender, payload[:-1] + bytes([payload[-1] | 0x80])).reason is Reason.MALFORMED
    assert padded


# ── sizes that claim gigabytes ──────────────────────────────────────────────────────────────────────────


def peak_of(node, sender, payload):
    """The most memory that handing over a frame takes at any moment, and whether the frame was refused."""
    tracemalloc.start()
    try:
        error = refused(node, sender, payload)
        return tracemalloc.get_traced_memory()[1], error
    finally:
        tracemalloc.stop()


@every_method
def test_no_length_field_makes_a_node_reserve_memory(name):
    """Every four bytes of every frame become a huge number in turn; nothing large is ever allocated."""
    bench = Bench.of(name)
    for moment, (sender, payload) in enumerate(bench.frames):
        node = bench.node(moment)
        for at in range(28, min(len(payload) - 3, 150)):  # behind that, values only
            for huge in (0xFFFFFFFF, 0x7FFFFFFF):
                frame = payload[:at] + struct.pack("<I", huge) + payload[at + 4 :]
                peak, error = peak_of(node, sender, frame)
                assert peak < 1 << 18
                if error is None:
                    node = bench.node(moment)


# ── early and late ──────────────────────────────────────────────────────────────────────────────────────


@every_method
def test_frames_that_come_before_the_round_are_kept_and_used(name):
    now, then = Bench.of(name), Bench.of(name, ROUND + 1)
    first = kind_of(then.frames[0][1])
    early, rest = then.of_kind(first), [item for item in then.frames if kind_of(item[1]) != first]
    for moment in now.moments[1:]:
        node = now.node(moment)
        for sender, payload in early:
            assert offer(node, sender, payload) is None
            assert offer(node, sender, payload).reason is Reason.DUPLICATE
        now.feed(node, now.frames[moment:])
        node.close()
        while node.next_event() is not None:
            pass
        then.case.begin(node)
        list(node.outbound())
        then.feed(node, rest)
        assert outcome(node).vector.tobytes() == then.result
    idle = now.node(IDLE)
    for sender, payload in now.of_kind(kind_of(now.frames[0][1])):
        assert offer(idle, sender, payload) is None
    assert offer(idle, *early[0]).reason is Reason.TOO_EARLY


@every_method
def test_what_no_honest_node_sends_before_the_round_is_not_kept(name):
    """Answers to what this node has not said yet, and kinds that its network does not have."""
    honest = {Kind.PLAIN_SHARE} if name == "plain" else {Kind.ANNOUNCE}
    honest |= {Kind.SHARE} if name.startswith("paper") else set()
    for moment, round_ in ((IDLE, ROUND), (0, ROUND + 1)):
        node = Bench.of(name).node(moment)
        for kind in donors(name).keys() - honest:
            for sender, payload in donors(name)[kind]:
                early = header(kind, sender, round_=round_) + payload[28:]
                assert offer(node, sender, early).reason is Reason.UNEXPECTED


@every_method
def test_a_bad_frame_that_came_early_is_reported_when_its_round_begins(name):
    bench = Bench.of(name)
    node = bench.node(IDLE)
    sender, payload = bench.frames[0]
    node.receive(sender, payload[:28])
    bench.case.begin(node)
    event = node.next_event()
    assert isinstance(event, FrameRejected)
    assert (event.error.peer, event.error.reason) == (sender, Reason.MALFORMED)
    bench.feed(node, bench.frames)
    assert outcome(node).vector.tobytes() == bench.result


@every_method
def test_frames_of_an_earlier_round_have_no_effect(name):
    bench, old = Bench.of(name), Bench.of(name, ROUND - 1)
    for moment in bench.moments:
        node = bench.node(moment)
        before = fingerprint(node)
        for sender, payload in old.frames:
            node.receive(sender, payload)
        assert fingerprint(node) == before


@every_method
def test_frames_of_an_earlier_phase_have_no_effect(name):
    """At any moment the clock ends one phase or several; what belongs to them then comes too late."""
    bench, late_frames = Bench.of(name), 0
    for moment, time in product(range(len(bench.frames)), (1.0, 2.0, 3.0)):
        node = bench.node(moment)
        node.tick(time)
        list(node.outbound())
        before = fingerprint(node)
        for sender, payload in bench.frames[moment:]:
            if (node.next_deadline() or 4.0) > PHASES[kind_of(payload)]:
                node.receive(sender, payload)
                late_frames += 1
        assert fingerprint(node) == before
    assert late_frames > 0
