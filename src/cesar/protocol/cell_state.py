"""CellState: all that a member of a cell keeps from round to round, in one place, so that a driver can make it durable.

    common    X, the cell's model: no secret
    unsent    E, what this member has trained and not handed in: its secret
    claim     which link of the chain X is, and what was gathered of each slice last
    handed    what is in frames on their way: U and the members of the sum
    doubt     what was handed in without an answer

A number is *handed in* from the moment its frame may leave (`handed`) until the keeper's answer comes. If none comes it is in
doubt: perhaps somebody has seen the sum. It stays in E and may be handed in again, but in a sum over the very same
members only; before any other sum it is taken out of E and thrown away. A round's work is then lost, never a secret.

A driver that restarts a node from a state that was saved before frames left finds `handed` set, and `CellState.recover` turns it
into doubt.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cesar.base import memory
from cesar.base.errors import DataError
from cesar.base.types import BitWords, Buffer, NodeId, Vector
from cesar.crypto.keys import DIGEST_BYTES, LOSSES_BYTES, cell_losses, chain_start
from cesar.graph.cells import CellPlace
from cesar.kernels import bits, ring
from cesar.kernels.slicing import spans
from cesar.protocol.cell_vote import no_distances, remember
from cesar.protocol.wire_cells import NEVER, Claim

_CHANGING = (
    "common",
    "unsent",
    "scores",
    "hidden",
    "fallback",
    "distances",
    "doubt.positions",
    "doubt.values",
    "overheard",
)
"""Arrays that are written to in place; others are replaced as a whole."""


class Carried(NamedTuple):
    """What a cell knows of weights, where members count by their samples.

    Attributes:
        weight: v, what the cell's model weighs in the mean of cells; it is mixed as the model is.
        total: W, the samples of all members of the cell; 0 as long as they have not been added up.
    """

    weight: float = 0.0
    total: float = 0.0


class Handed(NamedTuple):
    """Positions that were handed in to a sum over these members."""

    members: tuple[NodeId, ...]
    positions: BitWords


class Overheard(NamedTuple):
    """What other cells have said about a slice while its cell stood still, as a change of the model from a word on."""

    first: int
    change: Vector


@dataclass(slots=True)
class Doubt:
    """Numbers that may have been seen, added to those of these members."""

    members: tuple[NodeId, ...]
    positions: BitWords = field(repr=False)
    values: Vector = field(repr=False)

    def drop(self, positions: BitWords) -> bool:
        """These are in a sum that came about; whether any doubt is left."""
        self.positions &= ~positions
        return bool(self.positions.any())


@dataclass(slots=True)
class CellState:
    """What a member keeps; see the module.

    Attributes:
        bodies: number of a slice → what its keeper sent in the last gathering, for members that did not get it.
        undo: number of a slice → the common model and the scores there before that, in case members were told
            different things. None for the model: `archive` has it.
        archive: (first, last) words → the common model there before the last gathering, from where a driver keeps it; None if none does.
        entered: the positions that this member handed in to the last gathering; None if it did not.
        came: member → the last round in which it has handed in to this one, as long as that may have been seen without an answer.
        fallback: E as it was when the last gathering had ended; None once all members hold the same model.
        losses: what this member has thrown away and when, in a few bytes. Members add up only if all of them have thrown away the
            same: otherwise a number would be in a sum without those of others that were trained beside it.
        thrown: what was thrown away and is in no report yet; None for nothing. A round that is begun anew, or ends without an outcome,
            leaves it to the next one.
        absent: member → rounds in a row in which it was not heard.
        scores: the cell's score of every block, as codes; empty where there are no blocks.
        scored: the members with whose scores this member's were added up last.
        hidden: what of E was in scores that were added up with those of other members, and is not scored again; None: nothing.
        distances: how far away other cells were, for each slice of the whole cell (`cell_vote`); nothing where nobody votes.
        recent: the same of the last gathering, by its slices.
        refusals: votes in a row in which most members have objected.
        samples: w, this member's secret where members count by samples; 0 elsewhere.
        carries: the cell's weights before the last gathering.
        told: number of a slice → the weights that its keeper told in the last gathering.
        measured: the same of the mean of the members' metrics.
        overheard: what this member has heard of other cells about its slice since the cell last added up. It is no secret. Nobody trains
            on it before it is gathered with the next sum, so that all members train on one model, also if some were away.
    """

    common: Vector = field(repr=False)
    unsent: Vector = field(repr=False)
    claim: Claim
    scores: NDArray[np.uint8] = field(repr=False)
    bodies: dict[int, Buffer] = field(default_factory=dict, repr=False)
    undo: dict[int, tuple[Vector | None, NDArray[np.uint8]]] = field(default_factory=dict, repr=False)
    archive: Callable[[int, int], Vector] | None = field(default=None, repr=False)
    handed: Handed | None = field(default=None, repr=False)
    entered: BitWords | None = field(default=None, repr=False)
    doubt: Doubt | None = None
    came: dict[NodeId, int] = field(default_factory=dict)
    fallback: Vector | None = field(default=None, repr=False)
    losses: bytes = bytes(LOSSES_BYTES)
    thrown: Vector | None = field(default=None, repr=False)
    absent: dict[NodeId, int] = field(default_factory=dict)
    scored: tuple[NodeId, ...] = ()
    hidden: Vector | None = field(default=None, repr=False)
    distances: NDArray[np.float32] = field(default_factory=lambda: no_distances(0), repr=False)
    recent: dict[int, float] = field(default_factory=dict, repr=False)
    refusals: int = 0
    samples: int = field(default=0, repr=False)
    carries: Carried = field(default_factory=Carried)
    told: dict[int, Carried] = field(default_factory=dict)
    measured: dict[int, float | None] = field(default_factory=dict)
    overheard: Overheard | None = field(default=None, repr=False)

    @classmethod
    def start(cls, common: Vector, blocks: int) -> CellState:
        """Nothing trained yet.

        Raises:
            DataError: the model is not finite.
        """
        if not ring.is_finite(common):
            raise DataError("the common model holds NaN or infinity; start from another")
        model = common.astype(np.float32, copy=True)
        claim = Claim(chain_start(model), NEVER, (), ())
        return cls(model, np.zeros_like(model), claim, np.zeros(blocks, dtype=np.uint8))

    def begin_gathering(self, claim: Claim, entered: BitWords | None) -> None:
        """The next gathering; nothing of it has come yet."""
        self.distances, self.recent = self.known_distances(), {}
        self.carries, self.told, self.measured = self.carried, {}, {}
        self.claim, self.entered = claim._replace(digests=(b"",) * len(claim.keepers)), entered
        self.bodies, self.undo, self.archive = {}, {}, None

    @property
    def carried(self) -> Carried:
        """The cell's weights now. Keepers may have heard different cells; the first slice counts, the same for all members."""
        return self.told[min(self.told)] if self.told else self.carries

    @property
    def metric(self) -> float | None:
        """Of the common model, if it came of the last gathering as a whole; the first slice counts, as for weights."""
        whole = bool(self.claim.digests) and all(self.claim.digests)
        return self.measured[min(self.measured)] if whole and self.measured else None

    def weigh(self, samples: int | None) -> None:
        """This member counts by its samples; None where all count alike.

        Raises:
            DataError: it has been counted by another number, and its weight is in one sum only.
        """
        if samples is None:
            return
        if samples != self.samples and self.samples and self.carried.total:
            raise DataError(
                f"this site counts with {self.samples} samples since its cell added up its weights, and now says {samples}; give "
                "the first number again, until the network signs a new roster"
            )
        self.samples = int(samples)

    def known_distances(self) -> NDArray[np.float32]:
        """With those of the last gathering."""
        if not self.recent:
            return self.distances
        words = bits.words_for(len(self.common))
        return remember(self.distances, words, len(self.claim.keepers), self.recent)

    def with_overheard(self, first: int, rows: Vector) -> Vector:
        """Rows of the model from a word on, and what was overheard there."""
        if self.overheard is not None:
            start, change = 64 * (self.overheard.first - first), self.overheard.change
            low, high = max(0, start), min(len(rows), start + len(change))
            if low < high:
                rows[low:high] += change[low - start : high - start]
        return rows

    def undone(self, number: int) -> tuple[Vector, NDArray[np.uint8]]:
        """The common model and the scores in a slice before the last gathering; they are not kept any longer."""
        rows, scores = self.undo[number]
        if rows is None:
            assert self.archive is not None, "it was there when the slice changed"
            rows = self.archive(*spans(bits.words_for(len(self.common)), len(self.claim.keepers))[number])
        del self.undo[number]
        return rows, scores

    def set_digest(self, number: int, digest: bytes) -> None:
        """What is held of a slice of the last gathering."""
        digests = list(self.claim.digests)
        digests[number] = digest
        self.claim = self.claim._replace(digests=tuple(digests))

    def given_up(self, place: CellPlace, patience: int) -> tuple[NodeId, ...]:
        """Whom nobody waits for any more; nobody, if those who are left would be too few to add up.

        Nobody is given up before the weights of all members are added up: two sums, with and without it, would show its weight.
        """
        if self.samples and not self.carried.total:
            return ()
        gone = tuple(n for n in place.view if self.absent.get(n, 0) >= patience)
        return () if place.plan.objection(n for n in place.members if n not in gone) else gone

    def discard(self, values: Vector) -> None:
        """Count what is thrown away, for the next report; what is negative was not thrown away after all."""
        self.thrown = values.copy() if self.thrown is None else self.thrown + values

    def take_thrown(self) -> Vector | None:
        """What was thrown away, to be reported; None if nothing was."""
        found, self.thrown = self.thrown, None
        return found if found is not None and found.any() else None

    def take_doubt_back(self, members: tuple[NodeId, ...]) -> bool:
        """Before a sum over these members: throw away what may have been seen in a sum over others; whether there was any."""
        doubt = self.doubt
        if doubt is None or doubt.members == members:
            return False
        lost = np.where(bits.to_bools(doubt.positions, len(self.common)), doubt.values, np.float32(0))
        self.unsent = self.unsent - lost
        if self.fallback is not None:
            self.fallback = self.fallback - lost
        self.doubt = None
        named = np.array(doubt.members, dtype="<u4").tobytes()
        self.losses = cell_losses(b"doubt", self.losses, named, doubt.positions.astype("<u8").tobytes())
        self.discard(lost.astype(np.float32))
        return True

    def clear(self) -> bool:
        """All of E is in a sum that came about. False, and nothing is done, for a model so small that it makes no difference."""
        if self.unsent.nbytes < memory.LEAST or self.hidden is not None:
            return False
        self.unsent = memory.zeros(len(self.unsent))
        return True

    def remember(self) -> None:
        """A gathering has ended: E as it is now is what members go back to."""
        self.fallback = self.unsent.copy() if self.unsent.flags.writeable else self.unsent

    def put_model(self, out: Vector) -> None:
        """What this member trains from: the common model and what is unsent."""
        if self.unsent.flags.writeable:
            np.add(self.common, self.unsent, out=out)
        else:
            out[:] = self.common

    def throw_away(self, round_: int, *, everything: bool) -> None:
        """Take back what was trained since the last gathering, or all of E."""
        number, before = struct.pack("<I", round_), self.unsent
        self.came = {}
        if everything or self.fallback is None:
            self.unsent, self.doubt, self.fallback = np.zeros_like(before), None, None
            self.losses = cell_losses(b"all", number)
        else:
            self.unsent = self.fallback.copy()
            gathered = struct.pack("<I", self.claim.round_)
            self.losses = cell_losses(b"since", self.losses, number, self.claim.base, gathered)
        self.discard(before - self.unsent)

    def raise_doubt(self, members: tuple[NodeId, ...], positions: BitWords) -> None:
        """These positions were handed in, and no answer came."""
        if not positions.any():
            return
        if self.doubt is None:
            self.doubt = Doubt(members, positions.copy(), self.unsent.copy())
            return
        assert self.doubt.members == members, "what was handed in otherwise is thrown away before"
        ring.copy_at(self.doubt.values, self.unsent, positions)
        self.doubt.positions |= positions

    def distrust(self) -> None:
        """This state was set back: what is unsent in it may have been handed in since, nobody knows with whom. All of it is in doubt,
        and in no sum over any members again.
        """
        self.handed = None
        self.doubt = Doubt((), bits.ones(len(self.common)), self.unsent.copy())
        self.fallback = None if self.fallback is None else self.unsent.copy()
        self.scored, self.hidden = (), None

    def to_score(self, members: tuple[NodeId, ...], fresh: Vector) -> tuple[Vector, Vector | None]:
        """What of E may be in scores over these members, and what not: that was in scores over others, and the difference
        of both sums would be the score of the member that has come or gone.
        """
        hidden = self.hidden if self.scored in ((), members) else self.unsent - fresh
        return (self.unsent if hidden is None else self.unsent - hidden), hidden

    def forgotten(self, claims: Mapping[NodeId, Claim]) -> bool:
        """Whether a member has handed in to this one and says now that it has not: its folder was lost or set back.

        In another sum over the same members it would hand in something else, or nothing, and the others the very numbers that are in
        doubt: the difference of the two sums would be its own.
        """
        if self.doubt is None:
            self.came = {}
        return any(
            node in claims and (claims[node].round_ == NEVER or claims[node].round_ < round_)
            for node, round_ in self.came.items()
        )

    def settle_doubt(self, positions: BitWords) -> None:
        """These positions are in a sum that came about."""
        if self.doubt is not None and not self.doubt.drop(positions):
            self.doubt = None

    def recover(self) -> None:
        """After a restart: whatever was on its way is in doubt."""
        if self.handed is not None:
            members, positions = self.handed
            self.handed = None
            if self.doubt is not None and self.doubt.members != members:
                self.doubt = None  # it was thrown away before these left
            self.raise_doubt(members, positions)
            self.fallback = self.unsent.copy()

    def move(self) -> None:
        """The cells were divided anew: the model stays, and what old partners said of it means nothing any more."""
        self.distances, self.recent, self.refusals = self.known_distances(), {}, 0
        self.claim = Claim(self.claim.chain(), NEVER, (), ())
        self.bodies, self.undo, self.entered, self.absent, self.measured = {}, {}, None, {}, {}
        self.archive = None
        self.carries, self.told, self.came, self.overheard = Carried(), {}, {}, None
        self.losses = bytes(LOSSES_BYTES)

    def forget(self) -> None:
        """Where there is noise nothing that was trained outlives its round: it would be hidden state in the next update."""
        self.unsent = np.zeros_like(self.unsent)
        self.doubt = self.fallback = None

    def to_arrays(self, *, copy: bool = True) -> dict[str, NDArray[np.generic]]:
        """For a file of arrays; nothing in it may be shown to anybody.

        Args:
            copy: False for one who is done with the arrays before anybody changes the state.
        """
        claim = self.claim
        arrays: dict[str, NDArray[np.generic]] = {
            "common": self.common,
            "unsent": self.unsent,
            "scores": self.scores,
            "base": np.frombuffer(claim.base, dtype=np.uint8),
            "losses": np.frombuffer(self.losses, dtype=np.uint8),
            "gathered": np.array([claim.round_, *claim.keepers], dtype=np.int64),
            "digests": np.frombuffer(
                b"".join(digest or bytes(DIGEST_BYTES) for digest in claim.digests), dtype=np.uint8
            ),
            "absent": np.array(
                [item for pair in sorted(self.absent.items()) for item in pair], dtype=np.int64
            ),
        }
        for number, body in self.bodies.items():
            arrays[f"body.{number}"] = np.frombuffer(body, dtype=np.uint8)
        for number, (rows, scores) in self.undo.items():
            arrays[f"undone.{number}"] = scores
            if rows is not None:
                arrays[f"undo.{number}"] = rows
        if self.handed is not None:
            arrays["handed.members"] = np.array(self.handed.members, dtype=np.int64)
            arrays["handed.positions"] = self.handed.positions
        if self.doubt is not None:
            arrays["doubt.members"] = np.array(self.doubt.members, dtype=np.int64)
            arrays["doubt.positions"] = self.doubt.positions
            arrays["doubt.values"] = self.doubt.values
        if self.entered is not None:
            arrays["entered"] = self.entered
        if self.fallback is not None:
            arrays["fallback"] = self.fallback
        if self.overheard is not None:
            arrays["overheard"] = self.overheard.change
            arrays["overheard.first"] = np.array(self.overheard.first, dtype=np.int64)
        if self.scored:
            arrays["scored"] = np.array(self.scored, dtype=np.int64)
        if self.hidden is not None:
            arrays["hidden"] = self.hidden
        if len(self.distances):
            arrays["distances"] = self.distances
            arrays["refusals"] = np.array(self.refusals, dtype=np.int64)
            arrays["recent"] = np.array(
                [item for pair in sorted(self.recent.items()) for item in pair], dtype=np.float64
            )
        if self.samples:
            arrays["samples"] = np.array(self.samples, dtype=np.int64)
            arrays["carries"] = np.array(self.carries, dtype=np.float64)
            arrays["told"] = np.array([(k, *self.told[k]) for k in sorted(self.told)], dtype=np.float64)
        if not copy:
            return arrays
        return {
            name: array.copy() if name in _CHANGING and array.flags.writeable else array
            for name, array in arrays.items()
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> CellState:
        """The inverse; what was on its way is in doubt afterwards.

        Raises:
            DataError: something is missing, such as the unsent updates.
        """

        def ids(name: str) -> tuple[NodeId, ...]:
            return tuple(NodeId(int(item)) for item in np.asarray(arrays[name]).astype(np.int64))

        def vector(name: str) -> Vector:
            return np.array(arrays[name], dtype=np.float32)

        try:
            gathered, named = ids("gathered"), np.asarray(arrays["digests"]).tobytes()
            cut = (named[k : k + DIGEST_BYTES] for k in range(0, len(named), DIGEST_BYTES))
            digests = tuple(digest if any(digest) else b"" for digest in cut)
            claim = Claim(np.asarray(arrays["base"]).tobytes(), int(gathered[0]), gathered[1:], digests)
            away, losses = ids("absent"), np.asarray(arrays["losses"]).tobytes()
            state = cls(vector("common"), vector("unsent"), claim, np.array(arrays["scores"], dtype=np.uint8))
            state.losses = losses
            state.absent = {node: int(rounds) for node, rounds in zip(away[::2], away[1::2], strict=True)}
            state.bodies = {
                int(name.partition(".")[2]): np.asarray(array).tobytes()
                for name, array in arrays.items()
                if name.startswith("body.")
            }
            for name in [name for name in arrays if name.startswith("undo.")]:
                number = int(name.partition(".")[2])
                scores = np.array(arrays[f"undone.{number}"], dtype=np.uint8)
                state.undo[number] = (vector(name), scores)
            if "handed.members" in arrays:
                state.handed = Handed(
                    ids("handed.members"), np.array(arrays["handed.positions"], dtype=np.uint64)
                )
            if "doubt.members" in arrays:
                positions = np.array(arrays["doubt.positions"], dtype=np.uint64)
                state.doubt = Doubt(ids("doubt.members"), positions, vector("doubt.values"))
            if "entered" in arrays:
                state.entered = np.array(arrays["entered"], dtype=np.uint64)
            if "fallback" in arrays:
                state.fallback = vector("fallback")
            if "overheard" in arrays:
                first = int(np.asarray(arrays["overheard.first"]).astype(np.int64))
                state.overheard = Overheard(first, vector("overheard"))
            if "scored" in arrays:
                state.scored = ids("scored")
            if "hidden" in arrays:
                state.hidden = vector("hidden")
            if "distances" in arrays:
                state.distances = np.array(arrays["distances"], dtype=np.float32)
                state.refusals = int(np.asarray(arrays["refusals"]).astype(np.int64))
                pairs = np.asarray(arrays["recent"]).astype(np.float64).reshape(-1, 2).tolist()
                state.recent = {int(number): distance for number, distance in pairs}
            if "samples" in arrays:
                state.samples = int(np.asarray(arrays["samples"]).astype(np.int64))
                state.carries = Carried(*np.asarray(arrays["carries"]).astype(np.float64).tolist())
                rows = np.asarray(arrays["told"]).astype(np.float64).reshape(-1, 3).tolist()
                state.told = {int(number): Carried(weight, total) for number, weight, total in rows}
        except KeyError as error:
            raise DataError(
                f"the saved state of a cell's member lacks {error}; without it a number could be in two sums. "
                "Start the run anew, or from an older checkpoint that has it"
            ) from None
        state.recover()
        return state


class Standing(NamedTuple):
    """Who holds which model, as everybody who has heard the same claims sees it.

    Attributes:
        chain: the link that most members are at.
        claim: the last gathering of that link, with the digests that count.
        behind: member → numbers of the slices that it lacks; None if it has to be given the whole model.
        holders: number of a slice → the members that can hand it on.
        disputed: number of a slice → the members that have another version of it than most; nobody keeps any.
    """

    chain: bytes
    claim: Claim
    behind: dict[NodeId, tuple[int, ...] | None]
    holders: dict[int, tuple[NodeId, ...]]
    disputed: dict[int, tuple[NodeId, ...]]

    def concerns(self, claim: Claim) -> bool:
        """Whether a member with this claim took part in the last gathering of the link."""
        return claim[:3] == self.claim[:3]


def standing(
    claims: Mapping[NodeId, Claim], witnesses: Callable[[Iterable[NodeId]], bool] | None = None
) -> Standing:
    """Compare what members say they hold.

    Members with the same base and the same last gathering are a group. Of a slice that they were told different things
    about none counts: everybody goes back to what the base had there. Of all links the one of most members counts; of
    equally many the later gathering. A member is behind if it lacks something of that link: single slices, if it is in the
    group or at its base.

    Args:
        witnesses: whether these members are enough to be believed about a slice, where members vote: a keeper alone could say
            that most had agreed. What too few have is treated like what is disputed.
    """
    usual = next(iter(claims.values()))
    if all(usual.digests) and all(claim == usual for claim in claims.values()):  # as in nearly every round
        holders = dict.fromkeys(range(len(usual.digests)), tuple(sorted(claims)))
        return Standing(usual.chain(), usual, {}, holders, {})
    groups: dict[tuple[bytes, int, tuple[NodeId, ...]], list[NodeId]] = {}
    for node in sorted(claims):
        claim = claims[node]
        groups.setdefault((claim.base, claim.round_, claim.keepers), []).append(node)
    disputes: dict[tuple[bytes, int, tuple[NodeId, ...]], dict[int, tuple[NodeId, ...]]] = {}
    merged: dict[tuple[bytes, int, tuple[NodeId, ...]], Claim] = {}
    for key, nodes in groups.items():
        digests = []
        disputed = disputes[key] = {}
        for number in range(len(key[2])):
            votes = Counter(claims[node].digests[number] for node in nodes)
            votes.pop(b"", None)
            version = min(votes, key=lambda digest: (-votes[digest], digest), default=b"")
            if len(votes) > 1:
                disputed[number] = tuple(n for n in nodes if claims[n].digests[number] not in (b"", version))
                version = b""
            elif version and witnesses is not None and len(claims) > 1:
                having = [n for n in nodes if claims[n].digests[number]]
                if not witnesses(having):
                    disputed[number], version = (), b""
            digests.append(version)
        merged[key] = Claim(*key, tuple(digests))
    support = Counter(dict.fromkeys(groups, 0))
    chains = {key: claim.chain() for key, claim in merged.items()}
    for key, chain in chains.items():
        for other, nodes in groups.items():
            if chains[other] == chain:
                support[key] += len(nodes)
    # Of groups at the same link the one that gathered something says how that link was reached.
    best = max(
        groups, key=lambda key: (support[key], any(merged[key].digests), key[1] != NEVER and key[1], key)
    )
    target, chain = merged[best], chains[best]
    behind: dict[NodeId, tuple[int, ...] | None] = {}
    for node, claim in claims.items():
        key = (claim.base, claim.round_, claim.keepers)
        if key == best:
            lacking = tuple(k for k, digest in enumerate(target.digests) if digest and not claim.digests[k])
            if lacking:
                behind[node] = lacking
        elif claim.chain() == target.base and claim.chain() != chain:
            behind[node] = tuple(k for k, digest in enumerate(target.digests) if digest)
        elif claim.chain() != chain:
            behind[node] = None
    holders = {
        k: tuple(node for node in groups[best] if claims[node].digests[k] == digest)
        for k, digest in enumerate(target.digests)
        if digest
    }
    return Standing(chain, target, behind, holders, disputes[best])
