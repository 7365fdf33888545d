"""What rounds of cells must give, worked out from the rules alone: plain numpy, and nothing of the engine.

The oracle reads frames by itself (docs/wire.md), knows every number that anybody has trained, and never sees a mask. An *atom* is
what one node trained in one round at one position. Of each member the oracle keeps which atoms are unsent, in doubt,
in the common model, thrown away or undone. What a step must bring follows from the frames that came in; of what a member
sends it is checked that it is what these atoms add up to.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

AGREE, SCATTER, EXCHANGE, GATHER, MISSED, MODEL, VOUCH, OFFER, VOTE = range(6, 15)
WAITS, CATCHES_UP, ADDS, OFFERS, VOTES, HEARS, GATHERS, DONE = range(1, 9)
DEADLINES = {WAITS: 1.0, CATCHES_UP: 2.0, ADDS: 2.0, OFFERS: 2.25, VOTES: 2.5, HEARS: 2.75, GATHERS: 3.0}
WINDOW, DRAWS = 6, 8
HEADER = struct.Struct("<2sBBII16s")
NEVER = 0xFFFFFFFF
LOWEST, HIGHEST = -90, 100
COLUMNS = 64


class RefusedError(Exception):
    """This frame must be refused."""


@dataclass(frozen=True)
class World:
    """All that is public.

    Attributes:
        heard: (cell, round) → pairs of a cell that is heard and its weight.
        least: m.
        collusion: k.
        block: length of blocks; 0 without.
        wanted: how many blocks are handed in.
    """

    cells: tuple[tuple[int, ...], ...]
    heard: Callable[[int, int], list[tuple[int, float]]]
    size: int
    tensors: tuple[int, ...]
    bits: int
    block: int
    wanted: int
    least: int
    collusion: int
    patience: int
    robust: bool = False

    @property
    def words(self) -> int:
        return -(-self.size // 64)

    @property
    def blocks(self) -> int:
        return -(-self.size // self.block) if self.block else 0

    def cell_of(self, node):
        return next(c for c, cell in enumerate(self.cells) if node in cell)

    def ranges(self, parts):
        """Where each slice begins and ends, in words."""
        return [(self.words * k // parts, self.words * (k + 1) // parts) for k in range(parts)]

    def within(self, first, last):
        """The positions of a range of words."""
        found = np.zeros(self.size, dtype=bool)
        found[64 * first : 64 * last] = True
        return found

    def tensor_at(self):
        return np.repeat(np.arange(len(self.tensors)), self.tensors)

    def scales(self, first, last):
        """How many tensors a range of words reaches into."""
        return max(1, len(np.unique(self.tensor_at()[64 * first : 64 * last])))

    def blocks_in(self, first, last):
        per_word = 64 // self.block if self.block else 0
        return min(first * per_word, self.blocks), min(last * per_word, self.blocks)

    def spread(self, flags, first):
        """Positions of blocks that are flagged, from a word on."""
        found = np.zeros(64 * self.words, dtype=bool)
        run = np.repeat(flags, self.block)
        found[64 * first : 64 * first + len(run)] = run[: len(found) - 64 * first]
        if found[self.size :].any() and (flags[self.blocks - first * 64 // self.block :]).any():
            raise RefusedError("a block that does not exist")
        return found[: self.size]

    def read_row(self, data, positions, first, last):
        """(positions, values, size of a step at each) of a row at these positions of a range."""
        count = self.scales(first, last)
        if len(data) < count:
            raise RefusedError("short")
        exponents = np.frombuffer(data[:count], dtype=np.uint8).astype(int) - 127
        if exponents.min() < LOWEST or exponents.max() > HIGHEST:
            raise RefusedError("a scale")
        where = np.flatnonzero(positions & self.within(first, last))
        words = unpack(data[count:], len(where), self.bits)
        at = self.tensor_at()
        low = at[64 * first] if 64 * first < self.size else 0
        steps = np.ldexp(1.0, exponents[at[where] - low] + 1 - self.bits)
        return where, words * steps, steps


def unpack(data, count, width):
    """Signed words of so many bits, one after the other."""
    if len(data) != -(-count * width // 8):
        raise RefusedError("length")
    flat = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if flat[count * width :].any():
        raise RefusedError("padding")
    rows = flat[: count * width].reshape(count, width).astype(np.int64)
    weights = 1 << np.arange(width, dtype=np.int64)
    weights[-1] = -weights[-1]
    return rows @ weights


def unbits(data, names):
    value = int.from_bytes(data, "little")
    if value >> len(names):
        raise RefusedError("a member that does not exist")
    return tuple(name for k, name in enumerate(names) if value >> k & 1)


def sha(label, *parts):
    return hashlib.sha256(b"".join((b"cesar cell " + label, *parts))).digest()


@dataclass(frozen=True)
class Claim:
    base: bytes
    round_: int
    keepers: tuple[int, ...]
    digests: tuple[bytes, ...]

    @property
    def key(self):
        return self.base, self.round_, self.keepers

    def chain(self):
        if not any(self.digests):
            return self.base
        ids = struct.pack(f"<II{len(self.keepers)}I", self.round_, len(self.keepers), *self.keepers)
        return sha(b"chain", self.base, ids, *(digest or bytes(32) for digest in self.digests))

    def with_digest(self, number, digest):
        digests = [*self.digests[:number], digest, *self.digests[number + 1 :]]
        return Claim(*self.key, tuple(digests))


def take_claim(data, cell):
    wide = (len(cell) + 7) // 8
    if len(data) < 36 + wide:
        raise RefusedError("short")
    keepers = unbits(data[36 : 36 + wide], cell)
    end = 36 + wide + 32 * len(keepers)
    if len(data) < end:
        raise RefusedError("short")
    named = [data[k : k + 32] for k in range(36 + wide, end, 32)]
    digests = tuple(digest if any(digest) else b"" for digest in named)
    return Claim(data[:32], struct.unpack("<I", data[32:36])[0], keepers, digests), data[end:]


@dataclass
class Verdict:
    """Who holds which model, as one member sees it."""

    chain: bytes
    claim: Claim
    behind: dict
    holders: dict
    disputed: dict


def away(values):
    """The root of the mean square, one after the other."""
    total = 0.0
    for value in values.tolist():
        total += value * value
    return float(np.sqrt(total / max(1, len(values))))


def judge(claims, least=1):
    """Compare claims. A slice with two versions, or with fewer than so many who have it, has none; most members decide
    between models, then the later.
    """
    groups = {}
    for node in sorted(claims):
        groups.setdefault(claims[node].key, []).append(node)
    merged, disputed = {}, {}
    for key, nodes in groups.items():
        digests, disputed[key] = [], {}
        for k in range(len(key[2])):
            votes = Counter(claims[n].digests[k] for n in nodes if claims[n].digests[k])
            top = min(votes, key=lambda d: (-votes[d], d), default=b"")
            if len(votes) > 1:
                disputed[key][k] = tuple(n for n in nodes if claims[n].digests[k] not in (b"", top))
                top = b""
            elif top and votes[top] < least:
                disputed[key][k], top = (), b""
            digests.append(top)
        merged[key] = Claim(*key, tuple(digests))
    chains = {key: claim.chain() for key, claim in merged.items()}
    support = {key: sum(len(groups[o]) for o in groups if chains[o] == chains[key]) for key in groups}
    best = max(groups, key=lambda k: (support[k], any(merged[k].digests), k[1] != NEVER and k[1], k))
    target, chain, behind = merged[best], chains[best], {}
    for node, claim in claims.items():
        has = [k for k, digest in enumerate(target.digests) if digest]
        if claim.key == best:
            if lacks := tuple(k for k in has if not claim.digests[k]):
                behind[node] = lacks
        elif claim.chain() == chain:
            continue
        elif claim.chain() == target.base:
            behind[node] = tuple(has)
        else:
            behind[node] = None
    holders = {
        k: tuple(n for n in groups[best] if claims[n].digests[k] == digest)
        for k, digest in enumerate(target.digests)
        if digest
    }
    return Verdict(chain, target, behind, holders, disputed[best])


@dataclass
class Kept:
    """What a member keeps from round to round, atoms in place of numbers."""

    model: np.ndarray
    scores: np.ndarray
    claim: Claim
    unsent: np.ndarray  # (column, position): atoms
    inside: np.ndarray  # own atoms in the model that it holds
    thrown: np.ndarray
    undone: np.ndarray  # in a sum that the cell has taken back
    handed: tuple | None = None
    doubt: tuple | None = None  # members, positions, atoms
    took: dict = field(default_factory=dict)  # who has handed in to it, and in which round
    fallback: np.ndarray | None = None
    losses: bytes = bytes(8)
    entered: np.ndarray | None = None
    bodies: dict = field(default_factory=dict)
    undo: dict = field(default_factory=dict)
    absent: dict = field(default_factory=dict)
    distances: np.ndarray | None = None  # of other cells, for each slice of the whole cell
    recent: dict = field(default_factory=dict)
    refusals: int = 0
    overheard: tuple | None = None  # the first word of the slice, and what other cells have changed there

    def with_overheard(self, model):
        """A model with what was overheard; single precision counts where something is zero."""
        found = model.copy()
        if self.overheard is not None:
            first, change = self.overheard
            found[64 * first : 64 * first + len(change)] += change
        return found

    def throw(self, atoms):
        self.thrown |= atoms & self.unsent
        self.unsent &= ~atoms

    def begin_gathering(self, claim, entered):
        self.distances, self.recent = self.known(), {}
        self.claim = Claim(*claim.key, (b"",) * len(claim.keepers))
        self.entered, self.bodies, self.undo = entered, {}, {}

    def known(self):
        """Distances, with those of the last gathering."""
        if not self.recent:
            return self.distances
        words, found = -(-len(self.model) // 64), self.distances.copy()
        cut = [(words * k // len(self.claim.keepers)) for k in range(len(self.claim.keepers) + 1)]
        for row in range(len(found)):
            low, high = words * row // len(found), words * (row + 1) // len(found)
            near = [self.recent[k] for k in sorted(self.recent) if min(high, cut[k + 1]) > max(low, cut[k])]
            if near:
                found[row, :-1] = found[row, 1:]
                found[row, -1] = sum(near) / len(near)
        return found

    def raise_doubt(self, members, positions):
        if not positions.any():
            return
        atoms = self.unsent & positions
        if self.doubt is not None:
            assert self.doubt[0] == members
            atoms |= self.doubt[2] & ~positions
            positions = positions | self.doubt[1]
        self.doubt = (members, positions, atoms)

    def settle_doubt(self, positions):
        if self.doubt is not None:
            members, open_, atoms = self.doubt
            open_ = open_ & ~positions
            self.doubt = (members, open_, atoms & open_) if open_.any() else None

    def recover(self):
        if self.handed is not None:
            (members, positions), self.handed = self.handed, None
            if self.doubt is not None and self.doubt[0] != members:
                self.doubt = None
            self.raise_doubt(members, positions)
            self.fallback = self.unsent.copy()


@dataclass
class Change:
    """What a keeper has sent about its slice."""

    where: np.ndarray
    values: np.ndarray
    steps: np.ndarray
    scores: np.ndarray
    body: bytes
    offer: tuple | None = None  # (positions, values, body) that most have not refused
    yard: float = 0.0
    reach: float = 0.0
    everything: bool = False


class Book:
    """The whole network.

    Attributes:
        trained: node → (column, position): the value of each atom.
        left: node → (column, position): number of the set of members with whom the atom has left its node; 0 if it has not.
        liars: whose frames are not what they must be.
        wild: they claim values so large that nobody's numbers can be told from rounding; decisions are compared all the same.
        drawn: round → positions, where they are the same for all cells.
        sums: how many completed sums were checked, value by value.
    """

    def __init__(self, world: World, session, start, liars=frozenset(), *, wild=False):
        self.world, self.session, self.liars, self.wild = world, session, frozenset(liars), wild
        self.sums, self.drawn = 0, {}
        nodes = [n for cell in world.cells for n in cell]
        self.trained = {n: np.zeros((COLUMNS, world.size)) for n in nodes}
        self.left = {n: np.zeros((COLUMNS, world.size), dtype=np.int32) for n in nodes}
        self.columns = dict.fromkeys(nodes, 0)
        self.sets = {}
        self.handed = {}  # (node, facts) → what it handed in then
        self.made = {}  # (cell, round, slice, digest of what a keeper has sent) → node → its atoms in that sum
        self.votes = {}  # (node, facts, what it has seen) → whether it objects
        self.lied = set()  # (liar, keeper, facts): slices that are not what they should be
        self.members = {n: Member(self, n, start) for n in nodes}


class Member:
    """One node, as the rules have it."""

    def __init__(self, book, node, start):
        world = book.world
        self.book, self.world, self.node = book, world, node
        self.number_of_cell = world.cell_of(node)
        self.cell = world.cells[self.number_of_cell]
        self.others = tuple(n for n in self.cell if n != node)
        nothing = np.zeros((COLUMNS, world.size), dtype=bool)
        claim = Claim(sha(b"start", start.astype("<f4").tobytes()), NEVER, (), ())
        scores = np.zeros(world.blocks, dtype=np.uint8)
        copies = [nothing.copy() for _ in range(4)]
        distances = np.zeros((len(self.cell), WINDOW), dtype=np.float32)
        self.kept = Kept(start.copy(), scores, claim, *copies, distances=distances)
        self.saved = copy.deepcopy(self.kept)
        self.died = nothing.copy()
        self.round_, self.running, self.future = 0, False, {}
        self.begun = None
        self.phase = DONE

    # ── driver ──────────────────────────────────────────────────────────────────────────────────────

    def save(self):
        self.saved = copy.deepcopy(self.kept)

    def restart(self, round_):
        """The process is dead; another goes on with what was saved."""
        before = self.kept
        self.kept = copy.deepcopy(self.saved)
        self.kept.took = {}
        self.kept.recover()
        kept = self.kept
        here = kept.unsent | kept.inside | kept.thrown | kept.undone
        self.died |= (before.unsent | before.inside | before.thrown | before.undone) & ~here
        self.round_, self.running, self.future, self.begun = round_, False, {}, None

    def value(self, atoms):
        """What atoms of this node add up to, by position."""
        return (self.book.trained[self.node] * atoms).sum(axis=0)

    def begin(self, round_, trained, chosen, outs):
        """Start a round; `trained` is None while everybody settles, and nobody hands anything in."""
        world, kept, book = self.world, self.kept, self.book
        if self.running:
            kept.recover()
        self.settling = trained is None
        self.voting = world.robust and not self.settling
        self.offers, self.votes, self.refused, self.seen, self.ballot = {}, {}, None, None, None
        self.silent = set()
        self.blocks = 0 if self.settling else world.block
        if trained is not None:
            column = book.columns[self.node]
            book.columns[self.node] += 1
            book.trained[self.node][column] = trained
            kept.unsent[column] = True
        self.round_, self.running, self.begun, self.chosen = round_, True, round_, chosen
        self.check_chosen()
        gone = tuple(n for n in self.others if kept.absent.get(n, 0) >= world.patience)
        rest = tuple(n for n in self.cell if n not in gone)
        enough = len(rest) >= max(world.least, world.collusion + 2)
        self.gone, self.sum = (gone, rest) if enough else ((), self.cell)
        self.thrown_before, self.before = kept.thrown.copy(), kept.with_overheard(kept.model)
        self.still, self.plain = False, kept.model
        if kept.doubt is not None and kept.doubt[0] != self.sum and not self.settling:
            members, positions, atoms = kept.doubt
            bitmap = np.zeros(64 * world.words, dtype=bool)
            bitmap[: world.size] = positions
            named = struct.pack(f"<{len(members)}I", *members)
            bitmap = np.packbits(bitmap, bitorder="little").tobytes()
            kept.losses = sha(b"losses", b"doubt", kept.losses, named, bitmap)[:8]
            kept.throw(atoms)
            if kept.fallback is not None:
                kept.fallback &= ~atoms
            kept.doubt = None
        self.phase, self.agreed, self.early, self.said, self.came, self.changes = WAITS, {}, {}, {}, {}, {}
        self.model_given, self.vouched, self.verdict = None, {}, None
        self.report = {"members": (), "missing": (), "behind": (), "disputed": (), "unequal": (), "heard": ()}
        self.report |= {"objections": None, "refusals": 0}
        self.facts = self.checks = self.value_now = None
        self.own_change, self.doubted = False, None
        self.refused_late = 0
        self.see_outs(outs)
        for (sender, kind), (_, payload) in sorted(
            item for item in self.future.items() if item[1][0] == round_
        ):
            del self.future[sender, kind]
            try:
                self.take(sender, payload)
            except RefusedError:
                self.refused_late += 1
            self.advance()
        self.future = {key: item for key, item in self.future.items() if item[0] > round_}
        self.advance()
        self.check_outs()

    def check_chosen(self):
        """U: all, or the blocks with the largest scores. What is drawn at random only has to be the same for all."""
        world = self.world
        if self.settling:
            assert self.chosen.all()
        elif world.block:
            label = b"cesar cell blocks" + self.book.session + struct.pack("<I", self.round_)
            ties = np.frombuffer(hashlib.shake_256(label).digest(4 * world.blocks), dtype="<u4")
            order = sorted(range(world.blocks), key=lambda b: (-int(self.kept.scores[b]), int(ties[b])))
            flags = np.zeros(world.blocks, dtype=bool)
            flags[order[: world.wanted]] = True
            assert np.array_equal(self.chosen, np.repeat(flags, world.block)[: world.size])
        else:
            assert np.array_equal(self.chosen, self.book.drawn.setdefault(self.round_, self.chosen))

    def receive(self, sender, payload, outs):
        """A frame has come; raises `RefusedError` where the member must refuse it."""
        self.see_outs(outs)
        try:
            self.take(sender, payload)
        finally:
            self.advance()
            self.check_outs()

    def tick(self, now, outs):
        self.see_outs(outs)
        while self.running and self.phase != DONE and now >= self.deadline():
            self.end_phase()
            self.advance()
        self.check_outs()

    def deadline(self):
        return 2.5 if self.phase == HEARS and not self.voting else DEADLINES[self.phase]

    def see_outs(self, outs):
        self.outs = outs
        for _, kind, body in outs:
            if kind == AGREE:
                self.scale = self.read_agree(body)[0]
            elif kind == SCATTER:
                self.facts = body[:8]
                words = body[8 : 8 + 4 * (len(self.sum) - 1)]
                rest = [n for n in self.sum if n != self.node]
                self.checks = {n: words[4 * k : 4 * k + 4] for k, n in enumerate(rest)}

    # ── phases ──────────────────────────────────────────────────────────────────────────────────────

    def awaiting(self):
        if self.phase == WAITS:
            return {n for n in self.sum if n != self.node and n not in self.agreed}
        if self.phase == CATCHES_UP:
            lacks = self.verdict.behind[self.node]
            if lacks is None:
                whole = {n for n in self.agreed if n not in self.verdict.behind}
                return whole if len(whole) > self.world.collusion else set()  # fewer are not believed
            still = [k for k in lacks if not self.kept.claim.digests[k]]
            return {self.verdict.holders[k][0] for k in still if self.verdict.holders.get(k)}
        if self.phase == ADDS:
            return {n for n in self.sum if n != self.node and n not in self.came}
        if self.phase == OFFERS:
            return {n for k, n in enumerate(self.sum) if k not in self.offers}
        if self.phase == VOTES:
            return {n for n in self.sum if n != self.node and n not in self.votes}
        if self.phase == HEARS:
            return self.unheard()
        if self.phase == GATHERS:
            return {n for k, n in enumerate(self.sum) if k not in self.changes}
        return set()

    def advance(self):
        while self.running and self.phase != DONE and not self.awaiting():
            self.end_phase()
        if self.running and self.phase == DONE:
            self.finish()

    def end_phase(self):
        if self.phase == WAITS:
            self.end_agree()
        elif self.phase == ADDS:
            self.end_scatter()
        elif self.phase == OFFERS:
            self.end_offers()
        elif self.phase == VOTES:
            self.end_votes()
        elif self.phase == HEARS:
            self.end_exchange()
        else:
            self.phase = DONE

    def take(self, sender, payload):
        if len(payload) < HEADER.size:
            raise RefusedError("short")
        _, _, kind, round_, _, _ = HEADER.unpack_from(payload)
        body = payload[HEADER.size :]
        if self.running and round_ == self.round_:
            self.handle(sender, kind, body)
        elif round_ >= self.round_ + (1 if self.running else 0):
            if round_ > self.round_ + (1 if self.running else 0):
                raise RefusedError("too early")
            if kind not in (AGREE, EXCHANGE) or (sender, kind) in self.future:
                raise RefusedError("early")
            self.future[sender, kind] = (round_, payload)
        elif kind == AGREE and round_ == self.begun:
            self.kept.absent[sender] = 0

    def handle(self, sender, kind, body):
        if kind == EXCHANGE:
            self.on_exchange(sender, body)
        elif sender not in self.cell:
            raise RefusedError("stranger")
        elif kind == AGREE:
            if self.phase != WAITS:
                self.kept.absent[sender] = 0
            elif sender in self.agreed:
                raise RefusedError("twice")
            else:
                self.agreed[sender] = self.read_agree(body)
        elif self.phase == WAITS:
            if kind == VOTE:
                return  # of an attempt before a restart: nobody can vote on what this member has not offered
            if kind == MISSED and (not body or body[0] >= len(self.cell)):
                raise RefusedError("no such slice")
            key = (sender, kind, body[0] if kind == MISSED else 0)
            if key in self.early:
                raise RefusedError("twice")
            self.early[key] = body
        else:
            handlers = {
                SCATTER: self.on_scatter,
                GATHER: self.on_gather,
                MISSED: self.on_missed,
                MODEL: self.on_model,
                VOUCH: self.on_vouch,
            }
            if self.world.robust:
                handlers |= {OFFER: self.on_offer, VOTE: self.on_vote}
            handlers[kind](sender, body)

    # ── agree ───────────────────────────────────────────────────────────────────────────────────────

    def read_agree(self, body):
        count, wide = len(self.world.tensors) + bool(self.blocks), (len(self.cell) + 7) // 8
        exponents = np.frombuffer(body[48 : 48 + count], dtype=np.uint8).astype(int) - 127
        if len(exponents) < count or len(body) < 48 + count + wide + 8:
            raise RefusedError("short")
        if exponents.min() < LOWEST or exponents.max() > HIGHEST:
            raise RefusedError("a scale")
        gone = unbits(body[48 + count : 48 + count + wide], self.cell)
        losses, rest = body[48 + count + wide :][:8], body[48 + count + wide + 8 :]
        claim, rest = take_claim(rest, self.cell)
        if rest:
            raise RefusedError("long")
        return exponents, gone, claim, losses

    def adds(self):
        return self.phase in (ADDS, OFFERS, VOTES, HEARS, GATHERS) and not self.still

    def end_agree(self):
        kept = self.kept
        for n in self.others:
            kept.absent[n] = 0 if n in self.agreed else kept.absent.get(n, 0) + 1
        claims = {self.node: kept.claim, **{n: said[2] for n, said in self.agreed.items()}}
        least = max(1, self.world.collusion) + 1 if self.world.robust and len(claims) > 1 else 1
        self.verdict = found = judge(claims, least)
        self.report["missing"] = tuple(n for n in self.others if n not in self.agreed)
        self.report["behind"] = tuple(sorted(found.behind))
        self.report["disputed"] = tuple(
            (found.claim.keepers[k], n) for k, n in sorted(found.disputed.items())
        )
        one = self.stands_with(found, claims)
        if self.node in found.behind:
            self.fall_behind(found)
        elif found.disputed and found.claim.key == kept.claim.key:
            self.go_back(found)
            self.phase = DONE
        else:
            others = [n for n in self.sum if n != self.node]
            enough = len(self.sum) >= max(self.world.least, self.world.collusion + 2)
            alike = all(
                n in self.agreed and n not in found.behind and self.agreed[n][1] == self.gone for n in others
            )
            first = kept.claim.round_ != self.round_  # nobody hands in twice in a round
            if one and first and enough and alike and not found.disputed:
                entered = None if self.settling else self.chosen
                kept.begin_gathering(Claim(found.chain, self.round_, self.sum, ()), entered)
                self.report["members"] = self.sum
                if self.settling:
                    self.phase, self.exact, self.step = HEARS, True, np.zeros(self.world.size)
                    self.value_now = kept.with_overheard(kept.model).astype(np.float64)
                else:
                    self.phase, kept.handed = ADDS, (self.sum, self.chosen)
                    self.hand_in()
            else:  # nobody hands anything in, and the keeper listens
                self.still, self.phase, self.exact = True, HEARS, True
                self.value_now, self.step = kept.with_overheard(kept.model), np.zeros(self.world.size)
        early, self.early = self.early, {}
        for (sender, kind, _), body in sorted(early.items(), key=lambda item: item[0]):
            try:
                self.handle(sender, kind, body)
            except RefusedError:
                self.refused_late += 1

    def hand_in(self):
        """Which atoms it brings to this sum."""
        assert self.facts is not None, "a member of a sum sends its slices"
        self.book.handed[self.node, self.facts] = (self.kept.unsent & self.chosen, self.sum)

    def slices_left(self, keeper):
        """The slice for a keeper leaves this node: no atom of it may ever have left with other members."""
        book, world = self.book, self.world
        atoms, members = book.handed[self.node, self.facts]
        number = book.sets.setdefault(members, len(book.sets) + 1)
        first, last = world.ranges(len(members))[members.index(keeper)]
        atoms = atoms & world.within(first, last)
        left = book.left[self.node]
        other = atoms & (left != 0) & (left != number)
        assert not other.any(), f"node {self.node}: numbers in sums over {members} and over others"
        left[atoms] = number

    def stands_with(self, found, claims):
        """Who is in a sum keeps what it trained, or throws it away, as all others in it do."""
        kept, key, number = self.kept, found.claim.key, struct.pack("<I", self.round_)
        behind = [n for n in self.sum if n in found.behind]
        unlike = [n for n in self.sum if n in self.agreed and self.agreed[n][3] != kept.losses]
        if kept.doubt is None:
            kept.took = {}
        for n, round_ in kept.took.items():
            told = claims[n].round_ if n in claims and n in self.sum else round_
            if told == NEVER or told < round_:
                unlike.append(n)  # it has forgotten
        if self.settling:
            behind, unlike = [n for n in behind if n == self.node], []
        if not behind and not unlike and not found.disputed:
            kept.fallback = None
            return True
        elsewhere = kept.claim.key != key or any(claims[n].key != key for n in behind)
        kept.took = {}
        if unlike or found.disputed or elsewhere or kept.fallback is None:
            kept.throw(np.ones_like(kept.unsent))
            self.doubted, kept.doubt, kept.fallback = kept.doubt, None, None
            kept.losses = sha(b"losses", b"all", number)[:8]
        else:
            kept.throw(~kept.fallback)
            gathered = struct.pack("<I", kept.claim.round_)
            kept.losses = sha(b"losses", b"since", kept.losses, number, kept.claim.base, gathered)[:8]
        return False

    # ── catching up ─────────────────────────────────────────────────────────────────────────────────

    def fall_behind(self, found):
        kept, self.phase = self.kept, CATCHES_UP
        if found.behind[self.node] is None:
            return
        if found.claim.key == kept.claim.key:
            self.go_back(found)
        else:
            kept.begin_gathering(found.claim, None)

    def go_back(self, found):
        kept, world = self.kept, self.world
        kept.overheard = None
        for k in [k for k in found.disputed if kept.claim.digests[k] and k in kept.undo]:
            first, last = world.ranges(len(kept.claim.keepers))[k]
            rows, scores, atoms = kept.undo.pop(k)
            kept.model[64 * first : 64 * last] = rows
            if len(scores):
                start = world.blocks_in(first, last)[0]
                kept.scores[start : start + len(scores)] = scores
            kept.bodies.pop(k, None)
            kept.recent.pop(k, None)
            kept.claim = kept.claim.with_digest(k, b"")
            kept.undone |= atoms
            kept.inside &= ~atoms

    def on_missed(self, sender, body):
        kept = self.kept
        if self.phase != CATCHES_UP:
            return
        if not body:
            raise RefusedError("short")
        number, content = body[0], body[1:]
        lacks, target = self.verdict.behind[self.node], self.verdict.claim
        if lacks is None or number not in lacks or kept.claim.digests[number]:
            return
        change = self.read_handed_on(number, len(target.keepers), target.round_, content)
        if sha(b"slice", content) != target.digests[number]:
            raise RefusedError("another slice")
        first, last = self.world.ranges(len(target.keepers))[number]
        answered, atoms = np.zeros(self.world.size, dtype=bool), np.zeros_like(kept.unsent)
        doubted, thrown = kept.doubt or self.doubted, kept.doubt is None
        if doubted is not None and kept.entered is not None:
            answered = doubted[1] & kept.entered & self.world.within(first, last)
            atoms = doubted[2] & answered
        refused = self.world.robust and change.offer is None
        if not self.apply(number, len(target.keepers), change, atoms & (not refused)):
            raise RefusedError("infinite")
        kept.overheard = None
        if refused:
            kept.throw(atoms)
        elif thrown:  # all was thrown away in this round, and these are not lost
            kept.thrown &= ~atoms
        kept.unsent &= ~atoms
        if kept.doubt is not None and kept.entered is not None:
            if kept.fallback is not None:
                kept.fallback = kept.unsent.copy()
            kept.settle_doubt(answered)
        if all(kept.claim.digests[k] for k in lacks):
            self.phase = DONE

    def on_model(self, sender, body):
        if self.phase != CATCHES_UP:
            return
        if self.verdict.behind[self.node] is not None:
            return
        claim, rest = take_claim(body, self.cell)
        if len(rest) != self.model_head() + 4 * self.world.size:
            raise RefusedError("length")
        if claim.chain() != self.verdict.chain:
            raise RefusedError("another model")
        if self.model_given is not None:
            raise RefusedError("twice")
        self.model_given = body
        self.on_vouch(sender, sha(b"model", body))

    def on_vouch(self, sender, digest):
        if self.phase != CATCHES_UP:
            return
        if len(digest) != 32:
            raise RefusedError("length")
        if any(sender in nodes for other, nodes in self.vouched.items() if other != digest):
            raise RefusedError("it has vouched for another")
        self.vouched.setdefault(digest, set()).add(sender)
        body = self.model_given
        if body is None or sha(b"model", body) != digest or len(self.vouched[digest]) <= self.world.collusion:
            return
        claim, rest = take_claim(body, self.cell)
        model = np.frombuffer(rest[self.model_head() :], dtype="<f4").copy()
        if not np.isfinite(model).all():
            raise RefusedError("infinite")
        kept = self.kept
        kept.begin_gathering(claim, None)
        kept.model, kept.claim, kept.fallback, kept.overheard = model, claim, None, None
        kept.scores = np.frombuffer(rest[: self.world.blocks], dtype=np.uint8).copy()
        if self.world.robust:
            known = np.frombuffer(rest[self.world.blocks : self.model_head()], dtype="<f4")
            kept.distances = known.reshape(len(self.cell), WINDOW).copy()
        self.phase = DONE

    def model_head(self):
        """Bytes of scores and distances in front of a model."""
        return self.world.blocks + 4 * WINDOW * len(self.cell) * self.world.robust

    # ── sums ────────────────────────────────────────────────────────────────────────────────────────

    def on_scatter(self, sender, body):
        if self.phase != ADDS:
            return
        if sender not in self.sum:
            raise RefusedError("not in the sum")
        if sender in self.came:
            raise RefusedError("twice")
        count = 4 * (len(self.sum) - 1)
        if len(body) < 8 + count:
            raise RefusedError("short")
        if body[:8] != self.facts:
            raise RefusedError("other agreements")
        own = self.sum.index(self.node)
        first, last = self.world.ranges(len(self.sum))[own]
        chosen = int((self.chosen & self.world.within(first, last)).sum())
        low, high = self.world.blocks_in(first, last)
        split = -(-chosen * self.world.bits // 8)
        unpack(body[8 + count :][:split], chosen, self.world.bits)
        unpack(body[8 + count :][split:], high - low, 16)
        others = [n for n in self.sum if n != sender]
        words = body[8 : 8 + count]
        self.came[sender] = {n: words[4 * k : 4 * k + 4] for k, n in enumerate(others)}
        self.kept.took[sender] = self.round_

    def end_scatter(self):
        checks = {**self.came, self.node: self.checks}
        whole = len(checks) == len(self.sum)
        if whole:
            pairs = [(i, j) for i in self.sum for j in self.sum if i < j]
            unequal = tuple((i, j) for i, j in pairs if checks[i][j] != checks[j][i])
            self.report["unequal"], whole = unequal, not unequal
        book, own, total = self.book, self.sum.index(self.node), np.zeros(self.world.size)
        self.exact = True
        if whole:
            for n in self.sum:
                if (n, self.node, self.facts) in book.lied or (n, self.facts) not in book.handed:
                    assert n in book.liars, f"node {n} is in a sum to which it has handed in nothing"
                    self.exact = False
                else:
                    total += book.members[n].value(book.handed[n, self.facts][0])
            nothing = any(
                kind == (OFFER if self.voting else GATHER) and not body for _, kind, body in self.outs
            )
            if nothing and not self.exact:  # a sum with a lie in it may be one that cannot be
                whole = False
        if not whole:
            self.changes[own] = self.offers[own] = None
            self.phase = OFFERS if self.voting else GATHERS
            if self.voting:
                del self.changes[own]
                assert self.sent(OFFER) == b"", "there is no sum"
            return
        self.phase = HEARS
        self.value_now = self.kept.with_overheard(self.kept.model) + np.where(
            self.chosen, total / len(self.sum), 0.0
        )
        scales = [self.scale, *(said[0] for n, said in self.agreed.items() if n in self.sum)]
        largest = np.max([s[: len(self.world.tensors)] for s in scales], axis=0)
        spare = self.world.bits - 2 - int(np.ceil(np.log2(len(self.sum))))
        steps = np.ldexp(1.0, largest - spare)
        self.step = steps[self.world.tensor_at()]
        if self.voting:
            self.value_now, self.phase = None, OFFERS
            where, values, body, rounded = self.read_offer(own, len(self.sum), self.round_, self.sent(OFFER))
            self.offers[own] = (where, values, body)
            if self.exact and not self.book.wild:
                expected = total[where] / len(self.sum)
                room = 0.51 * self.step[where] + 1.01 * rounded + 4e-6 * (1 + np.abs(self.kept.model[where]))
                room += 1e-6 * np.abs(self.value(self.kept.unsent)).max()
                wrong = np.abs(values - expected) > room
                assert not wrong.any(), f"node {self.node}: it offers another mean"
                self.book.sums += 1

    # ── votes ───────────────────────────────────────────────────────────────────────────────────────

    def sent(self, kind):
        """The one body of this kind that goes to all others of the sum."""
        bodies = [body for _, name, body in self.outs if name == kind]
        assert len(bodies) == len(self.sum) - 1, "it tells everybody"
        assert all(body == bodies[0] for body in bodies), "it tells everybody the same"
        return bodies[0]

    def read_offer(self, number, parts, round_, body):
        world = self.world
        first, last = world.ranges(parts)[number]
        positions, rest = self.book.drawn.get(round_, np.zeros(world.size, dtype=bool)), body
        if world.block:
            low, high = world.blocks_in(first, last)
            wide = (high - low + 7) // 8
            if len(rest) < wide:
                raise RefusedError("short")
            flags = np.unpackbits(np.frombuffer(rest[:wide], dtype=np.uint8), bitorder="little").astype(bool)
            if flags[high - low :].any():
                raise RefusedError("no such block")
            positions, rest = world.spread(flags[: high - low], first), rest[wide:]
        where, values, steps = world.read_row(rest, positions, first, last)
        return where, values, body, steps

    def on_offer(self, sender, body):
        if not self.adds() or sender not in self.sum:
            return
        number = self.sum.index(sender)
        if number in self.offers:
            raise RefusedError("twice")
        if not body:
            self.offers[number] = None
            return
        where, values, body, _ = self.read_offer(number, len(self.sum), self.round_, body)
        first, last = self.world.ranges(len(self.sum))[number]
        if not np.array_equal(where, np.flatnonzero(self.chosen & self.world.within(first, last))):
            raise RefusedError("other positions")
        self.offers[number] = (where, values, body)

    def end_offers(self):
        offers = [self.offers.get(k) for k in range(len(self.sum))]
        self.phase = VOTES
        if None in offers:
            assert self.sent(VOTE) == b"", "it cannot vote"
            self.no_outcome()
            return
        self.seen = hashlib.sha256(
            b"cesar cell offers" + b"".join(sha(b"slice", body) for _, _, body in offers)
        ).digest()[:8]
        mean, own = np.zeros(self.world.size), self.value(self.kept.unsent) * self.chosen
        for where, values, _ in offers:
            mean[where] = values
        no = bool(own.any()) and (mean @ own < 0 or mean @ mean > 4 * (own @ own))
        self.book.votes[self.node, self.facts, self.seen] = no
        body = self.sent(VOTE)
        assert body[:16] == self.facts + self.seen
        self.ballot = np.frombuffer(body[16:], dtype="<u2").astype(np.int64)

    def on_vote(self, sender, body):
        if not self.adds() or sender not in self.sum:
            return
        if sender in self.votes:
            raise RefusedError("twice")
        if not body:
            self.votes[sender] = None
            return
        if len(body) != 16 + 2 * DRAWS * len(self.sum) ** 2:
            raise RefusedError("length")
        if body[:8] != self.facts:
            raise RefusedError("other agreements")
        self.votes[sender] = (body[8:16], np.frombuffer(body[16:], dtype="<u2").astype(np.int64))

    def end_votes(self):
        """Masks cancel in the sum of all ballots, so that the boxes can be counted without them."""
        others, book = [n for n in self.sum if n != self.node], self.book
        known = {n: vote for n, vote in self.votes.items() if vote is not None}
        unequal = [n for n in sorted(known) if known[n][0] != self.seen]
        if unequal:
            self.report["unequal"] = tuple((min(self.node, n), max(self.node, n)) for n in unequal)
        if unequal or len(known) < len(others):
            self.no_outcome()
            return
        total = self.ballot + sum(ballot for _, ballot in known.values())
        objections = int(np.count_nonzero((total % 65536).reshape(DRAWS, -1), axis=1).max())
        said = [book.votes.get((n, self.facts, self.seen)) for n in self.sum]
        if not book.wild:
            honest = sum(bool(vote) for n, vote in zip(self.sum, said, strict=True) if n not in book.liars)
            assert objections >= honest, "nobody can take a vote of somebody else back"
            if not book.liars.intersection(self.sum):
                assert objections == honest, "votes are counted right"
        self.refused = 2 * objections > len(self.sum)
        self.kept.refusals = self.kept.refusals + 1 if self.refused else 0
        self.report |= {"objections": objections, "refusals": self.kept.refusals}
        own = self.sum.index(self.node)
        value = self.kept.model.astype(np.float64)
        if not self.refused:
            where, values, _ = self.offers[own]
            value[where] = (value[where] + values).astype(np.float32)
        if not np.isfinite(value).all():
            assert book.wild
            self.changes[own], self.phase = None, GATHERS
            return
        self.plain, self.value_now = value, self.kept.with_overheard(value)
        self.exact, self.step, self.phase = True, np.zeros(self.world.size), HEARS

    def no_outcome(self):
        assert self.sent(GATHER) == b"", "it knows no outcome"
        self.phase = DONE

    def yard(self, number):
        """How long updates are by what members have announced: the lower median of each tensor."""
        if self.settling:
            return np.inf
        first, last = self.world.ranges(len(self.adding()))[number]
        told = [self.scale, *(self.agreed[n][0] for n in self.sum if n in self.agreed)]
        usual = np.sort(told, axis=0)[(len(told) - 1) // 2]
        at = self.world.tensor_at()[self.chosen & self.world.within(first, last)]
        squares = sum(4.0 ** int(usual[t]) * int((at == t).sum()) for t in range(len(self.world.tensors)))
        return float(np.float32(np.sqrt(squares / max(1, len(at))) / 4))

    def adding(self):
        """By whose number the model is cut into slices."""
        return self.cell if self.still else self.sum

    def limit(self, number, parts, yard):
        """How far away other cells are believed to be in a slice."""
        world, known = self.world, self.kept.distances
        first, last = world.ranges(parts)[number]
        near = [k for k, (a, b) in enumerate(world.ranges(len(known))) if min(b, last) > max(a, first)]
        found = known[near][known[near] > 0].astype(np.float64)
        if len(found):
            return 2.0 * float(np.median(found))
        return 2.0 * yard

    def read_handed_on(self, number, parts, round_, body):
        if not self.world.robust:
            return self.read_change(number, parts, round_, body)
        if len(body) < 8 or len(body) < 8 + struct.unpack("<I", body[4:8])[0]:
            raise RefusedError("short")
        yard, length = struct.unpack("<fI", body[:8])
        change = self.read_change(number, parts, round_, body[8 + length :])
        if length:
            change.offer = self.read_offer(number, parts, round_, body[8 : 8 + length])[:3]
        change.body, change.yard = body, yard
        return change

    def with_outcome(self, number, change):
        """A slice as members keep it."""
        if not self.world.robust:
            return change
        offer = None if self.refused or self.settling else self.offers[number]
        told = b"" if offer is None else offer[2]
        yard = self.yard(number)
        body = struct.pack("<fI", yard, len(told)) + told + change.body
        return dataclasses.replace(change, offer=offer, yard=yard, body=body)

    def on_exchange(self, sender, body):
        world = self.world
        heard = dict(world.heard(self.number_of_cell, self.round_))
        cell = next((c for c in heard if sender in world.cells[c]), None)
        if cell is None:
            raise RefusedError("not heard")
        if sender in self.said:
            raise RefusedError("twice")
        if self.world.robust and not body:
            self.silent.add(sender)
            return
        found = self.read_exchange(body, self.chosen)
        if self.phase <= HEARS:
            self.said[sender] = (cell, heard[cell], *found)

    def read_exchange(self, body, chosen):
        world = self.world
        if len(body) < 8:
            raise RefusedError("short")
        first, last = struct.unpack("<II", body[:8])
        if not first < last <= world.words:
            raise RefusedError("no range")
        rest = body[8:]
        if self.blocks:
            count = (last - first) * 64 // world.block
            wide = (count + 7) // 8
            if len(rest) < wide:
                raise RefusedError("short")
            flags = np.unpackbits(np.frombuffer(rest[:wide], dtype=np.uint8), bitorder="little").astype(bool)
            low, high = world.blocks_in(first, last)
            if flags[high - low :].any():
                raise RefusedError("no such block")
            chosen, rest = world.spread(flags[: high - low], first), rest[wide:]
        where, values, steps = world.read_row(rest, chosen, first, last)
        return first, last, where, values, steps

    def unheard(self):
        """Who has not told its part of the range that is this member's in the plan."""
        world = self.world
        first, last = world.ranges(len(self.adding()))[self.adding().index(self.node)]
        low, high = world.ranges(len(self.cell))[self.cell.index(self.node)]
        first, last = max(first, low), min(last, high)
        missing = set()
        for cell, _ in world.heard(self.number_of_cell, self.round_):
            told = [(s[2], s[3]) for s in self.said.values() if s[0] == cell]
            covered = sum(max(0, min(last, b) - max(first, a)) for a, b in told)
            if covered < max(0, last - first):
                for n, (a, b) in zip(world.cells[cell], world.ranges(len(world.cells[cell])), strict=True):
                    if min(last, b) > max(first, a) and n not in self.said:
                        missing.add(n)
        return missing - self.silent

    def end_exchange(self):
        """The new value of the own slice; the member's own frame says it, and must say this."""
        world, own = self.world, self.adding().index(self.node)
        first, last = world.ranges(len(self.adding()))[own]
        mine = world.within(first, last)
        if self.still:
            self.listen(own, mine, first, last)
            return
        new, told, heard = self.value_now.copy(), self.chosen & mine, set()
        parts = self.believed(own, mine, first, last)
        for _, (cell, weight, low, high, where, values, _) in sorted(self.said.items()):
            if min(last, high) <= max(first, low):
                continue
            at = mine[where]
            new[where[at]] += weight * parts.get(cell, 1.0) * (values[at] - self.value_now[where[at]])
            told[where[at]] = True
            heard.add(cell)
        self.report["heard"] = tuple(sorted(heard))
        self.phase = GATHERS
        if self.blocks and self.kept.overheard is not None:
            start, change = self.kept.overheard
            changed = np.zeros(64 * world.words, dtype=bool)
            changed[64 * start : 64 * start + len(change)] = change != 0
            flags = changed.reshape(-1, world.block).any(axis=1)[: world.blocks]
            told |= world.spread(flags, 0) & mine
        bodies = [body for to, kind, body in self.outs if kind == GATHER]
        assert len(bodies) == len(self.sum) - 1, "a keeper answers everybody"
        assert all(body == bodies[0] for body in bodies), "a keeper tells everybody the same"
        if not bodies[0]:
            assert self.book.wild, "its sum came about"
            self.changes[own] = self.kept.overheard = None
            return
        change = self.changes[own] = self.read_change(own, len(self.sum), self.round_, bodies[0])
        handed = self.book.handed
        if not self.settling:
            kept = self.with_outcome(own, change).body
            self.book.made[self.number_of_cell, self.round_, own, sha(b"slice", kept)] = {
                n: handed[n, self.facts][0] & mine for n in self.sum if (n, self.facts) in handed
            }
        assert np.array_equal(change.where, np.flatnonzero(told)), (
            "it tells all that changes and nothing else"
        )
        if self.exact and not self.book.wild:
            at = change.where
            expected = new[at] - self.plain[at]
            room = 0.51 * self.step[at] + 1.01 * change.steps + 4e-6 * (1 + np.abs(self.kept.model[at]))
            wrong = np.abs(change.values - expected) > room
            assert not wrong.any(), (
                f"node {self.node}, round {self.round_}: its sum is not that of {self.sum}"
            )
            self.book.sums += 1

    def listen(self, own, mine, first, last):
        """The cell stands still: what heard cells say is kept, and told to nobody but hearing cells."""
        value, heard = self.value_now, set()
        assert value.dtype == np.float32, "zero is zero in single precision"
        new, parts = value.copy(), self.believed(own, mine, first, last)
        for _, (cell, weight, low, high, where, values, _) in sorted(self.said.items()):
            if min(last, high) <= max(first, low):
                continue
            at = where[mine[where]]
            far = (values[mine[where]] - value[at]) * (weight * parts.get(cell, 1.0))
            new[at] = (new[at].astype(np.float64) + far).astype(np.float32)
            heard.add(cell)
        self.report["heard"], self.phase = tuple(sorted(heard)), DONE
        assert not any(kind in (SCATTER, GATHER, OFFER, VOTE) for _, kind, _ in self.outs), "nobody adds up"
        change = (new - self.kept.model)[64 * first : 64 * last]
        if np.isfinite(new).all() and np.abs(new[mine]).max(initial=0) < 2.0**100:
            self.kept.overheard = (first, change) if change.any() else None

    def believed(self, own, mine, first, last):
        """The part of each heard cell's difference that is believed."""
        if not self.world.robust:
            return {}
        most, found = self.limit(own, len(self.adding()), self.yard(own)), {}
        for _, (cell, _, low, high, where, values, _) in sorted(self.said.items()):
            if min(last, high) > max(first, low):
                at = mine[where]
                far = values[at] - self.value_now[where[at]].astype(np.float32)
                found.setdefault(cell, []).append(far)
        far = {cell: away(np.concatenate(rows)) for cell, rows in found.items()}
        return {cell: most / distance if distance > most else 1.0 for cell, distance in far.items()}

    def check_outs(self):
        """What hearing cells are told is the cell's model, with the new sum where there is one."""
        for _, kind, body in self.outs:
            if kind != EXCHANGE or self.book.wild:
                continue
            assert bool(body) is not bool(self.refused), (
                "a cell that has refused tells nothing, and only that"
            )
            if not body:
                continue
            _, _, where, values, steps = self.read_exchange(body, self.chosen)
            if self.value_now is None:
                expected, ring = self.before, 0.0
            elif self.exact:
                expected, ring = self.value_now, 0.51 * self.step[where]
            else:
                continue
            room = 1.01 * steps + ring + 4e-6 * (1 + np.abs(expected[where]))
            assert (np.abs(values - expected[where]) <= room).all(), "hearing cells are told something else"

    # ── gather ──────────────────────────────────────────────────────────────────────────────────────

    def read_change(self, number, parts, round_, body):
        world = self.world
        first, last = world.ranges(parts)[number]
        if not body or body[0] > 1:
            raise RefusedError("what is it about")
        rest, scores = body[1:], np.zeros(0, dtype=np.uint8)
        positions = self.book.drawn.get(round_, np.zeros(world.size, dtype=bool))
        if body[0]:
            positions = np.ones(world.size, dtype=bool)
        elif world.block:
            low, high = world.blocks_in(first, last)
            wide = (high - low + 7) // 8
            if len(rest) < wide + high - low:
                raise RefusedError("short")
            flags = np.unpackbits(np.frombuffer(rest[:wide], dtype=np.uint8), bitorder="little").astype(bool)
            if flags[high - low :].any():
                raise RefusedError("no such block")
            positions = world.spread(flags[: high - low], first)
            scores = np.frombuffer(rest[wide : wide + high - low], dtype=np.uint8)
            rest = rest[wide + high - low :]
        where, values, steps = world.read_row(rest, positions, first, last)
        reach = sum(weight for _, weight in world.heard(self.number_of_cell, round_))
        return Change(where, values, steps, scores, body, reach=reach, everything=bool(body[0]))

    def on_gather(self, sender, body):
        if not self.adds() or sender not in self.sum:
            return
        number = self.sum.index(sender)
        if number in self.changes:
            raise RefusedError("twice")
        self.changes[number] = self.read_change(number, len(self.sum), self.round_, body) if body else None

    def apply(self, number, parts, change, atoms):
        """A slice of the model changes; `atoms` are the own ones in its sum."""
        kept, world = self.kept, self.world
        first, last = world.ranges(parts)[number]
        before = kept.model[64 * first : 64 * last].copy()
        model, values, distance = kept.model.copy(), change.values, 0.0
        if world.robust:
            most = self.limit(number, parts, change.yard)
            distance = away(values) / change.reach if change.reach else 0.0
            if distance > most:
                values, distance = values * (most / distance), most
            distance = 0.0 if change.everything else distance
        with np.errstate(over="ignore"):
            for where, added in [*([change.offer[:2]] if change.offer else []), (change.where, values)]:
                model[where] = (model[where].astype(np.float64) + added).astype(np.float32)
        if not np.isfinite(model).all():
            return False
        kept.model = model
        if distance > 0:
            kept.recent[number] = distance
        low, _ = world.blocks_in(first, last) if world.block else (0, 0)
        known = kept.scores[low : low + len(change.scores)]
        kept.undo[number] = (before, known.copy(), atoms)
        known[:] = change.scores
        kept.claim = kept.claim.with_digest(number, sha(b"slice", change.body))
        kept.bodies[number] = change.body
        made = self.made(number, kept.claim.digests[number])
        if made is not None and self.node not in self.book.liars:
            strange = atoms & ~made.get(self.node, np.zeros_like(atoms))
            assert not strange.any(), f"node {self.node}: numbers are taken for summed, but in no sum"
        twice = kept.inside & atoms
        assert not twice.any(), f"node {self.node}: a number is in the model twice"
        kept.inside |= atoms
        return True

    def finish(self):
        kept, world, summed = self.kept, self.world, []
        open_ = np.zeros(world.size, dtype=bool)
        if self.voting and self.refused is None:
            self.changes = {}
        for number, change in sorted(self.changes.items()):
            first, last = world.ranges(len(self.sum))[number]
            atoms = kept.unsent & self.chosen & world.within(first, last) & (not self.settling)
            atoms &= not self.refused
            if change is not None and self.apply(
                number, len(self.sum), self.with_outcome(number, change), atoms
            ):
                if self.sum[number] == self.node and kept.overheard is not None:
                    start, heard = kept.overheard
                    alike = start == first and len(kept.model[64 * first : 64 * last]) == len(heard)
                    if alike:
                        heard[change.where - 64 * first] = 0
                    if not (alike and heard.any()):
                        kept.overheard = None
                summed.append(self.sum[number])
        if kept.handed is not None:
            members, positions = kept.handed
            for keeper, (first, last) in zip(members, world.ranges(len(members)), strict=True):
                part = positions & world.within(first, last)
                if keeper in summed:
                    if self.refused:
                        kept.throw(np.broadcast_to(part, kept.unsent.shape))
                    kept.unsent &= ~part
                else:
                    open_ |= part
            kept.handed = None
            kept.settle_doubt(positions & ~open_)
            kept.raise_doubt(members, open_)
        if self.report["members"]:
            kept.fallback = kept.unsent.copy()
        self.report["summed"] = tuple(summed)
        self.report["unsure"] = 0 if kept.doubt is None else int(kept.doubt[1].sum())
        self.running, self.round_ = False, self.round_ + 1

    def discarded(self):
        return self.value(self.kept.thrown & ~self.thrown_before)

    def made(self, number, digest):
        """Whose atoms are in a sum of the last gathering; None if nobody made it."""
        return self.book.made.get((self.number_of_cell, self.kept.claim.round_, number, digest))

    def check_account(self):
        """Every atom that this node ever trained is somewhere."""
        kept = self.kept
        trained = np.zeros_like(kept.unsent)
        trained[: self.book.columns[self.node]] = True
        places = [kept.unsent, kept.inside, kept.thrown, kept.undone, self.died]
        assert not (trained & ~np.logical_or.reduce(places)).any(), f"node {self.node}: a number is lost"
        assert not (kept.unsent & kept.inside).any(), f"node {self.node}: a number can be in the model twice"
        for number, digest in enumerate(kept.claim.digests):
            summed = (self.made(number, digest) or {}).get(self.node)
            assert summed is None or not (kept.unsent & summed).any(), (
                f"node {self.node}: summed, and yet unsent"
            )


def exponential(count):
    """Whom a cell hears in the one-peer exponential graph."""
    steps = max(1, int(np.ceil(np.log2(count))))
    return lambda cell, round_: [((cell + 2 ** (round_ % steps)) % count, 0.5)] if count > 1 else []


def metropolis(edges):
    """Whom a cell hears on a static graph."""
    links = {}
    for a, b in edges:
        links.setdefault(a, set()).add(b)
        links.setdefault(b, set()).add(a)

    def heard(cell, round_):
        near = links.get(cell, set())
        return [(b, 1 / (1 + max(len(near), len(links[b])))) for b in sorted(near)]

    return heard
