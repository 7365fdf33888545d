"""Formal privacy for samples, hidden models for sites: each peer trains with Opacus and averages in a cell.

cesar network init --peers 4 --cells 4 --out net
python examples/opacus_dp.py net/peer-0             # one process per peer, on one machine or on four
python examples/opacus_dp.py net/peer-*             # or all of them in one process
python examples/opacus_dp.py net/peer-* --noise 0   # without Opacus, to compare
"""

import argparse
import warnings
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cesar
from cesar_lab.attack.inference import auc
from cesar_lab.data import datasets
from cesar_lab.data.samples import Dataset, Samples
from cesar_lab.learn import models
from cesar_lab.learn.tasks import sample_losses, score


def train(folder: Path, model: nn.Module, data: Dataset, settings: argparse.Namespace) -> str:
    """Train one peer's model on its own samples, and say what it spent on their privacy."""
    with cesar.Peer.join(folder) as peer:
        own = data.train.take(np.arange(peer.place, len(data.train), peer.peers)[: settings.samples])
        optimiser = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
        loader = DataLoader(TensorDataset(*own.fields), batch_size=settings.batch, shuffle=True)
        engine = PrivacyEngine(accountant="rdp")
        if settings.noise:
            model, optimiser, loader = engine.make_private(
                module=model,
                optimizer=optimiser,
                data_loader=loader,
                noise_multiplier=settings.noise,
                max_grad_norm=settings.clip,
            )
        peer.start_from(model)  # every site passes the same first model
        for epoch in range(settings.epochs):
            for inputs, labels in loader:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimiser.step()
                if peer.due():
                    if epoch == settings.epochs - 1:
                        alone = membership(data, model, own)  # what masks hide
                    peer.average(model)  # Opacus' GradSampleModule is a module like any other
        peer.settle(model)
        accuracy = score(data, model.eval(), data.test).metrics(data.task)["accuracy"]
        spent = f"ε = {engine.get_epsilon(settings.delta):.2f}" if settings.noise else "ε = ∞"
        return (
            f"peer {peer.id}: accuracy {accuracy:.3f}, {spent} at δ = {settings.delta:g}; membership AUC "
            f"{alone:.3f} with its own model, {membership(data, model, own):.3f} with the common one"
        )


def membership(data: Dataset, model: nn.Module, own: Samples) -> float:
    """How well the loss tells this peer's samples from others: 0.5 is guessing."""
    inside, outside = (sample_losses(data, model, samples).numpy() for samples in (own, data.test))
    return auc(inside, outside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of peers to run here")
    parser.add_argument("--dataset", choices=["digits", "cifar10"], default="digits")
    parser.add_argument("--samples", type=int, default=300, help="training samples of a peer")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--noise", type=float, default=1.5, help="standard deviation of the noise, in clips")
    parser.add_argument("--clip", type=float, default=1.0, help="longest gradient of a sample")
    parser.add_argument("--delta", type=float, default=1e-3, help="of (ε, δ); less than one in all samples")
    settings = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook")
    torch.set_num_threads(1)
    torch.seed()  # sampling and noise must be nobody's to guess: never use a seed that others know
    data = datasets.load(settings.dataset, test_limit=1000)
    name = {"digits": "digits-mlp", "cifar10": "lenet"}[data.name]
    # The same first model everywhere. Threads share one generator, so it is drawn before they begin.
    first = models.build(name, data, seed=1)
    with ThreadPoolExecutor(len(settings.folders)) as pool:
        for said in pool.map(lambda folder: train(folder, deepcopy(first), data, settings), settings.folders):
            print(said)


if __name__ == "__main__":
    main()
