"""What a node refuses of relay frames and shares, and keys that are none, wherever they can stand."""

from __future__ import annotations

import pytest

from cesar.base.errors import Reason
from cesar.crypto.keys import PUBLIC_BYTES, SEED_BYTES
from cesar.protocol.wire import Kind, Share, read_header
from support.bench import METHODS, Bench, finish, offer
from support.harness import real_keys

RELAYING = ["relay", "random", "secure"]


@pytest.mark.parametrize("name", RELAYING)
def test_a_scale_below_the_own(name):
    bench = Bench.of(name)
    node = bench.node(bench.before(Kind.RELAY))
    for sender, payload in bench.of_kind(Kind.RELAY):
        low = payload[:28] + bytes(bench.exponents) + payload[28 + bench.exponents :]
        assert offer(node, sender, low).reason is Reason.UNSAFE_SCALE


@pytest.mark.parametrize("name", RELAYING)
def test_a_second_share_is_refused(name):
    bench = Bench.of(name)
    node, shares = bench.node(bench.before(Kind.SHARE)), bench.of_kind(Kind.SHARE)
    for sender, payload in shares[:-1]:  # the last one ends the round
        assert offer(node, sender, payload) is None
        assert offer(node, sender, payload).reason is Reason.DUPLICATE


@pytest.mark.parametrize("name", RELAYING)
def test_shares_that_rest_on_something_else(name):
    bench = Bench.of(name)
    node = bench.node(bench.before(Kind.SHARE))
    for sender, payload in bench.of_kind(Kind.SHARE):
        other = payload[:28] + bytes(8) + payload[36:]
        assert offer(node, sender, other).reason is Reason.STALE_ATTEMPT


# ── keys that are none ──────────────────────────────────────────────────────────────────────────────────

PRIME = 2**255 - 19
LOW_ORDER = [
    0,
    1,
    PRIME - 1,
    PRIME,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]
MASKED = [name for name in METHODS if name != "plain"]


def with_key(payload, at, key):
    """A frame with another ephemeral key in the token that begins there."""
    start = at + SEED_BYTES
    return payload[:start] + key + payload[start + PUBLIC_BYTES :]


def named(bench, sent):
    """(receiver, partner) for every partner that node 0's shares name."""
    found = set()
    for out in sent:
        if out.frame.kind is Kind.SHARE:
            (to,) = out.recipients
            _, body = read_header(out.frame.payload)
            share = Share.decode(body, sorted(bench.case.graph[to]), explicit=False)
            found |= {(to, partner) for partner in share.partners}
    return found


@pytest.mark.parametrize("point", LOW_ORDER, ids=range(len(LOW_ORDER)))
@pytest.mark.parametrize("name", MASKED)
def test_an_announced_key_that_is_none(name, point):
    """Nothing is raised, and nobody masks with its owner."""
    bench = Bench.of(name, keys=real_keys)
    honest = named(bench, finish(bench, bench.node(0)))
    assert {sender for sender, _ in bench.of_kind(Kind.ANNOUNCE)} & {partner for _, partner in honest}
    for sender, payload in bench.of_kind(Kind.ANNOUNCE):
        node = bench.node(0)
        assert offer(node, sender, with_key(payload, 28, point.to_bytes(32, "little"))) is None
        assert named(bench, finish(bench, node)) == {pair for pair in honest if pair[1] != sender}


@pytest.mark.parametrize("name", RELAYING)
def test_a_relayed_key_that_is_none(name):
    bench = Bench.of(name, keys=real_keys)
    honest = named(bench, finish(bench, bench.node(0)))
    changed = 0
    for sender, payload in bench.of_kind(Kind.RELAY):
        at = 28 + bench.exponents + 1
        if len(payload) > at:
            node = bench.node(bench.before(Kind.RELAY))
            assert offer(node, sender, with_key(payload, at, bytes(32))) is None
            left = named(bench, finish(bench, node))
            assert left < honest
            assert len({partner for _, partner in honest - left}) == 1
            changed += 1
    assert changed
