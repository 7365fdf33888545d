"""Sixteen members of four cells, as processes, that are killed, stopped and cut off while they train.

Every local phase can be told apart in every model (`support.cell_worker`). So it is seen that nothing counts twice, that members of a
cell hold the same bits, and that nothing is missing but what a site lost in a crash or a cell threw away in doubt, which is counted.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time

import numpy as np
import pytest

from support import cell_worker
from support.cell_fleet import Cells
from support.lan import Switchboard, cell_network, no_namespaces
from support.waiting import wait_until

ROUNDS = "floor = 1.0\nceiling = 5.0\nsettle_minutes = 3.0"
SIZE = 4


def play(fleet, board, rounds, draw):
    """Kill, stop and cut until every cell has added up so often."""
    cells = fleet.network.roster.plan.cells
    away, cuts, stops, seconds = {}, 0, 0, 240
    begin = time.monotonic()
    wait_until(lambda: fleet.done(cells) >= 3, seconds, fleet.tails)
    while (done := fleet.done(cells)) < rounds:
        for node in [node for node, since in away.items() if time.monotonic() > since + 2.0]:
            fleet.start(node)
            del away[node]
        present = [node for node in fleet.nodes if node not in away]
        if len(away) < 2:
            victim = draw.choice(present)
            fleet.kill(victim)
            away[victim] = time.monotonic()
            present.remove(victim)
        if draw.random() < 0.15:
            victim = draw.choice(present)
            fleet.signal(victim, signal.SIGSTOP)
            try:
                time.sleep(draw.choice([0.5, 7.0]))
            finally:
                fleet.signal(victim, signal.SIGCONT)
            stops += 1
        if board and done > (cuts + 1) * rounds / 4:
            board.cut()
            time.sleep(10.0)
            board.heal()
            cuts += 1
        for node in away:
            fleet.start(node)
        away.clear()
        wait_until(lambda done=done: fleet.done(cells) >= done + 3, seconds, fleet.tails)
    return stops, cuts, time.monotonic() - begin


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [12, 500])
def test_nothing_is_lost_and_nothing_counts_twice(rounds, tmp_path):
    why = no_namespaces()
    with contextlib.ExitStack() as stack:
        board = None if why else stack.enter_context(Switchboard([*range(8)], [*range(8, 16)]))
        network = cell_network(
            tmp_path / "net", 16, size=SIZE, rounds=ROUNDS, more="ring_bits = 32\n", addresses=board and board.addresses
        )  # fmt: skip
        fleet = stack.enter_context(Cells(network, namespaces=board.names if board else {}))
        stops, cuts, seconds = play(fleet, board, rounds, random.Random(8))
        fleet.finish(300)
    checked, again = fleet.check_models(SIZE)
    trained, crashed, thrown, faded = fleet.check_account()
    print(
        f"{fleet.done(network.roster.plan.cells)} sums of every cell in {seconds:.0f} s; {fleet.kills} kills, {stops} stops, {cuts} "
        f"cuts ({why}); {checked} models compared, {again} with something that was handed in again; {trained} local phases, {crashed} lost in crashes, {thrown} thrown away in doubt, {faded} faded"
    )
    assert checked > 4 * rounds
    assert again < checked / 4


@pytest.mark.slow
def test_a_member_that_lies_in_all_that_it_says(tmp_path):
    """It can hold up its own cell. It stops no other, makes nobody fail, and no model infinite."""
    liar, rounds = 3, 60
    network = cell_network(
        tmp_path / "net", 16, size=SIZE, rounds="floor = 0.5\nceiling = 3.0\nsettle_minutes = 1.0"
    )
    cells = network.roster.plan.cells
    beside = [cell for cell in cells if liar not in cell]
    begin = time.monotonic()
    with Cells(network, liars=(liar,)) as fleet:
        # Its own cell is held up, so it has little to say: the others may be quick.
        wait_until(lambda: fleet.done(beside) >= rounds and fleet.lies(liar) > 30, 900, fleet.tails)
        fleet.finish(300)
    seconds = time.monotonic() - begin
    checked, _ = fleet.check_models(SIZE)
    logs = "".join((fleet.folder(i) / "log").read_text() for i in fleet.nodes)
    assert "made this peer fail" not in logs
    assert "(fault)" not in logs
    for node in fleet.nodes:
        assert np.isfinite(np.load(fleet.folder(node) / cell_worker.FINAL)).all()
    lies = fleet.lies(liar)
    own = next(cell for cell in cells if liar in cell)
    print(
        f"{fleet.done(beside)} sums of the other cells in {seconds:.0f} s, {fleet.done([own])} of the liar's; {lies} lies, "
        f"{logs.count(f'frame from node {liar}')} refusals logged; {checked} models compared"
    )
