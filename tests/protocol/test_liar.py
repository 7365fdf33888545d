"""A receiver that lies in every way that its frames allow learns sums over whole groups, or noise.

Node 0 tells its neighbours whatever it likes about presence, positions, scale and tokens: to all of them or to some, over
several rounds, of models that do not change, with nodes that are silent or begin again. All others are real nodes. What
node 0 holds is then written as a system of equations: every word that it got is the sender's value plus masks. The
masks are made again from all secrets, so that the equations are those of the real words. All combinations of words in
which no mask is left are found, and all of them must treat the members of each group alike.

Every mask stands in the equations at most once with each sign. Such a system loses nothing over the rationals: its
combinations modulo 2^b are those over the integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, combinations

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar import packing, ring
from cesar.crypto.keys import RoundId, digest_positions, mask_key
from cesar.crypto.keystream import Keystream
from cesar.indices import IndexSet, encode
from cesar.wire import GroupTerms, Header, Kind, Share, Token, members_to_bytes, read_header
from support.harness import Case, FakeKeys, refused

LIAR, SIZE, TENSORS = 0, 14, (9, 5)
ROUNDS = range(5)
METHODS = {
    "topk": cesar.Cesar(sparsifier=cesar.TopK(0.3), group_size=2, ring_bits=32),
    "random": cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.6), group_size=2, ring_bits=32),
    "full": cesar.SecureAggregation(group_size=2, ring_bits=32),
    "topk-3": cesar.Cesar(sparsifier=cesar.TopK(0.3), group_size=3, ring_bits=32),
    "random-3": cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.6), group_size=3, ring_bits=16),
    "full-3": cesar.SecureAggregation(group_size=3, ring_bits=20),
}


def view_of(case: Case) -> tuple[int, ...]:
    return tuple(sorted(case.graph[LIAR]))


def group_of(case: Case, member: int) -> tuple[int, ...]:
    return next(group for group in case.settled.groups[LIAR] if member in group)


# ── what it can say ─────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Terms:
    """Terms in the making, and what they are made from."""

    case: Case
    member: int
    exponents: tuple[int, ...]
    present: set[int]
    tokens: dict[int, Token]
    own: IndexSet | None  # what the member has selected
    more: IndexSet | None  # all that its group is to send
    raw: bytes = b""

    def frame(self, honest: Header) -> bytes:
        partners = [node for node in group_of(self.case, self.member) if node != self.member]
        tokens = tuple(self.tokens[j] for j in partners if j in self.present and j in self.tokens)
        others = self.raw
        if self.own is not None and self.more is not None and tokens:
            both = IndexSet.of_words(self.more.words | self.own.words, SIZE)
            others += encode(both.within(self.own.complement()))
        message = GroupTerms(
            exponents=self.exponents, present=tuple(sorted(self.present)), tokens=tokens, others=others
        )
        return bytes(message.encode(honest, view_of(self.case)).payload)


Lie = Callable[[Terms], None]


def call_absent(rng, case) -> Lie:
    gone = {node for node in view_of(case) if rng.random() < 0.3}

    def lie(terms):
        terms.present -= gone

    return lie


def call_present(rng, case) -> Lie:
    """Those who are silent, too, with tokens out of thin air."""
    made = {node: Token(rng.bytes(16), rng.bytes(32)) for node in view_of(case)}

    def lie(terms):
        terms.present |= set(made)
        terms.tokens = made | terms.tokens

    return lie


def other_positions(rng, case) -> Lie:
    chosen = [[], range(SIZE), [int(rng.integers(SIZE))], np.flatnonzero(rng.random(SIZE) < 0.5)][
        rng.integers(4)
    ]
    told = IndexSet.from_positions(chosen, SIZE)

    def lie(terms):
        if terms.own is not None:
            terms.more = told

    return lie


def positions_that_are_none(rng, case) -> Lie:
    junk = rng.bytes(1 + int(rng.integers(20)))

    def lie(terms):
        terms.raw, terms.more = junk, None

    return lie


def other_scale(rng, case) -> Lie:
    steps = rng.choice([-3, -1, 0, 1, 2, 20, 200], size=len(TENSORS)).tolist()

    def lie(terms):
        terms.exponents = tuple(
            min(max(e + step, -127), 128) for e, step in zip(terms.exponents, steps, strict=True)
        )

    return lie


def other_tokens(rng, case) -> Lie:
    """Of a stranger, of the liar itself, or those of an earlier round; seed, key or both."""
    seed, key, who = rng.bytes(16), FakeKeys(case.session, LIAR).public(0), rng.random(SIZE) < 0.5
    kind = rng.integers(3)

    def lie(terms):
        for j, token in terms.tokens.items():
            if who[j]:
                terms.tokens[j] = Token(
                    token.seed if kind == 1 else seed, token.ephemeral if kind == 0 else key
                )

    return lie


def old_tokens(rng, case) -> Lie:
    """The same seeds in every round that this lie is told."""

    def lie(terms):
        terms.tokens = {j: Token(bytes([j] * 16), token.ephemeral) for j, token in terms.tokens.items()}

    return lie


def swapped_tokens(rng, case) -> Lie:
    def lie(terms):
        names = sorted(terms.tokens)
        terms.tokens = {a: terms.tokens[b] for a, b in zip(names, names[1:] + names[:1], strict=True)}

    return lie


def silence(rng, case) -> Lie:
    def lie(terms):
        terms.tokens = {}

    return lie


LIES = [
    call_absent,
    call_present,
    other_positions,
    other_positions,
    positions_that_are_none,
    other_scale,
    other_scale,
    other_tokens,
    old_tokens,
    swapped_tokens,
    silence,
]


# ── the world in which it lies ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Held:
    """A share that the liar got, and what its sender had been told."""

    round_: int
    sender: int
    seed: bytes
    told: GroupTerms
    positions: IndexSet
    share: Share = field(repr=False)


class World:
    """Real nodes around a liar.

    Args:
        script: round → [(who is told this, what is told)]; what is told last comes on top.
        silent: (round, node) of announcements that get lost on the way to the liar.
        again: (round, node) that begin their round again when it is over.
    """

    def __init__(self, case, script, silent=frozenset(), again=frozenset()):
        self.case, self.script, self.silent, self.again = case, script, silent, again
        self.nodes = {i: case.node(i) for i in case.graph}
        self.held: list[Held] = []
        self.refused = Counter()
        for round_ in script:
            self.announced, self.told = {}, {}
            for node in self.nodes.values():
                replace(case, round_=round_, seed=round_).begin(node)
            self.carry(round_)
            for node in [i for t, i in sorted(again) if t == round_]:
                self.begin_again(round_, node)
            for node in self.nodes.values():
                node.close()

    def begin_again(self, round_, i):
        """A node comes back from before the round; the liar hears of it, and tells it something once more."""
        case = replace(self.case, round_=round_, seed=round_)
        node = self.nodes[i] = case.node(i)
        case.begin(node, attempt=1)
        (out,) = node.outbound()
        self.announced[i] = bytes(out.frame.payload)
        self.tell(round_, i)
        while (deadline := node.next_deadline()) is not None:
            node.tick(deadline)
            for out in node.outbound():
                if LIAR in out.recipients and out.frame.kind is Kind.SHARE:
                    self.hold(round_, i, bytes(out.frame.payload), out)

    def carry(self, round_):
        busy = True
        while busy:
            busy = False
            for i, node in self.nodes.items():
                for out in node.outbound():
                    busy = True
                    for to in out.recipients:
                        self.deliver(round_, i, to, bytes(out.frame.payload), out)
            waiting = [n for n in self.nodes.values() if n.next_deadline() is not None]
            if not busy and waiting:
                first = min(waiting, key=lambda n: (n.next_deadline(), n.id))
                first.tick(first.next_deadline())
                busy = True

    def deliver(self, round_, sender, to, payload, out):
        kind = out.frame.kind
        if to == LIAR:
            if kind is Kind.ANNOUNCE and (round_, sender) in self.silent:
                return
            if kind is Kind.ANNOUNCE:
                self.announced.setdefault(sender, payload)
            if kind is Kind.SHARE:
                self.hold(round_, sender, payload, out)
        if sender == LIAR and kind is Kind.GROUP_TERMS:
            self.tell(round_, to)
            return
        refused(self.nodes[to], sender, payload)

    def tell(self, round_, member):
        """Everybody whom it has heard hears from it, whatever it says."""
        terms = Terms(
            case=self.case,
            member=member,
            exponents=self.scale(),
            present=set(self.announced),
            tokens={j: self.token(payload) for j, payload in self.announced.items() if j != member},
            own=self.nodes[member].selected,
            more=self.union(member),
        )
        for audience, lie in self.script[round_]:
            if member in audience:
                lie(terms)
        attempt = RoundId(session=self.case.session, round_=round_)
        header = Header(kind=Kind.GROUP_TERMS, attempt=attempt, sender=LIAR)
        payload = terms.frame(header)
        error = refused(self.nodes[member], LIAR, payload)
        if error is None:
            self.told[member] = payload
        else:
            self.refused[error.reason] += 1

    def scale(self):
        rows = [payload[76 : 76 + len(TENSORS)] for payload in self.announced.values()]
        return tuple(max(column) - ring.EXPONENT_BIAS for column in zip(*rows, strict=True))

    @staticmethod
    def token(payload):
        return Token(payload[28:44], payload[44:76])

    def union(self, member):
        sets = [self.nodes[i].selected for i in group_of(self.case, member)]
        if None in sets:
            return None
        return IndexSet.of_words(np.bitwise_or.reduce([one.words for one in sets]), SIZE)

    def hold(self, round_, sender, payload, out):
        _, body = read_header(payload)
        share = Share.decode(body, view_of(self.case), explicit=False)
        partners = [j for j in group_of(self.case, sender) if j != sender]
        told = GroupTerms.decode(
            read_header(self.told[sender])[1], view_of(self.case), partners, len(TENSORS)
        )
        seed = self.token(self.announced[sender]).seed
        positions = IndexSet.of_words(out.positions.copy(), SIZE)
        self.held.append(Held(round_, sender, seed, told, positions, share))


# ── what it holds, as equations ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Equations:
    """Rows of (mask → factor, value → factor), one for each word that the liar holds.

    A mask is (key, place in its stream), a value is (node, position). Words are taken as they are before they are
    rounded, so that the liar holds more here than in truth; a scale is a factor.
    """

    rows: list[tuple[dict, dict]]

    @classmethod
    def of(cls, world: World) -> Equations:
        return cls(list(chain.from_iterable(cls.of_share(world.case, held) for held in world.held)))

    @classmethod
    def of_share(cls, case: Case, held: Held) -> list[tuple[dict, dict]]:
        group, width = group_of(case, held.sender), case.method.ring_bits
        assert held.share.partners == tuple(j for j in group if j != held.sender), "every other member masks"
        keys = {j: cls.key(case, held, group, j) for j in held.share.partners}
        assert tuple(keys[j].check for j in held.share.partners) == held.share.checks
        words = packing.unpack(held.share.values, width, held.positions.count).astype(np.uint64)
        signs = {j: 1 if held.sender < j else -1 for j in keys}
        clear = words << np.uint64(64 - width)
        for j, key in keys.items():
            mask = np.empty(len(words), dtype=np.uint64)
            Keystream(key.key).fill(mask)
            clear += mask if signs[j] < 0 else -mask
        spread = np.repeat(held.told.exponents, TENSORS)[held.positions.positions()]
        cls.check(case, held, spread, np.ldexp(clear.view(np.int64).astype(float), width - 64))
        return [
            (
                {(key.key, k): signs[j] for j, key in keys.items()},
                {(held.sender, int(p)): Fraction(2) ** -int(spread[k])},
            )
            for k, p in enumerate(held.positions.positions())
        ]

    @staticmethod
    def key(case: Case, held: Held, group: tuple[int, ...], j: int):
        tokens = dict(zip([node for node in group if node != held.sender], held.told.tokens, strict=True))
        return mask_key(
            FakeKeys(case.session, held.sender).secret(j, tokens[j].ephemeral),
            RoundId(session=case.session, round_=held.round_),
            nodes=(held.sender, j),
            seeds=(held.seed, tokens[j].seed),
            receiver=LIAR,
            terms=ring.exponents_to_bytes(held.told.exponents) + members_to_bytes(group, view_of(case)),
            common=digest_positions(held.positions.words),
        )

    @staticmethod
    def check(case: Case, held: Held, exponents, clear) -> None:
        """Without its masks a word is the value, rounded at the scale that was told."""
        width, groups = case.method.ring_bits, case.settled.groups[LIAR]
        together = len(view_of(case)) if width == 32 else max(map(len, groups))
        scale = np.ldexp(1.0, width - 1 - ring.headroom(together) - exponents)
        exact = case.vectors[held.sender][held.positions.positions()].astype(float) * scale
        assert (np.abs(clear - exact) <= 0.5 + 2.0**-20).all()

    def without_masks(self) -> list[dict]:
        """All combinations of words that carry no mask, as combinations of values: a basis of them."""
        signs = Counter((mask, sign) for masks, _ in self.rows for mask, sign in masks.items())
        assert max(signs.values(), default=1) == 1, "a mask is used once with each sign"
        pivots, found = {}, []
        for masks, values in self.rows:
            left, total = dict(masks), dict(values)
            while left:
                column = min(left)
                if column not in pivots:
                    pivots[column] = left, total
                    break
                factor = Fraction(left[column], pivots[column][0][column])
                subtract(left, factor, pivots[column][0])
                subtract(total, factor, pivots[column][1])
            else:
                found.append(total)
        return found


def subtract(target: dict, factor: Fraction, source: dict) -> None:
    for name, value in source.items():
        target[name] = target.get(name, 0) - factor * value
        if not target[name]:
            del target[name]


def assert_whole_groups(case: Case, combination: dict) -> None:
    """Every member of a group has the same factor wherever any has one, over all rounds and scales."""
    for place in {p for _, p in combination}:
        for group in case.settled.groups[LIAR]:
            factors = [combination.get((node, place), 0) for node in group]
            assert len(set(factors)) == 1, (place, factors, group)


def make_case(name: str, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    graph = nx.random_regular_graph(6, 9, seed=seed)
    vectors = (2.0 ** rng.integers(-2, 3, (9, 1)) * rng.normal(size=(9, SIZE))).astype(np.float32)
    return Case(graph=graph, method=METHODS[name], vectors=vectors, tensors=TENSORS, seed=seed)


# ── learns nothing but sums ─────────────────────────────────────────────────────────────────────────────


def random_script(rng, case):
    """In every round some lies, each told to some: one, several or all; some are told for all rounds alike."""
    view, always = view_of(case), []

    def audience():
        return view if rng.random() < 0.4 else rng.permutation(view)[: 1 + rng.integers(len(view))].tolist()

    for _ in range(rng.integers(3)):
        always.append((audience(), LIES[rng.integers(len(LIES))](rng, case)))
    return {
        round_: [
            *always,
            *((audience(), LIES[rng.integers(len(LIES))](rng, case)) for _ in range(rng.integers(4))),
        ]
        for round_ in ROUNDS
    }


def random_world(name, seed):
    rng, case = np.random.default_rng([seed, len(name)]), make_case(name, seed)
    pairs = [(round_, node) for round_ in ROUNDS for node in view_of(case)]
    silent = frozenset(pair for pair in pairs if rng.random() < rng.choice([0, 0.1]))
    again = frozenset(pair for pair in pairs if rng.random() < rng.choice([0, 0.1])) - silent
    return World(case, random_script(rng, case), silent, again)


@pytest.mark.parametrize("name", METHODS)
def test_any_lies_give_sums_over_whole_groups_or_noise(name):
    noise = sums = refusals = 0
    for seed in range(12):
        world = random_world(name, seed)
        equations = Equations.of(world)
        found = equations.without_masks()
        for combination in found:
            assert_whole_groups(world.case, combination)
        sums += len(found)
        noise += len(equations.rows) - len(found) * len(world.case.settled.groups[LIAR][0])
        refusals += sum(world.refused.values())
    assert sums > 100
    assert noise > 100
    assert refusals > 20


@pytest.mark.parametrize("name", METHODS)
def test_no_share_leaves_for_a_group_with_a_member_that_is_called_absent(name):
    called = 0
    for seed in range(12):
        world = random_world(name, seed)
        for held in world.held:
            assert set(group_of(world.case, held.sender)) <= set(held.told.present)
            assert len(held.told.tokens) == len(group_of(world.case, held.sender)) - 1
    case = make_case(name, 1)
    view = view_of(case)
    for absent in chain.from_iterable(combinations(view, size) for size in (1, 2)):

        def lie(terms, absent=absent):
            terms.present -= set(absent)

        world = World(case, {round_: [(view, lie)] for round_ in range(2)})
        silent = {node for gone in absent for node in group_of(case, gone)}
        assert {held.sender for held in world.held} == set(view) - silent
        called += len(silent)
    assert called


def test_a_liar_who_calls_members_absent_cannot_bring_sums_with_and_without_them_together():
    """Where the method goes on without those who stay away: a sender's own shares are as far apart as it was promised,
    whatever it is told.
    """
    changes = 0
    for seed in range(6):
        rng, after = np.random.default_rng(seed), 2 + seed % 3
        method = cesar.SecureAggregation(group_size=3, regroup_after=after, ring_bits=32)
        case = replace(make_case("full-3", seed), method=method)
        view = view_of(case)
        script = {}
        for round_ in range(20):
            audience = view if rng.random() < 0.8 else rng.permutation(view)[:3].tolist()
            stays = round_ and rng.random() < 0.5
            script[round_] = script[round_ - 1] if stays else [(audience, call_absent(rng, case))]
        last = {}
        for held in World(case, script).held:
            members = (held.sender, *held.share.partners)
            before, then = last.get(held.sender, (held.round_, members))
            assert len(members) >= 2
            assert members == then or held.round_ - before >= after
            changes += members != then
            last[held.sender] = (held.round_, members)
    assert changes > 5


# ── single lies, in numbers ─────────────────────────────────────────────────────────────────────────────


def words_of(world, round_=0):
    """Sender → its words, where everything is sent."""
    return {
        held.sender: packing.unpack(held.share.values, 32, SIZE).copy()
        for held in world.held
        if held.round_ == round_
    }


def rounded(case, exponents):
    """(n, d): every model as words, at a scale."""
    scale = np.ldexp(1.0, 31 - ring.headroom(len(view_of(case))) - np.repeat(exponents, TENSORS))
    return np.floor(case.vectors.astype(float) * scale + 0.5).astype(np.int64).astype(np.uint32)


def subsets(nodes):
    return chain.from_iterable(combinations(nodes, size) for size in range(1, len(nodes) + 1))


def readable(world, exponents):
    """The sets of shares whose words add up to the values of any set of neighbours, somewhere."""
    words, values = words_of(world), rounded(world.case, exponents)
    sums = [sum(values[node] for node in chosen) for chosen in subsets(view_of(world.case))]
    found = {}
    for chosen in subsets(sorted(words)):
        total = sum(words[node] for node in chosen)
        matches = np.array(
            [np.abs((total - one).view(np.int32)) <= len(chosen) for one in sums]
        )  # but for rounding
        if matches.any():
            assert matches.all(axis=1).any(), "at all positions or at none"
            found[chosen] = True
    return set(found)


def unions(groups):
    """All sets of nodes that are made of whole groups."""
    return {tuple(sorted(node for group in chosen for node in group)) for chosen in subsets(groups)}


@pytest.mark.parametrize("name", ["full", "full-3"])
def test_the_truth_gives_whole_groups_and_nothing_else(name):
    case = replace(
        make_case(name, 3), method=cesar.SecureAggregation(group_size=METHODS[name].group_size, ring_bits=32)
    )
    world = World(case, {0: []})
    assert readable(world, world.scale()) == unions(case.settled.groups[LIAR])


def coarser(terms):
    terms.exponents = tuple(exponent + 30 for exponent in terms.exponents)


def exchanged_seeds(terms):
    terms.tokens = {j: Token(bytes(16), token.ephemeral) for j, token in terms.tokens.items()}


def exchanged_keys(terms):
    own = FakeKeys(terms.case.session, LIAR).public(0)
    terms.tokens = {j: Token(token.seed, own) for j, token in terms.tokens.items()}


@pytest.mark.parametrize("lie", [coarser, exchanged_seeds, exchanged_keys])
def test_a_group_in_which_one_is_told_something_else_gives_noise(lie):
    case = make_case("full", 3)
    groups = case.settled.groups[LIAR]
    for victim in view_of(case):
        world = World(case, {0: [([victim], lie)]})
        assert len(words_of(world)) == 6, "all have sent"
        assert readable(world, world.scale()) == unions([group for group in groups if victim not in group])


def test_the_same_lie_to_all_gives_noise_or_a_coarser_sum():
    """Nobody has the tokens that it announced itself; a scale is another one for all."""
    case = make_case("full", 3)
    for lie in (exchanged_seeds, exchanged_keys):
        world = World(case, {0: [(view_of(case), lie)]})
        assert len(words_of(world)) == 6
        assert readable(world, world.scale()) == set()
    world = World(case, {0: [(view_of(case), coarser)]})
    exponents = tuple(exponent + 30 for exponent in world.scale())
    # At so coarse a scale all values are zero, so that any whole group looks like any other.
    assert not rounded(case, exponents).any()
    assert readable(world, exponents) == unions(case.settled.groups[LIAR])


def test_values_that_round_to_zero_for_all_but_one():
    """The lie that the scale in the keys is there for: without it the last one's values would be the sum."""
    case = make_case("full", 3)
    for group in case.settled.groups[LIAR]:
        others = group[1:]
        world = World(case, {0: [(others, lambda terms: setattr(terms, "exponents", (128, 128)))]})
        words = words_of(world)
        total = sum(words[node] for node in group)
        assert not (total == rounded(case, world.scale())[group[0]]).any()


def test_the_whole_model_is_a_sum_like_any_other():
    case = make_case("topk", 3)
    everything = IndexSet.full(SIZE)
    world = World(case, {0: [(view_of(case), lambda terms: setattr(terms, "more", everything))]})
    assert all(held.positions == everything for held in world.held)
    assert readable(world, world.scale()) == unions(case.settled.groups[LIAR])


def test_nothing_more_than_the_own_set_gives_noise_where_sets_differ():
    case = make_case("topk", 3)
    nothing = IndexSet.from_positions([], SIZE)
    world = World(case, {0: [(view_of(case), lambda terms: setattr(terms, "more", nothing))]})
    assert [held.positions for held in world.held] == [
        world.nodes[held.sender].selected for held in world.held
    ]
    sets = {held.sender: tuple(held.positions.positions().tolist()) for held in world.held}
    assert all(len({sets[node] for node in group}) > 1 for group in case.settled.groups[LIAR])
    assert Equations.of(world).without_masks() == []


def test_a_scale_that_is_told_to_all_alike_gives_the_sum_and_nothing_else():
    """The receiver may choose how coarse a sum is. Pairs of models with the same sum look the same then: rounded one by
    one, the first two would give 1 and the last one 2.
    """
    case = make_case("full", 3)
    group, view = case.settled.groups[LIAR][0], view_of(case)
    coarse = 31 - ring.headroom(len(view))  # at this exponent 1.0 is one unit
    for values in ((0.75, 0.25), (1.25, -0.25), (0.5, 0.5)):
        vectors = case.vectors.copy()
        vectors[list(group)] = np.array(values, dtype=np.float32)[:, None]
        said = World(
            replace(case, vectors=vectors),
            {0: [(view, lambda terms: setattr(terms, "exponents", (coarse,) * 2))]},
        )
        words = words_of(said)
        assert sum(words[node] for node in group).tolist() == [1] * SIZE
