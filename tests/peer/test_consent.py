"""Which changes of the roster wait for a site's agreement: by default those of cells; a removal counts at once."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import networkx as nx
import pytest

from cesar.base.errors import ConfigError
from cesar.peer.driver.membership import Membership, newest
from cesar.peer.driver.state import StateFile
from cesar.peer.trust import changes
from cesar.peer.trust.certificates import Request
from cesar.peer.trust.changes import Consent
from cesar.peer.trust.config import PeerConfig
from cesar.peer.trust.identity import Identity, make_keys, renewal
from cesar.peer.trust.member import Member, read_entry, write_entry
from cesar.peer.trust.roster import FILE, Roster
from support.lan import edit, make_network

NODE = 1


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.empty_graph(7), 'name = "cells"\nsize = 3\n')


def member_of(network, consent):
    folder = network.folder / f"peer-{NODE}"
    state, identity = StateFile(folder / "state.json"), Identity.load(folder)
    member = Membership(
        identity,
        newest(folder, state, identity, Consent(consent)),
        folder,
        state,
        consent=Consent(consent),
    )
    member.remember()
    return member


def signed(network, version, cells=None, others=()):
    """Another version, with these cells or the same; `others` stand in the place of members with their ids."""
    old = network.roster
    members = {**old.members, **{member.id: member for member in others}}
    return Roster.sign(
        network.authority,
        [member for i, member in members.items() if cells is None or any(i in cell for cell in cells)],
        None,
        network_id=old.network_id,
        version=version,
        now=datetime.now(UTC),
        settings=old.settings,
        cells=old.plan.cells if cells is None else cells,
    )


def swapped(network):
    """The same peers: two of them have changed places."""
    (one, *rest), (other, *more) = network.roster.plan.cells
    return sorted([other, *rest]), sorted([one, *more])


def test_a_peer_asks_about_cells_unless_told_otherwise(network):
    folder = network.folder / f"peer-{NODE}"
    assert PeerConfig.load(folder).tables.peer.approve == "cells"
    for said in ("auto", "ask", "wait:24h", "wait:3d", "wait:10m"):
        edit(folder, r"\[peer\]\n(approve.*\n)?", f'[peer]\napprove = "{said}"\n')
        assert PeerConfig.load(folder).tables.peer.approve == said
    assert Consent("wait:24h").patience == timedelta(days=1)
    for said in ("yes", "wait", "wait:0h", "wait:1y", "wait:-1h", "wait:1h "):
        with pytest.raises(ConfigError, match='none of "auto", "cells", "ask" and a time'):
            Consent(said)


def test_other_cells_wait_for_approval_and_a_new_date_does_not(network, caplog):
    member = member_of(network, "cells")
    later = signed(network, 2)
    member.offer(later.raw, "node 0")
    assert member.newer == later
    member.adopt()
    redrawn = signed(network, 3, swapped(network))
    member.offer(redrawn.raw, "node 0")
    assert (member.newer, member.held) == (None, redrawn)
    assert "waits for `cesar peer approve" in caplog.text
    assert "what you train is from now on only ever seen added to what" in caplog.text
    member.look()
    assert member.newer is None
    changes.approve(member.folder, redrawn)
    member.look()
    assert member.newer == redrawn


def test_a_start_is_no_approval(network):
    member_of(network, "cells")
    redrawn = signed(network, 2, swapped(network))
    (network.folder / f"peer-{NODE}" / FILE).write_bytes(redrawn.raw)
    assert member_of(network, "cells").roster.version == 1
    assert member_of(network, "auto").roster.version == 2


def test_silence_is_consent_after_a_time(network, caplog):
    member = member_of(network, "wait:24h")
    redrawn = signed(network, 2, swapped(network))
    member.offer(redrawn.raw, "node 0")
    assert "or for 1 day" in caplog.text
    held = member.folder / changes.HELD
    for hours, taken in ((0, False), (23, False), (25, True)):
        then = datetime.now(UTC) - timedelta(hours=hours)
        os.utime(held, times=(then.timestamp(), then.timestamp()))
        member.look()
        assert (member.newer is not None) is taken
    again = member_of(network, "wait:24h")  # a restart does not begin the time anew
    again.look()
    assert again.newer == redrawn


def test_a_removal_counts_before_approval(network):
    member = member_of(network, "cells")
    gone = next(cell for cell in network.roster.plan.cells if len(cell) > 3)[-1]
    barred = []
    member.bar = lambda removed, raw: barred.append((removed, raw))
    cells = [tuple(node for node in cell if node != gone) for cell in network.roster.plan.cells]
    newer = signed(network, 2, cells)
    assert gone != NODE
    member.offer(newer.raw, "node 0")
    assert member.held == newer
    assert barred == [(frozenset({gone}), newer.raw)]


def test_settings_have_names_that_can_be_shown(network):
    """They stand in what a site agrees to; a line could be drawn that looks like the command's own."""
    old = network.roster
    with pytest.raises(ConfigError, match="settings that this version does not know"):
        Roster.sign(
            network.authority,
            old.members.values(),
            None,
            network_id=old.network_id,
            version=2,
            now=datetime.now(UTC),
            settings={**old.settings, "x\n\x1b[2K· nothing changes but its date": 1},
            cells=old.plan.cells,
        )


# ── the same ids, and other people behind them ──────────────────────────────────────────────────────────


def partner_of(network, own=True):
    """A node of the own cell, or of the other one."""
    cell = next(cell for cell in network.roster.plan.cells if (NODE in cell) is own)
    return next(node for node in cell if node != NODE)


def impostor(network, folder, node, asked=None, owner=None):
    """Keys that the authority has made itself, certified for somebody else's id."""
    csr = make_keys(folder, "lan", node, owner)
    certificate = network.authority.issue(Request(csr=csr), now=datetime.now(UTC))
    old = network.roster.members[node]
    return Member.of(
        certificate,
        name=old.name,
        address=old.address,
        asked=asked and asked(network.folder / f"peer-{node}", csr),
    )


def of_the_site(folder, csr):
    """A true request of the site, for keys of its own."""
    return renewal(folder)


def of_another(folder, csr):
    """The proof of a true request, beside a request for the authority's keys."""
    return Request(csr=csr, continues=renewal(folder).continues)


@pytest.mark.parametrize("asked", [None, of_the_site, of_another])
def test_keys_that_a_partner_has_not_asked_for_wait(network, tmp_path, caplog, asked):
    """An authority that puts keys of its own in the place of all partners of a site would be its cell, and read it."""
    member, partner = member_of(network, "cells"), partner_of(network)
    newer = signed(network, 2, others=[impostor(network, tmp_path / "evil", partner, asked)])
    member.offer(newer.raw, "node 0")
    assert (member.newer, member.held) == (None, newer)
    assert f"{partner} has a new certificate and new keys" in caplog.text
    assert ", for which its old key has not asked" in caplog.text
    (network.folder / f"peer-{NODE}" / FILE).write_bytes(newer.raw)
    assert member_of(network, "cells").roster.version == 1, "nor does a start take it up"
    changes.approve(member.folder, newer)
    member.look()
    assert member.newer == newer


def test_a_former_certificate_that_a_partner_never_had_waits(network, tmp_path):
    """Links take a former certificate, too, for the partner itself."""
    member, partner = member_of(network, "cells"), partner_of(network)
    old, forged = network.roster.members[partner], impostor(network, tmp_path / "evil", partner)
    until = datetime.now(UTC) + timedelta(days=9)
    newer = signed(network, 2, others=[replace(old, former=forged.certificate, until=until)])
    read = Roster.parse(newer.raw, network.authority.certificate).members[partner]
    assert read.accepts(forged.fingerprint, datetime.now(UTC))
    member.offer(newer.raw, "node 0")
    assert (member.newer, member.held) == (None, newer)


def test_another_owner_waits(network, tmp_path):
    """The promise counts owners; with another name an authority could make one owner two."""
    member, partner = member_of(network, "cells"), partner_of(network)
    same = renewal(network.folder / f"peer-{partner}")
    issued = network.authority.issue(same, now=datetime.now(UTC))
    plain = Member.of(issued, name="x", address=None, asked=same)
    assert plain.continues(network.roster.members[partner])
    newer = signed(network, 2, others=[impostor(network, tmp_path / "evil", partner, owner="hospital")])
    member.offer(newer.raw, "node 0")
    assert (member.newer, member.held) == (None, newer)


def test_a_renewal_by_the_site_itself_does_not_wait(network, tmp_path):
    """Also if an extension lies between, and if other cells have keys that nobody asked for."""
    member, partner = member_of(network, "cells"), partner_of(network)
    now = datetime.now(UTC)
    network = network.renew(renewal(network.folder / f"peer-{partner}"), now=now, days=30)
    network = network.extend(now=now, days=60)
    member.offer(network.roster.raw, "node 0")
    assert member.newer == network.roster
    member.adopt()
    stranger = impostor(network, tmp_path / "lost", partner_of(network, own=False))
    newer = signed(network, 4, others=[stranger])
    member.offer(newer.raw, "node 0")
    assert member.newer == newer


@pytest.mark.parametrize("asked", [3, {}, {"csr": "x", "continues": ""}, {"csr": "", "continues": "xy"}])
def test_a_request_that_cannot_be_read_is_refused(network, asked):
    entry = {**write_entry(network.roster.members[2], []), "asked": asked}
    with pytest.raises(ConfigError, match="node 2: "):
        read_entry(entry)
