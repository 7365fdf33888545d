"""One member of a cell in trouble: a full disk, a line of 1 kB/s, a clock that jumps. Others go on, and nothing is lost in silence."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np

from cesar.peer.api.peer import on_loop
from support import cell_worker
from support.cell_fleet import Cells
from support.cell_sites import QUICK, counted, sites, together
from support.disk import full, small_disk
from support.lan import Lines, cell_network, edit, free_ports
from support.waiting import wait_until

EXACT = "ring_bits = 32\n"


async def go_on(victims, others, rounds):
    """The other cell adds up this often, while the victims' cell trains as well."""
    ended = asyncio.Event()

    async def train(site):
        while not ended.is_set():
            await site.round()

    jobs = [asyncio.create_task(train(site)) for site in victims]
    try:
        for _ in range(rounds):
            await together(others)
    finally:
        ended.set()
        await asyncio.gather(*jobs)


async def settle(all_):
    return await asyncio.gather(*(site.peer.settle(site.model) for site in all_))


def check(all_, reports):
    """All models are alike, and every phase is in them, or its own site has reported that it was thrown away."""
    assert all(ends[-1].settled for ends in reports)
    models = np.array([site.model for site in all_])
    assert np.abs(models - models[0]).max() < 1e-5
    final = counted(all_)
    assert final.max() < 2.5, "three members of each of two cells hold it, and nobody twice"
    for site, ends in zip(all_, reports, strict=True):
        lost = int((final[site.node, : site.phase] < 1e-3).sum())
        told = sum(report.discarded**2 for report in (*site.reports, *ends))
        assert lost <= round(told), (site.node, lost, told)


def test_a_disk_that_is_full(tmp_path):
    """The member trains alone and says so; what it has trained is in the next sum when there is room again."""
    network = cell_network(tmp_path / "net", 6, size=3, rounds=QUICK, more=EXACT)
    own, other = network.roster.plan.cells

    async def run(disk):
        edit(network.folder / f"peer-{own[0]}", r"\[peer\]", f'[peer]\nstate = "{disk}"')
        async with sites(network, 6) as all_:
            victims, others = ([all_[n] for n in cell] for cell in (own, other))
            await together(all_)
            with Lines() as log:
                with full(disk):
                    await go_on(victims, others, 3)
                    assert all_[own[0]].reports[-1].disk == "No space left on device"
                    assert not any(site.reports[-1].summed for site in victims)
                assert log.said(f"node {own[0]} cannot write", "hands nothing in until it can")
                await together(victims)
                assert log.said("can write to its folder again")
            check(all_, await settle(all_))
            return sum(report.discarded for site in all_ for report in site.reports)

    with small_disk(tmp_path / "disk") as disk:
        assert on_loop(run(disk)) == 0, "nothing had left, so that nothing is in doubt"


class Line:
    """A port that passes on to another; `rate` bytes in a second each way, once it is set."""

    def __init__(self):
        self.rate = None

    async def serve(self, port, target):
        self._server = await asyncio.start_server(
            lambda reader, writer: self._connected(reader, writer, target), "127.0.0.1", port
        )

    async def _connected(self, reader, writer, target):
        there, sink = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(self._pass_on(reader, sink), self._pass_on(there, writer))

    async def _pass_on(self, source, sink):
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await source.read(1 << 16 if self.rate is None else 100):
                if self.rate is not None:
                    await asyncio.sleep(len(data) / self.rate)
                sink.write(data)
                await sink.drain()
        sink.close()


def test_a_partner_at_one_kilobyte_in_a_second(tmp_path):
    """Its cell cannot add up in time and says whom it waits for; the other one goes on, and nothing is lost when the line is better."""
    network = cell_network(tmp_path / "net", 6, size=3, rounds=QUICK, more=EXACT)
    slow = max(cell[-1] for cell in network.roster.plan.cells)  # all others dial it
    own, other = sorted(network.roster.plan.cells, key=lambda cell: slow not in cell)
    address = network.roster.members[slow].address
    port, behind = int(address.partition(":")[2]), free_ports(1)
    edit(network.folder / f"peer-{slow}", r"listen = .*\n", f'listen = "127.0.0.1:{behind}"\n')

    async def run():
        line = Line()
        await line.serve(port, behind)
        async with sites(network, 6, more=9_000) as all_:
            victims, others = ([all_[n] for n in cell] for cell in (own, other))
            await together(all_)
            with Lines() as log:
                line.rate = 1000
                await go_on(victims, others, 6)
                assert not all(site.reports[-1].summed for site in victims)
                line.rate = None
                partners = [site for site in victims if site.node != slow]
                assert any(slow in report.missing for site in partners for report in site.reports)
                assert log.said("not added up yet, waits for node(s)")
                await together(victims)
            check(all_, await settle(all_))
            line._server.close()

    on_loop(run())


def test_a_clock_that_jumps(tmp_path):
    """An hour back and forth changes nothing. Beyond the end of the roster the member stops and says why; its cell goes on when it is back."""
    network = cell_network(
        tmp_path / "net", 6, size=3, rounds="floor = 0.5\nceiling = 3.0\nsettle_minutes = 1.0", more=EXACT
    )
    own, other = cells = network.roster.plan.cells
    victim = own[0]
    clock = network.folder / f"peer-{victim}" / cell_worker.CLOCK

    with Cells(network, clocks=(victim,)) as fleet:

        def more(of):
            done = fleet.done(of)
            wait_until(lambda: fleet.done(of) >= done + 3, 120, fleet.tails)

        more(cells)
        for seconds in (3600, -3600):
            clock.write_text(str(seconds))
            more(cells)
        clock.write_text(str(40 * 24 * 3600))
        fleet.processes[victim].join(60)
        assert fleet.processes[victim].exitcode == 1
        more([other])
        clock.write_text("0")
        fleet.start(victim)
        more(cells)
        fleet.finish(120)
    fleet.check_models(3)
    fleet.check_account()
    log = (fleet.folder(victim) / "log").read_text()
    assert "has ended on" in log
    assert "The clock of this machine is 960.0 hours ahead of most neighbours'" in log
    assert "a clock is wrong" in log, "an hour is said, too"
