"""The commands, their errors, recorded runs and rosters, and the page as a browser shows it."""

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.audit import Exchange, audit, statement
from cesar.audit.sources import Subject
from cesar.audit.statement import OVER_ROUNDS
from cesar.base.errors import CesarError
from cesar.peer.trust.roster import Roster
from cesar_lab.run import config, journal, recording
from cesar_lab.run import execute as run
from support.browser import browse, screen
from support.commands import call, read

SMALL = ("--topology", "regular:6", "--nodes", "24", "--patterns", "200", "--alpha", "0.45")


def test_audit_of_a_drawn_graph():
    found = read("audit", *SMALL, "--masks", 2)
    assert found["exposed"]
    assert found["exhaustive"]
    assert [row["tested"] for row in found["coalitions"]] == [24, 276]
    assert found["findings"][0]["fraction"] == found["worst"] > 0.02
    assert found["strict_masks"] > 2
    assert "leaves node" in call("audit", *SMALL, "--masks", 2)
    strict = read("audit", *SMALL, "--strict")
    assert (strict["exposed"], strict["masks"]) == (False, found["strict_masks"])
    said = " ".join(call("audit", *SMALL, "--strict").split())
    assert "One round is safe against up to 2" in said
    assert OVER_ROUNDS in said


def test_audit_of_other_selections_and_graphs(tmp_path):
    assert not read("audit", "--topology", "complete", "--nodes", 8, "--masks", 2, "--selection", "full")[
        "exposed"
    ]
    file = tmp_path / "bad.edges"
    file.write_text("0 2\n0 3\n0 1  # the colluders\n1 2\n1 3\n1 4\n2 4\n3 4\n")
    found = read("audit", "--graph", file, "--masks", 2, "--selection", "full")
    assert found["findings"][0]["sentence"].startswith(
        "nodes 0 and 1 together: the sum at 1 minus the sum at 0 leaves node 4"
    )


def test_a_planned_graph_passes_the_audit(tmp_path):
    file = tmp_path / "graph.edges"
    plan = read("plan", "topology", "--nodes", 48, "--degree", 6, "--collusion", 2, "--out", file)
    assert (plan["masks"], len(plan["edges"])) == (2, 144)
    assert 0 < plan["spectral_gap"] < 1
    found = read("audit", "--graph", file, "--masks", 2, "--alpha", 0.4253, "--collusion", 2)
    assert not found["exposed"]
    assert found["coalitions"][1] | {"exhaustive": True} == found["coalitions"][1]
    assert found["coalitions"][1]["tested"] == 1128
    assert "spectral gap" in call("plan", "topology", "--nodes", 20, "--degree", 4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("audit", "--nodes", 10, "--collusion", 10), "leave nobody to protect"),
        (("audit", "--masks", 6), "node 0 has 6 neighbour"),
        (("audit", "--masks", 2, "--strict"), "leave --masks out"),
        (("audit", "--graph", "nowhere.edges"), "no edge list nowhere.edges"),
        (("audit", "--topology", "regular"), "is not a topology"),
        (("audit", "--topology", "moebius"), "'moebius' is not a topology"),
        (("audit", "--alpha", 1.5), "alpha is 1.5"),
        (("audit", "nowhere"), "neither experiment.json"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(CesarError, match=message):
        call(*arguments)


@pytest.mark.parametrize(
    "text, message", [("0 1\n1 x\n", "line 2"), ("0 1\n2 3\n", "2 parts"), ("0 0\n0 1\n", "own neighbour")]
)
def test_graph_files_with_errors(tmp_path, text, message):
    file = tmp_path / "graph.edges"
    file.write_text(text)
    with pytest.raises(CesarError, match=message):
        call("audit", "--graph", file)


def test_cells_are_audited_for_all_rounds():
    arguments = ("audit", "--nodes", 13, "--cells", 4, "--collusion")
    found = read(*arguments, 2)
    assert (found["rounds"], found["exposed"], found["left"]) == ("all", False, [3, 2, 2])
    assert sorted(node for cell in found["cells"] for node in cell) == list(range(13))
    cell = next(cell for cell in found["cells"] if 0 in cell)
    others = [str(node) for node in cell if node]
    promise = f"What site 0 trains is only ever seen added to what sites {', '.join(others[:-1])} and {others[-1]} train."
    assert found["words"][0] == promise
    said = " ".join(call(*arguments, 2).split())
    assert "Safe against up to 2 participants who pool what they know, in all rounds together." in said
    assert promise in said
    worse = read(*arguments, 3)
    assert (worse["exposed"], len(worse["findings"])) == (True, 2)
    assert all(len(finding["victims"]) == 1 for finding in worse["findings"])
    assert "Not safe against up to 3" in call(*arguments, 3)


def test_what_cannot_be_asked_about_cells(tmp_path):
    for arguments, message in (
        (("--cells", 4, "--masks", 2), "leave --masks and --strict out"),
        (("--cells", 1), "a cell has 2 to 255 members|collusion is"),
        ((tmp_path, "--cells", 3), "leave --cells out"),
    ):
        with pytest.raises(CesarError, match=message):
            call("audit", *arguments)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_the_statement_about_cells(tmp_path, dark):
    out = tmp_path / "statement.html"
    found = read("audit", "--nodes", 8, "--cells", 4, "--collusion", 1, "--report", out)
    dom = browse(out, tmp_path, screen(dark=dark))
    assert dom.count('data-state="drawn"') == 1
    assert "Safe against a single curious participant, in all rounds together." in dom
    assert "Many rounds are not protected." not in dom
    for promise in found["words"]:
        assert promise in dom
    for heading in ("What is not protected", "Who is only ever seen added to whom", "Who talks to whom"):
        assert heading in dom


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A tiny run of all selections."""
    out = tmp_path_factory.mktemp("lab") / "tiny"
    settings = {
        "name": "tiny",
        "rounds": 2,
        "seeds": [5],
        "data": {"dataset": "digits", "test_limit": 60},
        "training": {"steps_per_round": 1},
        "topology": {"nodes": 12, "degree": 6, "dynamic": True},
        "evaluation": {"every": 1},
        "recording": {"rounds": [1]},
        "method": [
            {"name": "cesar", "sparsifier": "random", "alpha": 0.5, "masks": 2},
            {"name": "cesar", "sparsifier": "topk", "share": 0.3},
            {"name": "secagg"},
            {"name": "cells", "size": 4, "sparsifier": "topk", "share": 0.3},
            {"name": "dpsgd"},
        ],
    }
    run.execute(config.parse(settings), out)
    return out


def test_a_recorded_run_is_audited_with_the_sets_that_it_had(recorded):
    """The sets drawn again are those of the engine: the audit of one round equals one made from its frames."""
    found = read("audit", recorded, "--patterns", 100_000, "--round", 1)
    experiment = run.read(recorded)
    graph = run.graph_of(experiment, 5)(1)
    method = cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.5), masking_requirement=2)
    size = journal.parameters_of(recorded / experiment.method[0].folder / "seed-5")
    ensemble = cesar.Ensemble(graph, method, size, seed=5, first_round=1)
    selected = ensemble.round(np.ones((12, size), dtype=np.float32)).selected
    expected = audit(Exchange.complete(graph, selected, 2), 2)
    assert found["worst"] == pytest.approx(expected.worst)
    assert expected.worst > 0
    assert (found["positions"], found["patterns"]) == (size, expected.patterns)
    assert "drawn again from the recorded seed" in found["notes"][0]


def test_other_methods_of_a_recorded_run(recorded):
    topk = ("audit", recorded, "--method", "cesar-topk-0.3", "--patterns", 100_000, "--round")
    assert "TopK selections" in read(*topk, 1)["notes"][0]
    found, kept = read(*topk, 0), recording.read(recorded / "cesar-topk-0.3" / "seed-5", 1)
    assert found["notes"][0].startswith("Selections as in round-000001")
    assert found["worst"] == pytest.approx(audit(Exchange.complete(kept.graph, kept.selected, 1), 2).worst)
    assert read("audit", recorded, "--method", "secagg-full")["alpha"] == 1
    assert read("audit", recorded, "--strict", "--collusion", 1)["masks"] == 1
    for arguments, message in (
        (("--method", "dpsgd-full"), "no masked method 'dpsgd-full'"),
        (("--round", 7), "rounds 0 to 1"),
    ):
        with pytest.raises(CesarError, match=message):
            call("audit", recorded, *arguments)


def test_cells_of_a_recorded_run(recorded):
    found = read("audit", recorded, "--method", "cells-topk-of4-0.3", "--collusion", 1)
    expected = cesar.Cells(size=4).plan(12, seed=5).cells
    assert found["cells"] == [list(cell) for cell in expected]
    assert (found["rounds"], found["exposed"]) == ("all", False)


def test_cells_of_a_network(tmp_path):
    net = tmp_path / "net"
    call("network", "init", "--peers", 9, "--cells", 4, "--out", net, "--owner", "hospital=0,1")
    roster = Roster.load(net / "roster.json", (net / "ca" / "ca.pem").read_bytes())
    found = read("audit", net / "peer-3", "--collusion", 2)
    assert found["cells"] == [list(cell) for cell in roster.plan.cells]
    assert (found["exposed"], found["owners"]) == (False, {"0": "hospital", "1": "hospital"})
    assert read("audit", net, "--collusion", 4)["exposed"]


def network_settings(folder, text):
    path = folder / "network.toml"
    path.write_text('[method]\nname = "cesar"\nsparsifier = "random"\nalpha = 0.5\n' + text)


def test_a_network_folder(tmp_path):
    net = tmp_path / "net"
    shape = ("--peers", 20, "--topology", "regular:6", "--masks", 1)
    call("network", "init", *shape, "--seed", 1, "--out", net)
    found = read("audit", net / "peer-3")
    assert (found["nodes"], found["links"], found["masks"]) == (20, 60, 1)
    network_settings(net, "collusion = 2\n")
    found = read("audit", net)
    assert (found["masks"], found["exposed"]) == (found["strict_masks"], False)
    network_settings(net, "masks = 2\n")
    assert read("audit", net)["exposed"]
    network_settings(net, "masks = 2\ncollusion = 2\n")
    with pytest.raises(CesarError, match="masking_requirement=2 does not stop 2"):
        call("audit", net)
    roster = net / "roster.json"
    roster.write_text(roster.read_text().replace("roster", "register", 1))
    with pytest.raises(CesarError, match="not a roster"):
        call("audit", net)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_the_statement(tmp_path, dark):
    out = tmp_path / "statement.html"
    found = read("audit", *SMALL, "--masks", 2, "--report", out)
    dom = browse(out, tmp_path, screen(dark=dark))
    assert dom.count('data-state="drawn"') == 3
    assert "Not safe against up to 2 participants" in dom
    words = found["findings"][0]["sentence"].replace(" %", "&nbsp;%")
    assert words[1:] in dom
    assert (
        "rgb(228, 99, 17)" if dark else "rgb(180, 54, 0)"
    ) in dom  # the colluders, in this screen's colour
    assert "https://" not in out.read_text("utf-8").split("<body>")[1].split("<script")[0]


def test_the_statement_of_a_safe_network(tmp_path):
    out = tmp_path / "statement.html"
    read("audit", *SMALL, "--strict", "--report", out)
    text = out.read_text("utf-8")
    assert "One round is safe against up to 2 participants" in text
    assert "Many rounds are not protected." in text
    assert "Proven for this graph" in text
    for heading in (
        "What is not protected",
        "The averages themselves",
        "Which parameters were sent",
        "Active attacks",
    ):
        assert heading in text


def test_nothing_found_is_not_a_proof():
    graph = nx.random_regular_graph(6, 20, seed=1)
    found = audit(Exchange.complete(graph, np.ones((20, 1), dtype=bool), 5), 2)
    subject = Subject(graph=graph, source="<test>", sparsifier="topk", alpha=0.5, seed=0)
    assert statement.verdict(found, subject)[0]
    weak = audit(Exchange.complete(graph, np.zeros((20, 1), dtype=bool), 2), 2)
    good, headline, _ = statement.verdict(weak, subject)
    assert (good, headline) == (
        False,
        "Nothing found in one round against up to 2 participants who pool what they know, but not proven.",
    )
