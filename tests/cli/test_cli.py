"""The command line as a newcomer uses it: help, tables, JSON, and errors that say what to do."""

import json
import subprocess
import sys

import pytest

import cesar


def run(*arguments, timeout=120):
    command = [sys.executable, "-c", "from cesar.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def read(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_version():
    assert run("--version").stdout.strip() == f"cesar {cesar.__version__}"


@pytest.mark.parametrize(
    "command",
    [(), ("plan",), ("plan", "alpha"), ("bench",), ("bench", "round"), ("run",), ("demo",), ("data",)],
    ids=" ".join,
)
def test_help(command):
    done = run(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_plan():
    assert read("plan", "alpha", "--share", "0.30", "--degree", "6")["alpha"] == pytest.approx(
        0.3422, abs=1e-4
    )
    assert read("plan", "share", "--alpha", "0.3422", "--degree", "6")["share"] == pytest.approx(
        0.3, abs=1e-3
    )
    assert "0.4253" in run("plan", "alpha", "--share", "0.3", "--degree", "6", "--masks", "2").stdout


def test_bench_round():
    small = ("--nodes", "6", "--degree", "3", "--params", "2000", "--rounds", "1")
    result = read("bench", "round", *small, "--sparsifier", "topk")
    assert result["ratio"] == pytest.approx(result["round_seconds"] / result["floor_seconds"])
    assert result["peak_rss_bytes"] > 0
    assert set(result["bytes_per_node"]) == {"coordination", "values", "metadata", "control"}


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


def test_explain():
    result = read("explain")
    assert all(row["largest_error"] < 1e-6 for row in result["learned"])
    assert len(result["glimpse"]["words"]) == 4
    assert "masked word" in run("explain").stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("plan", "alpha", "--share", "0.3", "--degree", "1"), "degree of at least 2"),
        (("plan", "share", "--alpha", "1.5", "--degree", "6"), "fraction"),
        (("bench", "round", "--nodes", "5", "--degree", "3"), "no 3-regular graph"),
        (("run",), "experiment file"),
        (("run", "nowhere.toml"), "no experiment file"),
        (("report", "nowhere"), "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_errors_are_one_clear_line(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
