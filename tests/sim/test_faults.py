"""Crash points: which frames still leave, who crashes, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import networkx as nx
import numpy as np
import pytest

from cesar.errors import ConfigError
from cesar.seeds import SeedTree
from cesar.sim.faults import CrashPoint, Faults, check_crashes, frames_that_leave
from cesar.topology import neighbourhoods
from cesar.wire import Kind

HOODS = neighbourhoods(nx.complete_graph(9))
COORDINATION = {Kind.ANNOUNCE, Kind.RELAY, Kind.GROUP_TERMS}
LEFT = {
    "before_announce": set(),
    "after_announce": {Kind.ANNOUNCE},
    "after_coordination": COORDINATION,
    "during_share": COORDINATION,  # and half of the shares
}


def reached(point, kind, round_=0):
    """Whom a frame of node 4 reaches, which crashes at that point."""
    leaves = frames_that_leave({4: point}, round_, HOODS, SeedTree(1))
    return {to for to in HOODS if to != 4 and leaves(4, to, SimpleNamespace(kind=kind))}


@pytest.mark.parametrize("point", get_args(CrashPoint))
@pytest.mark.parametrize("kind", Kind)
def test_a_crash_cuts_a_round_off_at_its_point(point, kind):
    everybody = set(HOODS) - {4}
    found = reached(point, kind)
    if point == "during_share" and kind in (Kind.SHARE, Kind.PLAIN_SHARE):
        assert len(found) == 4
        assert found == reached(point, kind)
        assert any(reached(point, kind, round_) != found for round_ in range(1, 5))
    else:
        assert found == (everybody if kind in LEFT[point] else set())


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
