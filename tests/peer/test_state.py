"""state.json is whole or not changed at all, whatever happens during a write, and its counters never go back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError, LocalProtocolError
from cesar.peer.driver import state as states
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.driver.state import State, StateFile
from support.lan import make_network

WRITER = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from cesar.peer.driver.state import StateFile

    def killed_at(step):
        def count(*_):
            nonlocal step
            step -= 1
            if not step:
                os.kill(os.getpid(), signal.SIGKILL)
        return count

    path, old, new = Path(sys.argv[1]), 0, 0
    for step in range(1, 10_000):
        before = StateFile(path).state
        if not (child := os.fork()):
            file = StateFile(path)
            sys.setprofile(killed_at(step))  # counts the calls that Python makes, and their returns
            file.change(attempts=step, next_round=2 * step)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        state = StateFile(path).state
        assert state.next_round == 2 * state.attempts, state
        if not status:
            break
        assert state.attempts in (before.attempts, step), (before, step, state)
        old, new = old + (state == before), new + (state.attempts == step)
    assert state.attempts == step, "what it said that it had written is there"
    print(old, new)
    """
)


def test_a_kill_at_any_moment_changes_all_or_nothing(tmp_path):
    """A process is killed at the first call that it makes while it writes, at the second, and so on to the last."""
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path / "state.json")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    unchanged, changed = map(int, done.stdout.split())
    assert unchanged > 20
    assert changed > 2


@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace", "fsync folder"])
def test_a_write_that_fails_half_way_changes_nothing(step, tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    file = StateFile(path)
    file.change(attempts=4, next_round=7)
    fail_at(monkeypatch, step)
    with pytest.raises(OSError, match="no space"):
        file.change(attempts=5, next_round=8)
    monkeypatch.undo()
    assert file.state == State(attempts=4, next_round=7)
    written = State(attempts=5, next_round=8)
    assert StateFile(path).state == (written if step == "fsync folder" else file.state)
    file.change(attempts=5, next_round=8)
    assert StateFile(path).state == file.state == written


def fail_at(monkeypatch, step):
    """The disk is full from some step on."""

    def full(*_, **__):
        raise OSError(28, "no space")

    def second_time(function):
        calls = []

        def maybe(*args, **kwargs):
            calls.append(1)
            return function(*args, **kwargs) if len(calls) == 1 else full()

        return maybe

    match step:
        case "open":
            monkeypatch.setattr(os, "open", full)
        case "write":
            monkeypatch.setattr(Path, "write_bytes", lambda draft, _: (draft.write_text('{"attem'), full()))
        case "fsync":
            monkeypatch.setattr(os, "fsync", full)
        case "replace":
            monkeypatch.setattr(os, "replace", full)
            monkeypatch.setattr(Path, "replace", full)
        case _:
            monkeypatch.setattr(os, "fsync", second_time(os.fsync))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        "\0" * 60,
        "{}",
        '{"attempts": 3}',
        '{"attempts": 3, "next_round": 4}',
        '{"attempts": 3.5, "next_round": 4, "roster": 1}',
        '{"attempts": -1, "next_round": 4, "roster": 1}',
        '{"attempts": "3", "next_round": 4, "roster": 1}',
        '{"attempts": 3, "next_round": 4, "roster": 1, "more": 0}',
        '{"attempts": 3, "next_round": 4294967296, "roster": 1}',
    ],
)
def test_a_damaged_file_is_not_taken_for_a_new_one(text, tmp_path):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ConfigError, match="is damaged; remove it"):
        StateFile(tmp_path / "state.json")


def test_every_cut_of_the_file_is_damage(tmp_path):
    path = tmp_path / "state.json"
    StateFile(path).change(attempts=41, next_round=52, roster=3)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(ConfigError):
            StateFile(path)


@pytest.mark.parametrize("field", ["attempts", "next_round", "roster"])
def test_a_counter_never_goes_back(field, tmp_path):
    file = StateFile(tmp_path / "state.json")
    file.change(attempts=5, next_round=5, roster=5)
    with pytest.raises(LocalProtocolError, match=field):
        file.change(**{field: 4})
    assert StateFile(tmp_path / "state.json").state == file.state == State(attempts=5, next_round=5, roster=5)


def test_only_its_owner_reads_it(tmp_path):
    StateFile(tmp_path / "state.json").change(attempts=1)
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


def test_a_restored_machine_draws_other_bytes(monkeypatch):
    """Its counters and its random generator are as they were; the time of day is not."""
    monkeypatch.setattr(os, "urandom", bytes)
    clock = iter(range(10**18, 10**18 + 10))
    monkeypatch.setattr(states.time, "time_ns", lambda: next(clock))
    monkeypatch.setattr(states.time, "monotonic_ns", lambda: 5)
    first, second = (states.fresh_entropy(3, 7)(32) for _ in range(2))
    assert first != second


def test_what_another_process_wrote_before_the_lock_counts(tmp_path):
    """A peer that was loaded, and waited for the other process to end, goes on behind it."""
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    folder = network.folder / "peer-1"

    async def story():
        peer = AsyncPeer.load(folder)
        StateFile(folder / states.FILE).change(attempts=40, next_round=50, roster=1)
        await peer.start()
        assert peer.next_round == 50
        report = await peer.average_vector(np.zeros(4, np.float32))
        await peer.close()
        return report

    assert asyncio.run(story()).round == 50
    assert StateFile(folder / states.FILE).state == State(attempts=41, next_round=51, roster=1)


def test_rounds_are_counted_anew_under_a_newer_roster_only(tmp_path):
    file = StateFile(tmp_path / "state.json")
    file.change(attempts=4, next_round=7, roster=1)
    for back in (
        {"next_round": 0},
        {"next_round": 0, "roster": 1},
        {"attempts": 0, "next_round": 0, "roster": 2},
    ):
        with pytest.raises(LocalProtocolError, match="cannot go back"):
            file.change(**back)
    file.change(next_round=0, roster=2)
    assert StateFile(tmp_path / "state.json").state == State(4, 0, 2)
    with pytest.raises(LocalProtocolError, match="roster cannot go back from 2 to 1"):
        file.change(roster=1)
