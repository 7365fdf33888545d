"""Sixteen processes train on the digits while peers are killed, stopped and cut off.

No round outlasts its deadline, nobody's training ends early, everybody comes back, and every average is what the
frames that its receiver took in imply: `replay` works it out again from the transcripts.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import networkx as nx
import numpy as np
import pytest
from sklearn.datasets import load_digits

import cesar
from cesar.peer.trust.config import PeerConfig
from support import liar, replay, worker
from support.lan import Switchboard, make_network, no_namespaces
from support.processes import Processes
from support.waiting import wait_until

PEERS, ALPHA, MASKS = 16, 0.6, 1
METHOD = f'name = "cesar"\nsparsifier = "random"\nalpha = {ALPHA}\nmasks = {MASKS}'
ROUNDS = "floor = 1.0\nceiling = 5.0"

MARGIN = 4.0
"""Seconds that a busy machine may add to a deadline, and one more for each process that waits for a core."""


def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int64)


def parts(images, labels, count):
    """What each node trains on, and behind these what all are tested on."""
    return [(images[i:1440:count], labels[i:1440:count]) for i in range(count)], (
        images[1440:],
        labels[1440:],
    )


class Pulse:
    """When the machine gave this process no time: then it gave none to the peers either, or somebody has stopped all of them."""

    BEAT = 0.25

    def __init__(self):
        self.gaps: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        before = time.monotonic()
        while not self._over.wait(self.BEAT):
            now = time.monotonic()
            if now > before + 2 * self.BEAT:
                self.gaps.append((before, now))
            before = now

    def end(self):
        self._over.set()
        self._thread.join()


def overlap(spans, note) -> float:
    """How much of a round lies in these spans of time."""
    return sum(max(0.0, min(end, note["end"]) - max(begin, note["begin"])) for begin, end in spans)


@dataclass
class Fleet(Processes):
    """Peers that train on the digits, and what was done to them."""

    last: int = 0
    stopped: list[tuple[int, float, float]] = field(default_factory=list)
    liars: tuple[int, ...] = ()
    step: Callable = worker.local_step
    pulse: Pulse = field(default_factory=Pulse)

    def __post_init__(self):
        super().__post_init__()
        images, labels = digits()
        for i, (some, theirs) in enumerate(parts(images, labels, len(self.network.roster.members))[0]):
            np.savez(self.folder(i) / "data.npz", images=some, labels=theirs)

    @property
    def nodes(self) -> list[int]:
        """Those that are honest."""
        return sorted(self.network.roster.members.keys() - set(self.liars))

    def job(self, node: int):
        folder, name = self.folder(node), self.namespaces.get(node)
        target = liar.attack if node in self.liars else partial(worker.train, step=self.step)
        return target, (folder, folder / "data.npz", self.network.folder / "last", name, self.pause)

    def freeze(self, node: int) -> None:
        """SIGSTOP, if it is still there, until its neighbours have waited for it in vain and go on without it."""
        if not self.processes[node].is_alive():
            return
        near = [i for i in self.network.roster.graph[node] if self.processes[i].is_alive()]
        begin = time.monotonic()
        self.signal(node, signal.SIGSTOP)
        try:
            wait_until(lambda: all(self.without(i, node, begin) >= 2 for i in near), 60, self.tails)
        finally:
            self.signal(node, signal.SIGCONT)
            self.stopped.append((node, begin, time.monotonic()))

    def without(self, i: int, node: int, since: float) -> int:
        """How many rounds of node i have ended since then without a share of the other node."""
        return sum(
            note["end"] > since and node not in note["report"]["contributors"] for note in self.notes(i)
        )

    def round(self) -> int:
        """How far the foremost are."""
        return max(
            json.loads(line)["report"]["round"] if line else -1 for line in map(self._last_line, self.nodes)
        )

    def _last_line(self, node: int) -> bytes:
        path = self.folder(node) / worker.NOTES
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            return [b"", *file.read().split(b"\n")[:-1]][-1]

    def taken(self) -> int:
        """How many rounds a peer has taken part in; the median, for numbers can be skipped."""
        return int(np.median([len(self.notes(i)) for i in self.nodes]))

    def notes(self, node: int) -> list[dict]:
        return worker.read_notes(self.folder(node))

    def until(self, round_: int, seconds: float) -> None:
        """Wait for a round to be over somewhere."""
        wait_until(
            lambda: self.round() >= round_, seconds, lambda: f"round {round_} was not reached: {self.tails()}"
        )

    def finish(self, seconds: float) -> None:
        """Everybody's training goes on for a few rounds, and ends by itself after the last one."""
        self.last = self.round() + 6
        draft = self.network.folder / "draft"
        draft.write_text(str(self.last))
        draft.rename(self.network.folder / "last")
        end = time.monotonic() + seconds
        for node in self.nodes:
            process = self.processes[node]
            process.join(max(0.0, end - time.monotonic()))
            assert process.exitcode == 0, f"peer {node}: {process.exitcode}\n{self.tails([node])}"
            assert self.notes(node)[-1]["report"]["round"] >= self.last

    def __exit__(self, *_):
        super().__exit__()
        self.pulse.end()

    # ── what must hold afterwards ───────────────────────────────────────────────────────────────────────

    def rounds(self) -> Iterator[tuple[int, dict, float]]:
        """All rounds of honest peers: who, what it noted, and how long it took, without the time that its peer was stopped."""
        for node in self.nodes:
            stops = [(begin, end) for i, begin, end in self.stopped if i == node] + self.pulse.gaps
            for note in self.notes(node):
                yield node, note, note["end"] - note["begin"] - overlap(stops, note)

    def longest(self) -> float:
        """Seconds of the longest round; none outlasts its deadline."""
        for node, note, seconds in self.rounds():
            assert seconds <= note["patience"] + MARGIN + note["load"], (node, note)
        return max(seconds for *_, seconds in self.rounds())

    def latest(self) -> float:
        """By how many seconds a round went beyond its deadline, at most."""
        return max(seconds - note["patience"] for _, note, seconds in self.rounds())

    def check_averages(self) -> tuple[int, int]:
        """Every average against the frames, and against the models of those who are in it; how many, and how many
        parameters were lost.
        """
        models = {i: {} for i in self.nodes}
        for i in self.nodes:
            for note in self.notes(i):
                models[i][note["report"]["round"]] = np.load(self.folder(i) / worker.DUMPS / note["file"])
        checked = lost = 0
        for r in self.nodes:
            frames = replay.rounds_of(self.folder(r) / "frames")
            for note in self.notes(r):
                report, t = note["report"], note["report"]["round"]
                before, after = models[r][t]
                this, names = frames.get(t, replay.Round()), report["contributors"]
                assert all(this.shares[i][0] <= note["frames"] for i in names if i not in self.liars)
                told = self._implied(this, before, after, r, note)
                assert np.array_equal(told.vector, after), (r, t)
                assert np.isfinite(after).all()
                assert told.spoiled.sum() == report["lost"] or self.liars
                checked, lost = checked + 1, lost + report["lost"]
                if all(t in models.get(i, ()) for i in names):
                    check_mean(told, before, after, {i: models[i][t][0] for i in report["contributors"]})
        return checked, lost

    def _implied(self, this, before, after, r, note) -> replay.Implied:
        """What frames imply; where a liar has sent several shares, by one of them."""
        report, told = note["report"], None
        t, names = report["round"], report["contributors"]
        if report["overflowed"]:
            return replay.Implied(before, np.zeros(len(before), bool), {}, 0.0)
        for reading in replay.readings(this, sorted(set(names) & set(self.liars)), note["frames"]):
            with contextlib.ExitStack() as stack:
                if self.liars:
                    stack.enter_context(contextlib.suppress(AssertionError, ValueError))
                view = sorted(self.network.roster.graph[r])
                told = replay.implied(reading, before, view, names, alpha=ALPHA, s=MASKS)
                if np.array_equal(told.vector, after):
                    break
        assert told is not None, (r, t, "none of its frames can have been taken")
        return told

    def back(self, node: int, after: int) -> bool:
        """Whether others have had it in their averages again in a later round."""
        return any(
            note["report"]["round"] > after and node in note["report"]["contributors"]
            for i in self.network.roster.graph[node]
            for note in self.notes(i)
        )

    def until_back(self, gone: list[tuple[int, int]], seconds: float) -> None:
        """Everybody takes part again who was away since some round."""
        for node, since in gone:
            wait_until(
                partial(self.back, node, since),
                seconds,
                lambda node=node: f"node {node} never came back\n{self.tails([node])}",
            )

    def check_seeds(self) -> None:
        """No seed of a mask was ever used twice."""
        seeds = [
            (i, t, this.sent[replay.ANNOUNCE, j][:16])
            for i in self.nodes
            for t, this in replay.rounds_of(self.folder(i) / "frames").items()
            for j in [next((to for kind, to in this.sent if kind == replay.ANNOUNCE), None)]
            if j is not None
        ]
        assert len({seed for _, _, seed in seeds}) == len(seeds)

    def accuracies(self) -> np.ndarray:
        images, labels = parts(*digits(), len(self.nodes))[1]
        return np.array(
            [
                worker.accuracy(
                    np.load(self.folder(i) / worker.DUMPS / self.notes(i)[-1]["file"])[1], images, labels
                )
                for i in self.nodes
            ]
        )


def check_mean(told, before, after, theirs) -> None:
    """The average is that of the true models, to half a step of the grid for each."""
    total, count = before.astype(np.float64), np.ones(len(before))
    for i, used in told.used.items():
        total += np.where(used, theirs[i], 0)
        count += used
    error = np.abs(after - total / count)
    assert (error <= told.step * len(told.used) / 2 + np.abs(after) * 2.0**-23).all()


def simulated(fleet: Fleet) -> np.ndarray:
    """Accuracies after as many rounds of the same training in the simulator."""
    graph, rounds = nx.Graph(fleet.network.roster.graph), fleet.taken()
    own, (images, labels) = parts(*digits(), len(graph))
    method = PeerConfig.load(fleet.folder(0)).method(fleet.network.roster)
    ensemble = cesar.Ensemble(graph, method, worker.SIZE, seed=3)
    models = np.zeros((len(graph), worker.SIZE), np.float32)
    for _ in range(rounds):
        models = np.stack([worker.local_step(models[i], *own[i]) for i in range(len(graph))])
        models = ensemble.round(models).vectors
    ensemble.close()
    return np.array([worker.accuracy(model, images, labels) for model in models])


def graph_of(count: int, degree: int = 4) -> nx.Graph:
    return nx.random_regular_graph(degree, count, seed=5)


def test_kill_and_stop(tmp_path):
    """A few dozen rounds: one peer is killed and restarted, another stopped for longer than the deadline."""
    graph = graph_of(PEERS)
    network = make_network(tmp_path / "net", graph, METHOD, rounds=ROUNDS, transcript=True)
    with Fleet(network) as fleet:
        fleet.until(4, 60)
        fleet.kill(3)
        killed = fleet.round() + 1  # the one that was going on may still have it
        fleet.until(killed + 3, 30)
        fleet.start(3)
        fleet.until(fleet.round() + 3, 30)
        fleet.freeze(7)
        fleet.until_back([(3, killed), (7, fleet.round() + 1)], 60)
        fleet.finish(60)
    longest = fleet.longest()
    checked, lost = fleet.check_averages()
    assert checked >= 15 * 12
    fleet.check_seeds()
    ours, theirs = fleet.accuracies().mean(), simulated(fleet).mean()
    print(f"longest {longest:.2f} s, {checked} averages, {lost} lost, {ours:.4f} against {theirs:.4f}")
    assert abs(ours - theirs) <= 0.01


def halves(count: int) -> tuple[list[int], list[int]]:
    return list(range(count // 2)), list(range(count // 2, count))


def across(fleet: Fleet, left: list[int], since: int, until: int) -> int:
    """How often a node averaged with one on the other side in these rounds."""
    return sum(
        (i in left) != (j in left)
        for i in fleet.nodes
        for note in fleet.notes(i)
        if since <= note["report"]["round"] < until
        for j in note["report"]["contributors"]
    )


def test_partition(tmp_path):
    """Both sides of a cut go on by themselves, and together again when it is healed."""
    if why := no_namespaces():
        pytest.skip(why)
    left, right = halves(8)
    with Switchboard(left, right) as board:
        network = make_network(
            tmp_path / "net",
            graph_of(8),
            METHOD,
            rounds=ROUNDS,
            transcript=True,
            addresses=board.addresses,
        )
        with Fleet(network, namespaces=board.names) as fleet:
            fleet.until(4, 60)
            board.cut()
            cut = fleet.round()
            fleet.until(cut + 8, 60)
            board.heal()
            healed = fleet.round()
            wait_until(lambda: across(fleet, left, healed + 1, 10**6), 60, fleet.tails)
    assert across(fleet, left, 0, cut)
    assert not across(fleet, left, cut + 3, healed)
    for side in (left, right):
        assert any(cut + 3 < note["report"]["round"] for i in side for note in fleet.notes(i))
    fleet.longest()
    fleet.check_averages()
    fleet.check_seeds()


@pytest.mark.slow
def test_soak(tmp_path):
    """500 rounds of everything: kill -9 every few rounds, stops, cuts; the machine's namespaces if it allows them."""
    rounds, draw, graph = 500, random.Random(8), graph_of(PEERS)
    left, right = halves(PEERS)
    why = no_namespaces()
    with contextlib.ExitStack() as stack:
        board = None if why else stack.enter_context(Switchboard(left, right))
        network = make_network(
            tmp_path / "net",
            graph,
            METHOD,
            rounds=ROUNDS,
            transcript=True,
            addresses=board and board.addresses,
        )
        begin = time.monotonic()
        fleet = stack.enter_context(Fleet(network, namespaces=board.names if board else {}))
        away: dict[int, int] = {}
        gone: list[tuple[int, int]] = []
        cuts: list[int] = []
        fleet.until(5, 120)
        while fleet.taken() < rounds:
            now = fleet.round()
            for node in [node for node, since in away.items() if now >= since + 4]:
                fleet.start(node)
                del away[node]
            present = [node for node in fleet.nodes if node not in away]
            if len(away) < 3:
                victim = draw.choice(present)
                fleet.kill(victim)
                away[victim] = now
                gone.append((victim, fleet.round() + 1))
            if draw.random() < 0.1:
                victim = draw.choice([node for node in present if node not in away])
                fleet.freeze(victim)
                gone.append((victim, fleet.round() + 1))
            if board and fleet.taken() > 150 * (1 + len(cuts)):
                board.cut()
                fleet.until(now + 40, 300)
                board.heal()
                cuts.append(fleet.round())
            fleet.until(fleet.round() + 3, 300)
        for node in away:
            fleet.start(node)
        fleet.until_back(gone, 300)
        fleet.finish(300)
        seconds = time.monotonic() - begin
    longest = fleet.longest()
    checked, lost = fleet.check_averages()
    fleet.check_seeds()
    for healed in cuts:
        assert across(fleet, left, healed + 1, fleet.last + 1)
    ours, theirs = fleet.accuracies(), simulated(fleet)
    print(
        f"{fleet.taken()} rounds in {seconds:.0f} s; {fleet.kills} kills, {len(fleet.stopped)} stops, {len(cuts)} cuts ({why}); "
        f"longest round {longest:.2f} s; {checked} averages, {lost} parameters lost; accuracy {ours.mean():.4f}, "
        f"simulator {theirs.mean():.4f}"
    )
    assert abs(ours.mean() - theirs.mean()) <= 0.01


@pytest.mark.slow
def test_an_adversary(tmp_path):
    """300 rounds in which one of sixteen lies in all that it says, while others are killed."""
    rounds, draw, enemy = 300, random.Random(9), 5
    network = make_network(
        tmp_path / "net", graph_of(PEERS), METHOD, rounds="floor = 0.5\nceiling = 3.0", transcript=True
    )
    begin = time.monotonic()
    with Fleet(network, liars=(enemy,), step=worker.bounded_step) as fleet:
        away: dict[int, int] = {}
        coming: dict[int, int] = {}  # started again, with so many rounds behind it
        wait_until(lambda: fleet.taken() >= 5, 300, fleet.tails)
        while (taken := fleet.taken()) < rounds:
            for node in [node for node, since in away.items() if taken >= since + 3]:
                fleet.start(node)
                del away[node]
                coming[node] = len(fleet.notes(node))
            coming = {node: done for node, done in coming.items() if len(fleet.notes(node)) == done}
            if len(away) + len(coming) < 2:  # a process takes longer to start than a few rounds
                victim = draw.choice([node for node in fleet.nodes if node not in away | coming])
                fleet.kill(victim)
                away[victim] = taken
            wait_until(lambda taken=taken: fleet.taken() >= taken + 3, 300, fleet.tails)
        for node in away:
            fleet.start(node)
        fleet.finish(300)
        seconds = time.monotonic() - begin
    lies = max(map(int, (fleet.folder(enemy) / "lies").read_text().split()))
    fleet.longest()
    checked, lost = fleet.check_averages()
    logs = "".join((fleet.folder(i) / "log").read_text() for i in fleet.nodes)
    assert "made this peer fail" not in logs
    assert "(fault)" not in logs
    refused = logs.count(f"frame from node {enemy} in round")
    assert refused > 100
    memory = [[note["memory"] for note in fleet.notes(i)] for i in fleet.nodes]
    peak = max(map(max, memory)) / 2**20
    heard = sum(enemy in note["report"]["contributors"] for i in fleet.nodes for note in fleet.notes(i))
    near = [i for i in fleet.nodes if enemy in network.roster.graph[i]]
    company = {
        i: np.mean([len(note["report"]["contributors"]) for note in fleet.notes(i)]) for i in fleet.nodes
    }
    beside, others = (
        np.mean([company[i] for i in fleet.nodes if (i in near) is there]) for there in (True, False)
    )
    print(
        f"{fleet.taken()} rounds in {seconds:.0f} s, {fleet.kills} kills, {lies} lies, {refused} refusals logged; {checked} averages, "
        f"{heard} with the adversary, {lost} parameters lost; with {beside:.2f} neighbours next to it, {others:.2f} elsewhere; "
        f"at most {fleet.latest():.2f} s after a deadline; memory at most {peak:.0f} MiB"
    )
    assert peak < 512, "without an adversary it was 349 MiB"
