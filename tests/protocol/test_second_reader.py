"""Attacks of somebody who has read the threat model and the wire format only (docs/design/019-a-second-reader.md).

Most of them ask one question: *does the liar see a difference?* A network is run twice. The second time two honest members of a cell have
moved numbers between them, in every round: one trains D + Δ, the other D′ − Δ. The sum over the cell is the same, so all that
anybody sees later must be the same, whatever the liar does.
"""

import itertools

import numpy as np
import pytest

import cesar
from cesar.protocol.cell_round import CellRound
from cesar.protocol.cell_state import CellState
from cesar.protocol.events import Deadlines
from support.cell_liar import (
    AGREE,
    GATHER,
    HEAD,
    MISSED,
    SCATTER,
    SIZE,
    Stage,
    header,
    slice_digest,
)

ROUNDS = 10
CLAIM = HEAD + 48 + 1 + 1 + 8  # where the claim begins in an agreement of one tensor
SPARSIFIERS = {"full": cesar.FullSharing(), "random": cesar.RandomSubsampling(0.5)}


def steps_of(seed, nodes, moved=()):
    """What everybody trains in each round, in steps of 1/1024; `moved` are honest members that move numbers between them."""
    rng = np.random.default_rng((seed, 1))
    steps = rng.integers(-64, 65, size=(ROUNDS, nodes, SIZE)).astype(np.float32) / 1024
    steps[:, :, 0] = 4.0  # the largest value, so that nobody's exponent tells of the others
    for r in range(ROUNDS if moved else 0):
        giver, taker = rng.permutation(moved)[:2]
        delta = rng.integers(-32, 33, size=SIZE).astype(np.float32) / 1024
        delta[0] = 0.0
        steps[r, giver] += delta
        steps[r, taker] -= delta
    return steps


def seen(strategy, seed, nodes, liar, moved, **settings):
    """All common models after every round, and the stage at the end."""
    stage = Stage(nodes, **settings)
    lies, found = strategy(stage, liar), []
    for r, steps in enumerate(steps_of(seed, nodes, moved)):
        lie, away = lies(r)
        stage.round(steps, None if lie is None else only(liar, lie), away=away)
        found.append([stage.common(n).copy() for n in stage.nodes])
    return np.array(found), stage


def only(liar, lie):
    return lambda sender, to, kind, payload: lie(to, kind, payload) if sender == liar else None


def check_nothing_shows(strategy, seed, nodes, liar, **settings):
    honest = [n for n in range(nodes) if n != liar]
    plain, stage = seen(strategy, seed, nodes, liar, (), **settings)
    moved, _ = seen(strategy, seed, nodes, liar, honest, **settings)
    np.testing.assert_allclose(moved[:, honest], plain[:, honest], atol=1e-5)
    assert all(stage.cells("members", honest).values()), "the cell adds up again once nobody lies"
    assert np.abs(plain[-1] - plain[0])[honest].max() > 1e-2
    return stage


# ── one member's numbers alone ──────────────────────────────────────────────────────────────────────────


def two_versions_and_none(stage, liar):
    """It tells one member another version of its slice, and the victim none: all but the victim go back and throw everything away."""
    victim, other = [n for n in stage.nodes if n != liar][:2]

    def lie(to, kind, payload):
        if kind == GATHER and to == victim:
            return []
        return (
            [payload[:-4] + bytes([payload[-4] ^ 1]) + payload[-3:]]
            if kind == GATHER and to == other
            else None
        )

    return lambda r: (lie if r == 2 else None, ())


def told_to_one(stage, liar):
    """It tells its slice to the victim alone and hands it on to nobody, for rounds: the others throw away what they train."""
    victim = next(n for n in stage.nodes if n != liar)

    def lie(r):
        if r == 2:
            return lambda to, kind, _: [] if kind == GATHER and to != victim else None
        return (lambda _, kind, __: [] if kind == MISSED else None) if 2 < r < 7 else None

    return lambda r: (lie(r), ())


def another_digest(stage, liar):
    """It says to all but the victim that it has another version of its slice: they go back, and the victim does not."""
    victim = next(n for n in stage.nodes if n != liar)

    def lie(to, kind, payload):
        return [payload[:-1] + bytes([payload[-1] ^ 1])] if kind == AGREE and to != victim else None

    return lambda r: (lie if r == 3 else None, ())


def a_slice_that_nobody_made(stage, liar):
    """It lets the victim alone begin a sum, sends it an old slice, and votes for that: the others are behind."""
    victim, old = next(n for n in stage.nodes if n != liar), {}

    def lie(r):
        def first(_, kind, payload):
            if kind == GATHER:
                old["body"] = payload[HEAD:]

        def second(to, kind, payload):
            if kind == AGREE and to != victim:
                return []
            if kind == GATHER:
                return [payload[:HEAD] + old["body"]] if to == victim else []
            return None

        def third(_, kind, payload):
            if kind != AGREE:
                return None
            claim, digest = stage.nodes[victim].state.claim, slice_digest(old["body"])
            digests = tuple(digest if n == liar else b"" for n in claim.keepers)
            return [payload[:CLAIM] + claim._replace(digests=digests).to_bytes(stage.plan.cells[0])]

        return {1: first, 2: second, 3: third}.get(r)

    return lambda r: (lie(r), ())


def doubt_for_some(stage, liar):
    """It lets all but the victim hand in, and goes away: they throw their numbers away when it is given up, and the victim does not."""
    victim = next(n for n in stage.nodes if n != liar)

    def lie(to, kind, _):
        return [] if kind == SCATTER or (kind == AGREE and to == victim) else None

    return lambda r: (lie if r == 3 else None, (liar,) if r > 3 else ())


STRATEGIES = [two_versions_and_none, told_to_one, another_digest, a_slice_that_nobody_made]


@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("liar", [0, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nobody_is_left_alone_in_a_sum(strategy, liar, sparsifier):
    check_nothing_shows(strategy, 7, 4, liar, sparsifier=SPARSIFIERS[sparsifier])


@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
def test_nobody_is_left_alone_when_a_member_is_given_up(sparsifier):
    stage = check_nothing_shows(doubt_for_some, 7, 5, 4, patience=2, sparsifier=SPARSIFIERS[sparsifier])
    assert stage.cells("members") == dict.fromkeys(range(4), (0, 1, 2, 3))


def each_for_itself(running, found, claims):
    """The rule as it was: who is behind, or has to go back, throws its own numbers away; the others keep theirs."""
    state, me = running._state, running._me
    mine = found.concerns(state.claim) and any(state.claim.digests[k] for k in found.disputed)
    if me in found.behind or mine:
        everything = mine or found.behind[me] is None
        state.throw_away(running._attempt.round_, everything=everything)
        return False
    state.fallback = None
    return True


@pytest.mark.parametrize("liar", [0, 3])
@pytest.mark.parametrize("strategy", [*STRATEGIES, doubt_for_some])
def test_it_shows_if_each_throws_away_for_itself(strategy, liar, monkeypatch):
    monkeypatch.setattr(CellRound, "_stands_with", each_for_itself)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_nothing_shows(strategy, 7, 5 if strategy is doubt_for_some else 4, liar, patience=2)


def test_without_the_rule_the_victim_is_read_exactly(monkeypatch):
    """Nobody trains after the lie: the next sum is what the victim had handed in before, and nothing else."""
    liar, steps = 3, np.random.default_rng(5).normal(size=(4, SIZE)).astype(np.float32)
    mine, nothing = slice(64 * liar, SIZE), np.zeros((4, SIZE), dtype=np.float32)
    for rule in (each_for_itself, None):
        with monkeypatch.context() as patch:
            if rule is not None:
                patch.setattr(CellRound, "_stands_with", rule)
            stage = Stage(4)
            lies = two_versions_and_none(stage, liar)
            stage.round(nothing)
            stage.round(steps, only(liar, lies(2)[0]))
            stage.round(nothing)
            before = stage.common(liar).copy()
            stage.round(nothing)
        read = 4 * (stage.common(liar) - before)[mine]
        np.testing.assert_allclose(read, 0.0 if rule is None else steps[0][mine], atol=1e-5)


def at_random(seed):
    """A liar that draws lots for every frame: withholds it, or says something else in it, to everybody something of its own."""

    def strategy(stage, liar):
        cell, said = stage.plan.cells[0], {}
        others = [n for n in cell if n != liar]

        def lies(r):
            rng = np.random.default_rng((seed, r))
            lots = {(kind, to): (rng.random(), int(rng.integers(12))) for kind in range(6, 15) for to in cell}

            def lie(to, kind, payload):
                said.setdefault((kind, to), []).append(payload[HEAD:])
                lot, which = lots[kind, to]
                if lot < 0.15:
                    return []
                forged = bytearray(payload)
                if kind == AGREE:
                    return [lie_about_itself(stage, liar, others, said, to, forged, lot, which)]
                if len(payload) < HEAD + 8:
                    return None
                if lot < 0.35:
                    forged[-4] ^= 1
                elif kind == GATHER and lot < 0.4:
                    return [payload[:HEAD]]
                elif kind == GATHER and lot < 0.5:
                    return [payload[:HEAD] + said[kind, to][0]]
                elif kind == SCATTER and lot < 0.4:
                    forged[HEAD + 8] ^= 1  # a check
                return [bytes(forged)]

            calm = r >= ROUNDS - 3
            return (None if calm else lie), ((liar,) if 0 < r < ROUNDS - 3 and rng.random() < 0.1 else ())

        return lies

    return strategy


def lie_about_itself(stage, liar, others, said, to, forged, lot, which):
    """Another digest, a slice less, another loss, others given up, an old claim, somebody's claim with a slice more, or another token."""
    claim = bytes(forged[CLAIM:])
    if lot < 0.3:
        forged[-1 - 32 * (which % 4) if len(claim) > 160 else -1] ^= 1
    elif lot < 0.4 and len(claim) > 160:
        at = len(forged) - 32 * (which % 4)
        forged[at - 32 : at] = bytes(32)
    elif lot < 0.46:
        forged[CLAIM - 8] ^= 1
    elif lot < 0.52:
        forged[CLAIM - 9] ^= 1 << which % 4
    elif lot < 0.6:
        earlier = said[AGREE, to]
        forged[CLAIM:] = earlier[-min(len(earlier), 1 + which % 3)][CLAIM - HEAD :]
    elif lot < 0.7:
        theirs = stage.nodes[others[which % len(others)]].state.claim
        body = said.get((GATHER, to), [b""])[-1]
        digests = tuple(
            slice_digest(body) if n == liar else d
            for n, d in zip(theirs.keepers, theirs.digests, strict=True)
        )
        forged[CLAIM:] = theirs._replace(digests=digests).to_bytes(stage.plan.cells[0])
    elif lot < 0.73:
        forged[HEAD] ^= 1
    return bytes(forged)


@pytest.mark.parametrize("seed", range(16))
def test_a_liar_that_draws_lots_sees_no_difference(seed):
    rng = np.random.default_rng(seed)
    nodes, robust = int(rng.integers(4, 6)), bool(rng.random() < 0.3)
    settings = {"patience": 2 if nodes == 5 else 50, "robust": robust}
    sparsifier = SPARSIFIERS[rng.choice(["full", "random"])]
    stage = check_nothing_shows(
        at_random(seed), seed, nodes, int(rng.integers(nodes)), sparsifier=sparsifier, **settings
    )
    assert all(report.fault is None for report in stage.reports.values())


# ── slices that are made late ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_a_keeper_that_answers_before_it_has_all_slices_sees_no_difference(name):
    """The victim makes one frame after the other. The liar, whose slice comes last, says at once what came of it, so that the victim's round is over
    before that slice is made. Its numbers are no longer unsent then: made of what is left, the liar's sum would be that of the others alone.
    """
    liar, victim, others = 1, 2, (3, 0)  # the victim makes slices in the order 3, 0, 1

    def sums(moved):
        stage = Stage(4, sparsifier=SPARSIFIERS[name])
        never, steps = Deadlines(announce=9.0, relay=9.0, share=9.0), steps_of(5, 4)[0]
        delta = np.zeros(SIZE, dtype=np.float32)
        delta[1:] = 1 / 64
        steps[victim] += moved * delta
        steps[others[0]] -= moved * delta
        for n, node in stage.nodes.items():
            node.begin_round(
                stage.round_,
                stage.plan.place(n),
                stage.models[n] + steps[n],
                reference=stage.start,
                entropy=np.random.default_rng(n).bytes,
                deadlines=never,
            )
        nodes = stage.nodes

        def tell(n, count=None):
            """The next frames of a node come to those whom they are for, but not what the liar's own sum comes to."""
            for out in itertools.islice(nodes[n].outbound(), count):
                nodes[n].saved()
                for to in out.recipients:
                    if not (n == liar and out.frame.kind == GATHER):
                        nodes[to].receive(n, bytes(out.frame.payload))

        for n in nodes:
            tell(n, 1)  # they agree
        tell(victim, 2)
        for n in (*others, liar, *others):
            tell(n)
        count = nodes[victim].round._slices[liar].count
        answer = header(GATHER, stage.round_, liar) + bytes([0, 127]) + bytes(4 * count)  # nothing changes
        nodes[victim].receive(liar, answer)
        assert nodes[victim].round is None, "it believes that all is added up"
        tell(victim)
        nodes[liar].tick(99.0)
        return stage.common(liar).copy()

    np.testing.assert_allclose(sums(1), sums(0), atol=1e-5)


# ── a member that has forgotten ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("idle", [1, 3])
def test_a_member_that_lost_its_folder_is_not_read_from_two_sums(rounds, idle):
    """The liar takes the sum of its slice and has no other come about. A member comes back as it was before, with nothing to hand in, and the others hand
    in again what is in doubt: the difference of the two sums would be what that member had trained.
    """
    stage, liar, victim = Stage(4), 0, 3
    rng = np.random.default_rng(rounds)
    for _ in range(rounds):
        stage.round(rng.normal(size=(4, SIZE)).astype(np.float32))
    before = stage.common(liar).copy() if rounds else stage.start
    kept = stage.nodes[victim].state.to_arrays() if rounds else None
    backup = None if kept is None else {name: array.copy() for name, array in kept.items()}
    stood = stage.models[victim].copy()
    trained = rng.normal(size=(4, SIZE)).astype(np.float32)
    stage.round(trained, only(liar, lambda _, kind, __: [] if kind in (SCATTER, GATHER) else None))
    first = 4 * (stage.common(liar) - before)[:64]
    np.testing.assert_allclose(first, trained[:, :64].sum(axis=0), atol=1e-4)
    assert all(np.array_equal(stage.common(n), before) for n in (1, 2, 3)), "nobody else has a sum"

    stage.nodes[victim] = stage.node(victim, None if backup is None else CellState.from_arrays(backup))
    stage.models[victim] = stood
    mine, theirs = stage.nodes[liar].state, stage.nodes[1].state
    mine.common[:], mine.unsent[:], mine.doubt, mine.claim = before, 0, None, theirs.claim
    mine.bodies, mine.undo, stage.models[liar] = {}, {}, before.copy()
    for _ in range(idle):
        nothing = np.zeros((4, SIZE), dtype=np.float32)
        stage.round(nothing)
        mine.losses = stage.nodes[1].state.losses
        for n in (1, 2, 3):
            np.testing.assert_allclose(
                stage.common(n), before, atol=1e-5
            )  # what was in doubt is in no sum again
    for _ in range(2):
        stage.round(rng.normal(size=(4, SIZE)).astype(np.float32))
    assert stage.cells("members")[1] == (0, 1, 2, 3), "the cell goes on"
    assert np.abs(stage.common(1) - before).max() > 1e-2
