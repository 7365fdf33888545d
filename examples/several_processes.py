"""Several processes at one site: they train one model with torch.distributed, and one of them is the peer.

cesar network init --peers 4 --out net
torchrun --standalone --nproc-per-node 2 examples/several_processes.py net/peer-0      # one site with two processes
python examples/several_processes.py net/peer-1                                        # another one with a single one
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cesar


def average(peer: cesar.Peer | None, model: nn.Module) -> None:
    """One rank averages with the neighbours, and the others get the result."""
    if peer is not None:
        peer.average(model)
    if dist.is_initialized():
        for tensor in model.parameters():
            dist.broadcast(tensor.data, src=0)


def told(place: torch.Tensor) -> tuple[int, ...]:
    """What the first process knows of the network, for all of them."""
    if dist.is_initialized():
        dist.broadcast(place, src=0)
    return tuple(place.tolist())


def train(peer: cesar.Peer | None, place: tuple[int, ...], steps: int) -> None:
    """Ordinary data-parallel training, with an average every few steps.

    Args:
        peer: only the first process of the site has it.
        place: which part of the data is the site's, of how many, and steps between two averages.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    site, sites, every = place
    own = torch.arange(site, 1500, sites)[rank::ranks]
    torch.manual_seed(0)  # the same first model everywhere
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    parallel = DistributedDataParallel(model) if ranks > 1 else model
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    if peer is not None:
        peer.start_from(model)  # every site passes the same first model
    draw = torch.Generator().manual_seed(100 * site + rank)
    for step in range(1, steps + 1):
        rows = own[torch.randint(len(own), (16,), generator=draw)]
        optimiser.zero_grad()
        nn.functional.cross_entropy(parallel(inputs[rows]), targets[rows]).backward()
        optimiser.step()
        if step % every == 0:  # all ranks count; only one could ask peer.due()
            average(peer, model)
    accuracy = (model(inputs[1500:]).argmax(1) == targets[1500:]).float().mean().item()
    size = sum(parameter.detach().square().sum() for parameter in model.parameters()) ** 0.5
    print(f"site {site}, process {rank}: accuracy {accuracy:.3f}, length of the model {size:.5f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="the peer's folder")
    parser.add_argument("--steps", type=int, default=300, help="local steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:  # torchrun started this
        dist.init_process_group("gloo")  # or "nccl", with a GPU for each process
    if dist.is_initialized() and dist.get_rank() > 0:
        train(None, told(torch.zeros(3, dtype=torch.int64)), arguments.steps)
    else:
        with cesar.Peer.join(arguments.folder) as peer:
            place = torch.tensor([peer.place, peer.peers, peer.every])
            train(peer, told(place), arguments.steps)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
