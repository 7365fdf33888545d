"""A network's groups: signed, kept where neighbours stay, drawn with care where they change."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import networkx as nx
import pytest

from cesar.errors import ConfigError, PrivacyError
from cesar.grouping import check_plan, exposed, groups
from cesar.linear import solve
from cesar.peer import regrouping
from cesar.peer.claims import Request
from cesar.peer.config import PeerConfig
from cesar.peer.identity import Identity, make_keys
from cesar.peer.membership import Membership
from cesar.peer.regrouping import Leak, told
from cesar.peer.roster import FILE, Roster
from cesar.peer.state import StateFile
from support.lan import edit, make_network

METHOD = 'name = "cesar"\nsparsifier = "random"\nshare = 0.3\ngroup_size = 3\nring_bits = 32'
NOW = datetime.now(UTC)


def grown(network, tmp_path, neighbours):
    """The network with node 50 in it."""
    request = Request(csr=make_keys(tmp_path / "site", "lan", 50), address="127.0.0.1:7399")
    return network.add(request, neighbours, now=NOW, days=30)


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.circulant_graph(16, [1, 2, 3]), METHOD)


def test_peers_use_the_groups_that_were_signed(network):
    roster = network.roster
    assert (roster.group_size, roster.draws) == (3, {})
    assert roster.groups == groups(roster.graph, 3, network=roster.network_id)
    assert PeerConfig.load(network.folder / "peer-5").method(roster).groups == roster.groups
    signed = Roster.sign(
        network.authority,
        roster.members.values(),
        roster.graph,
        network_id=roster.network_id,
        version=2,
        now=NOW,
        settings=roster.settings,
        draws={4: 7, 5: 0},
    )
    assert json.loads(signed.raw)["roster"]["draws"] == {"4": 7}
    assert signed.groups[4] != roster.groups[4]
    assert {r: found for r, found in signed.groups.items() if r != 4} == {
        r: found for r, found in roster.groups.items() if r != 4
    }
    assert PeerConfig.load(network.folder / "peer-5").method(signed).groups == signed.groups


def test_a_roster_with_other_groups_than_the_settings_is_refused(network, caplog):
    folder = network.folder / "peer-1"
    identity, config = Identity.load(folder), PeerConfig.load(folder)
    state = StateFile(folder / "state.json")
    place = Membership(identity, Roster.load(folder / FILE, identity.ca), folder, state, config.method)
    roster = network.roster
    other = Roster.sign(
        network.authority,
        roster.members.values(),
        roster.graph,
        network_id=roster.network_id,
        version=2,
        now=NOW,
        settings={**roster.settings, "group_size": 2},
    )
    place.offer(other.raw, "node 2")
    assert place.newer is None
    assert (
        "signed for other settings than those of peer.toml: group_size is 2 there and 3 here" in caplog.text
    )
    edit(folder, "group_size = 3", "masks = 1")
    with pytest.raises(ConfigError, match=r"group_size is 3 there and None here"):
        PeerConfig.load(folder).method(roster)


def test_draws_that_do_not_stop_colluders_are_refused(tmp_path):
    graph = nx.random_regular_graph(6, 16, seed=3)
    network = make_network(tmp_path / "net", graph, METHOD + "\ncollusion = 2")
    roster = network.roster
    check_plan(roster.graph, roster.groups, 2)
    config = PeerConfig.load(network.folder / "peer-0")
    assert config.method(roster).groups == roster.groups

    def drawn(draws):
        return groups(graph, 3, network=roster.network_id, draws=draws)

    def leaks(draws):
        table = drawn(draws)
        return any(exposed(table, (i, j)) for i in graph for j in graph if i < j)

    bad = next(draws for draw in range(1, 500) if leaks(draws := {r: draw + r for r in graph}))
    signed = Roster.sign(
        network.authority,
        roster.members.values(),
        roster.graph,
        network_id=roster.network_id,
        version=2,
        now=NOW,
        settings=roster.settings,
        draws=bad,
    )
    with pytest.raises(
        PrivacyError, match=r"the groups do not stop 2 colluders: nodes .* together can compute"
    ):
        config.method(signed)


def test_whoever_keeps_its_neighbours_keeps_its_groups(network, tmp_path):
    old = network.roster
    new = grown(network, tmp_path, (2, 7, 11, 14)).roster
    assert new.version == 2
    for r in old.graph:
        assert (new.groups[r] == old.groups[r]) == (r not in (2, 7, 11, 14))
    assert {node for group in new.groups[7] for node in group} == {*old.graph[7], 50}


def brute_force(old, new, r):
    """Whom a receiver can solve for from all sums that it has ever seen, over the rationals."""
    return set(solve([frozenset(group) for group in {*old.groups.get(r, ()), *new.groups.get(r, ())}]))


def test_a_change_says_whom_it_gives_away(network, tmp_path):
    changed = grown(network, tmp_path, (2, 7, 11, 14))
    found = {(leak.coalition, leak.node) for leak in changed.leaks}
    expected = {
        ((r,), node) for r in changed.roster.graph for node in brute_force(network.roster, changed.roster, r)
    }
    assert found == expected
    assert {((r,), 50) for r in (2, 7, 11, 14)} == expected, (
        "the newcomer, and by the choice of draws nobody else"
    )
    after = changed.remove(50, now=NOW)
    assert {((r,), 50) for r in (2, 7, 11, 14)} == {(leak.coalition, leak.node) for leak in after.leaks}


def test_the_draw_that_exposes_least_is_taken(network, tmp_path, monkeypatch):
    """With one draw to choose from, more is given away somewhere than with many."""
    few = many = 0
    monkeypatch.setattr(
        regrouping, "check_plan", lambda *_: None
    )  # this network was not drawn against colluders
    for neighbours in ((1, 5, 9), (0, 3, 6, 9), (2, 3, 4, 5, 6)):
        graph = nx.Graph(network.roster.graph)
        graph.add_edges_from((50, i) for i in neighbours)
        many += len(regrouping.redraw(network.roster, graph, 3, 2, {})[1])
        with monkeypatch.context() as alone:
            alone.setattr(regrouping, "TRIES", 1)
            few += len(regrouping.redraw(network.roster, graph, 3, 2, {})[1])
    assert many < few


def test_new_certificates_change_no_group(network, tmp_path):
    request = Request(csr=make_keys(tmp_path / "again", "lan", 3))
    renewed = network.renew(request, now=NOW, days=30)
    assert renewed.roster.groups == network.roster.groups
    assert renewed.leaks == ()


def test_in_words():
    leaks = [Leak((4,), 9), Leak((5,), 9), Leak((6,), 2), Leak((1, 3), 7)]
    assert told(leaks, lambda node: f"node {node}") == [
        "after this change node 4, node 5 can each compute node 9's value from sums before and after",
        "after this change node 6 can compute node 2's value from sums before and after",
        "after this change node 1 and node 3 together can compute node 7's value from sums before and after",
    ]
