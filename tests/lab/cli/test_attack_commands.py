"""`cesar attack` on small recorded runs, and what it refuses."""

import json
import shutil
import sys

import pytest
from typer.testing import CliRunner

from cesar.base.errors import ConfigError, DataError
from cesar.cli.root import app
from cesar_lab.attack.document import BEGIN, END
from cesar_lab.run import config
from cesar_lab.run import execute as run
from support.commands import call, refused

TABLES = {
    "rounds": 12,
    "data": {"partition": "shards", "train_limit": 320},
    "topology": {"nodes": 8, "degree": 4},
    "evaluation": {"every": 12},
    "recording": {"last": 8},
    "method": [
        {"name": "dpsgd"},
        {"name": "dpsgd", "sparsifier": "random", "share": 0.3},
        {"name": "cesar", "sparsifier": "random", "share": 0.5},
    ],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    run.execute(config.parse({**TABLES, "name": "small"}), folder)
    return folder


def attack(*arguments):
    return call("attack", *arguments)


def test_membership(recorded):
    found = json.loads(
        attack("membership", recorded, "--round", 10, "--round", 12, "--samples", 100, "--json")
    )
    methods = {method["title"]: method for method in found[str(recorded)]}
    assert list(methods) == ["dpsgd-full", "dpsgd-random-0.3", "cesar-random-0.5"]
    full, sparse = methods["dpsgd-full"], methods["dpsgd-random-0.3"]
    assert full["rounds"] == [10, 12]
    assert full["victims"] == 8
    assert [point["models"] for point in full["sums"]] == [1, 2, 3, 4]
    assert full["sums"][0]["auc"] > full["sums"][1]["auc"] > full["sums"][3]["auc"]
    assert full["sums"][0]["auc"] > sparse["sums"][0]["auc"] + 0.05
    assert json.loads((recorded / "membership.json").read_text())["settings"] == {"samples": 100, "seed": 1}
    assert "<svg" in (recorded / "membership.svg").read_text()
    assert "dpsgd-full" in (recorded / "membership.html").read_text()


def test_leakage(recorded):
    found = json.loads(attack("leakage", recorded, "--window", 8, "--samples", 100, "--json"))
    (full, _, independent) = found[str(recorded)]
    assert full["title"] == "dpsgd-full"
    assert full["recovered"] > 0.99, "a neighbour holds the model itself"
    assert independent["title"] == "cesar-random-0.5"
    assert independent["rounds"] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert independent["identified"] > 0.5
    assert independent["recovered"] > 0.05
    assert independent["error"] < independent["error_mean"]


def test_leakage_of_a_run_with_crashes(tmp_path):
    """Who crashed is drawn again from the run's seed. The attack goes on to succeed."""
    faults = {"crash_rate": 0.1}
    run.execute(
        config.parse({**TABLES, "name": "crashes", "faults": faults, "method": TABLES["method"][2:]}),
        tmp_path,
    )
    found = json.loads(attack("leakage", tmp_path, "--window", 8, "--samples", 100, "--json"))
    (independent,) = found[str(tmp_path)]
    assert independent["identified"] > 0.3
    assert independent["recovered"] > 0.02
    attack("document", tmp_path, "--out", tmp_path / "page.md")
    assert "crashes with probability 0.1, after coordination" in (tmp_path / "page.md").read_text("utf-8")


def test_the_document_gets_its_section_and_keeps_the_rest(recorded, tmp_path):
    attack("membership", recorded, "--round", 12, "--samples", 50)
    attack("leakage", recorded, "--window", 4, "--receivers", 2, "--samples", 50)
    page = tmp_path / "privacy.md"
    page.write_text(f"# Privacy\n\nabove\n\n{BEGIN}\nearlier figures\n{END}\n\nbelow\n", encoding="utf-8")
    attack("document", recorded, "--out", page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Privacy\n\nabove\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nbelow\n")
    assert "earlier figures" not in text
    assert "| dpsgd-full | 0." in text
    assert "| cesar-random-0.5 | " in text
    assert (tmp_path / "attack-small.svg").exists()
    attack("document", recorded, "--out", page)
    assert page.read_text(encoding="utf-8") == text
    attack("document", recorded, "--out", tmp_path / "new.md")
    assert BEGIN in (tmp_path / "new.md").read_text(encoding="utf-8")


def test_the_same_seed_gives_the_same_figures(recorded):
    command = ("leakage", recorded, "--window", 3, "--receivers", 2, "--samples", 50, "--json")
    assert attack(*command) == attack(*command)


def test_what_cannot_be_attacked(recorded, tmp_path):
    with pytest.raises(ConfigError, match=r"holds no experiment\.json"):
        attack("membership", tmp_path)
    with pytest.raises(DataError, match="round 3 was not recorded; there are 5, 6"):
        attack("membership", recorded, "--round", 3)
    with pytest.raises(ConfigError, match="at least one round"):
        attack("leakage", recorded, "--window", 0)
    with pytest.raises(ConfigError, match="no Markdown file"):
        attack("document", recorded, "--out", tmp_path / "page.html")
    (tmp_path / "page.md").write_text("# Privacy\n", encoding="utf-8")
    attack("membership", recorded, "--round", 12, "--samples", 20)
    with pytest.raises(DataError, match="must have one line"):
        attack("document", recorded, "--out", tmp_path / "page.md")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"recording": {}}, "no recorded rounds"),
        ({"recording": {"rounds": [2]}}, "one recorded round"),
        ({"faults": {"crash_rate": 0.1, "crash_point": "after_announce"}}, "nodes crashed after announce"),
    ],
)
def test_what_leakage_refuses(tmp_path, changes, message):
    run.execute(config.parse({**TABLES, "rounds": 2, "method": TABLES["method"][2:3], **changes}), tmp_path)
    with pytest.raises((ConfigError, DataError), match=message):
        attack("leakage", tmp_path)


def test_a_damaged_recording_is_named(recorded, tmp_path):
    run.execute(config.parse({**TABLES, "rounds": 3, "method": TABLES["method"][:1]}), tmp_path)
    path = tmp_path / "dpsgd-full" / "seed-1" / "recording" / "round-000002.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"round-000002\.safetensors is damaged"):
        attack("membership", tmp_path)


# ── experiments of strangers ────────────────────────────────────────────────────────────────────────────

STRANGE = """
from pathlib import Path

Path(__file__).with_name("ran").touch()

def make():
    import torch

    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


@pytest.fixture
def strange(tmp_path, monkeypatch):
    """A run directory that somebody sent, which names code beside it as its model."""
    (tmp_path / "strange.py").write_text(STRANGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "strange", raising=False)
    return tmp_path


def file_of(folder):
    text = (
        'name = "theirs"\nrounds = 2\n[data]\ntrain_limit = 80\n[model]\nname = "strange:make"\n'
        "[topology]\nnodes = 4\ndegree = 2\n[evaluation]\nevery = 2\n[recording]\nlast = 2\n"
        '[[method]]\nname = "dpsgd"\n[[method]]\nname = "cesar"\nsparsifier = "random"\nshare = 0.5\n'
    )
    (folder / "theirs.toml").write_text(text)
    return folder / "theirs.toml"


def test_no_command_but_run_imports_the_code_of_a_stranger(strange, recorded):
    """An experiment names what is imported, and an import runs it."""
    ran, out, theirs = strange / "ran", strange / "out", strange / "theirs"
    shutil.copytree(recorded, theirs)
    description = json.loads((theirs / "experiment.json").read_text())
    description["model"]["name"] = "strange:make"
    (theirs / "experiment.json").write_text(json.dumps(description))
    commands = [
        ("attack", "membership", theirs),
        ("attack", "leakage", theirs, "--window", 8),
        ("attack", "filter", theirs),
        ("audit", theirs),
        ("report", theirs),
        ("bench", "training", "--model", "strange:make", "--dataset", "digits"),
        ("run", file_of(strange), "--out", out),
        ("run", "--resume", theirs),
    ]
    for command in commands:
        CliRunner().invoke(app, list(map(str, command)))
        assert not ran.exists(), command
    for command in (commands[0], commands[1], commands[6]):
        assert "would be imported and run" in refused(*command)
    assert not out.exists()
    call("run", file_of(strange), "--out", out, "--trust-code")
    assert ran.exists()
