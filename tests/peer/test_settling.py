"""Settling: averaging without training, by those who do so, and never mixed with training."""

from __future__ import annotations

import asyncio
import shutil

import networkx as nx
import numpy as np
import pytest
import torch

from cesar.base.errors import DataError
from cesar.cli.peer import _settle
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.config import session_of
from support.lan import Lines, make_network, met, running, slow_down
from support.waiting import until

SIZE, PEERS = 4000, 5
METHOD = 'name = "cesar"\nsparsifier = "topk"\nshare = 0.1\nmemory = true\nring_bits = 32'

PATIENT = "floor = 20.0\nceiling = 60.0"
"""Where nobody is away, nobody is to be left behind on a busy machine."""


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.complete_graph(PEERS), METHOD, rounds=PATIENT)


def models(seed=1):
    return np.random.default_rng(seed).normal(size=(PEERS, SIZE)).astype(np.float32)


def spread(rows):
    return float(np.abs(rows - rows.mean(axis=0)).mean())


def test_models_meet_at_their_mean(network):
    async def scene():
        async with running(network, list(range(PEERS))) as peers:
            rows = models()
            mean, apart = rows.mean(axis=0), spread(rows)
            reports = await asyncio.gather(
                *(peer.settle(row, rounds=12, share=0.5) for peer, row in zip(peers, rows, strict=True))
            )
            assert [len(each) for each in reports] == [12] * PEERS
            assert all(report.contributors == tuple(i for i in range(PEERS) if i != peer.id)
                       for peer, each in zip(peers, reports, strict=True) for report in each)  # fmt: skip
            assert spread(rows) < apart / 50
            assert (
                np.abs(rows.mean(axis=0) - mean).mean() < apart / 2
            )  # half of the values, drawn anew for each receiver
            shared = np.mean([report.shared for each in reports for report in each])
            assert abs(shared - 0.5) < 0.02

    on_loop(scene())


def test_it_ends_when_nothing_much_changes(network):
    async def scene():
        async with running(network, list(range(PEERS))) as peers:
            rows = models()
            job = (
                peer.settle(row, rounds=100, share=0.9, tolerance=0.05)
                for peer, row in zip(peers, rows, strict=True)
            )
            reports = await asyncio.gather(*job)
            assert all(1 < len(each) < 20 for each in reports)

    on_loop(scene())


def test_who_trains_and_who_settles_never_share_a_sum(network):
    async def scene():
        async with running(network, list(range(PEERS))) as peers:
            rows, settlers = models(), peers[:3] + peers[4:]
            before = rows.copy()
            with Lines() as log:
                trains = asyncio.ensure_future(peers[3].average_vector(rows[3]))
                reports = await asyncio.gather(
                    *(peer.settle(rows[peer.id], rounds=2, wait=1) for peer in settlers)
                )
                assert (await trains).contributors == ()
                assert log.said("settles without neighbour(s) 3, which still train")
            assert np.array_equal(rows[3], before[3])
            assert not any(3 in report.contributors for each in reports for report in each)
            await until(
                lambda: all(len(peer.liveness.company) == 4 for peer in peers)
            )  # all know that all have settled
            trained = await asyncio.gather(*(peer.average_vector(rows[peer.id]) for peer in peers))
            assert all(len(report.contributors) == 4 for report in trained), "training can go on"
            together = await asyncio.gather(
                *(peer.settle(rows[peer.id], rounds=2, wait=30) for peer in peers)
            )
            assert all(len(report.contributors) == 4 for each in together for report in each)

    on_loop(scene())


def test_another_share_is_another_sum(network):
    async def scene():
        async with running(network, list(range(PEERS))) as peers:
            rows = models()
            before = rows.copy()
            reports = await asyncio.gather(
                *(peer.settle(rows[peer.id], rounds=1, share=0.3 if peer.id else 0.4) for peer in peers)
            )
            assert reports[0] == [] or reports[0][0].contributors == ()
            assert np.array_equal(rows[0], before[0])
            for peer in peers[1:]:
                assert 0 not in reports[peer.id][0].contributors

    on_loop(scene())


def test_who_comes_late_joins_the_next_settling_round(tmp_path):
    network = make_network(tmp_path / "quick", nx.complete_graph(PEERS), METHOD)

    async def scene():
        rest = [0, 1, 2, 4]
        async with running(network, rest) as peers:
            rows = models()
            for peer in peers:
                slow_down(peer, 0.1)
            others = [asyncio.ensure_future(peer.settle(rows[peer.id], rounds=15)) for peer in peers]
            await until(lambda: all(peer.totals.rounds >= 2 for peer in peers))
            late = AsyncPeer.load(network.folder / "peer-3")
            try:
                await late.start()
                await met(late, set(rest))
                assert late.next_round > 0, "it counts with the others, though it has not begun to settle"
                before = rows[3].copy()
                reports = await late.settle(rows[3], rounds=100)
                await asyncio.gather(*others)
            finally:
                await late.close()
            assert any(report.contributors for report in reports)
            assert len(reports) < 100, "when the others have settled, nobody is left"
            assert not np.array_equal(rows[3], before)

    on_loop(scene())


def test_sessions_differ(network):
    made = {
        session_of(network.roster, tensors, purpose, mode)
        for tensors in ((100,), (50, 50), (60, 40))
        for purpose in ("train", "check")
        for mode in (0, 300_000, 400_000)
    }
    assert len(made) == 3 * 2 * 3


def test_a_share_that_is_none(network):
    async def scene():
        async with running(network, [0, 1]) as peers:
            for share in (0.0, 1.5, float("nan")):
                with pytest.raises(DataError, match="fraction to settle with"):
                    await peers[0].settle(np.zeros(3, np.float32), share=share)

    on_loop(scene())


# ── what a training loop sees ───────────────────────────────────────────────────────────────────────────


def module(seed):
    """Made by several threads at once, so without the seed that they share."""
    model, draw = torch.nn.Linear(6, 5), torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=draw)
    return model


def drift(model, peer, t):
    """What stands for training."""
    draw = torch.Generator().manual_seed(100 * t + peer.id)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.1)


def weights(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def test_memory_is_part_of_the_checkpoint(network, tmp_path, together):
    """Four rounds at a stretch, and two and two with a restart in between: the same but for rounding."""
    folders = [
        make_network(tmp_path / name, nx.complete_graph(3), METHOD, rounds=PATIENT).folder
        for name in ("one", "two")
    ]
    one, two = ([folder / f"peer-{i}" for i in range(3)] for folder in folders)

    def at_a_stretch(peer):
        model = module(7)
        peer.start_from(model)
        for t in range(4):
            drift(model, peer, t)
            peer.average(model)
        return weights(model)

    def first_half(peer):
        model = module(7)
        peer.start_from(model)
        for t in range(2):
            drift(model, peer, t)
            peer.average(model)
        peer.save(model)
        return peer._peer.task.memory.copy()

    def second_half(peer, *, forget=False):
        model = module(0)
        assert peer.restore(model)
        memory = peer._peer.task.memory.copy()
        if forget:
            peer._peer.task.memory = None
        for t in range(2, 4):
            drift(model, peer, t)
            peer.average(model)
        return memory, weights(model)

    whole = together(one, at_a_stretch)
    remembered = together(two, first_half)
    resumed = together(two, second_half)
    for expected, kept, (memory, got) in zip(whole, remembered, resumed, strict=True):
        assert np.array_equal(kept, memory)
        np.testing.assert_allclose(got, expected, atol=1e-6)  # masks decide which way sums are rounded
    forgotten = together(two, lambda peer: second_half(peer, forget=True))
    assert any(not np.allclose(a, b, atol=1e-3) for a, (_, b) in zip(whole, forgotten, strict=True))


def test_a_checkpoint_without_memory_says_what_to_do(network, tmp_path, together):
    plain, remembering = (
        make_network(tmp_path / name, nx.complete_graph(3), method, rounds=PATIENT)
        for name, method in (("plain", METHOD.replace("true", "false")), ("memory", METHOD))
    )
    folders = [plain.folder / f"peer-{i}" for i in range(3)]

    def save(peer):
        model = module(1)
        peer.average(model)
        peer.save(model)

    together(folders, save)
    others = [remembering.folder / folder.name for folder in folders]
    for folder, other in zip(folders, others, strict=True):
        shutil.copy(folder / "checkpoint.safetensors", other)

    def resume(peer):
        with pytest.raises(DataError, match=r"saved without the memory .* start anew without --resume"):
            peer.restore(module(1))

    together(others, resume)


def test_top_k_is_told_of_a_missing_first_model_once(network, together):
    folders = [network.folder / f"peer-{i}" for i in range(PEERS)]
    with Lines() as log:
        together(folders, lambda peer: [peer.average(module(peer.id)) for _ in range(2)])
        assert sum("peer.start_from(model) before training" in line for line in log.lines) == PEERS


def test_a_run_settles_what_it_averaged_last_and_keeps_it(network, together):
    folders = [network.folder / f"peer-{i}" for i in range(PEERS)]

    def run(peer):
        model = module(peer.id)
        peer.start_from(model)
        peer.average(model)
        _settle(peer, 0)
        assert peer.round == 1
        _settle(peer, 3)
        assert peer.round == 4
        _settle(peer, 3)
        assert peer.round == 4, "once"
        again = module(99)
        peer.restore(again)
        assert np.array_equal(weights(again), weights(model))
        return peer.totals()

    for totals in together(folders, run):
        assert totals["rounds_done"] == 4
        assert totals["settling"] is False
