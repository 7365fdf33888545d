"""`cesar bench`: measurements that can be wrong, and bytes at the paper's settings."""

import json
from collections import Counter
from xml.etree import ElementTree as ET

import pytest

from cesar.bench import floor
from cesar.bench.timeline import COLOURS, draw
from cesar.errors import ConfigError
from cesar.peer.spans import Span, Work
from support.commands import read, run

SVG = "{http://www.w3.org/2000/svg}"


class Counted:
    """In place of the cipher: notes what is made, and how long each block is."""

    made: dict[bytes, int]

    def __init__(self, key):
        self.key = key
        self.made[key] = 0

    def fill(self, block):
        self.made[self.key] += len(block)


def test_the_floor_makes_every_word_of_every_mask_once(monkeypatch):
    monkeypatch.setattr(Counted, "made", {}, raising=False)
    monkeypatch.setattr(floor, "Keystream", Counted)
    assert floor.keystream_seconds(6, 2 * floor.BLOCK + 1) > 0
    assert list(Counted.made.values()) == [2 * floor.BLOCK + 1] * 6, "six masks, each with a key of its own"


def test_bench_round():
    small = ("--nodes", "6", "--degree", "3", "--params", "2000", "--rounds", "1")
    result = read("bench", "round", *small, "--sparsifier", "topk")
    assert result["shared"] == pytest.approx(0.3, abs=0.05)
    assert result["ratio"] > 0.2, "far below the floor something was left out; a small round is noisy"
    assert result["peak_rss_bytes"] > 10_000_000, "Python alone is larger"
    sent = result["bytes_per_node"]
    assert set(sent) == {"coordination", "values", "metadata", "control"}
    assert sent["values"] == pytest.approx(3 * 4 * result["shared"] * 2000, rel=0.01), "3 neighbours, 32 bits"


def test_a_round_with_groups_is_timed_beside_one_without():
    small = ("--nodes", "6", "--degree", "4", "--params", "2000", "--rounds", "3")
    result = read("bench", "round", *small, "--group-size", 2)
    assert result["to_beside"] == result["round_seconds"] / result["beside_seconds"]
    assert result["shared"] == pytest.approx(0.3, abs=0.03)
    assert read("bench", "round", *small)["beside_seconds"] is None
    with pytest.raises(ConfigError, match="leave --group-size out"):
        read("bench", "round", *small, "--method", "dpsgd", "--group-size", 2)
    with pytest.raises(ConfigError, match="leave masks out"):
        read("bench", "bytes", "--masks", 2, "--group-size", 2)


def test_whole_rounds_are_timed_in_turn_with_dpsgd_and_the_bare_loop():
    small = ("--dataset", "digits", "--model", "digits-mlp", "--nodes", 6, "--degree", 4, "--rounds", 3)
    result = read("bench", "overhead", *small, "--group-size", 2, "--sparsifier", "topk", "--share", 0.3)
    assert result["ratio_to_dpsgd"] == result["method"]["round_seconds"] / result["dpsgd"]["round_seconds"]
    assert result["ratio_to_bare"] == result["method"]["round_seconds"] / result["bare"]["round_seconds"]
    for name in ("dpsgd", "bare"):
        low, high = result[f"spread_to_{name}"]
        assert 0 < low <= high
    for part in ("training_seconds", "protocol_seconds"):
        assert 0 < result["method"][part] < result["method"]["round_seconds"] * 2
    assert result["bare"]["protocol_seconds"] == 0, "it does not average"
    assert result["dpsgd_shared"] == pytest.approx(result["shared"], rel=0.1), "D-PSGD shares as much"
    assert "ratio to dpsgd" in run("bench", "overhead", *small, "--rounds", 1).stdout


def test_a_graph_that_falls_apart_is_drawn_again():
    """Random graphs of degree 2 are often several rings."""
    found = read(
        "bench", "bytes", "--nodes", 24, "--degree", 2, "--params", 500, "--share", 0.2, "--graphs", 3
    )
    assert found["ratio"] > 0


@pytest.mark.parametrize(
    "options, low, high",
    [
        (("--sparsifier", "topk"), 1.0, 1.12),
        (("--sparsifier", "random"), 1.0, 1.01),
        (("--sparsifier", "topk", "--ring-bits", "16"), 0.5, 0.70),
        (("--sparsifier", "random", "--ring-bits", "16"), 0.5, 0.52),
        (("--sparsifier", "topk", "--paper"), 1.30, 1.40),
        (("--sparsifier", "random", "--paper"), 1.09, 1.13),
        (("--sparsifier", "topk", "--group-size", "2", "--ring-bits", "32"), 1.0, 1.04),
        (("--sparsifier", "random", "--group-size", "2", "--ring-bits", "32"), 1.0, 1.002),
        (("--sparsifier", "topk", "--group-size", "2"), 0.5, 0.58),
        (("--sparsifier", "random", "--group-size", "2"), 0.5, 0.502),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bytes_of_the_paper_settings(options, low, high):
    """48 nodes, 6-regular, 89,834 parameters, 30 % shared: against D-PSGD at the measured share."""
    assert low <= read("bench", "bytes", *options)["ratio"] <= high


def test_bench_peers(tmp_path):
    drawn = tmp_path / "round.svg"
    done = run("bench", "peers", "--params", 50_000, "--rounds", 2, "--timeline", drawn, "--json")
    figures = json.loads(done.stdout)
    assert figures["shared"] == pytest.approx(0.3, abs=0.02)
    assert figures["bytes_per_peer"] == pytest.approx(3 * 4 * 0.3 * 50_000, rel=0.05)
    assert 0 < figures["transport_overhead"] < 0.5, "TLS and HTTP add something, and nothing is overlooked"
    assert figures["ratio"] > 1, "nobody is faster than the floor"
    picture = ET.parse(drawn).getroot()
    bars = Counter(bar.get("fill") for bar in picture.iter(f"{SVG}rect") if bar.get("fill-opacity"))
    few = {work: bars[colour] for work, colour in COLOURS.items() if bars[colour] < 4}
    assert not few, "each of four peers waits, announces, makes, sends, receives, adds and writes"
    labels = {text.text for text in picture.iter(f"{SVG}text")}
    assert {"peer 0", "peer 3", "milliseconds", *COLOURS} <= labels


def test_what_happens_at_the_edges_of_a_timeline_is_cut_off():
    spans = [Span(Work.MAKE, 0.0, 2.0), Span(Work.SEND, 5.0, 6.0), Span(Work.ADD, 3.0, 3.5)]
    picture = ET.fromstring(draw([spans], 1.0, 5.0, "a < b"))
    bars = [bar for bar in picture.iter(f"{SVG}rect") if bar.get("fill-opacity")]
    assert [bar.get("fill") for bar in bars] == [COLOURS[Work.MAKE], COLOURS[Work.ADD]]
    assert [float(bar.get("width")) for bar in bars] == pytest.approx([886 / 4, 886 / 8], abs=0.01)
    assert picture.find(f"{SVG}title").text == "a < b"
