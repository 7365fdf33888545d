"""Networks as people make and change them: the commands, the folders, and what stays secret."""

import hashlib
import json
import random
import shutil
import stat
import sys
import tomllib
from collections import Counter
from datetime import UTC, datetime

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cesar import cli
from cesar.base.errors import ConfigError, PrivacyError
from cesar.graph.cells import objection
from cesar.methods.settings import MethodSection
from cesar.peer.trust.config import PeerConfig
from cesar.peer.trust.folder import Network, _cells, missing_edges
from cesar.peer.trust.identity import Identity
from cesar.peer.trust.roster import Roster
from support import localnet
from support.commands import agreed


@pytest.fixture
def cesar(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; give its exit code and all that it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["cesar", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        shown = capsys.readouterr()
        run.shown += shown.out + shown.err
        return caught.value.code or 0, shown.out + shown.err

    def good(*arguments):
        code, shown = run(*arguments)
        assert code == 0, shown
        return shown

    def bad(*arguments):
        code, shown = run(*arguments)
        assert code == 2, shown
        assert "Traceback" not in shown
        return " ".join(shown.split())

    run.good, run.bad, run.shown = good, bad, ""
    return run


def roster(folder, net):
    return Roster.load(folder / "roster.json", (net / "ca" / "ca.pem").read_bytes())


def degrees(read):
    return {i: read.graph.degree[i] for i in read.graph}


def init(cesar, tmp_path, *options, peers=8):
    said = cesar.good("network", "init", "--peers", peers, "--out", "net", "--seed", 1, *options)
    assert "Next: `cesar network up net`" in said
    return tmp_path / "net"


def test_a_network_of_cells(tmp_path):
    """Every peer finds its cell in the signed roster, and the same method in its own file."""
    net, _ = localnet.make(tmp_path / "net", nx.empty_graph(11), cells=4)
    read = roster(net, net)
    assert [len(cell) for cell in read.plan.cells] == [6, 5]
    for node in read.members:
        config = PeerConfig.load(net / f"peer-{node}")
        method = config.cells(read)
        assert (method.size, method.collusion, method.ring_bits) == (4, 1, 16)
        assert method.division is read.plan
        assert node in read.plan.place(node).members
    (net / "network.toml").write_text((net / "network.toml").read_text().replace("size = 4", "size = 6"))
    larger = Network.open(net).extend(now=datetime.now(UTC), days=9).roster
    assert larger.plan.cells == (tuple(range(11)),), "five are too few now"
    own = net / "peer-1" / "peer.toml"
    own.write_text(own.read_text().replace("size = 4", "size = 6"))
    with pytest.raises(ConfigError, match="size is 4 there and 6 here"):
        PeerConfig.load(net / "peer-1").cells(read)


def test_sites_that_come_and_go_change_cells_in_words(cesar, tmp_path):
    said = cesar.good("network", "init", "--peers", 8, "--cells", 4, "--out", "net")
    assert said.count("What one of them trains is only ever seen added to what the others train.") == 2
    net = tmp_path / "net"
    before = roster(net, net).plan.cells
    join(cesar, tmp_path, net, address=("--address", "127.0.0.1:7999"), neighbours=())
    after = roster(net, net).plan.cells
    assert sorted(map(len, after)) == [4, 5]
    assert [set(cell) - {8} for cell in after] == [set(cell) for cell in before], "nobody else moves"
    (home,) = (cell for cell in after if 8 in cell)
    others = [node for node in home if node != 8]
    log = (net / "roster.log").read_text().splitlines()[-1]
    assert f"8 hospital-x joins the cell of {others[0]}, {others[1]}, {others[2]} and {others[3]}" in log
    (small,) = (cell for cell in after if 8 not in cell)
    shown = cesar.good("network", "revoke", net, "--peer", small[0])
    assert "moves to the cell of" in shown, "the larger cell lends a member"
    assert sorted(map(len, roster(net, net).plan.cells)) == [4, 4]
    shown = cesar.good("network", "revoke", net, "--peer", small[1])
    assert "become one" in shown
    assert len(roster(net, net).plan.cells) == 1
    for node in sorted(roster(net, net).members)[:3]:
        cesar.good("network", "revoke", net, "--peer", node)
    last = min(roster(net, net).members)
    assert "3 member(s), but sums are over at least 4" in cesar.bad("network", "revoke", net, "--peer", last)
    assert "leave --edges and --connect out" in cesar.bad(
        "network", "revoke", net, "--peer", last, "--connect"
    )
    found = json.loads(cesar.good("network", "show", net, "--json"))
    assert found["cells"] == [list(cell) for cell in roster(net, net).plan.cells]


def test_a_changed_cell_has_a_model_to_go_on_with():
    """Many changes at once: members of k + 1 owners of an old cell are in each new one, or the change is refused."""
    draw, outcomes = random.Random(1), Counter()
    for _ in range(300):
        method = MethodSection(name="cells", size=draw.randint(4, 5), collusion=draw.choice([1, 1, 2]))
        nodes = set(range(draw.randint(6, 20)))
        owners = {node: f"owner-{node // 2}" for node in nodes | set(range(20, 30)) if draw.random() < 0.3}
        try:
            before = method.cells().plan(nodes, owners)
            left = set(draw.sample(sorted(nodes), draw.randint(3, len(nodes)))) | set(
                range(20, 20 + draw.randint(0, 8))
            )
            cells = _cells(before, method, left, owners)
        except (ConfigError, PrivacyError) as error:
            outcomes["no model" if "no model to go on with" in str(error) else "too few"] += 1
            continue
        assert sorted(node for cell in cells for node in cell) == sorted(left)
        for cell in cells:
            assert objection(cell, method.size, method.collusion, owners) is None
            together = [{owners.get(n, n) for n in set(cell) & set(old)} for old in before.cells]
            assert max(map(len, together)) >= method.collusion + 1
        outcomes["fine"] += 1
    assert outcomes["fine"] > 100
    assert outcomes["no model"] > 0


def test_one_command_makes_eight_peers(cesar, tmp_path):
    net = init(cesar, tmp_path, "--topology", "regular:3", "--name", "lung-trial", "--days", "30")
    read = roster(net, net)
    assert (read.network, read.version, list(read.members)) == ("lung-trial", 1, list(range(8)))
    assert set(degrees(read).values()) == {3}
    for i, member in read.members.items():
        folder = net / f"peer-{i}"
        identity = Identity.load(folder)
        assert identity.id == i
        assert identity.keys.public == member.agreement_key
        assert (folder / "roster.json").read_bytes() == read.raw
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        settings = tomllib.loads((folder / "peer.toml").read_text())
        assert settings["peer"] == {
            "id": i,
            "listen": f"127.0.0.1:{7400 + i}",
            "status": f"127.0.0.1:{7500 + i}",
        }
        assert settings["method"] == {
            "name": "cesar",
            "sparsifier": "random",
            "share": 0.3,
            "masks": 1,
            "ring_bits": 32,
        }
        assert settings["rounds"] == {
            "every": 6,
            "floor": 2.0,
            "ceiling": 120.0,
            "buffers": "local",
        }
        assert member.address == f"127.0.0.1:{7400 + i}"
        assert (member.expires - read.issued).days == 30
    private = {path for path in net.rglob("*") if path.is_file() and not path.stat().st_mode & 0o077}
    assert {path.name for path in private} == {"ca.key", "key.pem", "agreement.key"}
    assert len(private) == 1 + 2 * 8
    assert not list(tmp_path.glob(".*")), "no draft is left"


def test_a_seed_is_for_the_graph_and_never_for_keys(cesar, tmp_path):
    one = roster(init(cesar, tmp_path), tmp_path / "net")
    (tmp_path / "net").rename(tmp_path / "first")
    two = roster(init(cesar, tmp_path), tmp_path / "net")
    assert nx.utils.graphs_equal(nx.Graph(one.graph), nx.Graph(two.graph))
    assert one.network_id != two.network_id
    keys = [member.agreement_key for read in (one, two) for member in read.members.values()]
    assert len(set(keys)) == 16


def test_a_hundred_and_twenty_peers_have_ports_of_their_own(cesar, tmp_path):
    net = init(cesar, tmp_path, "--topology", "small-world:4", peers=120)
    tables = [tomllib.loads(path.read_text())["peer"] for path in net.glob("peer-*/peer.toml")]
    ports = [table[kind] for table in tables for kind in ("listen", "status")]
    assert len(set(ports)) == 240


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--topology", "regular:3", "--peers", "7"), "no 3-regular graph of 7 nodes"),
        (("--topology", "star", "--peers", "8"), "write regular:3, ring, complete"),
        (("--topology", "regular", "--peers", "8"), "write regular:3, ring, complete"),
        (("--topology", "file:none", "--peers", "8"), "there is no edge list"),
        (("--topology", "ring", "--masks", "2", "--peers", "8"), "node 0 has 2 neighbour(s)"),
        (("--peers", "2"), "two peers cannot hide from one another"),
        (("--cells", "4", "--peers", "3"), "3 node(s) make no cell of 4"),
        (("--cells", "4", "--masks", "1", "--peers", "8"), "leave --topology and --masks out"),
        (("--cells", "3", "--collusion", "2", "--peers", "8"), "cells of 3 do not stop 2 colluding owner(s)"),
        (
            ("--cells", "4", "--peers", "8", "--owner", "a=0,1,2,3", "--owner", "b=4,5,6,7"),
            "cannot be spread",
        ),
        (("--masks", "0", "--peers", "8"), "masks: Input should be greater than or equal to 1"),
        (
            ("--topology", "complete", "--collusion", "2", "--peers", "6"),
            "colluders are only stopped by 5 masks",
        ),
        (("--share", "1.5", "--peers", "8"), "share: Input should be less than or equal to 1"),
        (("--name", "My Net", "--peers", "8"), "cannot name a network"),
        (("--host", "a b", "--peers", "8"), "write host:port"),
        (("--port", "65500", "--peers", "8"), "need more ports"),
        ((), "--peers 8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_work_leaves_nothing_behind(cesar, tmp_path, options, complaint):
    assert complaint in cesar.bad("network", "init", "--out", "net", *options)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_never_touched(cesar, tmp_path):
    net = init(cesar, tmp_path)
    before = {path: path.read_bytes() for path in net.rglob("*") if path.is_file()}
    assert "is there already" in cesar.bad("network", "init", "--peers", "8", "--out", "net")
    assert {path: path.read_bytes() for path in net.rglob("*") if path.is_file()} == before


def join(cesar, tmp_path, net, node=8, neighbours="0,3,5", address=("--address", "x.example.org:7400")):
    """A new site: request, signature, and the files put beside the keys."""
    site = tmp_path / f"site-{node}"
    cesar.good(
        "peer", "request", "--network", "net", "--id", node, "--name", "hospital-x", *address, "--out", site
    )
    assert {path.name for path in site.iterdir()} == {"key.pem", "agreement.key", "request.json"}
    file = site / "request.json"
    cesar.good(
        "network", "sign", net, file, *(("--neighbours", neighbours) if neighbours else ()), *agreed(file)
    )
    for file in (net / "signed" / f"peer-{node}").iterdir():
        shutil.copy(file, site)
    return site


def test_a_life_of_a_network(cesar, tmp_path):
    """Init, a site of its own joins, another leaves, the newcomer changes its keys; nothing secret is shown."""
    net = init(cesar, tmp_path, "--topology", "regular:6")
    site = join(cesar, tmp_path, net)
    second = roster(net, net)
    assert second.version == 2
    assert sorted(second.graph[8]) == [0, 3, 5]
    assert (second.members[8].name, second.members[8].address) == ("hospital-x", "x.example.org:7400")
    assert Identity.load(site).keys.public == second.members[8].agreement_key
    table = tomllib.loads((site / "peer.toml").read_text())
    assert table["peer"] == {"id": 8, "listen": "0.0.0.0:7400", "status": "127.0.0.1:7500"}
    assert table["method"] == tomllib.loads((net / "peer-0" / "peer.toml").read_text())["method"]

    cesar.good("network", "revoke", net, "--peer", 3, "--connect")
    third = roster(net, net)
    assert (third.version, third.network_id) == (3, second.network_id)
    assert 3 not in third.members
    assert min(degrees(third).values()) >= 2
    Roster.parse(third.raw, Identity.load(site).ca, at_least=2)
    with pytest.raises(ConfigError, match="older than version 3"):
        Roster.parse(second.raw, Identity.load(site).ca, at_least=3)

    cesar.good("peer", "request", "--network", "net", "--id", 8, "--out", "new")
    cesar.good("network", "renew", net, "new/request.json", *agreed("new/request.json"))
    fourth = roster(net, net)
    assert fourth.version == 4
    assert (fourth.members[8].name, fourth.members[8].address) == ("hospital-x", "x.example.org:7400")
    assert fourth.members[8].agreement_key != third.members[8].agreement_key
    assert fourth.members[8].fingerprint != third.members[8].fingerprint
    assert {i: m for i, m in fourth.members.items() if i != 8} == {
        i: m for i, m in third.members.items() if i != 8
    }
    assert nx.utils.graphs_equal(nx.Graph(third.graph), nx.Graph(fourth.graph))
    shutil.copytree(net / "signed" / "peer-8", tmp_path / "new", dirs_exist_ok=True)
    assert Identity.load(tmp_path / "new").keys.public == fourth.members[8].agreement_key

    for copy in (*net.glob("peer-*/roster.json"), *net.glob("signed/peer-*/roster.json")):
        assert copy.read_bytes() == fourth.raw
    shown = cesar.shown + cesar.good("network", "show", net) + cesar.good("network", "show", net, "--json")
    secrets = [path for name in ("key.pem", "agreement.key", "ca.key") for path in tmp_path.rglob(name)]
    assert len(secrets) == 1 + 2 * 10
    public = [path.read_text() for name in ("*.json", "*.toml", "*.pem") for path in tmp_path.rglob(name)]
    public = [text for text in public if "PRIVATE" not in text]
    for line in (line for path in secrets for line in path.read_text().splitlines()):
        assert line.startswith("-----") or not any(line in text for text in (shown, *public))


def test_both_sides_can_compare_what_was_requested(cesar, tmp_path):
    net = init(cesar, tmp_path, "--topology", "regular:6")
    made = cesar.good("peer", "request", "--network", "net", "--id", 8, "--out", "site")
    digest = hashlib.sha256((tmp_path / "site" / "request.json").read_bytes()).hexdigest()
    assert digest in made
    sign = ("network", "sign", net, "site/request.json", "--neighbours", "0,1,2")
    assert "give the SHA-256 that its site reads out with --sha256" in cesar.bad(*sign)
    assert "another SHA-256 than those given" in cesar.bad(*sign, "--sha256", "00" * 32)
    assert roster(net, net).version == 1
    assert digest in cesar.good(*sign, "--sha256", digest.upper())
    assert hashlib.sha256((net / "ca" / "ca.pem").read_bytes()).hexdigest() in cesar.good(
        "network", "show", net
    )


def test_sites_can_found_a_network_with_keys_of_their_own(cesar, tmp_path):
    for node in (0, 1, 2):
        options = ("--address", f"s{node}.example.org:7400") if node else ()
        cesar.good("peer", "request", "--network", "trial", "--id", node, "--out", f"s{node}", *options)
    requests = [word for node in (2, 0, 1) for word in ("--request", f"s{node}/request.json")]
    assert "--sha256" in cesar.bad("network", "init", "--out", "net", "--name", "trial", *requests)
    requests += agreed(*requests[1::2])
    cesar.good("network", "init", "--out", "net", "--name", "trial", "--topology", "complete", *requests)
    net = tmp_path / "net"
    assert not list(net.glob("peer-*"))
    assert {path.name for path in net.rglob("*.key")} == {"ca.key"}
    for node in (0, 1, 2):
        shutil.copytree(net / "signed" / f"peer-{node}", tmp_path / f"s{node}", dirs_exist_ok=True)
        assert Identity.load(tmp_path / f"s{node}").id == node
    assert "listen" not in tomllib.loads((tmp_path / "s0" / "peer.toml").read_text())["peer"]
    rows = json.loads(cesar.good("network", "show", "s0", "--json"))["peers"]
    assert [row["dials"] for row in rows] == [[1, 2], [2], []]
    twice = cesar.bad("network", "init", "--out", "other", "--name", "trial", *requests, *requests[:2])
    assert "another request for node 2" in twice


def test_show_says_who_dials_whom(cesar, tmp_path):
    net = init(cesar, tmp_path, "--topology", "regular:6")
    join(cesar, tmp_path, net, address=())
    shown = json.loads(cesar.good("network", "show", net, "--json"))
    assert (shown["network"], shown["version"]) == ("net", 2)
    dialled = {(row["id"], other) for row in shown["peers"] for other in row["dials"]}
    assert dialled == {(other, row["id"]) for row in shown["peers"] for other in row["dialled_by"]}
    for row in shown["peers"]:
        assert sorted(row["dials"] + row["dialled_by"]) == row["neighbours"]
    assert {(8, 0), (8, 3), (8, 5)} <= dialled, "it has no address, so it dials"
    table = cesar.good("network", "show", net)
    assert "hospital-x" in table
    assert "none: it only" in table


def test_owners_of_peers_that_are_made_here(cesar, tmp_path):
    three = ("network", "init", "--peers", 3, "--cells", 3, "--out", "net")
    assert "2 owner(s) of 3 nodes cannot be spread" in cesar.bad(*three, "--owner", "hospital=0,1")
    assert not (tmp_path / "net").exists()
    net = init(cesar, tmp_path, "--cells", 4, "--owner", "hospital=0,1", peers=4)
    shown = json.loads(cesar.good("network", "show", net, "--json"))
    assert [row["owner"] for row in shown["peers"]] == ["hospital", "hospital", None, None]
    assert "its own" in cesar.good("network", "show", net)
    shown = cesar.good("audit", net, "--collusion", 1, "--report", "page.html", "--json")
    audited = json.loads(shown.splitlines()[0])  # progress comes behind it
    assert not audited["exposed"]
    assert audited["owners"] == {"0": "hospital", "1": "hospital"}
    assert "hospital runs site 0, site 1" in (tmp_path / "page.html").read_text()
    for wrong in ("0,1", "hospital=9", "=1", "hospital=x"):
        cesar.bad("network", "init", "--peers", 4, "--out", "other", "--owner", wrong)


MISTAKES = [
    (("sign", "net", "site/request.json", "--neighbours", "0"), "node 8 has 1 neighbour(s)"),
    (("sign", "net", "site/request.json", "--neighbours", "0,99"), "node 99 is not in the network"),
    (("sign", "net", "site/request.json", "--neighbours", "0,8"), "node 8 cannot be its own neighbour"),
    (("sign", "net", "site/request.json", "--neighbours", "a"), "write them as 0,3,5"),
    (("sign", "net", "net/roster.json", "--neighbours", "0,1"), "is not a request"),
    (("sign", "net", "taken/request.json", "--neighbours", "0,1"), "`cesar network renew`"),
    (("sign", "net", "foreign/request.json", "--neighbours", "0,1"), "for the network 'other'"),
    (("sign", "site", "site/request.json", "--neighbours", "0,1"), "`cesar network init`"),
    (("renew", "net", "site/request.json"), "node 8 is not in the network"),
    (("renew", "net", "foreign/request.json"), "for the network 'other'"),
    (("revoke", "net", "--peer", "99"), "node 99 is not in the network"),
    (("revoke", "net", "--peer", "1", "--edges", "0_2"), "write edges as 1-5,2-7"),
    (("revoke", "net", "--peer", "1", "--edges", "0-1"), "node 1 is not in the network"),
]


def test_mistakes_are_explained_and_change_nothing(cesar, tmp_path):
    net = init(cesar, tmp_path, "--topology", "complete", peers=4)
    for out, node, network in (("site", 8, "net"), ("taken", 1, "net"), ("foreign", 1, "other")):
        cesar.good("peer", "request", "--network", network, "--id", node, "--out", out)
    before = {path: path.read_bytes() for path in net.rglob("*") if path.is_file()}
    for arguments, complaint in MISTAKES:
        compared = agreed(*(word for word in arguments if word.endswith("request.json")))
        assert complaint in cesar.bad("network", *arguments, *compared), arguments
        assert {path: path.read_bytes() for path in net.rglob("*") if path.is_file()} == before, arguments


def test_a_removal_that_would_unmask_says_how_to_mend_it(cesar, tmp_path):
    """A ring without one node is a path: its ends have one neighbour each, and nobody to mask with."""
    net = init(cesar, tmp_path, "--topology", "ring", peers=6)
    refusal = cesar.bad("network", "revoke", net, "--peer", 3)
    assert "--edges 2-4" in refusal
    assert "--connect" in refusal
    assert roster(net, net).version == 1
    cesar.good("network", "revoke", net, "--peer", 3, "--edges", "2-4")
    assert sorted(roster(net, net).graph.edges) == [(0, 1), (0, 5), (1, 2), (2, 4), (4, 5)]
    assert "edges added: 1-5" in cesar.good("network", "revoke", net, "--peer", 0, "--connect")
    cesar.good("network", "revoke", net, "--peer", 1, "--connect")
    assert "no edges can give each of the 2 peers" in cesar.bad(
        "network", "revoke", net, "--peer", 2, "--connect"
    )


def test_a_stolen_folder_cannot_sign(cesar, tmp_path):
    """Key and certificate of the authority must belong together, and the key must be private."""
    net = init(cesar, tmp_path, peers=4)
    cesar.good("peer", "request", "--network", "net", "--id", 8, "--out", "site")
    (net / "ca" / "ca.key").chmod(0o640)
    command = (
        "network",
        "sign",
        net,
        "site/request.json",
        "--neighbours",
        "0,1",
        *agreed("site/request.json"),
    )
    assert "chmod 600" in cesar.bad(*command)
    (net / "ca" / "ca.key").chmod(0o600)
    shutil.copy(net / "peer-0" / "key.pem", net / "ca" / "ca.key")
    assert "is not the key of" in cesar.bad(*command)


@pytest.mark.parametrize(
    "options", [("--name", "a\nb"), ("--address", "nowhere"), ("--id", "-1"), ("--network", "A")]
)
def test_a_refused_request_makes_no_keys(cesar, tmp_path, options):
    cesar.bad("peer", "request", "--network", "net", "--id", 8, "--out", "site", *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "network",
        "network init",
        "network sign",
        "network revoke",
        "network renew",
        "network show",
        "peer request",
    ],
)
def test_help(cesar, command):
    assert "Usage" in cesar.good(*command.split(), "--help")


class Somebody:
    """All that `missing_edges` asks of a member."""

    def __init__(self, address):
        self.address = address


@settings(deadline=None)
@given(data=st.data(), nodes=st.integers(4, 12), least=st.integers(1, 3))
def test_missing_edges_mend_every_graph(data, nodes, least):
    """Whatever is left: connected, enough neighbours, every new edge new and dialable; none where none is due."""
    pairs = [(i, j) for i in range(nodes) for j in range(i)]
    graph = nx.empty_graph(nodes)
    graph.add_edges_from(data.draw(st.lists(st.sampled_from(pairs))))
    members = {i: Somebody(data.draw(st.booleans()) or None) for i in graph}
    listening = {i for i in graph if members[i].address}
    try:
        added = missing_edges(graph, members, least)
    except ConfigError:
        assert len(listening) <= least, "with more of these than that everybody has somebody to dial"
        return
    mended = nx.Graph([*graph.edges, *added])
    assert nx.is_connected(mended)
    assert set(mended) == set(graph)
    assert min(degree for _, degree in mended.degree) >= least
    assert not any(graph.has_edge(i, j) for i, j in added)
    assert len(added) == len(set(added))
    assert all({i, j} & listening for i, j in added)
    whole = nx.is_connected(graph) and min(degree for _, degree in graph.degree) >= least
    assert bool(added) != whole
