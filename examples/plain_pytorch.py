"""Secure averaging in a plain PyTorch loop: each peer trains on its own part of the handwritten digits.

cesar network init --peers 4 --cells 4 --out net
python examples/plain_pytorch.py net/peer-0     # one process per peer, on one machine or on four
python examples/plain_pytorch.py net/peer-*     # or all of them in one process
"""

import argparse
import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import cesar


def train(folder: Path, model: nn.Module, steps: int) -> None:
    """Train one peer's model, and test it on digits that nobody trains on."""
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with cesar.Peer.join(folder) as peer:
        own = torch.arange(peer.id, 1500, peer.peers)  # the last 297 samples are for the test
        generator = torch.Generator().manual_seed(peer.id)
        peer.start_from(model)  # every site passes the same first model
        for _ in range(steps):
            rows = own[torch.randint(len(own), (16,), generator=generator)]
            loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if peer.due():  # every few steps, as peer.toml says
                peer.average(model)  # in place
        peer.settle(model)  # last rounds without training: all end with one model
        accuracy = (model(inputs[1500:]).argmax(1) == targets[1500:]).float().mean().item()
        print(f"peer {peer.id}: accuracy {accuracy:.3f} after {peer.round} rounds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of peers to run here")
    parser.add_argument("--steps", type=int, default=600, help="local steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # all peers start from the same model
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if len(arguments.folders) == 1:  # in the main thread, so that Ctrl-C stops it
        train(arguments.folders[0], model, arguments.steps)
        return
    with ThreadPoolExecutor(len(arguments.folders)) as pool:
        list(pool.map(lambda folder: train(folder, copy.deepcopy(model), arguments.steps), arguments.folders))


if __name__ == "__main__":
    main()
