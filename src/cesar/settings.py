"""Settings files: TOML in, checked and frozen tables out. A typo is an error that helps.

The experiment file and a peer's file both build on this, and describe methods with the same table.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cesar.errors import ConfigError
from cesar.methods import DPSGD, Cesar, Coordination, Dropout, Method, SecureAggregation
from cesar.sparsify import SparsifierName
from cesar.theory import expected_share, required_alpha

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
    ring_bits: Literal[16, 20, 24, 32] = 32
    coordination: Coordination = "relay"
    dropout: Dropout | None = None
    paper: bool = False
    noise: Annotated[float, Field(ge=0)] = 0.0
    gossip_steps: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _fits(self) -> MethodSection:
        if self.name == "cesar" and self.sparsifier is None:
            raise ValueError(f"cesar needs a sparsifier: {', '.join(SparsifierName)}")
        if self.name == "secagg" and self.sparsifier is not None:
            raise ValueError('secagg shares everything; drop the sparsifier or use name = "cesar"')
        if self.collusion is not None and (self.name != "cesar" or self.paper):
            raise ValueError('collusion derives the masks of name = "cesar" without paper = true')
        if self.share is not None and self.alpha is not None:
            raise ValueError("give share or alpha, not both: each follows from the other")
        if self.name == "cesar" and self.share is None and self.alpha is None:
            raise ValueError("cesar needs share (the fraction to send) or alpha (the fraction to select)")
        if (self.noise or self.gossip_steps > 1) and (self.name != "dpsgd" or self.sparsifier is not None):
            raise ValueError("noise and gossip_steps go with dpsgd that shares everything")
        return self

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
        if self.collusion is not None:
            parts.append(f"k{self.collusion}")
        if self.ring_bits != 32:
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
    ) -> Method:
        """The method on a graph in which receivers have at least that many neighbours.

        Args:
            degree: δ, the neighbours of a receiver.
            measured_share: what CESAR shared; D-PSGD takes it where it names no share of its own.
            size: d, the number of parameters, as far as it is known yet.
            graph: the (first) graph, from which `collusion` takes s, and α follows.

        Raises:
            ConfigError, PrivacyError: nothing could be shared.
        """
        match self.name:
            case "secagg":
                return SecureAggregation(ring_bits=self.ring_bits, dropout=self.dropout or "parameter")
            case "dpsgd":
                return self._dpsgd(self.share or self.alpha or measured_share, size)
            case "cesar":
                return self._cesar(self._alpha_on(degree, self.masks_on(graph), size))

    def masks_on(self, graph: nx.Graph | None) -> int:
        """The s of a graph, as the method settles it there.

        Raises:
            ConfigError: s depends on a graph, and there is none.
            PrivacyError: s does not stop the colluders, or leaves a receiver nothing.
        """
        if self.name != "cesar":
            return 1
        method = self._cesar(1.0)
        if self.collusion is not None and graph is not None:
            method = method.for_graph(graph)
        return method.masks

    def _cesar(self, alpha: float) -> Cesar:
        """CESAR that selects this fraction; with `collusion`, s is left to the graph."""
        assert self.sparsifier is not None
        sparsifier = self.sparsifier.make(alpha)
        if self.paper:
            return Cesar.paper(
                sparsifier=sparsifier, masking_requirement=self.masks or 1, dropout=self.dropout or "abort"
            )
        return Cesar(
            sparsifier=sparsifier,
            masking_requirement=self.masks,
            collusion=self.collusion,
            ring_bits=self.ring_bits,
            coordination=self.coordination,
            dropout=self.dropout or "parameter",
        )

    def _dpsgd(self, amount: float | None, size: int) -> DPSGD:
        sparsifier = None
        if self.sparsifier is not None and amount is not None:
            self._check_share(amount, amount, size)
            sparsifier = self.sparsifier.make(amount)
        if self.paper:
            return DPSGD.paper(sparsifier=sparsifier)
        return DPSGD(sparsifier=sparsifier, noise=self.noise, gossip_steps=self.gossip_steps)

    def _alpha_on(self, degree: int, masks: int, size: int) -> float:
        """The α that is given, or that shares what is to be shared with s masks among so many neighbours."""
        coordinated = self.sparsifier is SparsifierName.COORDINATED  # everybody selects, and shares, the same
        alpha = self.alpha
        if alpha is None:
            assert self.share is not None
            alpha = self.share if coordinated else required_alpha(self.share, degree, masks)
        self._check_share(alpha, alpha if coordinated else expected_share(alpha, degree, masks), size)
        return alpha

    def _check_share(self, alpha: float, share: float, size: int) -> None:
        if share * size < 1:
            raise ConfigError(
                f"{self.title}: with alpha = {alpha:g} next to nothing is ever shared, {share * size:.2g} of {size:,} "
                "parameters a round; raise alpha or share"
            )


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
