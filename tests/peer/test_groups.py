"""Real peers in fixed groups: who is away silences its groups and nobody else, and people are told."""

from __future__ import annotations

import asyncio
import contextlib
import re

import networkx as nx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cesar.errors import ConfigError
from cesar.peer.check import Check
from cesar.peer.peer import on_loop
from cesar.peer.runtime import AsyncPeer
from cesar.peer.status import _Metrics, _page, snapshot
from cesar.wire import Kind
from support.lan import Lines, make_network, met, one_round, running

SIZE, PEERS, AWAY = 60, 10, 4
GRAPH = nx.circulant_graph(PEERS, [1, 2])
METHOD = 'name = "secagg"\ngroup_size = 2\nring_bits = 32'


def models(seed=1):
    return np.random.default_rng(seed).normal(size=(PEERS, SIZE)).astype(np.float32)


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", GRAPH, METHOD)


def expected(network, before, gone=()):
    """New models: everybody's own and all whole groups; and who is in each."""
    new, there = before.copy(), {}
    for r in range(PEERS):
        there[r] = sorted(
            node for group in network.roster.groups[r] for node in group if not set(group) & set(gone)
        )
        new[r] = before[[r, *there[r]]].mean(axis=0, dtype=np.float64)
    return new, there


def check(network, before, after, reports, peers, gone=()):
    """Every report and model is what whole groups give."""
    new, there = expected(network, before, gone)
    for peer, row, report in zip(peers, after, reports, strict=True):
        assert list(report.contributors) == there[peer.id]
        np.testing.assert_allclose(row, new[peer.id], atol=1e-6)


def test_a_death_in_mid_round_costs_its_groups_one_round_and_nobody_else_anything(network):
    async def scene():
        everybody = list(range(PEERS))
        async with running(network, everybody) as peers:
            before = models()
            victim, dead, send = peers[AWAY], asyncio.Event(), peers[AWAY].transport.send

            async def dies(payload, *rest):
                if payload[3] == Kind.SHARE:
                    dead.set()
                    await asyncio.Event().wait()
                await send(payload, *rest)

            victim.transport.send = dies
            after = before.copy()
            tasks = [
                asyncio.ensure_future(peer.average_vector(row))
                for peer, row in zip(peers, after, strict=True)
            ]
            await dead.wait()
            tasks[AWAY].cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await tasks[AWAY]
            await victim.transport.close()
            reports = await asyncio.gather(*(tasks[i] for i in everybody if i != AWAY))
            rest = [peers[i] for i in everybody if i != AWAY]
            check(network, before, np.delete(after, AWAY, 0), reports, rest, gone=[AWAY])
            for peer, report in zip(rest, reports, strict=True):
                assert (report.lost > 0) is GRAPH.has_edge(peer.id, AWAY)
                assert report.silent == (), (
                    "it had announced itself: the sum was lost, nobody was asked to be silent"
                )
            victim._locked.close()
            again = AsyncPeer.load(network.folder / f"peer-{AWAY}")
            try:
                await again.start()
                await asyncio.gather(*(met(peer, set(everybody)) for peer in (*rest, again)))
                together = sorted((*rest, again), key=lambda peer: peer.id)
                before = models(2)
                after = before.copy()
                reports = await one_round(together, after)
                check(network, before, after, reports, together)
            finally:
                await again.close()

    on_loop(scene())


def test_who_is_away_for_long_silences_exactly_its_groups(network):
    async def scene():
        rest = [i for i in range(PEERS) if i != AWAY]
        with Lines() as log:
            async with running(network, rest) as peers:
                for t in range(3):
                    before = models(t)
                    after = before.copy()
                    reports = await one_round(peers, after[rest])
                    _, there = expected(network, before, [AWAY])
                    for peer, report in zip(peers, reports, strict=True):
                        assert list(report.contributors) == there[peer.id]
                        silent = [group for group in network.roster.groups[peer.id] if AWAY in group]
                        assert report.silent == tuple((group, (AWAY,)) for group in silent)
                told(network, peers)
                lines = [line for line in log.lines if f"waits for {AWAY}, missing since round 0" in line]
                assert len(lines) == len(GRAPH[AWAY]), "once each, not every round"
                again = AsyncPeer.load(network.folder / f"peer-{AWAY}")
                try:
                    await again.start()
                    together = sorted((*peers, again), key=lambda peer: peer.id)
                    await asyncio.gather(*(met(peer, set(range(PEERS))) for peer in together))
                    reports = await one_round(together, models(9))
                    assert all(report.silent == () for report in reports)
                    assert sum("is complete again after 3 round(s)" in said for said in log.lines) == 4
                    assert all(not peer.waiting.groups for peer in together)
                finally:
                    await again.close()

    on_loop(scene())


def told(network, peers):
    """What people see of it, at a neighbour and at one who has nothing to do with it."""
    near = next(peer for peer in peers if GRAPH.has_edge(peer.id, AWAY))
    far = next(peer for peer in peers if not GRAPH.has_edge(peer.id, AWAY))
    group = next(group for group in network.roster.groups[near.id] if AWAY in group)
    words = "{" + ", ".join(map(str, group)) + "}"
    page = _page(snapshot(near))
    assert f"Group {words} waits for {AWAY}, missing since round 0." in page
    assert "waits for" not in _page(snapshot(far))
    heard = " and ".join("{" + ", ".join(map(str, one)) + "}" for one in network.roster.groups[far.id])
    assert f"Hears {heard}: sums over whole groups" in _page(snapshot(far))
    metrics = {}
    for peer in (near, far):
        registry = CollectorRegistry()
        registry.register(_Metrics(peer))
        metrics[peer] = generate_latest(registry).decode()
    members = " ".join(map(str, group))
    assert f'cesar_group_waiting_since{{group="{members}",missing="{AWAY}"}} 0.0' in metrics[near]
    assert "cesar_groups_waiting 1.0" in metrics[near]
    assert "cesar_groups_waiting 0.0" in metrics[far]
    assert "cesar_group_waiting_since{" not in metrics[far]


def test_a_check_names_the_group_that_waits(network):
    async def scene():
        rest = [i for i in range(PEERS) if i != AWAY]
        async with running(network, rest) as peers:
            for _ in range(2):
                await one_round(peers, models()[rest])
        near = next(i for i in rest if GRAPH.has_edge(i, AWAY))
        group = next(group for group in network.roster.groups[near] if AWAY in group)
        checks = [Check(network.folder / f"peer-{i}", 3.0) for i in rest]
        findings = dict(zip(rest, await asyncio.gather(*(one.run() for one in checks)), strict=True))
        words = "{" + ", ".join(map(str, group)) + "}"
        (line,) = [finding.text for finding in findings[near] if finding.item == "group"]
        assert line.startswith(f"group {words} waits for {AWAY}: ")
        assert f"when this peer ran last, {AWAY} was missing since round 0" in line
        far = next(i for i in rest if not GRAPH.has_edge(i, AWAY))
        assert not [finding for finding in findings[far] if finding.item == "group"]
        whole = [finding.text for finding in findings[far] if finding.item == "secure round" and finding.ok]
        assert whole, findings[far]

    on_loop(scene())


def test_the_others_go_on_after_so_many_rounds_if_they_may(tmp_path):
    """With groups of three: two are left, and their sum is told without the third."""
    graph = nx.complete_graph(7)
    network = make_network(
        tmp_path / "net", graph, 'name = "secagg"\ngroup_size = 3\nring_bits = 32\nregroup_after = 2'
    )

    async def scene():
        rest = [i for i in range(7) if i != AWAY]
        with Lines() as log:
            async with running(network, rest) as peers:
                for t in range(4):
                    reports = await one_round(peers, models(t)[rest])
                    for peer, report in zip(peers, reports, strict=True):
                        assert len(report.contributors) == (3 if t < 2 else 5)
                        assert [missing for _, missing in report.silent] == [(AWAY,)]
                        assert [wait.goes_on for wait in peer.waiting.groups] == [t >= 2]
                for words in ("waits for", "goes on without"):
                    lines = [line for line in log.lines if f"{words} {AWAY}, missing since round 0" in line]
                    assert len(lines) == len(rest), "once each, not every round"

    on_loop(scene())


def test_settling_does_not_bring_sums_closer_together(tmp_path):
    """A peer that comes back when the others have gone on without it stays out, though another session begins."""
    graph = nx.complete_graph(7)
    network = make_network(
        tmp_path / "net", graph, 'name = "secagg"\ngroup_size = 3\nring_bits = 32\nregroup_after = 3'
    )

    async def scene():
        rest = [i for i in range(7) if i != AWAY]
        async with running(network, rest) as peers:
            for t in range(4):
                reports = await one_round(peers, models(t)[rest])
            assert all(len(report.contributors) == 5 for report in reports), "they have gone on without it"
            again = AsyncPeer.load(network.folder / f"peer-{AWAY}")
            try:
                await again.start()
                everybody = sorted((*peers, again), key=lambda peer: peer.id)
                await asyncio.gather(*(met(peer, set(range(7))) for peer in everybody))
                rows = models(7)
                await asyncio.gather(*(peer.average_vector(rows[peer.id]) for peer in everybody))
                settled = await asyncio.gather(*(peer.settle(rows[peer.id], rounds=3) for peer in everybody))
                for peer, reports in zip(everybody, settled, strict=True):
                    if peer is not again:
                        counts = [len(report.contributors) for report in reports]
                        assert counts == [3, 6, 6], (
                            "three rounds after the last sum without it, and not before"
                        )
                        assert reports[0].silent[0][1] == ()
            finally:
                await again.close()

    on_loop(scene())


def test_a_restart_of_everybody_does_not_bring_sums_closer_together(tmp_path):
    """Nobody is left who remembers; what was in the last sums is on disk, before anything of them leaves."""
    graph = nx.complete_graph(7)
    network = make_network(
        tmp_path / "net", graph, 'name = "secagg"\ngroup_size = 3\nring_bits = 32\nregroup_after = 3'
    )
    everybody = list(range(7))
    rest = [i for i in everybody if i != AWAY]

    async def scene():
        async with running(network, everybody) as peers:
            await one_round(peers, models()[:7])
        async with running(network, rest) as peers:
            counts = [len((await one_round(peers, models(t)[rest]))[0].contributors) for t in range(3)]
            assert counts == [3, 3, 5], "whole groups, and after three rounds the two that are left"
        async with running(network, everybody) as peers:
            for t, count in enumerate([3, 3, 6]):
                reports = await one_round(peers, models(t)[:7])
                assert len(reports[0].contributors) == count
                silent = {
                    report.silent[0][1] for i, report in enumerate(reports) if i != AWAY and report.silent
                }
                assert silent == ({()} if count == 3 else set())

    on_loop(scene())


def test_a_record_of_sums_that_is_damaged(tmp_path):
    network = make_network(
        tmp_path / "net",
        nx.complete_graph(7),
        'name = "secagg"\ngroup_size = 3\nring_bits = 32\nregroup_after = 3',
    )
    (network.folder / "peer-0" / "sums.json").write_text('[[1, [2, 3], "x", [2]]]')

    async def scene():
        with pytest.raises(ConfigError, match="sums with and without a member could come too close"):
            await AsyncPeer.load(network.folder / "peer-0").start()

    on_loop(scene())


def test_another_layout_is_refused_by_name(network):
    async def scene():
        with Lines() as log:
            async with running(network, [0, 1, 2]) as peers:
                rows = models()
                jobs = [
                    peer.average_vector(row, tensors)
                    for peer, row, tensors in zip(peers, rows, ((SIZE,), (SIZE,), (20, 40)), strict=False)
                ]
                await asyncio.gather(*jobs)
                await log.says("its model has 1 tensor (layout", "and this peer's has 2 tensors (layout")
                assert not peers[2].liveness.up
                assert 2 not in {*peers[0].liveness.up, *peers[1].liveness.up}

    on_loop(scene())


def test_names_of_sites_are_said(network):
    from cesar.peer import words  # noqa: PLC0415

    roster = network.roster
    object.__setattr__(roster.members[AWAY], "name", "clinic")
    r = next(iter(GRAPH[AWAY]))
    assert re.search(rf"\b{AWAY} clinic\b", words.hears(roster, r))
    assert words.listed(roster, (1, 2, AWAY)) == f"1, 2 and {AWAY} clinic"
    assert words.listed(roster, (99,)) == "99"


def test_a_group_that_is_whole_again_says_why_it_still_waits(network):
    from cesar.peer.waiting import Wait  # noqa: PLC0415

    said = Wait((0, 1, 2), (), 7).told(network.roster)
    assert "is whole again and waits" in said
    assert said.endswith("since round 7")
