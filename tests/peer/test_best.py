"""Peers in cells over TLS hand in a metric with their models, and keep the best common model."""

from __future__ import annotations

import asyncio
import copy

import numpy as np
import pytest
import torch

import cesar
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.best import FILE, BestFile
from cesar.peer.driver.runtime import AsyncPeer
from support.lan import cell_network, running

SIZE = 300
PATIENT = "floor = 60.0\nceiling = 60.0"
MEAN = (0.4, 0.9, 0.6)  # of the cell, in each round


def metrics_of(round_):
    """Four sites that differ: their mean is what counts."""
    return [MEAN[round_] + offset for offset in (-0.3, 0.1, 0.0, 0.2)]


async def trained(peers, models, metrics):
    """One round of all, each with its metric."""
    reports = await asyncio.gather(
        *(
            peer.average_vector(row, metric=metric)
            for peer, row, metric in zip(peers, models, metrics, strict=True)
        )
    )
    assert all(report.summed for report in reports)
    return reports


@pytest.mark.parametrize(("which", "best"), [("highest", 1), ("lowest", 0)])
def test_the_best_common_model_is_kept(which, best, tmp_path):
    network = cell_network(
        tmp_path / "net", 4, 4, more=f'ring_bits = 32\nmetric = true\nbest = "{which}"\n', rounds=PATIENT
    )
    assert network.roster.settings["best"] == which

    async def run():
        async with running(network, [0, 1, 2, 3]) as peers:
            models, common, rounds = np.zeros((4, SIZE), dtype=np.float32), [], []
            for round_ in range(3):
                models += np.random.default_rng(round_).normal(size=models.shape).astype(np.float32)
                reports = await trained(peers, models, metrics_of(round_))
                assert reports[0].metric == pytest.approx(MEAN[round_], abs=1e-6)
                assert len({report.metric for report in reports}) == 1
                common.append(models[0].copy())
                rounds.append(reports[0].round)
                assert all(np.array_equal(row, common[-1]) for row in models)
            for peer in peers:
                assert (peer.best.round, peer.best.roster) == (rounds[best], 1)
                assert peer.best.metric == pytest.approx(MEAN[best], abs=1e-6)
                assert np.array_equal(peer.best.vector, common[best])
            return common[best], rounds[best]

    kept, round_ = on_loop(run())
    again = AsyncPeer.load(network.folder / "peer-2").best  # another process finds it
    assert again.round == round_
    assert np.array_equal(again.vector, kept)
    assert (network.folder / "peer-2" / FILE).stat().st_mode & 0o777 == 0o600


def test_a_round_without_a_metric_goes_on_as_always(tmp_path):
    """One site has not measured: nobody is told anything, and nothing waits."""
    network = cell_network(tmp_path / "net", 4, 4, more="metric = true\n", rounds=PATIENT)

    async def run():
        async with running(network, [0, 1, 2, 3]) as peers:
            models = np.ones((4, SIZE), dtype=np.float32)
            reports = await trained(peers, models, [0.5, None, 0.5, 0.5])
            assert {report.metric for report in reports} == {None}
            for bad in (float("nan"), float("inf"), 9000.0):
                with pytest.raises(cesar.DataError, match="metric is"):
                    await peers[0].average_vector(models[0], metric=bad)
            models += 1
            reports = await trained(peers, models, [1, 2, 3, 4])
            assert [report.metric for report in reports] == pytest.approx([2.5] * 4, abs=1e-6)
            assert peers[0].best.round == reports[0].round

    on_loop(run())


def test_a_metric_that_nobody_has_agreed_on(tmp_path):
    network = cell_network(tmp_path / "net", 4, 4, rounds=PATIENT)
    assert "metric" not in network.roster.settings, "rosters that were signed before stay as they are"
    assert "best" not in network.roster.settings

    async def run():
        async with running(network, [0, 1, 2, 3]) as peers:
            with pytest.raises(cesar.ConfigError, match="sign metric = true"):
                await peers[0].average_vector(np.ones(SIZE, dtype=np.float32), metric=0.5)

    on_loop(run())


def test_a_module_takes_the_best_model(tmp_path):
    """In a training loop: four sites as threads, and at the end everybody has the best common model, not the last."""
    network = cell_network(tmp_path / "net", 4, 4, more="ring_bits = 32\nmetric = true\n", rounds=PATIENT)

    first = torch.nn.Linear(20, 3)

    def site(node):
        model = copy.deepcopy(first)  # sites are threads here, and would share a generator
        with cesar.Peer.join(network.folder / f"peer-{node}") as peer:
            assert not peer.load_best(model)
            peer.start_from(model)
            for round_ in range(3):
                with torch.no_grad():
                    for tensor in model.parameters():
                        tensor.add_(round_ + node)
                report = peer.average(model, metric=metrics_of(round_)[node])
                assert report.summed
                if round_ == 1:
                    at, expected = report.round, [tensor.detach().clone() for tensor in model.parameters()]
            assert peer.load_best(model)
            assert peer.best.round == at
            for tensor, before in zip(model.parameters(), expected, strict=True):
                assert torch.equal(tensor, before)
            with pytest.raises(cesar.DataError, match="63 parameters"):
                peer.load_best(torch.nn.Linear(2, 2))

    async def all_sites():
        await asyncio.gather(*(asyncio.to_thread(site, node) for node in range(4)))

    asyncio.run(all_sites())


def test_a_file_that_cannot_be_read_or_written(tmp_path, caplog):
    """Training goes on: the best model is kept anew, or the last one stays."""
    path, model = tmp_path / FILE, np.arange(5, dtype=np.float32)
    file = BestFile(path, bytes(16))
    assert file.beats(-1.0, "highest")
    file.keep(model, 0.5, 3, 1)
    assert not file.beats(0.5, "highest")
    assert BestFile(path, bytes(16)).best == file.best
    assert BestFile(path, bytes([1]) * 16).best is None, "of another network"
    path.write_bytes(path.read_bytes()[:50])
    assert BestFile(path, bytes(16)).best is None
    assert "cannot be read" in caplog.text
    with pytest.raises(cesar.DataError, match="best model is lost"):
        _ = file.best.vector
    nowhere = BestFile(tmp_path / "none" / FILE, bytes(16))
    nowhere.keep(model, 0.5, 3, 1)
    assert nowhere.best is None
    assert "the best model is not kept" in caplog.text
