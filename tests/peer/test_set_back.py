"""Clocks and folders that were set back, and identities that run twice: neighbours know, and say so."""

import asyncio
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import MembershipError, Refusal
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.membership import Membership
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.driver.state import StateFile
from cesar.peer.driver.witness import Witness
from cesar.peer.net.messages import Hello, Seen, Status
from cesar.peer.trust.changes import Consent
from cesar.peer.trust.identity import Identity
from cesar.peer.trust.roster import FILE, Roster
from support.lan import Lines, edit, free_ports, make_network, met, one_round, running
from support.waiting import until

LATER = timedelta(days=40)


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.complete_graph(4))


def models(count):
    return np.random.default_rng(1).normal(size=(count, 300)).astype(np.float32)


def member_of(network, consent="auto"):
    folder = network.folder / "peer-1"
    identity, state = Identity.load(folder), StateFile(folder / "state.json")
    state.change(roster=1)
    return Membership(
        identity, Roster.load(folder / FILE, identity.ca), folder, state, consent=Consent(consent)
    )


# ── clocks ──────────────────────────────────────────────────────────────────────────────────────────────


def test_an_ended_roster_stays_ended_whatever_the_clock_says(network):
    """Neighbours' clocks, the date of the own state and a later signature are each enough."""
    member, now = member_of(network), datetime.now(UTC)
    member.check(now)
    member.clock_of_others = LATER.total_seconds
    with pytest.raises(
        MembershipError, match=r"has ended on .* most neighbours' clocks says .* set the clock"
    ):
        member.check(now)
    member.clock_of_others = lambda: 0.0
    member.check(now)
    state = network.folder / "peer-1" / "state.json"
    os.utime(state, times=(0, (now + LATER).timestamp()))
    with pytest.raises(MembershipError, match=r"the state in .*peer-1, by its date, says"):
        member.check(now)


def test_a_signature_is_evidence_of_the_time(network):
    """Also of a roster that this site has not agreed to: it was signed all the same."""
    member, now = member_of(network, "ask"), datetime.now(UTC)
    later = network.extend(now=now + LATER, days=300).roster
    member.offer(later.raw, "node 2")
    assert member.newer is None
    with pytest.raises(MembershipError, match=r"version 2 of the roster, by the time of its signature, says"):
        member.check(now)


def test_a_clock_that_is_ahead_is_named(network):
    member, now = member_of(network), datetime.now(UTC)
    member.clock_of_others = lambda: -LATER.total_seconds()
    with pytest.raises(MembershipError, match=r"this machine is 960\.0 hours ahead of most neighbours'"):
        member.check(now + LATER)


def test_a_clock_is_wrong_is_said_before_anything_has_ended(network, caplog):
    member, now = member_of(network), datetime.now(UTC)
    member.clock_of_others = lambda: 3600.0
    member.check(now)
    assert "a clock is wrong. The clock of this machine says" in caplog.text


def test_one_neighbour_alone_moves_no_clock(network):
    async def scene():
        async with running(network, [0, 1, 2, 3]) as peers:
            peers[0].neighbours[3].clock = 1e9
            assert abs(peers[0].liveness.clock()) < 60
            peers[0].neighbours[2].clock = 1e9
            assert peers[0].liveness.clock() > 1e8

    on_loop(scene())


def test_a_peer_whose_clock_was_set_back_does_not_average(network):
    """Over TLS: the roster of all has ended by the clocks of the others; only this one's says that it has not."""

    async def scene():
        peers = [AsyncPeer.load(network.folder / f"peer-{i}") for i in range(4)]
        for peer in peers[1:]:
            honest = peer.reception.hello

            def ahead(to=None, honest=honest):
                said = Hello.from_bytes(honest(to))
                return replace(said, time=said.time + (to == 0) * LATER.total_seconds()).to_bytes()

            peer.reception.hello = ahead
        try:
            for peer in peers:
                await peer.start()
            await until(lambda: peers[0].liveness.clock() > 1e6, 60)
            with pytest.raises(MembershipError, match=r"has ended .* most neighbours' clocks"):
                await peers[0].average_vector(models(1)[0])
        finally:
            await asyncio.gather(*(peer.close() for peer in peers))

    on_loop(scene())


# ── folders ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("restarted", [False, True])
def test_a_folder_that_was_set_back_is_noticed(network, restarted):
    """A backup of the state is put back: neighbours have seen later rounds, also if they were restarted, too."""
    state = network.folder / "peer-0" / "state.json"

    async def rounds(count, nodes):
        async with running(network, nodes) as peers:
            for _ in range(count):
                await one_round(peers, models(len(nodes)))

    async def scene():
        await rounds(1, [0, 1, 2, 3])
        old = state.read_bytes()
        others = [1, 2, 3]
        if restarted:
            await rounds(3, [0, 1, 2, 3])
            state.write_bytes(old)
            with Lines() as log:
                await rounds(0, [0, 1, 2, 3])
        else:
            async with running(network, others) as stay:
                async with running(network, [0]) as came:
                    await asyncio.gather(*(met(peer, {0}) for peer in stay))
                    for _ in range(3):
                        await one_round([*came, *stay], models(4))
                state.write_bytes(old)
                with Lines() as log:
                    async with running(network, [0]):
                        await log.says("was set back")
        line = next(line for line in log.lines if "was set back" in line)
        assert str(state.parent) in line
        assert "it says round 1 under version 1" in line
        with Lines() as log:
            async with running(network, [1, 2, 3]):
                assert not log.said("was set back")

    on_loop(scene())


def test_a_neighbour_is_believed_once():
    witness = Witness("a", None)
    seen = Seen(1, 9)
    assert not witness.accuses(1, None, 1, 0)
    assert not witness.accuses(1, Seen(1, 8), 1, 8)
    assert not witness.accuses(1, seen, 2, 0)
    assert witness.accuses(1, seen, 1, 8)
    assert not witness.accuses(1, Seen(7, 9), 1, 8)
    assert witness.accuses(2, seen, 1, 8)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"1": 3}', '{"x": [1, 2]}', '{"1": ["a", 2]}'])
def test_a_damaged_record_is_none(text, tmp_path):
    path = tmp_path / "seen.json"
    path.write_text(text)
    assert Witness("a", path).about(1) in (None, Seen(0, 0))


def test_what_was_seen_is_kept_from_start_to_start(tmp_path):
    path = tmp_path / "seen.json"
    witness = Witness("a", path)
    for place in ((1, 5), (2, 1), (1, 9)):
        witness.said(3, *place)
    witness.save()
    assert Witness("b", path).about(3) == Seen(2, 1)


@pytest.mark.parametrize("said", [3, [1, 2], [1, 2, 3], [-1, 0, True], ["1", 0, False], {"a": 1}])
def test_a_claim_that_cannot_be_is_refused(said):
    with pytest.raises(Refusal, match="cannot be read"):
        Seen.of(said)


# ── the same identity twice ─────────────────────────────────────────────────────────────────────────────


def hello(instance):
    return Hello(
        node=3,
        network="",
        roster=1,
        digest="",
        purpose="train",
        size=None,
        status=Status(),
        time=0.0,
        instance=instance,
    )


def test_a_restart_is_no_second_process():
    witness = Witness("me", None)
    assert [witness.greeted(3, hello(name), "here") for name in "aabbccd"] == [""] * 7
    assert not witness.about(3).twice
    said = witness.greeted(3, hello("b"), "there")
    assert "two processes have the identity of node 3, at there and at here" in said
    assert witness.about(3).twice


def test_the_same_identity_twice_is_named_at_both_ends(network):
    """A copy of a folder runs elsewhere: its neighbours say so, and so do both processes."""
    folder, copy = network.folder / "peer-0", network.folder / "copy-0"
    shutil.copytree(folder, copy)
    edit(copy, r"listen = .*\n", f'listen = "127.0.0.1:{free_ports(1)}"\n')

    async def scene():
        twins = [AsyncPeer.load(folder), AsyncPeer.load(copy)]
        with Lines() as log:
            async with running(network, [1, 2, 3]):
                try:
                    for twin in twins:
                        await twin.start()
                    await log.says("two processes have the identity of node 0", "127.0.0.1")
                    await until(lambda: all(twin.reception.told_twice for twin in twins), 60)
                    assert log.said("was greeted by two processes with this peer's identity")
                finally:
                    await asyncio.gather(*(twin.close() for twin in twins))

    on_loop(scene())
