"""What there is to know about one table or figure, and what was measured for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cesar.reproduce.counts import Count, Counting
from cesar.reproduce.pairs import NONE, Pair
from cesar.reproduce.tables import SEEDS, Scale, Tables

if TYPE_CHECKING:
    from cesar.experiment.config import Experiment
    from cesar.experiment.paired import Difference
    from cesar.experiment.results import MethodRow, Study

Saved = dict[str, Any]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Something beside training that is measured once and kept in a file.

    Attributes:
        of_parts: it is measured on each experiment; else once for all.
        measure: (directory, scale, where datasets lie, progress) → what is kept.
        about: what is kept → a sentence for the head of the section.
        pair: (part, what is kept) → how it reads.
    """

    file: str
    of_parts: bool
    measure: Callable[[Path, Scale, Path | None, Progress], Saved]
    pair: Callable[[str, Saved], Pair]
    about: Callable[[Saved], str] | None = None


class Verdict(StrEnum):
    """What measurements say about a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "cannot be decided here"
    MISSING = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was measured for a claim; `why` it differs from what the paper has, if it does."""

    verdict: Verdict
    ours: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shorter:
    """Experiments of fewer rounds, each a file and a directory beside the document, that answer a claim as well.

    Attributes:
        pairs: experiment → pairs of methods, one and the one that it is set against.
        judge: nodes' paired differences → what they say.
        why: they come out as they do.
    """

    pairs: dict[str, tuple[tuple[str, str], ...]]
    judge: Callable[[Sequence[Difference | None]], Verdict]
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of the paper or of ours, what the paper prints for it, and what the measurements say about it.

    `check` finds nothing if they have not come that far; then `shorter` runs speak, if there are any.
    """

    title: str
    check: Callable[[Outcome], Finding | None]
    paper: str = ""
    shorter: Shorter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """One table or figure.

    Attributes:
        place: where it stands in the paper.
        brief, what: what it shows, for a list and for its own section.
        needs: datasets, by scale.
        takes: about how long it takes on two cores of its own: smoke as measured in time of the processor, the others
            from the measured time of one run (40 s on CIFAR-10) and of an SGD step (130 a second) times their number. A
            medium run on CIFAR-10 takes twelve minutes of a core, five of them for tests; one on MovieLens is taken to be
            as long.
        experiments: scale → tables of experiments by part, which are compared with one another.
        counting: scale → byte counts.
        count_pair: how the byte counts read.
        measurements: what else is measured.
        published: (part, title of the method) → the paper's own figure for that line, if it prints one.
        by_bytes: the experiments are drawn as curves over the bytes sent, not as points.
        compared: methods whose differences have a table of their own.
    """

    name: str
    place: str
    brief: str
    what: str
    needs: dict[Scale, str]
    takes: dict[Scale, str]
    experiments: Callable[[Scale], dict[str, Tables]] = lambda _: {}
    counting: Callable[[Scale], Counting | None] = lambda _: None
    count_pair: Callable[[list[Count]], Pair] | None = None
    measurements: tuple[Measurement, ...] = ()
    published: Callable[[str, str], str] = lambda _part, _title: NONE
    by_bytes: bool = False
    compared: tuple[tuple[str, str], ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def help(self) -> str:
        """The line for the command's help."""
        return f"{self.place[:1].upper()}{self.place[1:]}: {self.brief}."

    def parts(self, scale: Scale, seeds: int | None = None) -> dict[str, Experiment]:
        """The experiments, ready to run."""
        from cesar.experiment.config import parse  # noqa: PLC0415  (the command line starts without pydantic)

        chosen = list(range(1, (seeds or SEEDS[scale]) + 1))
        return {
            part: parse({"name": f"{self.name} {part}", "seeds": chosen, **tables})
            for part, tables in self.experiments(scale).items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A reproduction with all that was measured for it."""

    of: Reproduction
    scale: Scale
    about: list[str]
    pairs: list[Pair]
    counts: list[Count]
    studies: dict[str, Study]
    saved: dict[str, Saved]
    """What else was measured, by the file that it is in."""
    rows: dict[str, dict[str, MethodRow]] = field(repr=False)
    """Part → title of the method → its line in the tables."""

    @property
    def missing(self) -> list[str]:
        """Parts that have not been tested yet, and methods of the others."""
        found = []
        for part, experiment in self.of.parts(self.scale).items():
            line = self.rows.get(part, {})
            lacking = [method.title for method in experiment.method if method.title not in line]
            if lacking:
                found.append(f"{part} ({' · '.join(lacking)})" if line else part)
        return found


def needs(small: str, paper: str | None = None) -> dict[Scale, str]:
    """Datasets by scale; the medium scale has those of the small one."""
    return {
        Scale.SMOKE: "nothing",
        Scale.SMALL: small,
        Scale.MEDIUM: small,
        Scale.PAPER: paper or small,
    }


def takes(smoke: str, small: str, medium: str, paper: str) -> dict[Scale, str]:
    """Times by scale."""
    return {Scale.SMOKE: smoke, Scale.SMALL: small, Scale.MEDIUM: medium, Scale.PAPER: paper}
