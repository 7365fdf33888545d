"""A neighbour that announces the largest scale and shifts its share makes nobody's model infinite."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.base.errors import Reason
from cesar.node import Node
from cesar.protocol.wire import Kind
from support.harness import Case, outcome, refused

LIAR, SIZE = 3, 64
METHODS = {
    "relay": cesar.Cesar(sparsifier=cesar.TopK(1.0)),
    "direct": cesar.Cesar(sparsifier=cesar.TopK(1.0), coordination="direct"),
    "secure": cesar.SecureAggregation(),
    "plain": cesar.DPSGD(weights="arrived"),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def case_with_a_liar(method, scale=3e38):
    vectors = np.random.default_rng(1).normal(size=(5, SIZE)).astype(np.float32)
    vectors[LIAR] = scale
    case = Case(graph=nx.complete_graph(5), method=method, vectors=vectors)
    if isinstance(method, cesar.DPSGD):  # floats must be finite, so it takes more than one
        vectors[LIAR - 1] = scale
    return case


def shifted(payload):
    """The same share with every 32-bit word so much larger that the sum is as large as a sum can be."""
    words = np.frombuffer(payload[-4 * SIZE :], dtype="<u4") + np.uint32(0x50000000)
    return payload[: -4 * SIZE] + words.tobytes()


def play(case, nodes):
    """Carry all frames, the liar's shares shifted; returns what was refused of it."""
    seen, flying = [], True
    while flying:
        flying = [
            (i, to, bytes(out.frame.payload))
            for i, node in nodes.items()
            for out in node.outbound()
            for to in out.recipients
        ]
        for i, to, payload in flying:
            lies = i == LIAR and payload[3] == Kind.SHARE
            if (error := refused(nodes[to], i, shifted(payload) if lies else payload)) is not None:
                seen.append(error)
    for node in nodes.values():
        while (deadline := node.next_deadline()) is not None:
            node.tick(deadline)
            list(node.outbound())
    return seen


@every_method
def test_what_is_not_finite_replaces_nothing(method):
    case = case_with_a_liar(method)
    nodes = case.nodes()
    play(case, nodes)
    kept = 0
    for i, node in nodes.items():
        result = outcome(node)
        assert np.isfinite(result.vector).all()
        kept += result.overflowed
        if result.overflowed:
            np.testing.assert_array_equal(result.vector, case.vectors[i])
            assert (result.contributors, result.lost) == ((), 0)
    assert kept > 0, "the lie did no harm, so nothing was tested"


def bounded(case, i, bits):
    """A node that takes announcements up to 2^bits times its own scale."""
    node = Node(
        i,
        case.method,
        SIZE,
        session=case.session,
        keys=case.keys(case.session, i),
        scale_bits=bits,
    )
    case.begin(node)
    return node


@pytest.mark.parametrize("name", ["relay", "direct", "secure"])
def test_a_scale_far_above_the_own_is_refused(name):
    case = case_with_a_liar(METHODS[name])
    nodes = {i: bounded(case, i, 255 if i == LIAR else 16) for i in case.graph}
    errors = play(case, nodes)
    first = [error for error in errors if error.reason is Reason.UNSAFE_SCALE]
    assert len(first) == 4
    assert {error.peer for error in first} == {LIAR}
    for i, node in nodes.items():
        result = outcome(node)
        assert not result.overflowed or i == LIAR
        assert i == LIAR or LIAR not in result.contributors
        assert i == LIAR or np.abs(result.vector).max() < 10


@pytest.mark.parametrize(
    "scale, own", [(2.0**16, 1.0), (2.0**16, 1e-30), (2.0**20, 2.0**4), (0.0, 1.0), (1.0, 0.0)]
)
def test_scales_that_differ_as_models_do_are_taken(scale, own):
    case = case_with_a_liar(METHODS["relay"], scale)
    case = replace(case, vectors=np.where(np.arange(5)[:, None] == LIAR, case.vectors, np.float32(own)))
    nodes = {i: bounded(case, i, 16) for i in case.graph}
    assert [e for e in play(case, nodes) if e.reason is Reason.UNSAFE_SCALE] == []
