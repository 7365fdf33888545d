"""The experiment file: TOML in, a checked and frozen configuration out. A typo is an error that helps."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cesar.errors import ConfigError
from cesar.methods import DPSGD, Cesar, Coordination, Dropout, Method, SecureAggregation
from cesar.sim.ensemble import CrashPoint
from cesar.sparsify import AnySparsifier, CoordinatedSubsampling, RandomSubsampling, TopK
from cesar.theory import expected_share, required_alpha


class Section(BaseModel):
    """A table of the file: nothing unknown is taken, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSection(Section):
    """Which data, and how it is spread over the nodes."""

    dataset: str = "digits"
    partition: Literal["iid", "shards", "dirichlet", "user"] = "iid"
    dirichlet_alpha: Annotated[float, Field(gt=0)] = 0.5
    train_limit: Annotated[int, Field(gt=0)] | None = None
    test_limit: Annotated[int, Field(gt=0)] | None = None


class ModelSection(Section):
    """Which model; `package.module:factory` for your own."""

    name: str = "digits-mlp"
    weights: Path | None = None


class TrainingSection(Section):
    """SGD without momentum."""

    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    batch_size: Annotated[int, Field(gt=0)] = 8
    steps_per_round: Annotated[int, Field(gt=0)] = 5


class TopologySection(Section):
    """Who averages with whom."""

    kind: Literal["regular", "ring", "complete", "small-world", "star", "file"] = "regular"
    nodes: Annotated[int, Field(ge=2)] = 16
    degree: Annotated[int, Field(gt=0)] = 5
    rewire: Annotated[float, Field(ge=0, le=1)] = 0.1
    path: Path | None = None
    dynamic: bool = False

    @model_validator(mode="after")
    def _file_has_a_path(self) -> TopologySection:
        if (self.kind == "file") != (self.path is not None):
            raise ValueError('path goes with kind = "file", and that kind needs it')
        if self.dynamic and self.kind not in ("regular", "small-world"):
            raise ValueError(
                f"a {self.kind} graph is always the same; dynamic goes with regular and small-world"
            )
        return self


class MethodSection(Section):
    """How to average. Give the share β that is to be sent or the fraction α that is to be selected."""

    name: Literal["cesar", "secagg", "dpsgd"]
    label: str = ""
    sparsifier: Literal["random", "topk", "coordinated"] | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    masks: Annotated[int, Field(ge=1)] = 1
    ring_bits: Literal[16, 20, 24, 32] = 32
    coordination: Coordination = "relay"
    dropout: Dropout = "parameter"
    paper: bool = False

    @model_validator(mode="after")
    def _fits(self) -> MethodSection:
        if self.name == "cesar" and self.sparsifier is None:
            raise ValueError('cesar needs a sparsifier: "random", "topk" or "coordinated"')
        if self.name == "secagg" and self.sparsifier is not None:
            raise ValueError('secagg shares everything; drop the sparsifier or use name = "cesar"')
        if self.share is not None and self.alpha is not None:
            raise ValueError("give share or alpha, not both: each follows from the other")
        if self.name == "cesar" and self.share is None and self.alpha is None:
            raise ValueError("cesar needs share (the fraction to send) or alpha (the fraction to select)")
        return self

    @property
    def title(self) -> str:
        """What tables and folders call it."""
        if self.label:
            return self.label
        parts: list[str] = [self.name, self.sparsifier or "full"]
        if self.paper:
            parts.append("paper")
        if self.masks > 1:
            parts.append(f"s{self.masks}")
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

    def build(self, degree: int, measured_share: float | None = None) -> Method:
        """The method on a graph in which receivers have at least that many neighbours.

        Args:
            measured_share: what CESAR shared; D-PSGD takes it where it names no share of its own.

        Raises:
            ConfigError: nothing could be shared.
        """
        if self.name == "secagg":
            return SecureAggregation(ring_bits=self.ring_bits, dropout=self.dropout)
        if self.name == "dpsgd":
            amount = self.share or self.alpha or measured_share
            sparsifier = None if self.sparsifier is None or amount is None else self._sparsifier(amount)
            return DPSGD.paper(sparsifier=sparsifier) if self.paper else DPSGD(sparsifier=sparsifier)
        return self._cesar(degree)

    def _cesar(self, degree: int) -> Cesar:
        coordinated = self.sparsifier == "coordinated"
        alpha = self.alpha
        if alpha is None:
            assert self.share is not None
            alpha = self.share if coordinated else required_alpha(self.share, degree, self.masks)
        if not coordinated and expected_share(alpha, degree, self.masks) < 1e-6:
            raise ConfigError(f"{self.title}: with alpha = {alpha} nothing is ever shared; select more")
        sparsifier = self._sparsifier(alpha)
        if self.paper:
            return Cesar.paper(sparsifier=sparsifier, masking_requirement=self.masks)
        return Cesar(
            sparsifier=sparsifier,
            masking_requirement=self.masks,
            ring_bits=self.ring_bits,
            coordination=self.coordination,
            dropout=self.dropout,
        )

    def _sparsifier(self, alpha: float) -> AnySparsifier:
        match self.sparsifier:
            case "random":
                return RandomSubsampling(alpha)
            case "topk":
                return TopK(alpha)
            case _:
                return CoordinatedSubsampling(alpha)


class EvaluationSection(Section):
    """How often, and on how much of the test set."""

    every: Annotated[int, Field(gt=0)] = 20
    test_samples: Annotated[int, Field(gt=0)] | None = None


class FaultsSection(Section):
    """Crashes: each node, each round, with this probability."""

    crash_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    crash_point: CrashPoint = "after_coordination"


class LoggingSection(Section):
    """Other places to send metrics to, each through its own library."""

    tensorboard: bool = False
    mlflow: bool = False


class Experiment(Section):
    """One experiment: the same data, model and graph under several methods and seeds."""

    name: str = "experiment"
    rounds: Annotated[int, Field(gt=0)] = 60
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (1,)
    match_share: bool = False
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    topology: TopologySection = TopologySection()
    method: Annotated[tuple[MethodSection, ...], Field(min_length=1)]
    evaluation: EvaluationSection = EvaluationSection()
    faults: FaultsSection = FaultsSection()
    logging: LoggingSection = LoggingSection()

    @model_validator(mode="after")
    def _titles_differ(self) -> Experiment:
        folders = [method.folder for method in self.method]
        for method in self.method:
            if folders.count(method.folder) > 1:
                raise ValueError(f"two methods are called {method.title!r}; give them a label each")
        return self

    @model_validator(mode="after")
    def _shares_are_known(self) -> Experiment:
        for method in self.method:
            if method.name != "dpsgd" or method.sparsifier is None or method.share or method.alpha:
                continue
            matches = [m for m in self.method if m.name == "cesar" and m.sparsifier == method.sparsifier]
            if not self.match_share or len(matches) != 1:
                raise ValueError(
                    f"{method.title}: how much is it to share? Give share, or set match_share = true beside "
                    f"exactly one cesar method with sparsifier = {method.sparsifier!r}"
                )
        return self


def load(path: Path, overrides: tuple[str, ...] = ()) -> Experiment:
    """Read an experiment file and apply `key.path=value` overrides.

    Raises:
        ConfigError: says which key is wrong and what was probably meant.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no experiment file {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    for override in overrides:
        _apply(tables, override)
    return parse(tables)


def parse(tables: dict[str, Any]) -> Experiment:
    """Check the tables of an experiment file."""
    tables = dict(tables)
    if isinstance(tables.get("method"), list):
        tables["method"] = [row for table in tables["method"] for row in _spread(table)]
    try:
        return Experiment.model_validate(tables)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error))) from None


def _spread(table: object) -> Iterator[object]:
    """A list of shares or alphas in a method stands for several methods."""
    for key in ("share", "alpha"):
        if isinstance(table, dict) and isinstance(table.get(key), list):
            for value in table[key]:
                yield {**table, key: value}
            return
    yield table


def _apply(tables: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"--set takes key=value, for example training.learning_rate=0.05; not {override!r}")
    *parents, last = path.strip().split(".")
    target: Any = tables
    for name in parents:
        target = target[int(name)] if isinstance(target, list) else target.setdefault(name, {})
    target[int(last) if isinstance(target, list) else last] = _value(text.strip())


def _value(text: str) -> object:
    """A TOML value, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            yield f"{where} is not a setting{_suggestion(problem['loc'])}"
        else:
            message = problem["msg"].removeprefix("Value error, ")
            yield f"{where or 'experiment'}: {message}"


def _suggestion(location: tuple[int | str, ...]) -> str:
    """The nearest key of the same table."""
    section: type[BaseModel] = Experiment
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        annotation = section.model_fields[part].annotation
        section = MethodSection if part == "method" else annotation  # type: ignore[assignment]
    near = difflib.get_close_matches(str(location[-1]), section.model_fields, n=1, cutoff=0.5)
    known = ", ".join(section.model_fields)
    return f"; did you mean {near[0]}?" if near else f"; known are {known}"
