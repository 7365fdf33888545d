"""The files in `figures`, in the order of their numbers: what there is to reproduce, and how it becomes experiments.

A part or a method with `each` stands for several: for every choice of one table from each list, whose values are filled in where
their names stand in braces. `at.SCALE` has what differs at a scale, `scales` says at which scales a choice exists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import product
from typing import TYPE_CHECKING, Any

from cesar.base.errors import ConfigError

if TYPE_CHECKING:
    from cesar_lab.run.config import Experiment

Tables = dict[str, Any]
"""An experiment, or a part of one, as its file has it."""


class Scale(StrEnum):
    """smoke: seconds, on digits; small: minutes, on real data; medium: hours, 32 nodes, three seeds; paper: days."""

    SMOKE = "smoke"
    SMALL = "small"
    MEDIUM = "medium"
    PAPER = "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of the paper or of ours.

    Attributes:
        decide: the rule in `verdicts`.
        paper: what the paper prints for it.
        why: it comes out as it does.
        rule: all else that the rule has to know.
    """

    title: str
    decide: str
    paper: str = ""
    why: str = ""
    rule: Tables = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One table or figure.

    Attributes:
        place: where it stands in the paper.
        brief, what: what it shows, for a list and for its own section.
        needs: datasets, below the paper's scale and at it.
        takes: by scale, about how long it takes on two cores of its own: smoke as measured in time of the processor, the others
            from the measured time of one run (40 s on CIFAR-10) and of an SGD step (130 a second) times their number. A
            medium run on CIFAR-10 takes twelve minutes of a core, five of them for tests; one on MovieLens is taken to be
            as long.
        part: experiments, which are compared with one another.
        count: bytes that are counted without training.
        measure: what else is measured, once, and kept in a file.
        printed: the paper's own figures.
        by_bytes: experiments are drawn as curves over the bytes sent, not as points.
        compared: methods whose differences have a table of their own.
    """

    name: str
    place: str
    brief: str
    what: str
    needs: dict[Scale, str]
    takes: dict[Scale, str]
    part: tuple[Tables, ...] = ()
    count: Tables | None = None
    measure: Tables | None = None
    printed: Mapping[str, Tables] = field(default_factory=dict)
    picture: tuple[Tables, ...] = ()
    compared: tuple[tuple[str, str], ...] = ()
    by_bytes: bool = False
    claims: tuple[Claim, ...] = ()

    @property
    def help(self) -> str:
        """The line for the command's help."""
        return f"{self.place[:1].upper()}{self.place[1:]}: {self.brief}."

    def experiments(self, scale: Scale) -> dict[str, Tables]:
        """Part → the tables of its experiment."""
        found = {}
        for part, names in _choices(list(self.part), scale, apart=("method",)):
            data = dict(part["data"])
            tables = merge(dataset_tables(data.pop("dataset"), scale), part | {"data": data})
            methods = (method for method, _ in _choices(tables["method"], scale, names))
            tables["method"] = [{**method.pop("like", {}), **method} for method in methods]
            found[tables.pop("name")] = tables
        return found

    def parts(self, scale: Scale, seeds: int | None = None) -> dict[str, Experiment]:
        """The experiments, ready to run."""
        from cesar_lab.run.config import parse  # noqa: PLC0415  (the command line starts without pydantic)

        chosen = list(range(1, (seeds or scales()["seeds"][scale]) + 1))
        return {
            part: parse({"name": f"{self.name} {part}", "seeds": chosen, **tables})
            for part, tables in self.experiments(scale).items()
        }

    def cases(self, scale: Scale) -> list[Tables]:
        """What bytes are counted for, a table each."""
        return [] if self.count is None else [case for case, _ in _choices(self.count["case"], scale)]


# ── from files to tables ────────────────────────────────────────────────────────────────────────────────


def _choices(
    several: list[Tables], scale: Scale, known: Tables | None = None, apart: tuple[str, ...] = ()
) -> Iterator[tuple[Tables, Tables]]:
    """Each table as often as its `each` says, filled in but for the keys that are kept apart; and the names it has."""
    for written in several:
        tables = merge(written, written.get("at", {}).get(scale, {}))
        for chosen in product(*tables.get("each", [[{}]])):
            names = {**(known or {}), **{name: value for one in chosen for name, value in one.items()}}
            whole = {key: value for key, value in tables.items() if key not in ("each", "at")}
            filled = {
                key: value if key in apart else fill(value, names)
                for key, value in {"scales": names.get("scales", list(Scale)), **whole}.items()
            }
            if scale in filled.pop("scales"):
                yield filled, names


def fill(value: Any, names: Tables) -> Any:
    """Names in braces replaced by what they stand for; alone they become the value itself, and not its text.

    >>> fill({"share": "{share}", "label": "TopK {percent} %"}, {"share": 0.3, "percent": 30})
    {'share': 0.3, 'label': 'TopK 30 %'}
    """
    if isinstance(value, str):
        alone = value[1:-1] if value.startswith("{") and value.endswith("}") else ""
        return names[alone] if alone in names else value.format(**names)
    if isinstance(value, list):
        return [fill(one, names) for one in value]
    return {key: fill(one, names) for key, one in value.items()} if isinstance(value, dict) else value


def merge(base: Tables, changes: Tables) -> Tables:
    """The tables with changes, table by table.

    >>> merge({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 4}})
    {'a': {'x': 1, 'y': 4}, 'b': 3}
    """
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def dataset_tables(dataset: str, scale: Scale) -> Tables:
    """An experiment on a dataset at a scale, without methods."""
    paper = merge(scales()["paper"][dataset], {"data": {"dataset": dataset}})
    if scale is Scale.PAPER:
        return paper
    changes = scales()[scale]
    return merge(paper, changes["any"] if "any" in changes else changes[dataset])


@cache
def scales() -> Tables:
    """`scales.toml`."""
    return tomllib.loads((resources.files(__package__) / "scales.toml").read_text(encoding="utf-8"))


def _read(file: Traversable) -> Exhibit:
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    small, *paper = tables["needs"]
    lists: Tables = {
        "needs": dict.fromkeys(Scale, small) | {Scale.SMOKE: "nothing", Scale.PAPER: (paper or [small])[0]},
        "takes": dict(zip(Scale, tables["takes"], strict=True)),
        "claims": tuple(map(_claim, tables.pop("claim"))),
        "part": tuple(tables.get("part", ())),
        "picture": tuple(tables.get("picture", ())),
        "compared": tuple(map(tuple, tables.get("compared", ()))),
    }
    return Exhibit(name=file.name.removesuffix(".toml").partition("-")[2], **(tables | lists))


def _claim(tables: Tables) -> Claim:
    own = {key: tables.pop(key) for key in ("title", "decide", "paper", "why") if key in tables}
    return Claim(**own, rule=tables)


def _files() -> list[Traversable]:
    found = (resources.files(__package__) / "figures").iterdir()
    return sorted((file for file in found if file.name.endswith(".toml")), key=lambda file: file.name)


CATALOGUE = {one.name: one for one in map(_read, _files())}
"""The paper's tables and figures in its order, then ours."""


def find(name: str) -> Exhibit:
    """The table or figure of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in CATALOGUE:
        raise ConfigError(f"nothing is called {name!r}; choose one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def check_scale(scale: str) -> Scale:
    """Refuse a scale that does not exist."""
    if scale not in tuple(Scale):
        raise ConfigError(f"there is no scale {scale!r}; choose one of {', '.join(Scale)}")
    return Scale(scale)
