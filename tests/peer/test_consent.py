"""Which changes of the roster wait for a site's agreement: by default those of cells; a removal counts at once."""

import os
from datetime import UTC, datetime, timedelta

import networkx as nx
import pytest

from cesar.base.errors import ConfigError
from cesar.peer.driver.membership import Membership, newest
from cesar.peer.driver.state import StateFile
from cesar.peer.trust import changes
from cesar.peer.trust.changes import Consent
from cesar.peer.trust.config import PeerConfig
from cesar.peer.trust.identity import Identity
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
        newest(folder, state, identity.ca, Consent(consent)),
        folder,
        state,
        consent=Consent(consent),
    )
    member.remember()
    return member


def signed(network, version, cells=None):
    """Another version, with these cells or the same."""
    old = network.roster
    return Roster.sign(
        network.authority,
        [member for i, member in old.members.items() if cells is None or any(i in cell for cell in cells)],
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
