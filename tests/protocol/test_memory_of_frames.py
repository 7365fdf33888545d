"""No frame can claim memory: what a node takes for one is a small multiple of its length and of the model. And a round gives
its memory back when it is closed.
"""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

from cesar.graph.neighbourhood import neighbourhoods
from support.bench import ME, METHODS, SIZE, Bench, donors, header
from support.harness import carry, refused

MULTIPLE, FIXED = 6, 48 << 10
"""Bytes that may be taken for each byte of a frame and of the model, and beside that for objects of any round."""


def variants(rng, kind, sender, payload, most):
    """Frames of a kind that ask for as much as a frame can: long, with lengths that lie, and with long repetitions."""
    head, body = header(kind, sender), payload[28:]
    room = most - 28
    yield head + body
    for filling in (b"\0", b"\xff", b"\x01", rng.bytes(48)):
        yield head + (filling * room)[:room]
        yield head + (body + filling * room)[:room]
    yield head + (body * (room // max(1, len(body)) + 1))[:room]
    for at in range(0, len(body), max(1, len(body) // 24)):
        for length in (0xFFFFFFFF, 0x7FFFFFFF, room):
            yield head + body[:at] + length.to_bytes(4, "little") + body[at + 4 :]
        cut = body[:at] + rng.bytes(len(body) - at)
        yield head + cut


def peak_of(node, sender, payload):
    tracemalloc.start()
    try:
        refused(node, sender, payload)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", METHODS)
def test_no_frame_can_claim_memory(name):
    bench, rng = Bench.of(name), np.random.default_rng(1)
    sender = min(bench.case.graph[ME])
    most = bench.node(0).largest_frame(neighbourhoods(bench.case.graph)[ME])
    for kind, frames in donors(name).items():
        warm = bench.node(bench.before(kind))
        refused(warm, sender, frames[0][1])  # compiled and cached by now
        for payload in variants(rng, kind, sender, frames[0][1], most):
            node = bench.node(bench.before(kind))
            peak = peak_of(node, sender, payload)
            assert peak < MULTIPLE * (len(payload) + 4 * SIZE) + FIXED, (kind, len(payload), peak)


@pytest.mark.parametrize("sends_all", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_a_closed_round_waits_for_no_garbage_collector(name, sends_all):
    """It holds models, shares and keys; a peer begins the next round long before the collector comes by."""
    case = Bench.of(name).case
    nodes, outs = case.nodes(), []
    gc.collect()
    gc.disable()
    try:
        if sends_all:
            outs = carry(case, nodes)
        rounds = [weakref.ref(node.engine._round) for node in nodes.values()]
        for node in nodes.values():
            node.close()
        del outs
        assert [there() for there in rounds] == [None] * len(rounds)
    finally:
        gc.enable()
