"""`cesar bench`: measurements that can be wrong, and bytes at the paper's settings."""

import json

import pytest

from cesar.base.errors import ConfigError
from cesar_lab.bench import floor
from support.commands import read, run


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


def test_cells_are_counted_and_timed_beside_dpsgd():
    small = ("--nodes", 8, "--degree", 4, "--params", 4096, "--share", 1)
    counted = read("bench", "bytes", *small, "--cells", 4, "--against", 0.3, "--sparsifier", "random")
    assert counted["shared"] == 1.0
    # (2m − 1)/m values of two bytes for each parameter, whatever the number of neighbours would be.
    assert counted["cesar"]["values"] == pytest.approx(1.75 * 2 * 4096, rel=0.01)
    assert counted["dpsgd"]["values"] == pytest.approx(4 * 0.3 * 4 * 4096, rel=0.1)
    timed = read("bench", "round", *small, "--cells", 4, "--rounds", 2)
    assert 0.001 < timed["to_beside"] < 1000, "both are rounds of eight nodes, and the machine may be busy"
    digits = ("--dataset", "digits", "--model", "digits-mlp", "--nodes", 8, "--degree", 4, "--rounds", 2)
    assert read("bench", "overhead", *digits, "--cells", 4, "--share", 1)["dpsgd_shared"] == 1.0
    with pytest.raises(ConfigError, match="leave --masks out"):
        read("bench", "round", *small, "--cells", 4, "--masks", 2)


def test_whole_rounds_are_timed_in_turn_with_dpsgd_and_the_bare_loop():
    small = ("--dataset", "digits", "--model", "digits-mlp", "--nodes", 6, "--degree", 4, "--rounds", 3)
    result = read("bench", "overhead", *small, "--sparsifier", "topk", "--share", 0.3)
    for name in ("dpsgd", "bare"):
        assert 0.1 < result[f"ratio_to_{name}"] < 100, "of whole rounds, and neither is for nothing"
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
    assert len(found["ratios"]) == 3


@pytest.mark.parametrize(
    "options, low, high",
    [
        (("--sparsifier", "topk"), 1.0, 1.12),
        (("--sparsifier", "random"), 1.0, 1.01),
        (("--sparsifier", "topk", "--ring-bits", "16"), 0.5, 0.70),
        (("--sparsifier", "random", "--ring-bits", "16"), 0.5, 0.52),
        (("--sparsifier", "topk", "--paper"), 1.30, 1.40),
        (("--sparsifier", "random", "--paper"), 1.09, 1.13),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bytes_of_the_paper_settings(options, low, high):
    """48 nodes, 6-regular, 89,834 parameters, 30 % shared: against D-PSGD at the measured share."""
    assert low <= read("bench", "bytes", *options)["ratio"] <= high


def test_bench_peers_in_cells():
    figures = json.loads(run("bench", "peers", "--params", 50_000, "--rounds", 2, "--json").stdout)
    assert figures["bytes_per_peer"] == pytest.approx(2 * 2 * 0.75 * 50_000, rel=0.05), (
        "16 bits, scatter and gather"
    )
    assert figures["messages_per_peer"] <= 3 * 4 + 4
    assert figures["ratio"] > 1, "nobody is faster than the floor"


def test_bench_peers():
    done = run("bench", "peers", "--params", 50_000, "--cells", 0, "--rounds", 2, "--json")
    figures = json.loads(done.stdout)
    assert figures["shared"] == pytest.approx(0.3, abs=0.02)
    assert figures["bytes_per_peer"] == pytest.approx(3 * 4 * 0.3 * 50_000, rel=0.05)
    assert 0 < figures["transport_overhead"] < 0.5, "TLS and HTTP add something, and nothing is overlooked"
    assert figures["ratio"] > 1, "nobody is faster than the floor"
