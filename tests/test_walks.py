"""docs/architecture.md says which modules a share goes through, and how often it crosses a border: traced, not counted."""

import re
from pathlib import Path

import pytest

from support import walks

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")


def told(heading):
    """The two lists under a heading: (modules in order, crossings), out and in."""
    part = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lists = re.findall(
        r"^\*\*(Out|In)\*\*, (\d+) crossings:\n\n((?:\d+\. .*\n(?: +.*\n)*)+)", part, re.MULTILINE
    )
    assert [name for name, _, _ in lists] == ["Out", "In"]
    return [
        walks.Walk(re.findall(r"^\d+\. `([\w.]+)`", text, re.MULTILINE), int(count))
        for _, count, text in lists
    ]


@pytest.mark.parametrize("way", [0, 1], ids=["out", "in"])
def test_the_walk_in_the_simulator_is_the_one_of_the_page(simulated, way):
    assert simulated[way] == told("In the simulator")[way]


@pytest.mark.parametrize("way", [0, 1], ids=["out", "in"])
def test_the_walk_among_peers_is_the_one_of_the_page(met, way):
    assert met[way] == told("Among peers")[way]


@pytest.fixture(scope="module")
def simulated():
    return walks.in_the_simulator()


@pytest.fixture(scope="module")
def met(tmp_path_factory):
    return walks.among_peers(tmp_path_factory.mktemp("walk") / "net")


def test_a_call_within_a_module_is_no_crossing():
    calls = [walks.Call("a", "f", None, 0), walks.Call("a", "g", "a", 0), walks.Call("b", "h", "a", 0)]
    assert walks.Walk.of(calls) == walks.Walk(["a", "b"], 1)


def test_a_part_is_that_of_one_task():
    names = ["begins", "other", "begins", "holds", "more", "begins"]
    calls = [walks.Call("a", name, None, int(name == "other")) for name in names]
    assert [call.name for call in walks.part(calls, "holds", "begins")] == ["begins", "holds", "more"]
    assert [call.name for call in walks.part(calls, "holds", "begins", ("more",))] == ["begins", "holds"]
