"""The same simulation over Ray: actors host a share of the nodes each, and frames travel between them through Ray.

The driver says when to train, when to carry and how late it is; it sees sizes and tallies, but no frame passes through
it. An actor's frames for another actor are one object of Ray's store, made by the one and read by the other. Models at
the start of a round are objects that the driver owns: when an actor is lost, another takes its place, and everybody
repeats the round from them. When they are lost too, with their machine, all go back to the last checkpoint. Either way
the result is the same, since a round depends on its number, the models at its start and the seed alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from cesar.base.errors import CesarError, ConfigError
from cesar.base.types import ByteArray, NodeId
from cesar.sim.ensemble import Tally
from cesar.sim.nodes import Models
from cesar.sim.wires import Letter, Wires
from cesar_lab.run.host import Contributions, Host, Setup, State, mean_model
from cesar_lab.run.simulation import BackendFactory

MOST_LOSSES = 10
"""An actor that is lost so often in one round takes the whole run with it: something else is wrong."""

STARTS = 3
"""So often a Ray of our own may fail to come up."""

_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0 Ray listens to this machine alone, on Linux too. Anybody who reaches its ports can run code."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Parcel:
    """Letters from one host to another: one array, which Ray shares between processes without a copy."""

    heads: tuple[tuple[NodeId, tuple[NodeId, ...], int], ...]
    body: ByteArray

    @classmethod
    def pack(cls, letters: Sequence[Letter]) -> Parcel:
        """Letters as (sender, recipients, length), and their payloads one after the other."""
        heads = tuple((sender, recipients, len(payload)) for sender, recipients, payload in letters)
        return cls(heads, np.frombuffer(b"".join(payload for *_, payload in letters), dtype=np.uint8))

    def letters(self) -> Iterator[Letter]:
        view, start = self.body.data, 0
        for sender, recipients, length in self.heads:
            yield sender, recipients, view[start : start + length]
            start += length


@dataclass(frozen=True, slots=True)
class HostStatus:
    """How a host stands after it has carried its frames.

    Attributes:
        sent: whether it has a parcel for each host.
        held: whether it has more to send.
        deadline: when to let time pass, once nothing is in flight.
    """

    sent: tuple[bool, ...]
    held: bool
    deadline: float | None


class HostActor:
    """A host as an actor.

    Args:
        bounds: host k has the nodes from bounds[k] up to bounds[k + 1].
        place: which of them this one is.
    """

    def __init__(self, setup: Setup, bounds: tuple[int, ...], place: int) -> None:
        self._owners = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        self._hosts = len(bounds) - 1
        self._host = Host(setup, range(bounds[place], bounds[place + 1]), workers=1)
        self._exchange: Generator[Wires, None, Tally] | None = None
        self._wires: Wires | None = None
        self._tally: Tally | None = None

    def process(self) -> int:
        """The number of the actor's process; answers as long as it lives."""
        return os.getpid()

    def train(self, state: State | None, round_: int) -> None:
        """Begin a round from this state, or from the first one; one that was under way is forgotten."""
        self._host.take(state)
        self._host.train(round_)
        self._exchange = self._host.exchange(round_)

    def advance(self) -> bool:
        """Go on with the exchange; whether there is anything to carry."""
        assert self._exchange is not None
        try:
            self._wires = next(self._exchange)
        except StopIteration as end:
            self._wires, self._tally = None, end.value
        return self._wires is not None

    def carry(self, now: float | None, *parcels: Parcel) -> tuple[HostStatus | Parcel | None, ...]:
        """Let time pass, take parcels in, and give one for each host; a `HostStatus` comes first."""
        assert self._wires is not None
        if now is not None:
            self._wires.tick(now)
        leaving: list[list[Letter]] = [[] for _ in range(self._hosts)]
        for sender, recipients, payload in self._wires.carry(
            letter for parcel in parcels for letter in parcel.letters()
        ):
            for host in {int(self._owners[to]) for to in recipients}:
                there = tuple(to for to in recipients if self._owners[to] == host)
                leaving[host].append((sender, there, payload))
        status = HostStatus(tuple(map(bool, leaving)), self._wires.held, self._wires.deadline)
        return status, *(Parcel.pack(letters) if letters else None for letters in leaving)

    def finish(self) -> tuple[Tally, State]:
        """What was sent, and what to go on with."""
        assert self._tally is not None
        return self._tally, self._host.state

    def contributions(self) -> Contributions:
        return self._host.contributions

    def test(self, state: State | None, test_samples: int | None, summaries: int) -> list[dict[str, float]]:
        self._host.take(state)
        return self._host.test(test_samples, summaries)

    def test_mean(self, models: Models, test_samples: int | None, summaries: int) -> dict[str, float]:
        self._host.show(models)
        return self._host.test_mean(test_samples, summaries)


class RayBackend:
    """Actors that have the nodes of a simulation; the driver's side.

    Args:
        hosts: how many actors.
    """

    def __init__(self, setup: Setup, state: State | None, next_round: int, *, hosts: int) -> None:
        self._ray, self._setup = _ray(), setup
        nodes = len(setup.parts)
        hosts = min(hosts, nodes)
        self._bounds = tuple(nodes * k // hosts for k in range(hosts + 1))
        self._setups = [self._ray.put(setup.for_nodes(range(*ends))) for ends in pairwise(self._bounds)]
        self._actors = [self._engage(place) for place in range(hosts)]
        self._saved, self._saved_round, self._next_round = state, next_round, next_round
        self._states = self._before = self._put(state)

    def _engage(self, place: int) -> Any:
        """An actor is busy all the time, so it takes a processor of the cluster."""
        actor = self._ray.remote(num_cpus=1, max_restarts=0)(HostActor)
        return actor.remote(self._setups[place], self._bounds, place)

    def _put(self, state: State | None) -> list[Any]:
        """An object of the store for each host; for the first state None, since actors make it themselves."""
        return [
            None if state is None else self._ray.put(state.rows(low, high))
            for low, high in pairwise(self._bounds)
        ]

    def train(self, round_: int) -> None:
        assert round_ == self._next_round
        self._insist(self._train)

    def average(self, round_: int) -> Tally:
        assert round_ == self._next_round
        return self._insist(self._average, self._round)

    def test(self, test_samples: int | None, summaries: int) -> list[dict[str, float]]:
        def test() -> list[list[dict[str, float]]]:
            return self._each(
                lambda actor, place: actor.test.remote(self._states[place], test_samples, summaries)
            )

        return [row for rows in self._insist(test) for row in rows]

    def test_mean(self, test_samples: int | None, summaries: int) -> dict[str, float]:
        mean = mean_model(self.state.models)

        def test() -> dict[str, float]:
            found: dict[str, float] = self._ray.get(
                self._actors[0].test_mean.remote(mean, test_samples, summaries)
            )
            return found

        return self._insist(test)

    @property
    def state(self) -> State:
        def gather() -> State:
            return State.joined(self._ray.get(self._states))

        if self._states[0] is not None:
            self._saved = self._insist(gather)
        elif self._saved is None:
            self._saved = self._setup.first_state(len(self._setup.parts))
        self._saved_round = self._next_round
        return self._saved

    @property
    def contributions(self) -> Contributions:
        def gather() -> list[Contributions]:
            return self._each(lambda actor, _: actor.contributions.remote())

        def again() -> list[Contributions]:
            self._states, self._next_round = self._before, self._next_round - 1
            self._round()
            return gather()

        return Contributions.joined(self._insist(gather, again))

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def _each(self, call: Callable[[Any, int], Any]) -> list[Any]:
        """What all actors answer."""
        answers: list[Any] = self._ray.get([call(actor, place) for place, actor in enumerate(self._actors)])
        return answers

    def _train(self) -> None:
        self._each(lambda actor, place: actor.train.remote(self._states[place], self._next_round))

    def _average(self) -> Tally:
        """Let all exchanges advance together: carry until nothing is in flight anywhere, let time pass, go on."""
        while any(self._each(lambda actor, _: actor.advance.remote())):
            now: float | None = None
            while (now := self._carry(now)) is not None:
                pass
        answers = [actor.finish.options(num_returns=2).remote() for actor in self._actors]
        tallies = self._ray.get([tally for tally, _ in answers])
        self._before, self._states = self._states, [state for _, state in answers]
        self._next_round += 1
        return Tally.joined(tallies)

    def _carry(self, now: float | None) -> float | None:
        """The next deadline, when every frame has arrived."""
        count = len(self._actors)
        parcels: list[list[Any]] = [[] for _ in self._actors]
        while True:
            answers = [
                actor.carry.options(num_returns=1 + count).remote(now, *mail)
                for actor, mail in zip(self._actors, parcels, strict=True)
            ]
            statuses: list[HostStatus] = self._ray.get([answer[0] for answer in answers])
            parcels = [
                [answers[k][1 + to] for k in range(count) if statuses[k].sent[to]] for to in range(count)
            ]
            now = None
            if not any(parcels) and not any(status.held for status in statuses):
                return min((s.deadline for s in statuses if s.deadline is not None), default=None)

    def _round(self) -> Tally:
        self._train()
        return self._average()

    def _insist(self, job: Callable[[], _T], again: Callable[[], _T] | None = None) -> _T:
        """Do something with all actors; when some are lost meanwhile, replace them and do it `again`."""
        errors, wanted = self._ray.exceptions, self._next_round
        for _ in range(MOST_LOSSES):
            try:
                while self._next_round < wanted:
                    self._round()
                return job()
            except errors.ObjectLostError:  # back to the last checkpoint
                self._states, self._next_round = self._put(self._saved), self._saved_round
            except errors.RayActorError:
                pass
            except errors.RayTaskError as error:
                match error.cause:
                    case CesarError() as ours:
                        raise ours from None
                    case _:
                        raise
            job = again or job
            self._replace()
        raise CesarError(
            f"actors were lost {MOST_LOSSES} times in round {wanted}; see Ray's logs for the reason (memory?)"
        )

    def _replace(self) -> None:
        """Put others in the place of lost actors; the rest end first what they were about."""
        for place, actor in enumerate(self._actors):
            try:
                self._ray.get(actor.process.remote())
            except self._ray.exceptions.RayActorError:
                self._actors[place] = self._engage(place)


def _ray() -> ModuleType:
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise ConfigError("this needs Ray; in a copy of cesar's repository: pip install '.[ray]'") from None


def start(ray: ModuleType, address: str | None, hosts: int | None, **more: object) -> None:
    """Start Ray on this machine, or reach the cluster at an address.

    Ray's processes wait for one another, some for a fixed 30 s, which a busy machine does not always keep. What they
    leave behind ends with this process; another start has ports and folders of its own.

    Raises:
        ConfigError: it cannot be reached, or did not come up in `STARTS` starts.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")
    where: dict[str, Any] = {"address": address}
    if address is None:
        where = {"address": "local", "num_cpus": hosts or os.cpu_count(), "include_dashboard": False}
    for left in reversed(range(STARTS if address is None else 1)):
        try:
            ray.init(**where, **more, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # noqa: BLE001  (Ray raises plain ones, too)
            ray.shutdown()
            if not left:
                raise ConfigError(f"Ray cannot be reached at {address or 'this machine'}: {error}") from None
        else:
            return


@contextmanager
def connect(address: str | None = None, hosts: int | None = None) -> Iterator[BackendFactory]:
    """Make backends on a Ray cluster; on one of its own, on this machine alone, unless an address is given.

    Args:
        hosts: how many actors, each with a processor; by default as many as the cluster has processors.

    Raises:
        ConfigError: Ray is not installed or cannot be reached, or has too few processors.
    """
    if address is None:
        os.environ.setdefault(_LOOPBACK, "0")  # Ray reads it when it is imported
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        start(ray, address, hosts)
        if address is None and ray.nodes()[0]["NodeManagerAddress"] != "127.0.0.1":
            ray.shutdown()
            raise ConfigError(
                f"Ray would listen to the whole network; set {_LOOPBACK}=0 before ray is imported, or start a "
                "cluster yourself and give its address"
            )
    try:
        cores = int(ray.cluster_resources().get("CPU", 0))
        if (hosts or 1) > cores:
            raise ConfigError(f"--workers {hosts} needs as many processors, but the Ray cluster has {cores}")
        yield partial(RayBackend, hosts=hosts or cores)
    finally:
        if ours:
            ray.shutdown()
