"""Sites as they are, in cells: local phases that differ, restarts, cuts, full disks; nothing is lost and nothing counts twice."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.protocol.wire import Kind
from support import worker
from support.cell_sites import ATOMS, QUICK, Site, counted, sites, together
from support.lan import Lines, cell_network, edit, free_ports, met, running
from support.waiting import until


def test_sites_of_different_speed(tmp_path):
    """Cells go at their own pace: that of a slow site at its pace, the other one faster, and all settle in the end."""
    network = cell_network(tmp_path / "net", 6, size=3, rounds=QUICK, more="ring_bits = 32\n")
    held_up, quick = network.roster.plan.cells
    slow = held_up[0]

    async def run():
        ended = asyncio.Event()

        async def take_part(site):
            if site.node == slow:
                for _ in range(4):
                    await asyncio.sleep(1.0)
                    await site.round()
                ended.set()
            else:
                while (
                    not ended.is_set() and site.phase < ATOMS and not (site.node in quick and site.phase > 30)
                ):
                    await asyncio.sleep(0.05)
                    await site.round()
            return await site.peer.settle(site.model)

        async with sites(network, 6) as all_:
            return all_, await asyncio.gather(*map(take_part, all_))

    all_, settled = on_loop(run())
    sums = {
        site.node: {r.round for r in site.reports if r.summed} | {r.landed for r in site.reports} - {None}
        for site in all_
    }
    assert len(sums[slow]) >= 2, "its partners had offered something long before"
    assert min(len(sums[node]) for node in quick) > len(sums[slow]), "the other cell does not wait"
    assert all(reports[-1].settled for reports in settled)
    models = np.array([site.model for site in all_])
    assert np.abs(models - models[0]).max() < 1e-5
    for site in all_:
        counts = models[0].reshape(6, ATOMS)[site.node, : site.phase]
        told = any(not report.summed and report.unsent for report in settled[all_.index(site)])
        assert told or (counts > 1e-3).all(), "everything that was trained is in the model"


PHASES = {"held up": (40.0, 2.0, 3.0, 4.0), "quick": (2.0, 2.5, 3.0, 4.0)}
"""Seconds that local phases take, at the members of two cells."""


@pytest.mark.slow
def test_local_phases_that_differ_by_a_factor_of_twenty(tmp_path):
    """Eight sites learn digits. One takes 40 s for a local phase, and others take 2 to 4. The quick cell goes at the pace of its own
    slowest member, the slow site is in a sum after each of its phases, and all settle although they finish minutes apart.
    """
    network = cell_network(
        tmp_path / "net", 8, size=4, rounds="floor = 1.0\nceiling = 10.0\nsettle_minutes = 10.0"
    )
    data = load_digits()
    images, labels = (data.data / 16).astype(np.float32), data.target
    cells = dict(zip(PHASES, network.roster.plan.cells, strict=True))
    pace = {node: PHASES[name][k] for name, cell in cells.items() for k, node in enumerate(cell)}
    slow = cells["held up"][0]
    ends: dict[int, float] = {}

    async def take_part(peer, begin):
        own, model = slice(peer.id, 1440, 8), np.zeros(worker.SIZE, np.float32)
        await peer.start_from(model)
        told = []
        while time.monotonic() < begin + (240 if peer.id in cells["held up"] else 100) - pace[peer.id] / 2:
            await asyncio.sleep(pace[peer.id])
            model[:] = worker.local_step(model, images[own], labels[own])
            told.append(await peer.average_vector(model))
        ends[peer.id] = time.monotonic() - begin
        settled = await peer.settle(model)
        return model, told, settled

    async def run():
        async with running(network, [*range(8)]) as peers:
            begin = time.monotonic()
            return await asyncio.gather(*(take_part(peer, begin) for peer in peers))

    models, told, settled = zip(*on_loop(run()), strict=True)
    sums = [{r.round for r in t if r.summed} | {r.landed for r in t} - {None} for t in told]
    slowest = cells["quick"][-1]  # of the quick cell, which cannot add up more often than this one trains
    lost = 1 - len(sums[slowest]) / len(told[slowest])
    accuracy = worker.accuracy(models[0], images[1440:], labels[1440:])
    print(
        f"the quick cell added up {len(sums[slowest])} times in {len(told[slowest])} phases of its slowest member, {ends[slowest]:.0f} s; the slow "
        f"site was in {len(sums[slow])} sums after {len(told[slow])} phases; ends {min(ends.values()):.0f} to {max(ends.values()):.0f} s; "
        f"accuracy {accuracy:.3f}"
    )
    assert lost < 0.05
    assert len(sums[slow]) >= len(told[slow]) - 1, "the last one is handed in while settling"
    assert max(ends.values()) - min(ends.values()) > 120
    assert all(reports[-1].settled for reports in settled)
    assert not any(report.discarded for reports in told for report in reports)
    np.testing.assert_allclose(models, np.broadcast_to(models[0], np.shape(models)), atol=1e-3)  # 16 bits
    assert accuracy > 0.85


def test_a_member_that_crashes_goes_on_with_what_was_kept(tmp_path):
    """At whatever moment a member is killed, what it trained counts once or, if it was in doubt, perhaps not at all."""
    network = cell_network(tmp_path / "net", 3, size=3, rounds=QUICK, more="ring_bits = 32\n")

    async def run():
        async with sites(network, 3) as all_:
            await together(all_)
            victim, *others = all_
            waiting = [await site.round() for site in others]
            assert not any(report.summed for report in waiting)
            assert victim.node in waiting[0].missing
            await victim.peer.cells._saving
            await victim.crash()
            await victim.start()
            assert np.abs(victim.model.reshape(3, ATOMS)[:, 0] - 1 / 3).max() < 1e-6
            # The others' offers have stood all the time.
            report = await victim.round()
            while not report.summed:
                report = await victim.peer.average_vector(victim.model)
            await together(all_)
            reports = await asyncio.gather(*(site.peer.settle(site.model) for site in all_))
            assert all(found[-1].settled for found in reports)
            # On a slow machine one may have trained on while it waited, and partners with nothing left make no sum with it.
            alone = [any(not r.summed and r.unsent for r in found) for found in reports]
            return counted(all_), [site.phase - left for site, left in zip(all_, alone, strict=True)]

    final, phases = on_loop(run())
    assert np.abs(final - final.round()).max() < 1e-3
    for counts, phase in zip(final.round(), phases, strict=True):
        assert phase >= 2
        assert counts[:phase].tolist() == [1] * phase


def test_a_member_that_was_killed_in_mid_round_hands_nothing_in_twice(tmp_path):
    network = cell_network(tmp_path / "net", 4, size=3, rounds=QUICK, more="ring_bits = 32\n")

    async def run():
        async with sites(network, 4) as all_:
            await together(all_)
            victim = all_[0]
            saved, save = asyncio.Event(), victim.peer.cells._file.save

            def save_and_stop(*arguments):
                save(*arguments)
                saved.set()
                raise asyncio.CancelledError  # it is on disk, and no frame has left

            victim.peer.cells._file.save = save_and_stop
            jobs = [asyncio.create_task(site.round()) for site in all_]
            await asyncio.wait_for(saved.wait(), 30)
            jobs[0].cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await jobs[0]
            await victim.crash()
            await asyncio.gather(*jobs[1:])
            await victim.start()
            await together(all_)
            await asyncio.gather(*(site.peer.settle(site.model) for site in all_))
            return counted(all_), all_

    final, all_ = on_loop(run())
    assert np.abs(final - final.round()).max() < 1e-3
    assert final.max() < 1.5, "nothing counts twice"
    assert final[1:, : all_[1].phase].round().all(), "nothing of the others is lost"


def test_links_that_are_cut(tmp_path):
    """Links end at any moment; offers stand, and every phase counts once or was reported as thrown away."""
    network = cell_network(tmp_path / "net", 4, size=3, rounds=QUICK, more="ring_bits = 32\n")
    rng = np.random.default_rng(3)

    async def cut(all_, stop):
        while not stop.is_set():
            await asyncio.sleep(float(rng.uniform(0.05, 0.3)))
            site = all_[int(rng.integers(4))]
            site.peer.transport.cut_off(int(rng.choice([n for n in range(4) if n != site.node])))

    async def run():
        async with sites(network, 4) as all_:
            stop = asyncio.Event()
            enemy = asyncio.create_task(cut(all_, stop))
            for _ in range(12):
                await asyncio.gather(*(site.round() for site in all_))
            stop.set()
            await enemy
            await asyncio.gather(*(met(site.peer, set(range(4))) for site in all_))
            await asyncio.gather(*(site.round() for site in all_))
            reports = await asyncio.gather(*(site.peer.settle(site.model) for site in all_))
            return counted(all_), all_, reports

    final, all_, reports = on_loop(run())
    once = [0.0, 1.0, 4 / 3]  # the last sum may be over three, of whom each counts for a third
    assert np.abs(final[..., None] - once).min(axis=2).max() < 1e-3, "nothing counts twice"
    assert len({site.model.tobytes() for site in all_}) == 1
    for site, ends in zip(all_, reports, strict=True):
        lost = int((final[site.node, : site.phase].round() == 0).sum())
        told = any(report.discarded or report.lost for report in (*site.reports, *ends))
        assert not lost or told


class Spread(Site):
    """A site whose phases leave a mark in each of the four slices of the model."""

    SLICE = 4 * ATOMS

    def __init__(self, network, node):
        super().__init__(network, node, 4 * 4)

    def train(self):
        assert self.phase < ATOMS
        self.model[4 * self.phase + self.node :: self.SLICE] += 1
        self.phase += 1


@pytest.mark.parametrize("told", [(), (0,)], ids=["nobody", "one alone"])
def test_a_member_that_takes_a_sum_and_keeps_the_answer(tmp_path, told):
    """It has a sum over four, tells nobody or one what came of it, and is gone: the others add up by themselves, and nothing that it
    has seen is in their sums over three.
    """
    network = cell_network(tmp_path / "net", 4, size=3, rounds=QUICK, more="ring_bits = 32\n")
    withheld = []

    async def run():
        all_ = [Spread(network, node) for node in range(4)]
        *rest, liar = all_
        try:
            for site in all_:
                await site.start()
            await asyncio.gather(*(met(site.peer, set(range(4))) for site in all_))
            await together(all_)
            before, send = rest[0].model.copy(), liar.peer.transport.send

            async def withhold(payload, recipients, round_, deadline):
                if payload[3] == Kind.CELL_GATHER:
                    withheld.extend(set(recipients) - set(told))
                    recipients = [node for node in recipients if node in told]
                await send(payload, recipients, round_, deadline)

            liar.peer.transport.send = withhold
            while set(withheld) != {0, 1, 2} - set(told):
                await asyncio.gather(*(site.round() for site in all_))
            seen = liar.peer.cells._node.state.common - before
            await liar.peer.close()
            while not np.isclose(
                rest[0].model - before, 1 / 3, atol=1e-3
            ).any():  # until they have gone on by themselves
                await together(rest)
            await asyncio.gather(*(site.peer.settle(site.model) for site in rest))
            return before, seen, rest
        finally:
            await asyncio.gather(*(site.peer.close() for site in all_))

    before, seen, rest = on_loop(run())
    assert len({site.model.tobytes() for site in rest}) == 1
    seen, final = seen[-Spread.SLICE :], (rest[0].model - before)[-Spread.SLICE :]  # it looks after this one
    theirs = np.arange(Spread.SLICE) % 4 < 3
    taken = theirs & (np.abs(seen - 1 / 4) < 1e-3)
    assert taken.sum() >= 3, "it has taken a sum over four"
    assert np.abs(final[taken][:, None] - [0, 1 / 4]).min(axis=1).max() < 1e-3, "in that sum, or in none"
    later = final[theirs & ~taken]
    assert np.abs(later[:, None] - [0, 1 / 4, 1 / 3]).min(axis=1).max() < 1e-3


def test_what_was_told_last_is_lost_with_its_link(tmp_path):
    """A cell that has settled stays until the cells that hear it have what it told them: their links may be down at that moment."""
    network = cell_network(tmp_path / "net", 6, size=3, rounds=QUICK, more="ring_bits = 32\n")
    (teller, *_), hearing = network.roster.plan.cells
    cut = []

    async def run():
        async with sites(network, 6) as all_:
            await asyncio.gather(
                *map(together, ([all_[n] for n in cell] for cell in network.roster.plan.cells))
            )
            transport = all_[teller].peer.transport
            send = transport.send

            async def lose(payload, recipients, round_, deadline):
                (to, *_) = recipients
                if to in hearing and not cut:
                    cut.append(to)
                    transport.cut_off(to)
                else:
                    await send(payload, recipients, round_, deadline)

            transport.send = lose
            return all_, await asyncio.gather(*(site.peer.settle(site.model, wait=20.0) for site in all_))

    all_, reports = on_loop(run())
    assert cut
    assert all(ends[-1].settled for ends in reports)
    models = np.array([site.model for site in all_])
    assert np.abs(models - models[0]).max() < 1e-5


def test_a_full_disk_hands_nothing_in(tmp_path):
    network = cell_network(tmp_path / "net", 3, size=3, rounds=QUICK, more="ring_bits = 32\n")

    async def run():
        async with sites(network, 3) as all_:
            await together(all_)
            victim = all_[0]
            save = victim.peer.cells._file.save

            def fail(*_):
                raise OSError(28, "No space left on device")

            victim.peer.cells._file.save = fail
            with Lines() as log:
                report, *_ = await asyncio.gather(*(site.round() for site in all_))
                assert report.disk == "No space left on device"
                assert not report.summed
                assert log.said("cannot write", "hands nothing in until it can")
                victim.peer.cells._file.save = save
                await together(all_)
                await asyncio.gather(*(site.peer.settle(site.model) for site in all_))
                assert log.said("can write to its folder again")
            return counted(all_), all_

    final, all_ = on_loop(run())
    assert np.abs(final - final.round()).max() < 1e-3
    assert set(final[:, : all_[0].phase].round().ravel().tolist()) == {1.0}


@pytest.mark.parametrize("share", ["", 'sparsifier = "random"\nshare = 0.5\n'])
def test_a_new_site_starts_from_the_common_model(share, tmp_path):
    """One whose folder has no state is given the model that its cell holds."""
    network = cell_network(tmp_path / "net", 4, size=3, rounds=QUICK, more="patience = 1\n" + share)

    async def run():
        async with sites(network, 4) as all_:
            newcomer, *others = all_
            await newcomer.peer.close()
            for _ in range(4):
                await asyncio.gather(*(site.round() for site in others))
            assert others[0].reports[-1].contributors == (2, 3), "it was given up"
            await newcomer.start()
            await met(newcomer.peer, {0, 1, 2, 3})
            reports = await together(all_)
            assert reports[0].contributors == (1, 2, 3)
            held = {site.peer.cells._node.state.common.tobytes() for site in all_}
            assert len(held) == 1

    on_loop(run())


def test_a_newer_roster_counts_from_zero(tmp_path):
    """Partners that have not taken it up yet are in a late round of the old one. A network of years could count beyond what is believed."""
    network = cell_network(tmp_path / "net", 4, size=3, rounds=QUICK)

    async def run():
        async with sites(network, 4) as all_:
            for _ in range(3):
                (last, *_) = await together(all_)
            network.extend(now=datetime.now(UTC), days=60)
            first = await all_[0].round()
            await together(all_)
            return last.round, first.round

    before, first = on_loop(run())
    assert before >= 2
    assert first == 0


def test_a_folder_that_was_set_back_hands_nothing_in_twice(tmp_path):
    """A backup of a member's folder is put back: its partners say so, it throws away what may be in a sum, and the cell goes on."""
    network = cell_network(tmp_path / "net", 4, size=3, rounds=QUICK, more="ring_bits = 32\n")
    backup = tmp_path / "backup"

    async def run():
        async with sites(network, 4) as all_:
            victim, *others = all_
            await together(all_)
            while (await victim.round()).summed:  # what is in no sum yet is in the backup
                pass
            shutil.copytree(victim.folder, backup)
            await asyncio.gather(*(site.round() for site in others))
            await together(all_)
            await together(all_)
            await victim.crash()
            shutil.rmtree(victim.folder)
            shutil.copytree(backup, victim.folder)
            with Lines() as log:
                await victim.start()
                await met(victim.peer, {0, 1, 2, 3})
                await log.says("was set back")
            kept = victim.peer.cells._kept
            assert kept.state.doubt.members == (), "in no sum over any members again"
            assert kept.trained is None
            await together(all_)
            await together(all_)
            await asyncio.gather(*(site.peer.settle(site.model) for site in all_))
            return counted(all_), all_

    final, all_ = on_loop(run())
    assert np.abs(final - final.round()).max() < 1e-3
    assert final.max() < 1.5, "nothing counts twice"
    assert final[1:, : all_[1].phase].round().any(axis=1).all()
    assert final[0, all_[0].phase - 1].round() == 1, "what it trains afterwards counts"


def test_a_folder_that_runs_twice_stops_nobody(tmp_path):
    """A copy of a member's folder runs elsewhere: both are told, nothing counts twice, and the other cell goes on."""
    network = cell_network(tmp_path / "net", 6, size=3, rounds=QUICK, more="ring_bits = 32\n")
    own, other = network.roster.plan.cells
    copy = network.folder / "copy"
    shutil.copytree(network.folder / f"peer-{own[0]}", copy)
    edit(copy, r"listen = .*\n", f'listen = "127.0.0.1:{free_ports(1)}"\n')

    async def run():
        async with sites(network, 6) as all_:
            twin = AsyncPeer.load(copy)
            with Lines() as log:
                try:
                    await twin.start()
                    elsewhere = [site for site in all_ if site.node in other]
                    for _ in range(3):
                        await together(elsewhere)
                    await log.says(f"two processes have the identity of node {own[0]}")
                    await until(
                        lambda: twin.reception.told_twice or all_[own[0]].peer.reception.told_twice, 60
                    )
                finally:
                    await twin.close()
            await together(all_)
            return counted(all_)

    assert on_loop(run()).max() < 2.5, "three members of each of two cells hold it, and nobody twice"
