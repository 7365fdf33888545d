"""The experiment file: TOML in, a checked and frozen configuration out. A typo is an error that helps."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cesar.base.errors import ConfigError
from cesar.graph import named as graphs
from cesar.methods.noise import NoiseSpec
from cesar.methods.settings import MethodSection, Section, check, read_toml
from cesar.sim.faults import CrashPoint
from cesar_lab.run.attackers import Attack
from cesar_lab.run.noise import Gossip
from cesar_lab.run.pairwise import Pairs, Target


class DataSection(Section):
    """Which data, and how it is spread over the nodes."""

    dataset: str = "digits"
    partition: Literal["iid", "shards", "kshard", "dirichlet", "user"] = "iid"
    dirichlet_alpha: Annotated[float, Field(gt=0)] = 0.5
    train_limit: Annotated[int, Field(gt=0)] | None = None
    test_limit: Annotated[int, Field(gt=0)] | None = None


class ModelSection(Section):
    """Which model; `package.module:factory` for your own."""

    name: str = "digits-mlp"
    weights: Path | None = None


class TrainingSection(Section):
    """SGD without momentum; a node's samples in passes, or shuffled afresh in every round."""

    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    batch_size: Annotated[int, Field(gt=0)] = 8
    steps_per_round: Annotated[int, Field(gt=0)] = 5
    batches: Literal["passes", "fresh"] = "passes"


class TopologySection(Section):
    """Who averages with whom."""

    kind: graphs.Kind = "regular"
    nodes: Annotated[int, Field(ge=2)] = 16
    degree: Annotated[int, Field(gt=0)] = 5
    rewire: Annotated[float, Field(ge=0, le=1)] = graphs.REWIRE
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


class EvaluationSection(Section):
    """How often, and on how much of the test set, which the last tests (after training and after settling) can use as a
    whole; summaries take a pass per word, so few are written.
    """

    every: Annotated[int, Field(gt=0)] = 20
    settle_every: Annotated[int, Field(gt=0)] = 1
    test_samples: Annotated[int, Field(gt=0)] | None = None
    all_at_end: bool = False
    summaries: Annotated[int, Field(gt=0)] = 50


class FaultsSection(Section):
    """Crashes: each node, each round, with this probability; with `calm_tests` not in the round before a test, since a
    node that has just missed a round is tested without it.
    """

    crash_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    crash_point: CrashPoint = "after_coordination"
    calm_tests: bool = False


class PrivacySection(Section):
    """Noise for (ε, δ) of samples, which members of cells add together; epsilon or multiplier, not both."""

    epsilon: Annotated[float, Field(gt=0)] | None = None
    multiplier: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    clip: Annotated[float, Field(gt=0)] | None = None

    @property
    def on(self) -> bool:
        """Whether there is noise."""
        return self.epsilon is not None or self.multiplier is not None

    @model_validator(mode="after")
    def _noise_needs_clipping(self) -> Self:
        if self.epsilon is not None and self.multiplier is not None:
            raise ValueError("give epsilon or multiplier, not both: each follows from the other")
        if self.on and self.clip is None:
            raise ValueError(
                "noise hides nothing unless gradients of samples are clipped: give clip, for example 1.0"
            )
        if self.clip is not None and not self.on:
            raise ValueError("clip goes with noise: give epsilon or multiplier")
        return self


class AttackersSection(Section):
    """Nodes that lie (`cesar_lab.run.attackers`), drawn at random; tests leave them out."""

    kind: Attack = "flip"
    count: Annotated[int, Field(ge=0)] = 0
    factor: Annotated[float, Field(gt=0)] | None = None


class RecordingSection(Section):
    """Rounds to keep for attacks: counted from 1, as in metrics.csv. All keys add up; by default none is kept."""

    rounds: tuple[Annotated[int, Field(gt=0)], ...] = ()
    every: Annotated[int, Field(gt=0)] | None = None
    last: Annotated[int, Field(ge=0)] = 0

    def keeps(self, done: int, rounds: int) -> bool:
        """Whether to keep the round that is the `done`-th of `rounds`."""
        regular = self.every is not None and done % self.every == 0
        return done in self.rounds or regular or rounds - self.last < done <= rounds


class LoggingSection(Section):
    """Other places to send metrics to, each through its own library."""

    tensorboard: bool = False
    mlflow: bool = False


class MethodTable(MethodSection):
    """How to average in simulations, where models may get noise that averages out in several gossip steps (Muffliato) or cancels (Zip-DL), and D-PSGD may
    clip what it hears so that `clip` lying neighbours do little harm. Noise has a size, or follows from an ε between nodes.
    """

    noise: Annotated[float, Field(ge=0)] = 0.0
    gossip_steps: Annotated[int, Field(ge=1)] = 1
    clip: Annotated[int, Field(ge=0)] = 0
    correlated: bool = False
    epsilon: float | None = None
    delta: float = 1e-5
    bound: float | None = None
    pairs: Pairs = "max"

    @model_validator(mode="after")
    def _noise_fits(self) -> Self:
        special = (
            self.noise or self.gossip_steps > 1 or self.clip or self.epsilon is not None or self.correlated
        )
        if special and (self.name != "dpsgd" or self.sparsifier is not None):
            raise ValueError("noise, gossip_steps and clip go with dpsgd that shares everything")
        if (self.correlated or self.epsilon is not None) and self.weights == "arrived":
            raise ValueError(
                'correlated and epsilon need the weights of the graph; leave out weights = "arrived"'
            )
        if self.epsilon is None and (self.bound is not None or self.delta != 1e-5 or self.pairs != "max"):
            raise ValueError("bound, delta and pairs go with epsilon, from which the noise follows")
        if self.epsilon is not None and (self.noise or self.correlated):
            raise ValueError(
                "give epsilon or noise, not both: the noise follows from epsilon; correlated goes with noise"
            )
        try:
            self.target, self.gossip  # noqa: B018 (they check)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def _special(self) -> list[str]:
        noise = [f"{'zip' if self.correlated else 'noise'}{self.noise:g}"] if self.noise else []
        target = [f"epsilon{self.epsilon:g}", self.pairs] if self.epsilon is not None else []
        steps = [f"{self.gossip_steps}steps"] if self.gossip_steps > 1 else []
        clip = [f"clip{self.clip}"] if self.clip else []
        return [*super()._special(), *noise, *target, *steps, *clip]

    @property
    def target(self) -> Target | None:
        """The ε between nodes from which the noise follows."""
        if self.epsilon is None:
            return None
        return Target(epsilon=self.epsilon, bound=self.bound or 0.0, delta=self.delta, pairs=self.pairs)

    @property
    def gossip(self) -> Gossip:
        """How its rounds average; without the noise that follows from a target (`execute.gossip_of`)."""
        return Gossip(
            noise=self.noise,
            steps=self.gossip_steps,
            clip=self.clip,
            correlated=self.correlated,
            bound=self.bound or 0.0,
        )


class Experiment(Section):
    """One experiment: the same data, model and graph under several methods and seeds.

    After `rounds` rounds of training come up to `settle_rounds` rounds of averaging alone, `settle_share` of the models
    each, until the distance between models and their mean is at most `settle_tolerance` times what it was.
    """

    name: str = "experiment"
    rounds: Annotated[int, Field(gt=0)] = 60
    settle_rounds: Annotated[int, Field(ge=0)] = 0
    settle_share: Annotated[float, Field(gt=0, le=1)] = 0.3
    settle_tolerance: Annotated[float, Field(ge=0)] = 0.0
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (1,)
    match_share: bool = False
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    topology: TopologySection = TopologySection()
    method: Annotated[tuple[MethodTable, ...], Field(min_length=1)]
    evaluation: EvaluationSection = EvaluationSection()
    faults: FaultsSection = FaultsSection()
    attackers: AttackersSection = AttackersSection()
    privacy: PrivacySection = PrivacySection()
    logging: LoggingSection = LoggingSection()
    recording: RecordingSection = RecordingSection()

    @property
    def all_rounds(self) -> int:
        """Of training and settling."""
        return self.rounds + self.settle_rounds

    def tests(self, done: int) -> bool:
        """Whether to test after this number of rounds."""
        if done <= self.rounds:
            return done % self.evaluation.every == 0 or done == self.rounds
        return (done - self.rounds) % self.evaluation.settle_every == 0 or done == self.all_rounds

    def test_samples(self, done: int) -> int | None:
        """On how many samples, after this number of rounds."""
        last = done in (self.rounds, self.all_rounds)
        return None if self.evaluation.all_at_end and last else self.evaluation.test_samples

    @model_validator(mode="after")
    def _recorded_rounds_exist(self) -> Experiment:
        late = max(self.recording.rounds, default=0)
        if late > self.rounds:
            raise ValueError(f"recording.rounds names round {late}, but there are {self.rounds}")
        return self

    @model_validator(mode="after")
    def _noise_fits(self) -> Experiment:
        if not self.privacy.on:
            return self
        if self.training.steps_per_round != 1:
            raise ValueError(
                "with [privacy] a round has one step, training.steps_per_round = 1: what a sample moves in several is not "
                "bounded by clipping; take a larger batch instead"
            )
        for method in self.method:
            if method.name != "cells":
                raise ValueError(f"{method.title}: [privacy] is for cells, whose members add noise together")
            try:
                replace(method.cells(), noise=NoiseSpec(multiplier=1.0, sensitivity=1.0, bound=1.0))
            except ConfigError as error:
                raise ValueError(f"{method.title}: {error}") from None
        return self

    @model_validator(mode="after")
    def _gossip_fits(self) -> Experiment:
        for method in self.method:
            if method.correlated and (self.faults.crash_rate or self.settle_rounds):
                raise ValueError(
                    f"{method.title}: correlated noise cancels only if all neighbours get their part in every round; leave out crash_rate and settle_rounds"
                )
            if method.pairs == "mean" and (
                self.faults.crash_rate or self.settle_rounds or self.topology.dynamic
            ):
                raise ValueError(
                    f'{method.title}: pairs = "mean" is for one graph on which all nodes average and train in every round; leave out crash_rate, settle_rounds '
                    'and dynamic, or use pairs = "max"'
                )
        return self

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
            amounts = {(m.share, m.alpha, m.masks) for m in matches}
            if not self.match_share or len(amounts) != 1:
                raise ValueError(
                    f"{method.title}: how much is it to share? Give share, or set match_share = true beside cesar "
                    f'with sparsifier = "{method.sparsifier}" and one share'
                )
        return self


def load(path: Path, overrides: tuple[str, ...] = ()) -> Experiment:
    """Read an experiment file and apply `key.path=value` overrides.

    Raises:
        ConfigError: says which key is wrong and what was probably meant.
    """
    tables = read_toml(path, "experiment file")
    for override in overrides:
        _apply(tables, override)
    return parse(tables)


def parse(tables: dict[str, Any]) -> Experiment:
    """Check the tables of an experiment file."""
    tables = dict(tables)
    if isinstance(tables.get("method"), list):
        tables["method"] = [row for table in tables["method"] for row in _spread(table)]
    return check(Experiment, tables)


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
    try:
        for name in parents:
            target = target[int(name)] if isinstance(target, list) else target.setdefault(name, {})
        target[int(last) if isinstance(target, list) else last] = _value(text.strip())
    except (LookupError, ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"--set {override}: the file has no such place; a method is named by its number from 0, as in method.0.share"
        ) from None


def _value(text: str) -> object:
    """A TOML value, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
