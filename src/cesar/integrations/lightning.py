"""CesarCallback: a Lightning `Trainer` that averages with its neighbours while it trains.

with cesar.Peer.join("net/peer-0") as peer:
    Trainer(callbacks=[CesarCallback(peer)], devices=1).fit(module, loader)
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from cesar.base.errors import ConfigError
from cesar.peer.api.model import Which
from cesar.peer.api.peer import Peer
from cesar.peer.driver.report import Report


class CesarCallback(Callback):
    """Averages after optimiser steps: what `peer.average(model)` does in a loop of one's own.

    With every checkpoint of the `Trainer` the peer writes its own, without the model; after a restart
    `Peer.join(folder, resume=True)` goes on from it.

    Args:
        every: batches that end in an optimiser step, between two averages; by default `rounds.every` of
            peer.toml.
        parameters: "trainable" for adapters of a frozen model.

    Attributes:
        report: what the last average has brought.
    """

    def __init__(self, peer: Peer, *, every: int | None = None, parameters: Which = "all") -> None:
        if every is not None and every < 1:
            raise ConfigError(f"every = {every}; average after 1 optimiser step or more")
        self._peer, self._every, self._parameters = peer, every, parameters
        self._steps, self._seen = 0, 0
        self.report: Report | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size > 1:
            raise ConfigError(
                f"training is spread over {trainer.world_size} processes, but a peer is one process; use devices=1, "
                "or average the gathered model yourself with peer.average(model)"
            )
        self._seen = trainer.global_step
        self._peer.start_from(pl_module, parameters=self._parameters)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._seen:  # gradients are still being accumulated
            return
        self._seen = trainer.global_step
        self._steps += 1
        if self._peer.due() if self._every is None else self._steps % self._every == 0:
            self.report = self._peer.average(pl_module, parameters=self._parameters)

    def state_dict(self) -> dict[str, Any]:
        """What Lightning writes into its checkpoints."""
        return {"steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps = int(state_dict["steps"])

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._peer.save()
