"""A round that is repeated with another model after a restart carries unrelated masks.

If it did not, the difference of two recorded shares would be the difference of two models.
"""

from __future__ import annotations

import struct

import networkx as nx
import numpy as np
import pytest

from cesar.peer.api.peer import on_loop
from support import replay
from support.lan import make_network, one_round, running

SIZE, PEERS = 20_000, 4


def session(folder):
    """The session of the first frame in a transcript."""
    return (folder / "frames").read_bytes()[13 + 12 : 13 + 28]


async def first_round(network, models):
    async with running(network, list(range(PEERS))) as peers:
        return await one_round(peers, models)


def played(network, models):
    """Round 0 with these models: what each node sent, and the session. Nothing of it is left on disk."""
    reports = on_loop(first_round(network, models))
    assert [report.round for report in reports] == [0] * PEERS
    sent = []
    for i in range(PEERS):
        folder = network.folder / f"peer-{i}"
        sent.append((session(folder), replay.rounds_of(folder / "frames")[0].sent))
        (folder / "frames").unlink()
        (folder / "state.json").unlink()  # a site that was restored from an old copy
    return sent


def uniformity(words):
    """χ² of the bytes of some words, in standard deviations from its mean."""
    counts = np.bincount(words.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return (((counts - expected) ** 2).sum() / expected - 255) / np.sqrt(2 * 255)


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.complete_graph(PEERS), transcript=True)


def test_the_masks_of_a_repeated_round_are_unrelated(network):
    first = np.random.default_rng(1).normal(size=(PEERS, SIZE)).astype(np.float32)
    moved = first + np.float32(2**-9)  # what a little training might do
    once, again = played(network, first.copy()), played(network, moved.copy())
    for (session_a, sent_a), (session_b, sent_b) in zip(once, again, strict=True):
        assert session_a == session_b
        assert sent_a.keys() == sent_b.keys()
        seeds = [sent[replay.ANNOUNCE, j][:16] for sent in (sent_a, sent_b) for k, j in sent if k == 1]
        assert len(set(seeds)) == 2, "one seed for each attempt"
        for kind, to in sent_a:
            if kind != replay.SHARE:
                continue
            a, b = (np.frombuffer(sent[kind, to][-4 * SIZE :], "<u4") for sent in (sent_a, sent_b))
            assert abs(uniformity(b - a)) < 6
            # The models differ by the same small number everywhere. Equal masks would show it at once.
            assert len(np.unique(b - a)) > 0.99 * SIZE


def test_the_test_would_see_a_mask_that_is_used_twice(network):
    """Shares of one attempt with equal masks: their difference is that of the models and looks it."""
    mask = np.random.default_rng(2).integers(1 << 32, size=SIZE, dtype=np.uint32)
    model = np.random.default_rng(3).integers(1 << 26, size=SIZE, dtype=np.uint32)
    difference = (model + mask + np.uint32(1 << 18)) - (model + mask)
    assert abs(uniformity(difference)) > 1000
    assert len(np.unique(difference)) == 1


def test_a_restart_goes_on_behind_the_round_that_it_began(network):
    """The state is on disk before anything is sent, so a peer that was killed never begins a round twice."""
    models = np.random.default_rng(1).normal(size=(PEERS, 100)).astype(np.float32)
    for t in range(3):
        reports = on_loop(first_round(network, models))
        assert [report.round for report in reports] == [t] * PEERS
    frames = (network.folder / "peer-0" / "frames").read_bytes()
    rounds = replay.rounds_of(network.folder / "peer-0" / "frames")
    assert sorted(rounds) == [0, 1, 2]
    assert len({this.sent[replay.ANNOUNCE, 1][:16] for this in rounds.values()}) == 3
    # A last entry that was cut short by the crash is left behind, and the record goes on.
    (network.folder / "peer-0" / "frames").write_bytes(frames + struct.pack("<BIQ", 1, 2, 500) + b"cut")
    on_loop(first_round(network, models))
    assert sorted(replay.rounds_of(network.folder / "peer-0" / "frames")) == [0, 1, 2, 3]
