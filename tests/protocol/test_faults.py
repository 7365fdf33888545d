"""A fault of our own that what others said brings out: the frame is not made, somebody is named, and the round ends."""

from __future__ import annotations

import numpy as np
import pytest

from cesar.base.errors import PrivacyError, Reason
from cesar.kernels import ring
from cesar.protocol import AggregateReady, FrameRejected, masked
from cesar.protocol.receiver import Receiver
from support.bench import ME, Bench

ERRORS = [ZeroDivisionError("boom"), MemoryError(), PrivacyError("too few")]


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def run(bench):
    """All that an honest round sends node 0, and the clock; who was blamed, and how the round ended."""
    node = bench.node(0)
    sent = list(node.outbound())
    for sender, payload in bench.frames:
        node.receive(sender, payload)
        sent += node.outbound()
    while (deadline := node.next_deadline()) is not None:
        node.tick(deadline)
        sent += node.outbound()
    events = iter(node.next_event, None)
    found = list(events)
    blamed = [event.error for event in found if isinstance(event, FrameRejected)]
    (outcome,) = (event for event in found if isinstance(event, AggregateReady))
    return blamed, outcome, sent


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "name, owner, function",
    [
        ("relay", masked, "write_masked"),
        ("relay", masked, "_as_seen_by"),
        ("secure", masked, "kept_positions"),
        ("random", masked.Share, "allocate"),
    ],
)
def test_a_frame_that_cannot_be_made(name, owner, function, error, monkeypatch):
    """Nothing is raised and nothing leaves half made; whoever it was an answer to is named, and the others go on."""
    bench = Bench.of(name)
    whole = len(run(bench)[2])
    monkeypatch.setattr(owner, function, failing(error))
    blamed, outcome, sent = run(bench)
    assert blamed
    assert {one.reason for one in blamed} == {Reason.FAULT}
    assert all(one.round_ == bench.case.round_ and type(error).__name__ in str(one) for one in blamed)
    assert {one.peer for one in blamed} <= set(bench.case.graph) - {ME}
    assert 0 < len(sent) < whole
    assert outcome.fault is None
    assert outcome.vector.tobytes() == bench.result, "what came is averaged all the same"


@pytest.mark.parametrize(
    "name, owner, function",
    [
        ("relay", ring, "largest_exponents"),
        ("relay", Receiver, "average"),
    ],
)
def test_a_round_that_cannot_be_settled(name, owner, function, monkeypatch):
    """It ends with the own model, and says why."""
    bench = Bench.of(name)
    monkeypatch.setattr(owner, function, failing(ZeroDivisionError()))
    _, outcome, _ = run(bench)
    assert isinstance(outcome.fault, ZeroDivisionError)
    assert outcome.contributors == ()
    assert np.array_equal(outcome.vector, bench.case.vectors[ME])


def test_a_partner_that_cannot_be_used_is_none(monkeypatch):
    """Then there are no masks with it; the relay that told of it, or the partner itself, is named."""
    bench = Bench.of("relay")
    monkeypatch.setattr(masked.Partner, "of", failing(ValueError()))
    blamed, outcome, sent = run(bench)
    assert {one.peer for one in blamed} <= set(bench.case.graph[ME])
    assert outcome.fault is None
    assert all(out.frame.parameters == 0 for out in sent), (
        "without a partner nothing carries a mask, so nothing leaves"
    )
