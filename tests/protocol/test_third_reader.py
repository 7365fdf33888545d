"""More attacks of somebody who has read the threat model and the wire format (docs/design/019-a-second-reader.md): numbers that no honest
member or cell can have sent, and frames that cost more than they should.
"""

import contextlib
import gc
import struct
import tracemalloc

import numpy as np
import pytest

import cesar
from cesar.base.errors import EncodingError, Reason
from cesar.crypto.keys import Keyring
from cesar.kernels.slicing import spans
from cesar.protocol.cell_round import SETTLING_FIRST, SETTLING_TRIES
from cesar.protocol.events import Deadlines
from cesar.protocol.wire_cells import Exchange
from support.cell_liar import (
    AGREE,
    EXCHANGE,
    GATHER,
    HEAD,
    MISSED,
    MODEL,
    OFFER,
    SCATTER,
    SIZE,
    VOUCH,
    Stage,
)
from support.harness import SESSIONS, key_pair, real_keys


def steps(nodes, seed=0):
    """All train much the same."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=SIZE) + 0.3 * rng.normal(size=(nodes, SIZE))).astype(np.float32)


def grid_row(count, exponent, words):
    """One tensor's exponent and its values, of 32 bits."""
    return bytes([127 + exponent]) + np.resize(np.array(words, "<i4"), count).tobytes()


# ── a keeper that goes round the vote ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("settles", [False, True])
def test_what_was_heard_of_other_cells_is_nothing_where_there_are_none(settles):
    """One cell alone: whatever its keeper says that it has heard, members apply what they have voted on and nothing else."""
    models = {}
    for lies in (False, True):
        stage = Stage(4, robust=True)
        for r in range(3):
            stage.round(steps(4, r))
        if settles:
            for node in stage.nodes.values():
                node.use_method(stage.method.settled())
        liar = 2

        def lie(sender, to, kind, payload, liar=liar, lies=lies):
            if not lies or sender != liar or kind != GATHER or len(payload) == HEAD:
                return None
            return [payload[: HEAD + 1] + grid_row(64, 10, [2**30])]

        stage.round(np.zeros((4, SIZE)) if settles else steps(4, 3), lie)
        models[lies] = [stage.common(n).copy() for n in range(4) if n != liar]
    np.testing.assert_array_equal(models[True], models[False])


# ── scales ──────────────────────────────────────────────────────────────────────────────────────────────


def scaled(exponent, liar=2):
    """A member that announces values of this size, with numbers as small as ever."""

    def lie(sender, to, kind, payload):
        if sender != liar or kind != AGREE:
            return None
        return [payload[: HEAD + 48] + bytes([127 + exponent]) + payload[HEAD + 49 :]]

    return lie


def test_a_scale_that_rounds_everybody_to_nothing_is_refused():
    """Else all would hand in, see a sum of zeros, and have nothing left: a liar, or a member that has diverged, would undo all training unseen."""
    for exponent, taken in ((16, True), (17, False), (100, False)):
        stage = Stage(4, scale_bits=16)
        stage.round(0.1 * steps(4), scaled(exponent))
        others = [0, 1, 3]
        assert [bool(stage.reports[n].cell.members) for n in others] == [taken] * 3
        unsafe = [n for n, error in stage.refused if error.reason is Reason.UNSAFE_SCALE]
        assert sorted(unsafe) == ([] if taken else others)
        if not taken:
            assert all(np.linalg.norm(stage.unsent(n)) > 1 for n in others), "what was trained is kept"


# ── what other cells say ────────────────────────────────────────────────────────────────────────────────


def next_door(stage, node):
    """A keeper of the cell that is heard in the first round, and a member that it talks to."""
    place = stage.plan.place(node)
    heard = stage.plan.graph.heard(place.number, 0)[0].cell
    return stage.plan.cells[heard]


@pytest.mark.parametrize("span", ["all of it", "the slice of another keeper", "words of another member"])
def test_a_keeper_speaks_for_its_own_slice_alone(span):
    """Else one liar is believed in place of its whole cell, if it is the first to speak."""
    stage = Stage(8)
    me = stage.plan.cells[0][1]
    liar = next_door(stage, me)[1]
    cut = spans(SIZE // 64, 4)
    first, last = {
        "all of it": (0, 4),
        "the slice of another keeper": cut[2],
        "words of another member": cut[0],
    }[span]
    told = struct.pack("<II", first, last) + grid_row(64 * (last - first), 20, [2**30])

    def lie(sender, to, kind, payload):
        lies = sender == liar and kind == EXCHANGE and to == me
        return [payload[:HEAD] + told, payload] if lies else None

    stage.round(steps(8), lie)
    assert [error.detail for n, error in stage.refused if n == me] == [
        "its slice and that of this member have no such words in common"
    ]
    assert np.abs(stage.common(me)).max() < 100


def test_keepers_that_look_after_more_are_heard():
    """A cell that goes on without a member has larger slices: these are taken, with all that is in them."""
    stage = Stage(9, patience=1)
    large = max(stage.plan.cells, key=len)
    for r in range(4):
        stage.round(steps(9, r), away=large[:1] if r else ())
    assert not [error for _, error in stage.refused if error.reason is Reason.MALFORMED]
    hears = [n for n in stage.reports if n not in large]
    assert all(stage.reports[n].cell.heard for n in hears)


def settling_frame(session, sender, round_, body):
    return struct.pack("<2sBBII16s", b"CE", 3, EXCHANGE, round_, sender, session) + body


def test_what_is_heard_before_its_time_has_a_bound():
    """One keeper next door says all that it can about every round of settling: one word of each step is kept, none longer than a slice."""
    stage = Stage(8, own_pace=True)
    me = stage.plan.cells[0][1]
    stage.round(steps(8))
    liar, node = next_door(stage, me)[1], stage.nodes[me]
    for k in range(2000):
        for length in (4 * SIZE, SIZE + 8 * 1024):
            with contextlib.suppress(cesar.RemoteProtocolError):
                node.receive(liar, settling_frame(SESSIONS[0], liar, SETTLING_FIRST + k, bytes(length)))
    kept = node._news[liar]
    assert len(kept) <= 65
    assert {number // SETTLING_TRIES for number in kept if number >= SETTLING_FIRST} == {
        SETTLING_FIRST // SETTLING_TRIES + step for step in range(64)
    }
    large = Stage(8, size=1 << 16, own_pace=True).nodes[me]

    def flood(length):
        for k in range(2000):
            large.receive(liar, settling_frame(SESSIONS[0], liar, SETTLING_FIRST + k, bytes(length)))

    with pytest.raises(cesar.RemoteProtocolError, match="longer than what a keeper can say"):
        flood((1 << 18) // 3)
    with pytest.raises(cesar.RemoteProtocolError, match="so far ahead"):
        flood((1 << 18) // 4)


# ── what was heard while a cell waited ──────────────────────────────────────────────────────────────────


def test_what_has_come_while_a_cell_waited_is_in_its_next_sum():
    """A member that is kept waiting listens by one link after the other. When all are there the link of the round counts again, and what a
    keeper has said by it meanwhile is not waited for once more.
    """
    stage = Stage(16, own_pace=True)
    own = stage.plan.cells[0]
    other = stage.plan.graph.heard(0, 0)[0].cell
    theirs = stage.plan.cells[other]
    never = Deadlines(announce=1e9, relay=1e9, share=1e9)
    for n in (*own, *theirs):
        model = stage.start + np.float32(n in theirs)
        stage.nodes[n].begin_round(
            0,
            stage.plan.place(n),
            model,
            reference=model,
            entropy=np.random.default_rng(n).bytes,
            deadlines=never,
        )
    stage.nodes[own[0]].listen()
    for n in theirs:
        stage.nodes[n].listen()
    busy = True
    while busy:
        busy = False
        for n in (*theirs, *own):
            for out in stage.nodes[n].outbound():
                busy = True
                for to in out.recipients:
                    if to in own:
                        stage.nodes[to].receive(n, bytes(out.frame.payload))
    for n in own:
        assert not stage.nodes[n].awaiting
        assert stage.nodes[n].next_event().cell.heard == (other,)
        np.testing.assert_allclose(stage.common(n), 0.5, atol=1e-6)


# ── numbers at the edge ─────────────────────────────────────────────────────────────────────────────────


def test_a_model_stays_where_its_values_can_be_told():
    """A member hands in 2^100 in every round: honest members would soon hold what no frame can say, and be refused for saying it."""
    stage = Stage(8)
    liar = stage.plan.cells[0][2]
    for r in range(14):
        step = steps(8, r)
        step[liar] = 2.0**100
        stage.models[liar] = stage.common(liar).copy() if r else stage.models[liar]
        stage.round(step)
        assert all(report.fault is None for report in stage.reports.values())
        refused = [error for _, error in stage.refused if error.peer != liar]
        assert not [error for error in refused if error.reason is Reason.MALFORMED]
    largest = max(np.abs(stage.common(n)).max() for n in stage.nodes)
    assert 2.0**99 < largest <= 2.0**100


def test_nor_does_a_keeper_lead_it_further():
    stage, liar = Stage(4), 2
    stage.start[:] = 0.75 * 2.0**100
    stage.models = {n: stage.start.copy() for n in stage.nodes}

    def lie(sender, to, kind, payload):
        lies = sender == liar and kind == GATHER
        return [payload[: HEAD + 1] + grid_row(64, 100, [3 * 2**29])] if lies else None

    stage.round(np.zeros((4, SIZE)), lie)
    for n in (0, 1, 3):
        np.testing.assert_array_equal(stage.common(n), stage.start)
    assert {n for n, error in stage.refused if error.reason is Reason.UNSAFE_SCALE} == {0, 1, 3}


def test_a_sum_at_the_edge_is_no_fault():
    """A member announces the largest scale and hands in more than that: the mean is a little too large to be told, and so there is none."""
    for robust in (False, True):
        stage = Stage(4, robust=robust, ring_bits=16)
        liar = 2

        def lie(sender, to, kind, payload, liar=liar):
            if sender == liar and kind == SCATTER:
                words = np.frombuffer(payload[-2 * 64 :], "<u2") + np.uint16(2)
                return [payload[: -2 * 64] + words.astype("<u2").tobytes()]
            return None

        huge = np.zeros((4, SIZE), dtype=np.float32)
        huge[:] = 2.0**100
        stage.round(huge, lie)
        assert all(report.fault is None for report in stage.reports.values())
        assert all(np.isfinite(stage.common(n)).all() for n in range(4))
        stage.round(-huge)
        assert all(report.fault is None for report in stage.reports.values())


@pytest.mark.parametrize("weight", [5e-324, 2.0**-600, float("nan"), float("inf"), -1.0])
def test_weights_that_no_cell_has(weight):
    """A weight that vanishes when it is mixed would be divided by."""
    with pytest.raises(EncodingError, match="no cell has that number of samples"):
        Exchange.decode(memoryview(struct.pack("<IId", 0, 1, weight)), 1, 0, 1e6)
    assert Exchange.decode(memoryview(struct.pack("<IId", 0, 1, 0.0)), 1, 0, 1e6).weight == 0.0


def test_nobody_is_made_to_hand_in_more_than_the_settings_allow():
    """Whatever a keeper says of scores, and a cell next door of its blocks: a member hands in its share, and a cell tells no more than two."""
    stage = Stage(8, size=64 * 64, sparsifier=cesar.BlockTopK(0.125, 64))
    me = stage.plan.cells[0][1]
    door, liar = next_door(stage, me)[1], stage.plan.cells[0][2]
    everything = struct.pack("<II", 16, 32) + b"\xff\xff" + grid_row(16 * 64, 0, [1])

    def lie(sender, to, kind, payload):
        if sender == door and kind == EXCHANGE and to == me:
            return [payload[:HEAD] + everything, payload]
        if sender == liar and kind == GATHER and len(payload) > HEAD:
            return [payload[: HEAD + 3] + b"\xff" * 16 + payload[HEAD + 19 :]]
        return None

    rng, refused = np.random.default_rng(0), []
    for _ in range(4):
        stage.round(rng.normal(size=(8, 64 * 64)).astype(np.float32), lie)
        assert {node.ledger.parameters for node in stage.nodes.values()} <= {0, 8 * 64}
        assert stage.nodes[door].ledger.parameters == 8 * 64
        refused += [error.detail for n, error in stage.refused if n == me and error.peer == door]
    assert "it names more blocks than a cell hands in" in refused


# ── stolen keys ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_stolen_agreement_key_does_not_open_a_mask():
    """A member of the cell has a partner's long-lived key and all tokens: the mask of that partner with a third is another one."""
    session = SESSIONS[0]
    rings = {n: real_keys(session, n) for n in range(2)}
    publics = {n: ring.public(7) for n, ring in rings.items()}
    true = rings[0].secret(1, publics[1])
    assert rings[1].secret(0, publics[0]).key == true.key

    def stolen(peer):
        return key_pair(0).agree(key_pair(peer).public, session)

    thief = Keyring(stolen, lambda _: bytes(range(32)))  # with an ephemeral key of its own
    thief.public(7)
    assert thief.secret(1, publics[1]).key != true.key


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_partner_has_one_model_kept_unread_and_not_one_of_each_kind():
    """Answers can come before this member has heard everybody, who may be away for hours: they are kept, each no longer than it can be."""
    parameters = 1 << 18
    stage = Stage(4, size=parameters)
    stage.round(np.zeros((4, parameters), dtype=np.float32))
    node, never = stage.nodes[1], Deadlines(announce=1e9, relay=1e9, share=1e9)
    node.begin_round(
        1, stage.plan.place(1), stage.models[1], entropy=np.random.default_rng(1).bytes, deadlines=never
    )
    bodies = {
        kind: node._inbox.longest.get(kind, 4 * parameters)
        for kind in (AGREE, SCATTER, GATHER, OFFER, MODEL, VOUCH, MISSED)
    }
    gc.collect()
    tracemalloc.start()
    try:
        for round_ in (1, 2):
            for kind, longest in bodies.items():
                head = struct.pack("<2sBBII16s", b"CE", 3, kind, round_, 0, SESSIONS[0])
                for number in range(4 if kind == MISSED else 1):
                    for length in (longest, 4 * parameters):
                        with contextlib.suppress(cesar.RemoteProtocolError):
                            node.receive(0, head + bytes([number]) + bytes(length - 1))
        assert tracemalloc.get_traced_memory()[0] < 4 * 4 * parameters, (
            "a model, and seven slices of a quarter"
        )
    finally:
        tracemalloc.stop()
