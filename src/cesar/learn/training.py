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

from cesar.errors import DataError
from cesar.learn.flat import Layout, bind
from cesar.learn.samples import Dataset, Samples
from cesar.learn.tasks import loss, score
from cesar.seeds import SeedTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """SGD without momentum."""

    learning_rate: float
    batch_size: int
    steps: int


class Batches:
    """The batches of one node: shuffled passes over its samples, the same for the same seed.

    Which samples step t uses depends on t alone, so that a run can be resumed anywhere.
    """

    def __init__(self, rows: NDArray[np.int64], batch_size: int, seeds: SeedTree, node: int) -> None:
        self._rows, self._size, self._seeds, self._node = rows, min(batch_size, len(rows)), seeds, node
        self._per_pass = len(rows) // self._size
        self._pass, self._order = -1, rows

    def at(self, step: int) -> NDArray[np.int64]:
        """The rows of the training set that step `step` uses."""
        number, within = divmod(step, self._per_pass)
        if number != self._pass:
            shuffled = self._seeds.generator("batches", self._node, number).permutation(self._rows)
            self._pass, self._order = number, shuffled
        return self._order[within * self._size : (within + 1) * self._size]


class Cohort:
    """The local side of all nodes: their data, and workers that train and test their models.

    Args:
        module: a template; every worker gets a copy.
        parts: for each node the rows of the training set that are its own.
        pool: worker threads.
        first: the number of the first of these nodes; the others follow it.
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
        device: torch.device | None = None,
    ) -> None:
        self._data, self._module, self._sgd, self._pool = data, module, sgd, pool
        self._layout, self._first = Layout.of(module), first
        self._batches = [Batches(rows, sgd.batch_size, seeds, i) for i, rows in enumerate(parts, first)]
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
        for step in range(round_ * self._sgd.steps, (round_ + 1) * self._sgd.steps):
            batch = self._fields(self._batches[node].at(step))
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
