"""CesarCallback: a Transformers `Trainer` that averages with its neighbours while it trains.

with cesar.Peer.join("net/peer-0") as peer:
    Trainer(model, arguments, train_dataset=data, callbacks=[CesarCallback(peer)]).train()
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cesar.base.errors import ConfigError
from cesar.peer.api.model import Which
from cesar.peer.api.peer import Peer
from cesar.peer.driver.report import Report


class CesarCallback(TrainerCallback):
    """Averages after optimiser steps: what `peer.average(model)` does in a loop of one's own.

    With every checkpoint of the `Trainer` the peer writes its own, without the model; after a restart
    `Peer.join(folder, resume=True)` goes on from it.

    Args:
        every: optimiser steps between two averages; by default `rounds.every` of peer.toml.
        parameters: "trainable" for adapters of a frozen model.

    Attributes:
        report: what the last average has brought.
    """

    def __init__(self, peer: Peer, *, every: int | None = None, parameters: Which = "all") -> None:
        if every is not None and every < 1:
            raise ConfigError(f"every = {every}; average after 1 optimiser step or more")
        self._peer, self._every, self._parameters = peer, every, parameters
        self.report: Report | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.world_size > 1:
            raise ConfigError(
                f"training is spread over {args.world_size} processes, but a peer is one process; train in one, "
                "or average the gathered model yourself with peer.average(model)"
            )
        self._peer.start_from(kwargs["model"], parameters=self._parameters)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._peer.due() if self._every is None else state.global_step % self._every == 0:
            self.report = self._peer.average(kwargs["model"], parameters=self._parameters)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._peer.save()
