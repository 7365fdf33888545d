"""Crash points: which frames still leave, who crashes, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.graph.neighbourhood import neighbourhoods
from cesar.methods.cells import Cells
from cesar.protocol.wire import Kind
from cesar.sim.faults import CrashPoint, Faults, cell_fates, check_crashes, frames_that_leave

HOODS = neighbourhoods(nx.complete_graph(9))
COORDINATION = {Kind.ANNOUNCE, Kind.RELAY}
LEFT = {
    "before_announce": set(),
    "after_announce": {Kind.ANNOUNCE},
    "after_coordination": COORDINATION,
    "during_share": COORDINATION,  # and half of the shares
}
IN_CELLS = [kind for kind in Kind if kind.name.startswith("CELL_")]
CATCHING_UP = {Kind.CELL_MISSED, Kind.CELL_MODEL, Kind.CELL_VOUCH}
BEFORE_SCATTER = {Kind.CELL_AGREE, *CATCHING_UP}
LEFT_IN_CELLS = {  # all of these, and half of those
    "before_announce": (set(), None),
    "after_announce": ({Kind.CELL_AGREE}, None),
    "after_coordination": (BEFORE_SCATTER, None),
    "during_share": (BEFORE_SCATTER, Kind.CELL_SCATTER),
    "after_scatter": ({*BEFORE_SCATTER, Kind.CELL_SCATTER}, None),
    "during_gather": (
        {*BEFORE_SCATTER, Kind.CELL_SCATTER, Kind.CELL_OFFER, Kind.CELL_VOTE, Kind.CELL_EXCHANGE},
        Kind.CELL_GATHER,
    ),
}


def reached(point, kind, round_=0):
    """Whom a frame of node 4 reaches, which crashes at that point."""
    leaves = frames_that_leave({4: point}, round_, HOODS, SeedTree(1))
    return {to for to in HOODS if to != 4 and leaves(4, to, SimpleNamespace(kind=kind))}


@pytest.mark.parametrize("point", LEFT)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in IN_CELLS])
def test_a_crash_cuts_a_round_off_at_its_point(point, kind):
    everybody = set(HOODS) - {4}
    found = reached(point, kind)
    if point == "during_share" and kind in (Kind.SHARE, Kind.PLAIN_SHARE):
        assert len(found) == 4
        assert found == reached(point, kind)
        assert any(reached(point, kind, round_) != found for round_ in range(1, 5))
    else:
        assert found == (everybody if kind in LEFT[point] else set())


@pytest.mark.parametrize("point", sorted(set(get_args(CrashPoint)) - set(LEFT)))
def test_points_of_cells_are_refused_elsewhere(point):
    with pytest.raises(ConfigError, match=f"node 4 cannot crash {point}: that is for cells"):
        reached(point, Kind.SHARE)


@pytest.mark.parametrize("point", get_args(CrashPoint))
def test_a_crash_cuts_a_round_of_cells_off_at_its_point(point):
    """Frames leave up to the point, half of those of its phase, and nothing of a later phase comes in."""
    plan = Cells(size=9).plan(9)
    places = {node: plan.place(node) for node in range(9)}
    everybody, (whole, half) = set(places) - {4}, LEFT_IN_CELLS[point]
    for round_ in range(3):
        leaves, arrives = cell_fates({4: point}, round_, places, SeedTree(1))
        for kind in IN_CELLS:
            frame = SimpleNamespace(kind=kind)
            found = {to for to in everybody if leaves(4, to, frame)}
            assert len(found) == (8 if kind in whole else 4 if kind is half else 0), kind
            assert all(arrives(a, 4, frame) == (kind in whole) for a in everybody)
            assert all(
                leaves(a, b, frame) and arrives(a, b, frame) for a in everybody for b in everybody - {a}
            )


def test_others_are_not_touched():
    leaves = frames_that_leave({4: "before_announce"}, 0, HOODS, SeedTree(1))
    assert all(leaves(3, to, SimpleNamespace(kind=kind)) for to in HOODS for kind in Kind)


def test_faults_come_at_their_rate_and_again_for_the_same_seed():
    faults = Faults(rate=0.2, point="during_share")
    drawn = [faults.draw(3, round_, 500) for round_ in range(20)]
    assert np.mean([len(crashes) / 500 for crashes in drawn]) == pytest.approx(0.2, abs=0.02)
    assert {point for crashes in drawn for point in crashes.values()} == {"during_share"}
    assert drawn == [faults.draw(3, round_, 500) for round_ in range(20)]
    assert drawn[0] != drawn[1] != faults.draw(4, 1, 500)
    assert Faults().draw(3, 0, 500) == {}


@pytest.mark.parametrize(
    "crashes, why",
    [({1: "at lunch"}, "unknown crash point"), ({9: "before_announce"}, "node 9 cannot crash")],
)
def test_crashes_that_cannot_happen_are_refused(crashes, why):
    with pytest.raises(ConfigError, match=why):
        check_crashes(crashes, 9)
