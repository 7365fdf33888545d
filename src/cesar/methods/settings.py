"""Settings files: TOML in, checked and frozen tables out. A typo is an error that helps.

The experiment file and a peer's file both build on this, and describe methods with the same table.
"""

from __future__ import annotations

import difflib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cesar.base.errors import ConfigError
from cesar.graph.cells import CELLS, EXPONENTIAL
from cesar.graph.neighbourhood import Owners
from cesar.methods.base import Coordination, Dropout, Method, Weights
from cesar.methods.cells import HIGHEST_SAMPLES, MOST_SAMPLES, PATIENCE, Best, BlockTopK, Cells, Weight
from cesar.methods.paper import USUAL_RING_BITS, Cesar, SecureAggregation
from cesar.methods.plain import DPSGD
from cesar.methods.sparsify import KNOWN, RandomSubsampling, make

AnySection = TypeVar("AnySection", bound="Section")


class Section(BaseModel):
    """A table of the file: nothing unknown is taken, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


METHODS: dict[str, type[Cesar | DPSGD]] = {
    "cesar": Cesar,
    "secagg": SecureAggregation,
    "dpsgd": DPSGD,
}
"""By the names that files use."""

ARGUMENTS = {"masks": "masking_requirement"}
"""Fields of a file that constructors call by another name."""

AMOUNT = ("share", "alpha", "memory")
"""Fields that go to the sparsifier."""


class MethodSection(Section):
    """How to average: the arguments of a method's constructor, which knows what goes together.

    Give the share β that is to be sent or the fraction α that is to be selected; each follows from the other on a graph.
    """

    name: str
    label: str = ""
    sparsifier: str | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    masks: Annotated[int, Field(ge=1)] | None = None
    collusion: Annotated[int, Field(ge=1)] | None = None
    weights: Weights | None = None
    memory: bool = False
    ring_bits: Literal[16, 20, 24, 32] | None = None
    coordination: Coordination = "relay"
    dropout: Dropout | None = None
    paper: bool = False
    size: Annotated[int, Field(ge=2, le=255)] = 4
    graph: str = EXPONENTIAL
    patience: Annotated[int, Field(ge=1)] = PATIENCE
    robust: bool = False
    block: Literal[8, 16, 32, 64] = 64
    weight: Weight = "equal"
    most_samples: Annotated[int, Field(ge=1, le=HIGHEST_SAMPLES)] = MOST_SAMPLES
    metric: bool = False
    best: Best = "highest"

    @model_validator(mode="before")
    @classmethod
    def _usual_ring(cls, values: object) -> object:
        """The usual width, written down or left out, is the same: files of earlier versions have it always."""
        if not isinstance(values, dict) or values.get("name") == CELLS:
            return values
        if values.get("ring_bits") == USUAL_RING_BITS:
            return {key: value for key, value in values.items() if key != "ring_bits"}
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name not in (*METHODS, CELLS):
            raise ValueError(f"there is no method {self.name!r}; known are {', '.join((*METHODS, CELLS))}")
        if self.share is not None and self.alpha is not None:
            raise ValueError("give share or alpha, not both: each follows from the other")
        try:
            self.made()
        except ConfigError as error:
            text = str(error)  # in the words of the file
            for field, argument in ARGUMENTS.items():
                text = text.replace(argument, field)
            raise ValueError(text) from None
        return self

    @property
    def title(self) -> str:
        """What tables and folders call it."""
        if self.label:
            return self.label
        parts: list[str] = [self.name, self.sparsifier or "full", *self._special()]
        if (self.masks or 1) > 1:
            parts.append(f"s{self.masks}")
        if self.collusion is not None:
            parts.append(f"k{self.collusion}")
        if self.memory:
            parts.append("memory")
        if self.weights is not None:
            parts.append(self.weights)
        if self.name == CELLS:
            parts.append(f"of{self.size}")
            if self.graph != EXPONENTIAL:
                parts.append(self.graph)
            if self.robust:
                parts.append("robust")
            if self.weight != "equal":
                parts.append(self.weight)
            if self.metric:
                parts.append("metric")
            if self.sparsifier == "topk" and self.block != self._default("block"):
                parts.append(f"block{self.block}")
        if self.ring_bits is not None:
            parts.append(f"{self.ring_bits}bit")
        amount = self.share or self.alpha
        if amount is not None:
            parts.append(f"{amount:g}")
        return "-".join(parts)

    def _special(self) -> list[str]:
        """What the title names right after the sparsifier."""
        return ["paper"] if self.paper else []

    @property
    def folder(self) -> str:
        """The title as a name for a directory."""
        return re.sub(r"[^a-z0-9._]+", "-", self.title.lower()).strip("-.") or "method"

    def _default(self, key: str) -> object:
        return type(self).model_fields[key].default

    def cells(self) -> Cells:
        """Cells, where the name says so; among them TopK goes by blocks.

        Raises:
            ConfigError: a setting is missing, is none of theirs, or does not go with another.
        """
        others = (*AMOUNT, "masks", "weights", "coordination", "dropout", "paper")
        ignored = [key for key in others if key != "share" and getattr(self, key) != self._default(key)]
        if ignored:
            raise ConfigError(f'{" and ".join(ignored)} would change nothing with name = "cells"; leave out')
        if self.weight == "equal" and self.most_samples != self._default("most_samples"):
            raise ConfigError('most_samples would change nothing without weight = "samples"; leave out')
        if not self.metric and self.best != self._default("best"):
            raise ConfigError("best would change nothing without metric = true; leave out")
        if (self.sparsifier is None) != (self.share is None):
            raise ConfigError("cells hand everything in, or name both a sparsifier and a share")
        made = Cells(
            size=self.size,
            collusion=1 if self.collusion is None else self.collusion,
            graph=self.graph,
            ring_bits=self.ring_bits or 16,
            patience=self.patience,
            robust=self.robust,
            weight=self.weight,
            most_samples=self.most_samples,
            metric=self.metric,
            best=self.best,
        )
        match self.sparsifier:
            case None:
                return made
            case "topk":
                return replace(made, sparsifier=BlockTopK(self.share or 1.0, self.block))
            case "random":
                return replace(made, sparsifier=RandomSubsampling(self.share or 1.0))
            case other:
                raise ConfigError(f"cells cannot choose with {other!r}; use random or topk")

    def made(self) -> Method:
        """The method, with α = 1 where only a share was given.

        Raises:
            ConfigError: a setting is missing, is none of this method's, or does not go with another.
        """
        if self.name == CELLS:
            return self.cells()
        kind = METHODS[self.name]
        make_it: Callable[..., Method] = kind.paper if self.paper else kind
        taken = inspect.signature(make_it).parameters
        given = {ARGUMENTS.get(key, key): value for key, value in self._given().items()}
        if "sparsifier" not in taken:
            given.update({key: value for key in ("sparsifier", *AMOUNT) if (value := getattr(self, key))})
        elif self.sparsifier is not None:
            given["sparsifier"] = make(self.sparsifier, self.alpha or 1.0, memory=self.memory)
        elif taken["sparsifier"].default is inspect.Parameter.empty:
            raise ConfigError(f"{self.name} needs a sparsifier: {', '.join(KNOWN)}")
        of_cells = (
            key
            for key in (
                "size",
                "graph",
                "patience",
                "robust",
                "block",
                "weight",
                "most_samples",
                "metric",
                "best",
            )
            if getattr(self, key) != self._default(key)
        )
        ignored = sorted({*(names for names in given if names not in taken), *of_cells})
        if ignored:
            shown = [next((k for k, v in ARGUMENTS.items() if v == name), name) for name in ignored]
            what = " with paper = true" if self.paper else ""
            raise ConfigError(
                f'{" and ".join(shown)} would change nothing with name = "{self.name}"{what}; leave out'
            )
        if self.name == "cesar" and self.share is None and self.alpha is None:
            raise ConfigError("cesar needs share (the fraction to send) or alpha (the fraction to select)")
        return make_it(**given)

    def _given(self) -> dict[str, Any]:
        """The constructor's arguments that differ from their defaults."""
        keys = ("masks", "collusion", "weights", "ring_bits", "coordination", "dropout")
        fields = type(self).model_fields
        return {key: value for key in keys if (value := getattr(self, key)) != fields[key].default}

    def build(
        self,
        degree: int,
        measured_share: float | None = None,
        *,
        size: int = 1_000_000,
        graph: nx.Graph | None = None,
        owners: Owners | None = None,
    ) -> Method:
        """The method on a graph in which receivers have at least that many neighbours.

        Args:
            degree: δ, the neighbours of a receiver.
            measured_share: what CESAR shared; D-PSGD takes it where it names no share of its own.
            size: d, the number of parameters, as far as it is known yet.
            graph: the (first) graph, from which `collusion` takes s, and α follows.
            owners: who runs which node of it.

        Raises:
            ConfigError, PrivacyError: nothing could be shared.
        """
        return self._with_share(self.made(), degree, measured_share, size=size, graph=graph, owners=owners)

    def for_graph(self, graph: nx.Graph, *, owners: Owners | None = None) -> Method:
        """The method on this graph, with its s; the least degree decides α.

        Raises:
            ConfigError, PrivacyError: nothing could be shared, or not safely.
        """
        # First the graph: a share only makes sense where every receiver has neighbours enough.
        fitted = self.made().for_graph(graph, owners=owners)
        return self._with_share(fitted, min(degree for _, degree in graph.degree))

    def _with_share(
        self,
        made: Method,
        degree: int,
        measured: float | None = None,
        *,
        size: int = 1_000_000,
        graph: nx.Graph | None = None,
        owners: Owners | None = None,
    ) -> Method:
        if self.sparsifier is None:
            return made
        share = self.share if self.share is not None or self.alpha is not None else measured
        if share is not None:
            made = made.sharing(share, degree, graph=graph, owners=owners)
        sent = made.expected_share(degree, graph=graph, owners=owners)
        if sent * size < 1:
            raise ConfigError(
                f"{self.title}: with alpha = {made.sparsifier.alpha:g} next to nothing is ever shared, {sent * size:.2g} of "
                f"{size:,} parameters a round; raise alpha or share"
            )
        return made


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a file.

    Raises:
        ConfigError: there is none, or it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def check(section: type[AnySection], tables: dict[str, Any]) -> AnySection:
    """The tables as a section.

    Raises:
        ConfigError: says which key is wrong and what was probably meant.
    """
    try:
        return section.model_validate(tables)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(section, error))) from None


def _explain(section: type[Section], error: ValidationError) -> Iterator[str]:
    problems = error.errors()
    for problem in problems:
        if problem["type"] == "too_short" and len(problems) > 1:
            continue  # a list that is short because its items are wrong, which the others say
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            yield f"{where} is not a setting{_suggestion(section, problem['loc'])}"
        else:
            message = problem["msg"].removeprefix("Value error, ")
            yield f"{where or section.__name__.lower()}: {message}"


def _suggestion(section: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """The nearest key of the same table."""
    for part in location[:-1]:
        if isinstance(part, str):
            annotation = section.model_fields[part].annotation
            section = next(t for t in (annotation, *get_args(annotation)) if _is_section(t))
    near = difflib.get_close_matches(str(location[-1]), section.model_fields, n=1, cutoff=0.5)
    known = ", ".join(section.model_fields)
    return f"; did you mean {near[0]}?" if near else f"; known are {known}"


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
