"""Real peers in cells over mutual TLS: they give what the simulator gives, and nobody waits for the whole network."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest

import cesar
from cesar.cell_node import CellNode
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.config import PeerConfig
from cesar.peer.trust.identity import Identity
from cesar.protocol.cell_round import SETTLING_FIRST
from cesar.protocol.events import AggregateReady, CellReport
from cesar.protocol.wire import CATEGORIES
from cesar.sim.secrets import Secrets
from cesar.sim.wires import drive
from support.lan import cell_network, one_round

SIZE, TENSORS, ROUNDS = 1501, (1000, 500, 1), 3
PATIENT = "floor = 60.0\nceiling = 60.0"
METHODS = {
    "everything": "",
    "random": 'sparsifier = "random"\nshare = 0.3\n',
    "blocks": 'sparsifier = "topk"\nshare = 0.3\nblock = 16\n',
    "wide": "ring_bits = 32\n",
    "samples": 'ring_bits = 32\nweight = "samples"\nmost_samples = 20_000\n',
}
SAMPLES = (190, 17_834, 1_204, 640, 2_311, 9_980, 430)


def step(models, round_):
    """What stands for local training between two rounds."""
    change = np.random.default_rng(round_).normal(scale=0.1, size=models.shape)
    return (models + change).astype(np.float32)


async def through_peers(network, seed, first, samples):
    """Models and bytes after every round, with the randomness that the simulator uses."""
    secrets, peers = Secrets(seed), []
    for i in range(len(first)):
        folder = network.folder / f"peer-{i}"
        config, identity = PeerConfig.load(folder), Identity.load(folder)
        entropy = partial(secrets.entropy, i)
        counts = None if samples is None else samples[i]
        peers.append(
            AsyncPeer(
                config, identity, network.roster, entropy=entropy, session=secrets.session, samples=counts
            )
        )
        peers[-1].membership.keys = lambda _, i=i: secrets.ring(i)
    models, seen = first.copy(), []
    try:
        for peer in peers:
            await peer.start()
        await asyncio.gather(*(peer.wait_for_neighbours(60) for peer in peers))
        for peer, row in zip(peers, models, strict=True):
            assert not await peer.start_from(row)
        for t in range(ROUNDS):
            models = step(models, t)
            reports = await one_round(peers, models, TENSORS)
            assert [report.round for report in reports] == [t] * len(peers)
            assert all(report.summed for report in reports)
            seen.append((models.copy(), {c: [report.bytes[c] for report in reports] for c in CATEGORIES}))
        settled = await asyncio.gather(
            *(peer.settle(row, TENSORS) for peer, row in zip(peers, models, strict=True))
        )
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))
    return seen, models, settled


@pytest.mark.parametrize("method", METHODS)
def test_peers_in_cells_give_what_the_simulator_gives(method, tmp_path):
    network = cell_network(tmp_path / "net", 7, more=METHODS[method], rounds=PATIENT)
    assert len(network.roster.plan.cells) == 2
    first = np.tile(np.random.default_rng(5).normal(size=SIZE).astype(np.float32), (7, 1))
    samples = SAMPLES if method == "samples" else None
    seen, final, settled = on_loop(through_peers(network, 11, first, samples))

    built = PeerConfig.load(network.folder / "peer-0").cells(network.roster)
    ensemble = cesar.Ensemble(None, built, SIZE, seed=11, tensors=TENSORS, samples=samples)
    models, trained = first, np.zeros(first.shape)
    for t, (vectors, expected) in enumerate(seen):
        trained += step(models, t).astype(np.float64) - models
        result = ensemble.round(step(models, t), reference=models)
        assert np.array_equal(vectors, result.vectors)
        assert {c: result.bytes[c].tolist() for c in CATEGORIES} == expected
        models = result.vectors
    assert ensemble.plan.graph.settling_rounds == 1
    ensemble.use_method(built.settled())
    result = drive(ensemble.exchange(models, round_=SETTLING_FIRST))
    assert np.array_equal(final, result.vectors)
    assert all(reports[-1].settled for reports in settled)
    ensemble.close()
    if samples is not None:  # and that is the mean of all sites, weighted by their data
        np.testing.assert_allclose(final, first + np.average(trained, axis=0, weights=samples), atol=1e-4)


def test_samples_where_they_belong(tmp_path):
    """Before anything is opened a peer says what is missing, or what would change nothing."""
    weighted = cell_network(tmp_path / "weighted", 4, more=METHODS["samples"], rounds=PATIENT)
    alike = cell_network(tmp_path / "alike", 4, rounds=PATIENT)
    with pytest.raises(cesar.ConfigError, match="number of training samples of this site"):
        cesar.Peer.join(weighted.folder / "peer-0")
    with pytest.raises(cesar.ConfigError, match="from 1 to 20000"):
        cesar.Peer.join(weighted.folder / "peer-0", samples=0)
    with pytest.raises(cesar.ConfigError, match="sign weight"):
        cesar.Peer.join(alike.folder / "peer-0", samples=190)
    assert AsyncPeer.load(weighted.folder / "peer-0", samples=190).id == 0
    assert weighted.roster.settings["weight"] == "samples"
    assert "weight" not in alike.roster.settings, "rosters that were signed before stay as they are"


@pytest.mark.parametrize("alike", [1, 2])
def test_members_that_begin_with_different_models(alike, tmp_path, caplog):
    """Where members of two owners begin alike the others are given their model; else each goes on alone, at once, and is told why."""
    network = cell_network(tmp_path / "net", 4, rounds=PATIENT)
    first = np.random.default_rng(2).normal(size=(4, SIZE)).astype(np.float32)
    first[:alike] = first[0]

    async def run():
        peers = [AsyncPeer.load(network.folder / f"peer-{i}") for i in range(4)]
        try:
            for peer, row in zip(peers, first, strict=True):
                await peer.start()
                await peer.start_from(row)
            await asyncio.gather(*(peer.wait_for_neighbours(60) for peer in peers))
            return await one_round(peers, first.copy(), TENSORS)
        finally:
            await asyncio.gather(*(peer.close() for peer in peers))

    reports = on_loop(run())
    assert [report.summed for report in reports] == [alike > 1] * 4
    said = [r.getMessage() for r in caplog.records if "hold different models" in r.getMessage()]
    assert len(said) == (0 if alike > 1 else 4), "once per peer"
    assert max(report.seconds for report in reports) < 60.0, "nobody waits for what cannot come"


def test_a_cell_that_waits_for_a_member_listens(tmp_path):
    """Two cells of four, and a member of the first never comes. Its partners keep their model, and hear what the second cell trains; the
    second cell hears back what they have heard.
    """
    network = cell_network(tmp_path / "net", 8, more="ring_bits = 32\n", rounds="floor = 0.3\nceiling = 30.0")
    cells = network.roster.plan.cells
    away = cells[0][1]
    first = np.zeros(SIZE, dtype=np.float32)

    async def run():
        peers = {n: AsyncPeer.load(network.folder / f"peer-{n}") for n in range(8) if n != away}
        models = {n: first.copy() for n in peers}
        try:
            for n, peer in peers.items():
                await peer.start()
                await peer.start_from(models[n])
            for _ in range(6):
                for n in cells[1]:
                    models[n] += np.float32(1.0)
                reports = await asyncio.gather(*(peers[n].average_vector(models[n], TENSORS) for n in peers))
                summed = {n for n, report in zip(peers, reports, strict=True) if report.summed}
                assert summed <= set(cells[1])
            states = {n: peer._runner.node.state for n, peer in peers.items()}
        finally:
            await asyncio.gather(*(peer.close() for peer in peers.values()))
        return states, models

    states, models = on_loop(run())
    waiting = [n for n in cells[0] if n != away]
    for n in waiting:
        assert not states[n].common.any(), "nobody trains on what was overheard"
        assert not models[n].any()
        assert states[n].overheard is not None
        assert states[n].overheard.change.min() > 0.2
    told = states[cells[1][0]].common
    assert np.median(told) < 5.0, "the other cell is told of it"
    assert told.max() == 6.0, "nobody speaks for the slice of the member that is away"


def test_a_cell_that_waits_listens_by_every_link(tmp_path):
    """Of four cells two are there, and these hear each other in every second round only. The one that waits for a member stays in its
    first round, and still hears the other.
    """
    network = cell_network(
        tmp_path / "net", 12, more="ring_bits = 32\n", rounds="floor = 0.3\nceiling = 30.0"
    )
    waiting, _, training, _ = network.roster.plan.cells
    waiting = waiting[1:]

    async def run():
        peers = {n: AsyncPeer.load(network.folder / f"peer-{n}") for n in (*waiting, *training)}
        models = {n: np.zeros(SIZE, dtype=np.float32) for n in peers}
        try:
            for n, peer in peers.items():
                await peer.start()
                await peer.start_from(models[n])
            for _ in range(8):
                for n in training:
                    models[n] += np.float32(1.0)
                await asyncio.gather(*(peers[n].average_vector(models[n], TENSORS) for n in peers))
            return {n: peer._runner.node.state for n, peer in peers.items()}
        finally:
            await asyncio.gather(*(peer.close() for peer in peers.values()))

    states = on_loop(run())
    for n in waiting:
        assert states[n].overheard is not None
        assert states[n].overheard.change.max() > 0.2


def test_what_is_told_while_a_cell_waits_takes_the_place_of_what_was_told_before(tmp_path):
    """A keeper of another cell does not read. A cell that stands still for long speaks often, and all of it in one round."""
    network = cell_network(tmp_path / "net", 8, rounds="floor = 0.1\nceiling = 30.0")
    waiting, others = network.roster.plan.cells
    teller, deaf = waiting[1], others[1]  # they look after the same slice

    async def run():
        peers = {n: AsyncPeer.load(network.folder / f"peer-{n}") for n in (*waiting[1:], deaf)}
        models = {n: np.zeros(SIZE, dtype=np.float32) for n in peers}
        try:
            for n, peer in peers.items():
                await peer.start()
                await peer.start_from(models[n])
            assert await peers[teller].reception.until(lambda: deaf in peers[teller].liveness.up, 60)
            link = peers[teller].transport.links[deaf]
            link._send_one = lambda *_: asyncio.sleep(3600)
            for _ in range(8):
                await asyncio.gather(
                    *(peers[n].average_vector(models[n], TENSORS) for n in peers if n != deaf)
                )
            return [parcel for parcel in link._queue if parcel.round_ is not None]
        finally:
            await asyncio.gather(*(peer.close() for peer in peers.values()))

    assert len(on_loop(run())) == 1


def test_an_error_after_something_was_thrown_away_hands_in_nothing_of_it(tmp_path, monkeypatch):
    """An offer goes on after a round without a sum, and its next round throws numbers away and fails. They are in no sum afterwards, not even with the other
    sign.
    """
    network = cell_network(tmp_path / "net", 4, rounds="floor = 60.0\nceiling = 60.0")
    lost = np.linspace(1, 2, SIZE, dtype=np.float32)

    async def run():
        peer = AsyncPeer.load(network.folder / "peer-0")
        model = np.zeros(SIZE, dtype=np.float32)
        outcomes = []

        async def round_(offer):
            state = peer.cells._node.state
            if not outcomes:
                outcomes.append(
                    AggregateReady(round_=0, vector=model, contributors=(), lost=0, cell=CellReport())
                )
                offer.ended(state, None)
                return outcomes[0]
            state.unsent = state.unsent - lost
            state.discard(lost)
            raise cesar.CesarError("something fails")

        monkeypatch.setattr(peer.cells, "_round", round_)
        try:
            await peer.start()
            await peer.start_from(model)
            model += 3 * lost
            with pytest.raises(cesar.CesarError, match="something fails"):
                await peer.average_vector(model, TENSORS)
            node = peer.cells._node
            np.testing.assert_allclose(node.state.unsent, 2 * lost, rtol=1e-6)
            np.testing.assert_allclose(node._trained(model), node.state.unsent, rtol=1e-6)
        finally:
            await peer.close()

    on_loop(run())


def test_a_call_that_is_cancelled_while_it_listens_knows_what_it_has_offered(tmp_path, monkeypatch):
    """What is trained from there on is not in the offer, and goes on top of what comes of it."""
    network = cell_network(tmp_path / "net", 4, rounds="floor = 0.1\nceiling = 1.0")
    listen = CellNode.listen

    def cancelled(node):
        listen(node)
        asyncio.current_task().cancel()

    async def run():
        peer = AsyncPeer.load(network.folder / "peer-0")
        model = np.zeros(SIZE, dtype=np.float32)
        try:
            await peer.start()
            await peer.start_from(model)
            model += 1
            monkeypatch.setattr(CellNode, "listen", cancelled)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(peer.average_vector(model, TENSORS))
            np.testing.assert_array_equal(peer.cells._offer.base, model)
        finally:
            monkeypatch.setattr(CellNode, "listen", listen)
            await peer.close()

    on_loop(run())
