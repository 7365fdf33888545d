"""What a node refuses where groups are fixed, and keys that are none, wherever they can stand."""

from __future__ import annotations

import pytest

from cesar.crypto.keys import PUBLIC_BYTES, SEED_BYTES
from cesar.errors import Reason
from cesar.indices import Code, IndexSet, encode
from cesar.wire import TOKEN_BYTES, Kind, Share, members_to_bytes, read_header
from support.bench import GROUPED, ME, METHODS, SIZE, Bench, finish, offer
from support.harness import real_keys

every_grouped = pytest.mark.parametrize("name", GROUPED)
selecting = pytest.mark.parametrize("name", ["groups-topk", "groups-of-three"])
drawing = pytest.mark.parametrize("name", ["groups-random", "groups-full"])


class Terms:
    """The parts of the terms that a receiver has told node 0."""

    def __init__(self, bench, sender, payload):
        at = 28 + bench.exponents
        self.sender, self.view = sender, tuple(sorted(bench.case.graph[sender]))
        self.group = next(group for group in bench.groups[sender] if ME in group)
        self.partners = tuple(node for node in self.group if node != ME)
        tokens = at + 1 + TOKEN_BYTES * len(self.partners)
        self.header, self.exponents, self.present = payload[:28], payload[28:at], payload[at : at + 1]
        self.tokens, self.others = payload[at + 1 : tokens], payload[tokens:]

    def frame(self, **changed):
        parts = {name: getattr(self, name) for name in ("exponents", "present", "tokens", "others")} | changed
        return self.header + b"".join(parts.values())

    def without(self, *absent):
        """The bitmap of those who are present, without some."""
        return members_to_bytes([node for node in self.view if node not in absent], self.view)


def told(name):
    """Node 0 where its neighbours begin to tell their terms, and what each of them tells."""
    bench = Bench.of(name)
    terms = [Terms(bench, *item) for item in bench.of_kind(Kind.GROUP_TERMS)]
    assert len(terms) == len(bench.case.graph[ME])
    return bench, bench.node(bench.before(Kind.GROUP_TERMS)), terms


def receivers(sent):
    """Who gets a share."""
    return [to for out in sent if out.frame.kind is Kind.SHARE for to in out.recipients]


# ── terms ───────────────────────────────────────────────────────────────────────────────────────────────


@every_grouped
def test_the_parts_of_terms_are_what_they_seem(name):
    bench, node, terms = told(name)
    for one in terms:
        assert one.frame() in [payload for _, payload in bench.of_kind(Kind.GROUP_TERMS)]
        assert one.present == one.without()
        assert bool(one.others) == (name in ("groups-topk", "groups-of-three"))
    assert sorted(receivers(finish(bench, node))) == sorted(bench.case.graph[ME])


@every_grouped
def test_terms_that_call_their_reader_absent(name):
    _, node, terms = told(name)
    for one in terms:
        present = one.without(ME)
        for frame in (one.frame(present=present), one.frame(present=present, tokens=b"", others=b"")):
            assert offer(node, one.sender, frame).reason is Reason.UNEXPECTED


@every_grouped
def test_terms_with_another_number_of_tokens(name):
    """None at all says that the group is silent, which is taken; then nothing else may follow."""
    bench, node, terms = told(name)
    for one in terms:
        few, many = one.tokens[TOKEN_BYTES:], one.tokens + one.tokens[:TOKEN_BYTES]
        wrong = [{"tokens": few + b"\0"}, {"tokens": many}, {"tokens": one.tokens[:-1], "others": b""}]
        wrong += [{"tokens": few, "others": b""}] if few else []
        wrong += [{"tokens": b""}] if one.others else []
        for changed in wrong:
            assert offer(node, one.sender, one.frame(**changed)).reason is Reason.MALFORMED, changed
        assert offer(node, one.sender, one.frame(tokens=b"", others=b"")) is None
    assert receivers(finish(bench, node)) == []


@every_grouped
def test_a_scale_below_the_own(name):
    """For any tensor, even an empty one; the own scale itself is enough."""
    bench, node, terms = told(name)
    (announced,) = bench.node(0).outbound()
    own = bytes(announced.frame.payload)[28 + TOKEN_BYTES : bench.set_at]
    for one in terms:
        for k in range(len(own)):
            for exponent in (0, own[k] - 1):
                below = own[:k] + bytes([exponent]) + own[k + 1 :]
                assert offer(node, one.sender, one.frame(exponents=below)).reason is Reason.UNSAFE_SCALE
        assert offer(node, one.sender, one.frame(exponents=own)) is None


@drawing
def test_positions_where_none_may_be_sent(name):
    _, node, terms = told(name)
    for one in terms:
        for others in (b"\0", encode(IndexSet.full(SIZE)), encode(IndexSet.from_positions([3], SIZE))):
            assert offer(node, one.sender, one.frame(others=others)).reason is Reason.MALFORMED


@selecting
def test_positions_that_are_none(name):
    """The set is over the 35 positions that node 0 did not select; nothing but such a set is taken."""
    bench, node, terms = told(name)
    left = SIZE // 2
    good = [encode(IndexSet.from_positions(chosen, left)) for chosen in ([], [0, 34], range(35))]
    good += [encode(IndexSet.from_positions([1, 2], left), code) for code in (Code.BITMAP, Code.ELIAS_GAMMA)]
    bad = [b"", b"\7", bytes([1]) + bytes(9), bytes([1]) + bytes(3), bytes([1]) + bytes(4) + b"\x08"]
    bad += [
        good[1] + b"\0",
        bytes([6]) + bytes(16),
        encode(IndexSet.from_positions([60], SIZE), Code.ELIAS_GAMMA),
    ]
    for one in terms:
        for others in bad:
            assert offer(node, one.sender, one.frame(others=others)).reason is Reason.MALFORMED, others
    for k, others in enumerate(good):
        fresh = bench.node(bench.before(Kind.GROUP_TERMS))
        assert offer(fresh, terms[k % len(terms)].sender, terms[k % len(terms)].frame(others=others)) is None
        finish(bench, fresh)


@every_grouped
def test_a_group_with_an_absent_member_is_sent_nothing(name):
    """Whether the receiver passes tokens for the others, or none; a token for the absent one is refused."""
    bench, _, terms = told(name)
    for one in terms:
        for absent in one.partners:
            present = one.without(absent)
            fewer = one.tokens[TOKEN_BYTES:]
            node = bench.node(bench.before(Kind.GROUP_TERMS))
            assert offer(node, one.sender, one.frame(present=present)).reason is Reason.MALFORMED
            assert offer(node, one.sender, one.frame(present=present, tokens=b"", others=b"")) is None
            assert one.sender not in receivers(finish(bench, node))
            if fewer:
                node = bench.node(bench.before(Kind.GROUP_TERMS))
                assert offer(node, one.sender, one.frame(present=present, tokens=fewer)) is None
                assert one.sender not in receivers(finish(bench, node))


@every_grouped
def test_positions_for_a_group_that_is_silent(name):
    _, node, terms = told(name)
    for one in terms:
        present = one.without(*one.partners)
        for others in (b"\0", one.others or encode(IndexSet.full(SIZE)), one.tokens):
            frame = one.frame(present=present, tokens=b"", others=others)
            assert offer(node, one.sender, frame).reason is Reason.MALFORMED


@every_grouped
def test_second_terms_are_refused(name):
    _, node, terms = told(name)
    for one in terms:
        assert offer(node, one.sender, one.frame()) is None
        for frame in (one.frame(), one.frame(tokens=b"", others=b"")):
            if node.next_deadline() == 2.0:  # the last terms end the phase
                assert offer(node, one.sender, frame).reason is Reason.DUPLICATE


# ── shares ──────────────────────────────────────────────────────────────────────────────────────────────


def shares(name):
    """Node 0 where shares begin to come, and each share with its sender and its place for partners."""
    bench = Bench.of(name)
    return bench, bench.node(bench.before(Kind.SHARE)), bench.of_kind(Kind.SHARE)


def with_partners(payload, view, partners):
    """A share that names these partners instead, with as many checks."""
    old = payload[36].bit_count()
    bitmap = members_to_bytes(partners, view)
    return payload[:36] + bitmap + bytes(4 * len(partners)) + payload[37 + 4 * old :]


@every_grouped
def test_shares_that_carry_the_masks_of_another_group(name):
    bench, node, found = shares(name)
    view = tuple(sorted(bench.case.graph[ME]))
    for sender, payload in found:
        own = next(group for group in bench.groups[ME] if sender in group)
        other = next(group for group in bench.groups[ME] if sender not in group)
        partners = [node for node in own if node != sender]
        for wrong in (other, [*partners, *other], [], partners[1:], [partners[0], other[0]], view):
            if sorted({*wrong, sender}) == list(own):
                continue
            assert offer(node, sender, with_partners(payload, view, wrong)).reason is Reason.UNEXPECTED
        # Its own bit makes the group named twice.
        assert offer(node, sender, with_partners(payload, view, own)).reason is Reason.UNEXPECTED


@every_grouped
def test_shares_of_a_group_that_is_silent(name):
    bench = Bench.of(name)
    for absent in bench.case.graph[ME]:
        node = bench.node(0)
        bench.feed(node, [item for item in bench.of_kind(Kind.ANNOUNCE) if item[0] != absent])
        node.tick(1.0)
        list(node.outbound())
        group = next(group for group in bench.groups[ME] if absent in group)
        for sender, payload in bench.of_kind(Kind.SHARE):
            if sender in group:
                error = offer(node, sender, payload)
                assert (error.reason, "no part" in error.detail) == (Reason.UNEXPECTED, True)


@every_grouped
def test_shares_that_rest_on_something_else(name):
    _, node, found = shares(name)
    for sender, payload in found:
        stale = payload[:28] + bytes([payload[28] ^ 1]) + payload[29:]
        assert offer(node, sender, stale).reason is Reason.STALE_ATTEMPT


@every_grouped
def test_shares_of_another_length(name):
    _, node, found = shares(name)
    for sender, payload in found:
        for wrong in (payload[:-1], payload + b"\0", payload[:37]):
            assert offer(node, sender, wrong).reason is Reason.MALFORMED


@every_grouped
def test_a_second_share_is_refused(name):
    _, node, found = shares(name)
    for sender, payload in found[:-1]:  # the last one ends the round
        assert offer(node, sender, payload) is None
        assert offer(node, sender, payload).reason is Reason.DUPLICATE
        other = payload[:-1] + bytes([payload[-1] ^ 1])
        assert offer(node, sender, other).reason is Reason.DUPLICATE


@every_grouped
def test_a_share_before_the_terms_were_told(name):
    bench = Bench.of(name)
    for moment in range(len(bench.of_kind(Kind.ANNOUNCE))):
        node = bench.node(moment)
        for sender, payload in bench.of_kind(Kind.SHARE):
            assert offer(node, sender, payload).reason is Reason.UNEXPECTED


@every_grouped
def test_a_changed_check_spoils_its_group_and_nothing_else(name):
    """Somebody made another mask: the group's sum stays out, the other group's is used."""
    bench, _, found = shares(name)
    for sender, payload in found:
        node = bench.node(bench.before(Kind.SHARE))
        for other, frame in found:
            changed = payload[:37] + bytes([payload[37] ^ 1]) + payload[38:]
            assert offer(node, other, changed if other == sender else frame) is None
        event = node.next_event()
        spoilt = next(group for group in bench.groups[ME] if sender in group)
        assert set(event.contributors) == set(bench.case.graph[ME]) - set(spoilt)
        assert event.lost > 0


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
    """Nothing is raised, and nobody masks with its owner. Where groups are fixed, tokens come from the receiver."""
    bench = Bench.of(name, keys=real_keys)
    honest = named(bench, finish(bench, bench.node(0)))
    assert {sender for sender, _ in bench.of_kind(Kind.ANNOUNCE)} & {partner for _, partner in honest}
    for sender, payload in bench.of_kind(Kind.ANNOUNCE):
        node = bench.node(0)
        assert offer(node, sender, with_key(payload, 28, point.to_bytes(32, "little"))) is None
        left = named(bench, finish(bench, node))
        if name in GROUPED:
            assert left == honest
        else:
            assert left == {pair for pair in honest if pair[1] != sender}


@pytest.mark.parametrize("point", LOW_ORDER, ids=range(len(LOW_ORDER)))
@every_grouped
def test_a_key_in_terms_that_is_none(name, point):
    """Then nothing at all is sent to the receiver that passed it on."""
    bench = Bench.of(name, keys=real_keys)
    for item in bench.of_kind(Kind.GROUP_TERMS):
        one = Terms(bench, *item)
        for k in range(len(one.partners)):
            tokens = with_key(one.tokens, k * TOKEN_BYTES, point.to_bytes(32, "little"))
            node = bench.node(bench.before(Kind.GROUP_TERMS))
            assert offer(node, one.sender, one.frame(tokens=tokens)) is None
            assert set(receivers(finish(bench, node))) == set(bench.case.graph[ME]) - {one.sender}


@pytest.mark.parametrize("name", ["relay", "random", "coordinated", "secure"])
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
