"""Simulations over Ray: the same files as in one process, whatever happens to the actors."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from cesar.base.errors import ConfigError, DataError
from cesar_lab.run import config
from cesar_lab.run import execute as run

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # this machine alone
ray = pytest.importorskip("ray")
from cesar_lab.run import cluster  # noqa: E402
from cesar_lab.run.cluster import Parcel, RayBackend, connect  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns about its own future

TABLES = {
    "rounds": 4,
    "topology": {"nodes": 9, "degree": 4},
    "training": {"steps_per_round": 2},
    "evaluation": {"every": 2, "test_samples": 100},
    "faults": {"crash_rate": 0.2, "crash_point": "during_share"},
    "method": [{"name": "cesar", "sparsifier": "topk", "share": 0.3}],
}


@pytest.fixture(scope="module", autouse=True)
def tiny_ray():
    cluster.start(ray, None, 3, object_store_memory=100 << 20)
    yield
    ray.shutdown()


def files(folder):
    """Everything that does not tell the time."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in ("metrics.csv", "ledger.csv", "checkpoint.safetensors", "recording/*")
        for path in sorted(folder.glob(f"*/seed-*/{pattern}"))
    }


def both(tmp_path, tables, backend, observers=()):
    experiment = config.parse(tables)
    run.execute(experiment, tmp_path / "local", workers=1)
    run.execute(experiment, tmp_path / "ray", backend=backend, observers=observers)
    local = files(tmp_path / "local")
    assert len(local) >= 3
    assert files(tmp_path / "ray") == local


@pytest.mark.parametrize("hosts", [1, 3])
def test_the_files_are_those_of_one_process(tmp_path, hosts):
    methods = [
        *TABLES["method"],
        {"name": "cesar", "sparsifier": "topk", "share": 0.1, "memory": True},
        {"name": "dpsgd", "noise": 0.01, "gossip_steps": 2},
        {"name": "cells", "size": 3, "sparsifier": "topk", "share": 0.2, "block": 16},
    ]
    tables = {
        **TABLES,
        "settle_rounds": 1,
        "topology": {**TABLES["topology"], "dynamic": True},
        "recording": {"every": 2},
    }
    with connect(hosts=hosts) as backend:
        both(tmp_path, {**tables, "method": methods}, backend)


def test_frames_that_fill_the_room_leave_in_several_goes(tmp_path, monkeypatch):
    """The actors import the limit themselves, so it is set where they do."""

    class Narrow(cluster.HostActor):
        def advance(self):
            from cesar.sim import wires  # noqa: PLC0415

            wires.LEAVING_BYTES = 5000
            return super().advance()

    monkeypatch.setattr(cluster, "HostActor", Narrow)
    with connect(hosts=2) as backend:
        both(tmp_path, TABLES, backend)


class Losing(RayBackend):
    """Loses an actor in the middle of a round, and another between two, as kill -9 does."""

    lost = 0

    def _lose(self, place):
        Losing.lost += 1
        os.kill(ray.get(self._actors[place].process.remote()), signal.SIGKILL)

    def _carry(self, now):
        deadline = super()._carry(now)
        if self._next_round == 1 and Losing.lost == 0:
            self._lose(0)
        return deadline

    def train(self, round_):
        if round_ == 3:
            self._lose(1)
        super().train(round_)


class Forgetting(RayBackend):
    """Loses the models of a round with an actor, as when a machine goes with all it has."""

    lost = 0

    def _average(self):
        if self._next_round == 3 and Forgetting.lost == 0:
            Forgetting.lost += 1
            ray.kill(self._actors[0])
            self._models = [None, None]
            raise ray.exceptions.ObjectLostError("ab" * 28, None, "")
        return super()._average()


@pytest.mark.parametrize("kind, losses", [(Losing, 2), (Forgetting, 1)])
def test_a_loss_does_not_change_the_result(tmp_path, kind, losses):
    kind.lost = 0
    both(tmp_path, TABLES, lambda *given: kind(*given, hosts=2))
    assert kind.lost == losses


def test_a_recording_survives_the_loss_of_an_actor(tmp_path):
    class Late(RayBackend):
        @property
        def contributions(self):
            ray.kill(self._actors[1])
            return super().contributions

    both(tmp_path, {**TABLES, "rounds": 2, "recording": {"every": 1}}, lambda *given: Late(*given, hosts=2))


def test_a_run_begun_in_one_process_goes_on_over_ray(tmp_path):
    class Stop(Exception):
        pass

    class Stopper:
        def started(self, *_): ...
        def finished(self, *_): ...
        def tested(self, *_): ...
        def round_done(self, record, sent):
            if record.round_ == 2:
                raise Stop

    experiment = config.parse(TABLES)
    with pytest.raises(Stop):
        run.execute(experiment, tmp_path / "ray", workers=1, observers=[Stopper()])
    with connect(hosts=2) as backend:
        both(tmp_path, TABLES, backend)


def test_errors_of_actors_are_ours(tmp_path):
    tables = {**TABLES, "training": {"learning_rate": 1e30, "steps_per_round": 3}}
    with connect(hosts=2) as backend, pytest.raises(DataError, match="diverged in round 0"):
        run.execute(config.parse(tables), tmp_path, backend=backend)


def test_ray_needs_no_set_up_and_listens_to_this_machine_alone(tmp_path):
    """`connect` itself refuses a Ray that listens to others."""
    file = tmp_path / "exp.toml"
    file.write_text(
        'rounds = 1\n[topology]\nnodes = 6\ndegree = 3\n[[method]]\nname = "secagg"\n', encoding="utf-8"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", "from cesar.cli import main; main()", "run", str(file), "--workers", "1"]
    for engine in ("local", "ray"):
        out = ("--out", str(tmp_path / engine), "--engine", engine)
        done = subprocess.run(
            [*command, *out], capture_output=True, text=True, check=False, env=kept, timeout=300
        )
        assert done.returncode == 0, done.stderr
    assert files(tmp_path / "ray") == files(tmp_path / "local") != {}


class Slow:
    """A Ray that fails to come up, `times` times."""

    def __init__(self, times, error):
        self.left, self.error, self.asked = times, error, []

    def init(self, **where):
        self.asked.append(where["address"])
        if self.left:
            self.left -= 1
            raise self.error

    def shutdown(self):
        self.asked.append("shut down")


def test_ray_may_miss_its_own_deadlines_twice():
    """It says so with a plain Exception."""
    timed_out = Exception("The current node timed out during startup.")
    slow = Slow(2, timed_out)
    cluster.start(slow, None, 1)
    assert slow.asked == ["local", "shut down"] * 2 + ["local"]
    with pytest.raises(ConfigError, match="at this machine: The current node timed out"):
        cluster.start(Slow(3, timed_out), None, 1)
    away = Slow(1, ConnectionError("refused"))
    with pytest.raises(ConfigError, match=r"at 127\.0\.0\.1:1: refused"):
        cluster.start(away, "127.0.0.1:1", 1)
    assert away.asked == ["127.0.0.1:1", "shut down"]


def test_too_few_processors_are_refused():
    with pytest.raises(ConfigError, match="has 3"), connect(hosts=4):
        pass


def test_actors_that_are_always_lost_end_the_run(monkeypatch):
    backend = object.__new__(RayBackend)
    backend._ray, backend._next_round, backend._actors = ray, 0, []

    def lost():
        raise ray.exceptions.RayActorError

    with pytest.raises(cluster.CesarError, match="actors were lost"):
        backend._insist(lost)


def test_parcels_open_as_they_were_packed():
    letters = [(1, (2, 3), b"abc"), (4, (2,), b""), (5, (6,), bytes(range(200)))]
    parcel = Parcel.pack(letters)
    assert [(s, r, bytes(p)) for s, r, p in parcel.letters()] == letters
    assert parcel.body.dtype == np.uint8
