"""Settings files: TOML in, checked and frozen tables out. A typo is an error that helps.

The experiment file and a peer's file both build on this, and describe methods with the same table.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cesar.errors import ConfigError
from cesar.grouping import LARGEST_SIZE, Draws, group_sizes
from cesar.indices import Code
from cesar.methods import (
    DPSGD,
    Cesar,
    Coordination,
    Dropout,
    Method,
    SecureAggregation,
    Weights,
    usual_ring_bits,
)
from cesar.sparsify import AnySparsifier, SparsifierName
from cesar.theory import expected_share, expected_union, required_alpha, required_union_alpha
from cesar.topology import Owners

AnySection = TypeVar("AnySection", bound="Section")


class Section(BaseModel):
    """A table of the file: nothing unknown is taken, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MethodSection(Section):
    """How to average. Give the share β that is to be sent or the fraction α that is to be selected.

    Without `dropout` the paper's exchange aborts and ours drops parameters.
    """

    name: Literal["cesar", "secagg", "dpsgd"]
    label: str = ""
    sparsifier: SparsifierName | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    masks: Annotated[int, Field(ge=1)] | None = None
    collusion: Annotated[int, Field(ge=1)] | None = None
    group_size: Annotated[int, Field(ge=2, le=LARGEST_SIZE)] | None = None
    regroup_after: Annotated[int, Field(ge=1)] | None = None
    weights: Weights | None = None
    memory: bool = False
    ring_bits: Literal[16, 20, 24, 32] = 32
    coordination: Coordination = "relay"
    dropout: Dropout | None = None
    paper: bool = False
    noise: Annotated[float, Field(ge=0)] = 0.0
    gossip_steps: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="before")
    @classmethod
    def _usual_ring(cls, values: object) -> object:
        if isinstance(values, dict) and "ring_bits" not in values:
            return {**values, "ring_bits": usual_ring_bits(values.get("group_size"))}
        return values

    @model_validator(mode="after")
    def _fits(self) -> MethodSection:
        if self.name == "cesar" and self.sparsifier is None:
            raise ValueError(f"cesar needs a sparsifier: {', '.join(SparsifierName)}")
        if self.name == "secagg" and self.sparsifier is not None:
            raise ValueError('secagg shares everything; drop the sparsifier or use name = "cesar"')
        if self.share is not None and self.alpha is not None:
            raise ValueError("give share or alpha, not both: each follows from the other")
        if self.name == "cesar" and self.share is None and self.alpha is None:
            raise ValueError("cesar needs share (the fraction to send) or alpha (the fraction to select)")
        if self.memory and self.sparsifier != "topk":
            raise ValueError('memory is for sparsifier = "topk": the others do not rank')
        if (self.noise or self.gossip_steps > 1) and (self.name != "dpsgd" or self.sparsifier is not None):
            raise ValueError("noise and gossip_steps go with dpsgd that shares everything")
        fields = type(self).model_fields
        ignored = [key for key in self._ignored() if getattr(self, key) != fields[key].default]
        if ignored:
            what = " with paper = true" if self.paper else ""
            raise ValueError(
                f'{" and ".join(ignored)} would change nothing with name = "{self.name}"{what}; leave out'
            )
        if self.group_size is not None and self.masks is not None:
            raise ValueError("group_size decides how many masks a value carries (one less); leave masks out")
        if self.group_size is not None and self.sparsifier == "coordinated":
            raise ValueError('groups coordinate their members already; use sparsifier = "random"')
        if self.regroup_after is not None and self.group_size is None:
            raise ValueError("regroup_after is about groups; set group_size, too")
        if self.group_size is not None and self.coordination == "direct":
            raise ValueError("groups need no coordination between neighbours; leave coordination out")
        return self

    def _ignored(self) -> Iterator[str]:
        """Settings that this kind of method does not look at."""
        if self.name == "dpsgd":
            yield from (
                "masks",
                "collusion",
                "group_size",
                "regroup_after",
                "ring_bits",
                "coordination",
                "dropout",
            )
        if self.name == "secagg":
            yield from ("masks", "share", "alpha", "coordination", "paper")
        if self.name == "secagg" and self.group_size is None:
            yield "collusion"
        if self.paper:
            yield from ("collusion", "group_size", "regroup_after", "ring_bits", "coordination")

    @property
    def title(self) -> str:
        """What tables and folders call it."""
        if self.label:
            return self.label
        parts: list[str] = [self.name, self.sparsifier or "full"]
        if self.paper:
            parts.append("paper")
        if self.noise:
            parts.append(f"noise{self.noise:g}")
        if self.gossip_steps > 1:
            parts.append(f"{self.gossip_steps}steps")
        if (self.masks or 1) > 1:
            parts.append(f"s{self.masks}")
        if self.group_size is not None:
            parts.append(f"groups{self.group_size}")
        if self.collusion is not None:
            parts.append(f"k{self.collusion}")
        if self.memory:
            parts.append("memory")
        if self.weights is not None:
            parts.append(self.weights)
        if self.ring_bits != usual_ring_bits(self.group_size):
            parts.append(f"{self.ring_bits}bit")
        amount = self.share or self.alpha
        if amount is not None:
            parts.append(f"{amount:g}")
        return "-".join(parts)

    @property
    def folder(self) -> str:
        """The title as a name for a directory."""
        return re.sub(r"[^a-z0-9._]+", "-", self.title.lower()).strip("-.") or "method"

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
        if self.name == "secagg":
            return SecureAggregation(
                group_size=self.group_size,
                collusion=self.collusion,
                regroup_after=self.regroup_after,
                weights=self.weights or "arrived",
                ring_bits=self.ring_bits,
                dropout=self.dropout or "parameter",
            )
        if self.name == "dpsgd":
            amount = self.share or self.alpha or measured_share
            sparsifier = None
            if self.sparsifier is not None and amount is not None:
                self._check_share(amount, amount, size)
                sparsifier = self._sparsifier(amount)
            return DPSGD(
                sparsifier=sparsifier,
                index_code=Code.ELIAS_GAMMA if self.paper else None,
                weights=self.weights or "neighbours",
                noise=self.noise,
                gossip_steps=self.gossip_steps,
            )
        return self._cesar(degree, size, graph, owners)

    def settled(
        self,
        graph: nx.Graph,
        *,
        network: bytes = b"",
        draws: Draws | None = None,
        owners: Owners | None = None,
    ) -> Method:
        """The method on this graph, with s or groups; the least degree decides α.

        Raises:
            ConfigError, PrivacyError: nothing could be shared, or not safely.
        """
        # First without α, which only makes sense where every receiver has neighbours enough.
        draft = self._with_alpha(1.0) if self.name == "cesar" else self.build(2)
        draft = draft.for_graph(graph, network=network, draws=draws, owners=owners)
        built = self.build(min(degree for _, degree in graph.degree), graph=graph, owners=owners)
        if not isinstance(built, DPSGD) and not isinstance(draft, DPSGD) and draft.groups is not None:
            return replace(built, groups=draft.groups)  # looking through all coalitions once is enough
        return built.for_graph(graph, network=network, draws=draws, owners=owners)

    def _cesar(self, degree: int, size: int, graph: nx.Graph | None, owners: Owners | None) -> Cesar:
        draft = self._with_alpha(1.0)
        masks = None
        if self.group_size is None:
            if self.collusion is not None and graph is None:
                raise ConfigError("with collusion, s follows from the graph, and none was given")
            strict = self.collusion is not None and graph is not None
            masks = draft.for_graph(graph, owners=owners).masks if strict else draft.masks
        alpha = self.alpha
        if alpha is None:
            assert self.share is not None
            alpha = self._alpha_for(self.share, degree, masks)
        self._check_share(alpha, self._share_of(alpha, degree, masks), size)
        return self._with_alpha(alpha)

    def _alpha_for(self, share: float, degree: int, masks: int | None) -> float:
        if self.sparsifier == "coordinated" or (masks is None and self.sparsifier == "random"):
            return share
        if masks is None:
            return required_union_alpha(share, self._sizes(degree))
        return required_alpha(share, degree, masks)

    def _share_of(self, alpha: float, degree: int, masks: int | None) -> float:
        if self.sparsifier == "coordinated" or (masks is None and self.sparsifier == "random"):
            return alpha
        if masks is None:
            return expected_union(alpha, self._sizes(degree))
        return expected_share(alpha, degree, masks)

    def _sizes(self, degree: int) -> tuple[int, ...]:
        assert self.group_size is not None
        return group_sizes(max(degree, self.group_size), self.group_size)

    def _with_alpha(self, alpha: float) -> Cesar:
        sparsifier = self._sparsifier(alpha)
        if self.paper:
            made = Cesar.paper(
                sparsifier=sparsifier, masking_requirement=self.masks or 1, dropout=self.dropout or "abort"
            )
            return replace(made, weights=self.weights or "arrived")
        return Cesar(
            sparsifier=sparsifier,
            masking_requirement=self.masks,
            collusion=self.collusion,
            group_size=self.group_size,
            regroup_after=self.regroup_after,
            weights=self.weights or "arrived",
            ring_bits=self.ring_bits,
            coordination=self.coordination,
            dropout=self.dropout or "parameter",
        )

    def _check_share(self, alpha: float, share: float, size: int) -> None:
        if share * size < 1:
            raise ConfigError(
                f"{self.title}: with alpha = {alpha:g} next to nothing is ever shared, {share * size:.2g} of {size:,} "
                "parameters a round; raise alpha or share"
            )

    def _sparsifier(self, alpha: float) -> AnySparsifier:
        assert self.sparsifier is not None
        return self.sparsifier.make(alpha, memory=self.memory)


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
    for problem in error.errors():
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
