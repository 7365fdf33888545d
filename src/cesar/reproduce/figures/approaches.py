"""Table I: five approaches, measured."""

from __future__ import annotations

from cesar.reproduce.figures import membership
from cesar.reproduce.reproduction import Reproduction, needs, takes
from cesar.reproduce.tables import Scale, Tables, cesar, dpsgd, secagg


def experiments(scale: Scale) -> dict[str, Tables]:
    """The five approaches on non-IID data, the noise at the size that a parameter has after training."""
    noise = {"name": "dpsgd", "noise": 0.05, "gossip_steps": 5, "label": "D-PSGD, noise and 5 gossip steps"}
    method = [dpsgd(), dpsgd("random", 0.3), noise, secagg(), *cesar("random", 0.3)]
    return {"cifar10": membership.overfit(scale) | {"method": method}}


APPROACHES = Reproduction(
    name="approaches",
    place="Table I",
    brief="five approaches, measured",
    what="five approaches measured: accuracy, bytes, and how well a neighbour infers membership",
    needs=needs("cifar10"),
    takes=takes("8 s", "5 min", "5 h", "10 days"),
    experiments=experiments,
    measurements=(membership.inference(known={}),),
)
