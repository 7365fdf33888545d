"""Local training of many nodes: all models in one array, one module per worker thread.

A worker points the parameters of its module at a node's row and runs plain SGD on them; only the weights of
convolutions are copied, to lie as they are read fastest, and back at the end of a round. Threads, each with one torch thread, were as fast as processes for small convolutional
networks, and faster than batching nodes with `torch.func`.
"""

from __future__ import annotations

import copy
import threading
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cesar.base.errors import ConfigError, DataError
from cesar.base.seeds import SeedTree
from cesar.peer.api.flat import Layout, bind
from cesar_lab.data.samples import Dataset, Samples, Task
from cesar_lab.learn.private import clipped_sum, poisson_batch
from cesar_lab.learn.tasks import loss, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """SGD without momentum.

    Attributes:
        fresh: every round shuffles a node's samples anew and begins with the first, instead of going through all of
            them before any comes again.
        clip: one step of DP-SGD without its noise (`private`): a Poisson sample, with gradients clipped to this length; None for plain
            SGD.
    """

    learning_rate: float
    batch_size: int
    steps: int
    fresh: bool = False
    clip: float | None = None


class Batches:
    """The batches of one node: shuffled passes over its samples, the same for the same seed.

    Which samples step t uses depends on t alone, so that a run can be resumed anywhere.

    Args:
        restart: a pass ends after this number of steps at the latest; by default when all full batches were used.
    """

    def __init__(
        self,
        rows: NDArray[np.int64],
        batch_size: int,
        seeds: SeedTree,
        node: int,
        *,
        restart: int | None = None,
    ) -> None:
        self._rows, self._size, self._seeds, self._node = rows, min(batch_size, len(rows)), seeds, node
        self._per_pass = len(rows) // self._size
        self._restart = restart
        self._pass, self._order = (-1, -1), rows

    def at(self, step: int) -> NDArray[np.int64]:
        """The rows of the training set that step `step` uses."""
        round_, within = (0, step) if self._restart is None else divmod(step, self._restart)
        lap, within = divmod(within, self._per_pass)
        if (round_, lap) != self._pass:
            path = (lap,) if self._restart is None else (round_, lap)
            self._order = self._seeds.generator("batches", self._node, *path).permutation(self._rows)
            self._pass = round_, lap
        return self._order[within * self._size : (within + 1) * self._size]


class Cohort:
    """The local side of all nodes: their data, and workers that train and test their models.

    Args:
        module: a template; every worker gets a copy.
        parts: for each node the rows of the training set that are its own.
        pool: worker threads.
        first: the number of the first of these nodes; the others follow it.
        flipped: nodes that train with false labels: the last for the first, and so on.
        device: where models are trained and tested; by default a GPU if there is one. The rows stay in main
            memory, a node's model is copied there and back.
    """

    def __init__(
        self,
        data: Dataset,
        module: nn.Module,
        parts: list[NDArray[np.int64]],
        sgd: Sgd,
        *,
        seeds: SeedTree,
        pool: Executor,
        first: int = 0,
        flipped: frozenset[int] = frozenset(),
        device: torch.device | None = None,
    ) -> None:
        self._data, self._module, self._sgd, self._pool = data, module, sgd, pool
        self._layout, self._first = Layout.of(module), first
        self._flipped = {node - first for node in flipped}
        if flipped and data.task is not Task.CLASSIFICATION:
            raise ConfigError(f"{data.name} has no labels that could be flipped; choose another attack")
        restart = sgd.steps if sgd.fresh else None
        self._batches = [
            Batches(rows, sgd.batch_size, seeds, i, restart=restart) for i, rows in enumerate(parts, first)
        ]
        self._parts, self._seeds = parts, seeds
        self._device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._local = threading.local()

    def _own_module(self) -> nn.Module:
        """This thread's copy of the module."""
        if not hasattr(self._local, "module"):
            torch.set_num_threads(1)
            self._local.module = copy.deepcopy(self._module).to(self._device)
        module: nn.Module = self._local.module
        return module

    def train(self, models: NDArray[np.float32], round_: int) -> None:
        """Let every node take its local steps of a round; row i of `models` is changed in place.

        Raises:
            DataError: a model has become NaN or infinite.
        """
        list(self._pool.map(lambda node: self._train_node(models[node], node, round_), range(len(models))))

    def _train_node(self, row: NDArray[np.float32], node: int, round_: int) -> None:
        module = self._own_module()
        module.train()
        vector = torch.from_numpy(row)
        views = self._layout.views(vector)
        parameters: list[torch.Tensor] = list(module.parameters())
        for parameter, view in zip(parameters, views, strict=True):
            parameter.data = _laid_out(view.to(self._device))  # the row itself, where it can be
        if self._sgd.clip is not None:
            value = self._private_step(module, parameters, node, round_)
        steps = self._sgd.steps if self._sgd.clip is None else 0
        for step in range(round_ * self._sgd.steps, round_ * self._sgd.steps + steps):
            batch = self._fields(self._batches[node].at(step))
            if node in self._flipped:
                batch = (batch[0], int(self._data.train.fields[1].max()) - batch[1])
            value = loss(self._data.task, module, batch)
            gradients = torch.autograd.grad(value, parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-self._sgd.learning_rate)
        for parameter, view in zip(parameters, views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.detach())
        if not bool(torch.isfinite(value)):
            raise DataError(
                f"node {self._first + node} diverged in round {round_}: its loss is {value.item()}; lower training.learning_rate"
            )

    def _private_step(
        self, module: nn.Module, parameters: list[torch.Tensor], node: int, round_: int
    ) -> torch.Tensor:
        """One step with clipped gradients; says the length of the step, which is no secret from its node."""
        assert self._sgd.clip is not None
        rows = poisson_batch(self._parts[node], self._sgd.batch_size, self._seeds, self._first + node, round_)
        totals = clipped_sum(self._data.task, module, self._fields(rows), self._sgd.clip)
        with torch.no_grad():
            torch._foreach_add_(parameters, totals, alpha=-self._sgd.learning_rate / self._sgd.batch_size)
        return torch.stack([total.square().sum() for total in totals]).sum()

    def _fields(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, ...]:
        return tuple(_laid_out(field.to(self._device)) for field in self._data.train.take(rows).fields)

    def evaluate(
        self, models: NDArray[np.float32], test_samples: int | None = None, summaries: int = 50
    ) -> dict[str, float]:
        """Test metrics on the first test samples, averaged over the nodes; ROUGE-L on the first `summaries`."""
        return mean_metrics(self.test(models, test_samples, summaries))

    def test(
        self, models: NDArray[np.float32], test_samples: int | None = None, summaries: int = 50
    ) -> list[dict[str, float]]:
        """The test metrics of each node."""
        fields = self._data.test.fields
        samples = Samples(tuple(_laid_out(field[:test_samples].to(self._device)) for field in fields))

        def test(node: int) -> dict[str, float]:
            module = self._own_module()
            module.eval()
            bind(module, self._layout, torch.from_numpy(models[node]).to(self._device))
            return score(self._data, module, samples, summaries=summaries).metrics(self._data.task)

        return list(self._pool.map(test, range(len(models))))


def _laid_out(field: torch.Tensor) -> torch.Tensor:
    """Images, and the weights of convolutions, with their channels innermost, which convolutions read fastest."""
    return field.contiguous(memory_format=torch.channels_last) if field.dim() == 4 else field


def mean_metrics(rows: list[dict[str, float]]) -> dict[str, float]:
    """Metrics of many nodes, averaged."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
