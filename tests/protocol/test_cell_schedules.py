"""Cells under random schedules: the engine's own frames are lost, late, repeated and forged, members crash in the middle of a step,
restart from what they have saved and come back after long absences. After every step an oracle says what must be.

What is checked (tests/support/cell_oracle.py):

- every completed sum is the sum over exactly the named members of exactly the named numbers, to the rounding of the ring;
- no number leaves its node in slices for sums over different members;
- each number is unsent, in the common model, thrown away and reported, in a sum that the cell has taken back, or died unsaved;
- members that name the same link hold the same bits; models stay finite, and nothing but a refusal comes out of the engine.
"""

import contextlib
from collections import Counter
from functools import partial

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.base.errors import Reason
from cesar.cell_node import CellNode
from cesar.protocol import cell_round, cell_state
from cesar.protocol.cell_state import CellState
from cesar.protocol.events import AggregateReady, Deadlines
from support import cell_oracle as oracle
from support.harness import SESSIONS, FakeKeys

DEADLINES = Deadlines(announce=1.0, relay=2.0, share=3.0)
ROUNDS, CALM = 24, 6
HEAD = 28


class Schedule:
    """One network, and all that happens to it in some rounds; everything follows from the seed."""

    def __init__(self, seed, *, lies=False, robust=False):
        self.rng = rng = np.random.default_rng((seed, lies, robust) if robust else (seed, lies))
        self.tally = Counter()
        least = int(rng.integers(3, 5))
        cells = int(rng.choice([1, 1, 1, 1, 1, 1, 2, 2, 3, 4]))
        count = cells * least + int(rng.integers(0, min(cells, 2) + 1))
        self.size, tensors = [(130, (130,)), (300, (70, 130, 100)), (448, (448,)), (200, (150, 50))][
            rng.integers(4)
        ]
        kind, bits = rng.choice(["full", "random", "blocks"]), int(rng.choice([16, 20, 24, 32]))
        block = int(rng.choice([8, 16, 32, 64])) if kind == "blocks" else 0
        sparsifier = {
            "full": cesar.FullSharing(),
            "random": cesar.RandomSubsampling(0.4),
            "blocks": cesar.BlockTopK(0.4, block or 8),
        }[kind]
        links = nx.cycle_graph(cells) if cells > 2 and rng.random() < 0.5 else None
        patience = int(rng.choice([1, 2, 3, 50]))
        self.method = cesar.Cells(
            size=least,
            sparsifier=sparsifier,
            ring_bits=bits,
            patience=patience,
            graph="exponential" if links is None else links,
            robust=robust,
        )
        self.plan = self.method.plan(count, seed=seed)
        blocks = -(-self.size // block) if block else 0
        world = oracle.World(
            cells=self.plan.cells,
            heard=oracle.exponential(cells) if links is None else oracle.metropolis(links.edges),
            size=self.size,
            tensors=tensors,
            bits=bits,
            block=block,
            wanted=max(1, round(0.4 * blocks)),
            least=least,
            collusion=1,
            patience=patience,
            robust=robust,
        )
        self.tensors, self.session = tensors, SESSIONS[seed % len(SESSIONS)]
        self.start = rng.normal(size=self.size).astype(np.float32)
        self.wild = bool(lies and rng.random() < 0.25)
        self.liars = {int(rng.choice(cell)) for cell in self.plan.cells if lies and rng.random() < 0.8}
        self.book = oracle.Book(world, self.session, self.start, self.liars, wild=self.wild)
        self.loss, self.twice, self.late, self.hasty = (
            float(rng.choice([0.0, 0.004, 0.02, 0.1])) for _ in range(4)
        )
        self.crashes, self.away = float(rng.choice([0, 0.001, 0.005])), float(rng.choice([0, 0.02, 0.1]))
        self.nodes = {n: self.node(n, None, 0) for n in range(count)}
        self.models = {n: self.start.copy() for n in self.nodes}
        self.states = dict.fromkeys(self.nodes)  # what is on disk
        self.back = dict.fromkeys(self.nodes, 0)  # the round in which a node that is away comes back
        self.pool, self.round_, self.ready = [], 0, set()
        self.attempts, self.last = 0, {}
        self.settles = ROUNDS - 6 if rng.random() < 0.25 else ROUNDS + CALM  # from this round on

    def node(self, n, state, round_):
        return CellNode(
            n,
            self.method,
            self.size,
            session=self.session,
            keys=FakeKeys(self.session, n),
            first_round=round_,
            tensors=self.tensors,
            state=state,
        )

    # ── a step of one node ──────────────────────────────────────────────────────────────────────────

    def step(self, n, act, expect):
        """Let the engine and the oracle do the same; then send, or crash at any of the frames."""
        node, refused = self.nodes[n], None
        try:
            act(node)
        except cesar.RemoteProtocolError as error:
            refused = error
        outs = [
            (to, int(out.frame.kind), bytes(out.frame.payload))
            for out in node.outbound()
            for to in out.recipients
        ]
        agreed = None
        try:
            expect([(to, kind, payload[HEAD:]) for to, kind, payload in outs])
        except oracle.RefusedError as error:
            agreed = error
        assert refused is None or refused.reason is not Reason.FAULT, refused
        assert (refused is None) == (agreed is None), (n, refused, agreed)
        self.tally["refused"] += refused is not None
        while (event := node.next_event()) is not None:
            if isinstance(event, AggregateReady):
                self.finished(n, event)
            else:
                assert event.error.reason is not Reason.FAULT, event.error
        assert self.book.members[n].running == (n not in self.ready | self.waiting)
        crash = self.rng.random() < self.crashes
        cut = int(self.rng.integers(len(outs) + 1)) if crash else len(outs)
        if node.unsaved and cut:
            self.save(n)
            node.saved()
        for to, kind, payload in outs[:cut]:
            if kind == oracle.SCATTER:
                self.book.members[n].slices_left(to)
            self.send(n, to, kind, payload)
        if crash:
            self.crash(n)

    def save(self, n):
        self.states[n] = self.nodes[n].state.to_arrays()
        self.book.members[n].save()

    def crash(self, n):
        self.tally["crashes"] += 1
        again = self.rng.random() < 0.3  # at once, in the same round
        self.nodes[n] = None
        self.back[n] = self.round_ if again else self.round_ + int(self.rng.integers(1, 5))
        if again and self.rng.random() < 0.5:  # a transport may give it once more what it was given
            self.pool += self.given[n]
        (self.waiting if again else self.ready).add(n)
        (self.ready if again else self.waiting).discard(n)

    def revive(self, n):
        arrays = self.states[n]
        state = None if arrays is None else CellState.from_arrays(arrays)
        self.nodes[n] = self.node(n, state, self.round_)
        self.book.members[n].restart(self.round_)
        kept = self.start if state is None else state.common + state.unsent
        self.models[n] = kept.copy()

    # ── what happens to frames ──────────────────────────────────────────────────────────────────────

    def send(self, sender, to, kind, payload):
        rng = self.rng
        if sender in self.liars and self.lying and rng.random() < 0.15:
            payload = self.lie(sender, to, kind, payload)
            if payload is None:
                return
        if not self.calm and rng.random() < self.loss:
            return
        self.pool.append((to, sender, payload))
        self.given[to].append((to, sender, payload))
        if not self.calm and rng.random() < self.twice:
            self.pool.append((to, sender, payload))

    def lie(self, sender, to, kind, payload):
        """Withhold, cut, or turn bits of what is said; wild liars turn exponents, too."""
        rng = self.rng
        self.tally["lies"] += 1
        draw = rng.random()
        if draw < 0.3 or len(payload) == HEAD:
            return None
        if draw < 0.4:
            return payload[: int(rng.integers(HEAD, len(payload)))]
        forged = bytearray(payload)
        if self.wild or kind not in (oracle.EXCHANGE, oracle.GATHER):
            first = HEAD
        else:  # the last values only
            first = len(payload) - 1 - int(rng.integers(min(16, (len(payload) - HEAD) // 2)))
        at = int(rng.integers(first, len(payload)))
        forged[at] ^= 1 << int(rng.integers(8))
        if kind == oracle.SCATTER:
            self.book.lied.add((sender, to, payload[HEAD : HEAD + 8]))
        return bytes(forged)

    def deliver(self):
        k = int(self.rng.integers(len(self.pool)))
        self.pool[k], self.pool[-1] = self.pool[-1], self.pool[k]
        to, sender, payload = self.pool.pop()
        if self.nodes[to] is None:
            return
        self.step(
            to,
            lambda node: node.receive(sender, payload),
            partial(self.book.members[to].receive, sender, payload),
        )

    # ── rounds ──────────────────────────────────────────────────────────────────────────────────────

    def begin(self, n):
        self.attempts += 1
        draw = np.random.default_rng((7, n, self.attempts))
        settling = self.round_ >= self.settles
        self.nodes[n].use_method(self.method.settled() if settling else self.method)
        step = draw.normal(size=self.size).astype(np.float32)
        if self.method.robust and draw.random() < 0.05:
            step *= np.float32(-15)  # the others will object
            self.tally["poison"] += 1
        given = self.models[n] + step
        trained = None if settling else given.astype(np.float64) - self.models[n]

        def act(node):
            node.begin_round(
                self.round_,
                self.plan.place(n),
                given,
                reference=self.start,
                entropy=draw.bytes,
                deadlines=DEADLINES,
            )

        def expect(outs):
            chosen = np.zeros(self.size, dtype=bool)
            chosen[self.nodes[n].selected.positions()] = True
            self.book.members[n].begin(self.round_, trained, chosen, outs)

        self.step(n, act, expect)

    def tick(self, n):
        now = self.nodes[n].next_deadline()
        if now is not None:
            self.step(n, lambda node: node.tick(now), partial(self.book.members[n].tick, now))

    def round(self, *, calm=False):
        """Begin, deliver and tick in any order until everybody is ready."""
        self.calm, self.lying, rng = calm, not calm and self.round_ < self.settles, self.rng
        self.ready, self.waiting = set(), set()
        self.given = {n: [] for n in self.nodes}
        if calm:
            self.pool.clear()
            self.crashes = self.hasty = 0.0
            self.back = dict.fromkeys(self.back, 0)
        for n in self.nodes:
            if not calm and self.nodes[n] is not None and rng.random() < self.away:
                self.back[n] = self.round_ + int(rng.integers(1, 6))
            if self.back[n] <= self.round_:
                if self.nodes[n] is None:
                    self.revive(n)
                self.waiting.add(n)
            else:
                self.ready.add(n)
        while len(self.ready) < len(self.nodes):
            if self.waiting and (not self.pool or rng.random() < 0.3):
                n = int(rng.choice(sorted(self.waiting)))
                self.waiting.discard(n)
                if self.nodes[n] is None:
                    self.revive(n)
                self.begin(n)
                continue
            if self.pool and rng.random() >= self.late * 0.1:
                self.deliver()
            running = sorted(set(self.nodes) - self.ready - self.waiting)
            if running and (not (self.pool or self.waiting) or rng.random() < self.hasty * 0.1):
                clock = {n: self.nodes[n].next_deadline() or 0.0 for n in running}
                hasty = not calm and rng.random() < 0.2
                self.tick(int(rng.choice(running)) if hasty else min(clock, key=clock.__getitem__))
        self.pool = [item for item in self.pool if rng.random() < self.late]
        self.check()
        self.round_ += 1
        self.tally["rounds"] += 1
        self.tally["settling"] += self.round_ > self.settles

    # ── what must be ────────────────────────────────────────────────────────────────────────────────

    def finished(self, n, event):
        member, report, state = self.book.members[n], event.cell, self.nodes[n].state
        self.ready.add(n)
        assert event.fault is None, event.fault
        said = {name: getattr(report, name) for name in member.report}
        assert said == member.report, (n, self.round_)
        kept = member.kept
        assert np.array_equal(state.common, kept.model)
        assert np.array_equal(state.scores, kept.scores)
        if self.method.robust:
            assert np.array_equal(state.distances, kept.distances)
            assert state.recent == kept.recent
        assert (state.overheard is None) == (kept.overheard is None)
        if state.overheard is not None:
            self.tally["overheard"] += 1
            assert state.overheard.first == kept.overheard[0]
            assert np.array_equal(state.overheard.change, kept.overheard[1])
        claim = state.claim
        assert oracle.Claim(claim.base, claim.round_, claim.keepers, claim.digests) == kept.claim
        assert (state.doubt is None) == (kept.doubt is None)
        assert np.isfinite(event.vector).all()
        if not self.wild:
            far = 1e-5 * (1 + np.abs(state.common).max() + np.abs(state.unsent).max())
            unsent = member.value(kept.unsent)
            assert np.abs(state.unsent - unsent).max() < far
            result = state.common + unsent * (self.round_ < self.settles)
            assert np.abs(event.vector - result).max() < far
            lost = np.zeros(self.size) if report.discarded is None else report.discarded
            assert np.abs(lost - member.discarded()).max() < far
        member.check_account()
        self.tally["sums"] += n in report.summed
        self.tally["doubt"] += report.unsure > 0
        self.tally["votes"] += report.objections is not None
        self.tally["refusals"] += report.refusals > 0
        self.tally["disputed"] += bool(report.disputed)
        self.tally["behind"] += n in report.behind
        self.tally["thrown"] += report.discarded is not None
        self.tally["smaller"] += 0 < len(report.members) < len(self.plan.place(n).members)
        self.models[n] = event.vector.copy()
        self.last[n] = report.summed
        if self.rng.random() < 0.3:
            self.save(n)

    def check(self):
        """Members that name the same link hold the same bits."""
        for cell in self.plan.cells:
            held = {}
            for n in cell:
                if self.nodes[n] is None or self.nodes[n].fresh or n in self.liars:
                    continue
                state = self.nodes[n].state
                found = held.setdefault(state.claim.chain(), state)
                assert np.array_equal(found.common, state.common)
                assert np.array_equal(found.scores, state.scores)

    def run(self):
        for _ in range(ROUNDS):
            self.round()
        for _ in range(CALM):
            self.round(calm=True)
        for cell in self.plan.cells:  # whatever has happened: now that all is well, everybody adds up again
            assert all(self.last[n] == cell for n in cell), (cell, self.last)
        return self


def play(seeds, *, lies, robust=False):
    tally = Counter()
    for seed in seeds:
        schedule = Schedule(seed, lies=lies, robust=robust)
        try:
            schedule.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}, lies {lies}, round {schedule.round_}: {error!r}") from error
        tally += schedule.tally
        tally["checked"] += schedule.book.sums
    return tally


COMMON = {"sums", "checked", "crashes", "refused", "doubt", "behind", "thrown"}


@pytest.mark.parametrize("chunk", range(3))
@pytest.mark.parametrize("lies", [False, True])
def test_random_schedules(lies, chunk):
    """1,080 rounds."""
    tally = play(range(6 * chunk, 6 * chunk + 6), lies=lies)
    assert set(tally) >= COMMON
    assert tally["checked"] >= 100
    assert not lies or tally["disputed"] > 0


@pytest.mark.parametrize("chunk", range(3))
@pytest.mark.parametrize("lies", [False, True])
def test_random_schedules_with_votes(lies, chunk):
    """1,080 rounds, in which members vote on what they add up."""
    tally = play(range(6 * chunk, 6 * chunk + 6), lies=lies, robust=True)
    assert set(tally) >= COMMON | {"poison", "refusals"}
    assert tally["votes"] >= 100


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(34))
@pytest.mark.parametrize("lies", [False, True])
def test_many_random_schedules(lies, chunk):
    """102,000 rounds."""
    tally = play(range(1000 + 50 * chunk, 1050 + 50 * chunk), lies=lies)
    assert set(tally) >= COMMON | {"smaller"}


def test_a_second_attempt_does_not_take_the_first_ones_answer():
    """A member restarts in the round in which it has handed in. What it has trained since is in no sum of that round, though
    it is given all frames of the others once more.
    """
    method, size = cesar.Cells(size=3, ring_bits=32), 192
    plan, draw = method.plan(3), np.random.default_rng(1)
    start, steps = np.zeros(size, dtype=np.float32), draw.normal(size=(4, size)).astype(np.float32)
    given = []

    def make(n, state=None):
        keys = FakeKeys(SESSIONS[0], n)
        return CellNode(n, method, size, session=SESSIONS[0], keys=keys, state=state)

    def begin(node, vector):
        place = plan.place(node.id)
        node.begin_round(0, place, vector, reference=start, entropy=draw.bytes, deadlines=DEADLINES)

    nodes = {n: make(n) for n in range(3)}
    for n, node in nodes.items():
        begin(node, steps[n])
    saved, sent = None, [(n, out) for n, node in nodes.items() for out in node.outbound()]
    while sent:
        sender, out = sent.pop(0)
        for to in out.recipients:
            nodes[to].receive(sender, out.frame.payload)
            if to == 2:
                given.append((sender, bytes(out.frame.payload)))
                if nodes[2].unsaved and saved is None:
                    saved = nodes[2].state.to_arrays()
            sent += [(to, more) for more in nodes[to].outbound()]
    again = make(2, CellState.from_arrays(saved))
    begin(again, steps[2] + steps[3])
    for sender, payload in given:
        with contextlib.suppress(cesar.RemoteProtocolError):
            again.receive(sender, payload)
    again.tick(DEADLINES.share)
    report = next(iter(again.next_event, None)).cell
    assert report.summed == ()
    assert np.allclose(again.state.unsent, steps[2] + steps[3])


# ── a test that cannot fail proves nothing ──────────────────────────────────────────────────────────────


def keeps_doubt(state, members):
    """What is in doubt goes into a sum over whoever is there."""
    if state.doubt is not None and state.doubt.members != members:
        state.doubt = None


def forgets_what_was_sent(state):
    state.handed = None


def adds_twice(dense, members, base):
    """What was summed stays unsent."""


def one_too_little(rows):
    def masked(parts, masks):
        first = parts[0]
        vector = first.vector.copy()
        vector[:64] *= np.float32(0.5)
        return rows([first._replace(vector=vector), *parts[1:]], masks)

    return masked


def trusts_everybody(claims):
    """Nobody is behind, whatever they hold."""
    return cell_state.standing({node: claims[min(claims)] for node in claims})


@pytest.mark.parametrize(
    "where, name, fault",
    [
        (CellState, "take_doubt_back", keeps_doubt),
        (CellState, "recover", forgets_what_was_sent),
        (cell_round, "clear_at", adds_twice),
        (cell_round, "masked_rows", one_too_little(cell_round.masked_rows)),
        (cell_round, "standing", trusts_everybody),
    ],
)
def test_a_fault_in_the_engine_is_found(where, name, fault, monkeypatch):
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(AssertionError, match=r"seed \d+"):
        play(range(30), lies=False)
