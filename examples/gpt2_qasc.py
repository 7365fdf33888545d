"""Fine-tune GPT-2 on QASC together: a Transformers `Trainer` at each of four peers.

cesar data get qasc
cesar network init --peers 4 --out net
python examples/gpt2_qasc.py net/peer-*                      # all peers on this machine, a small model
python examples/gpt2_qasc.py net/peer-0 --weights gpt2/      # one peer, GPT-2's own weights
python examples/gpt2_qasc.py net/peer-* --lora 8             # adapters of rank 8; nothing else trains or travels
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import cesar
from cesar.integrations.transformers import CesarCallback
from cesar_lab.data import datasets
from cesar_lab.learn.tasks import score


def build(arguments: argparse.Namespace, vocabulary: int) -> nn.Module:
    """The model that all peers start from: weights of a local folder, else a small one from its configuration."""
    torch.manual_seed(0)  # for adapters, too: the first ones must be the same everywhere
    if arguments.weights is not None:
        model = GPT2LMHeadModel.from_pretrained(arguments.weights, local_files_only=True)
    else:
        width = arguments.width
        heads = max(width // 64, 1)
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=vocabulary, n_layer=arguments.layers, n_embd=width, n_head=heads)
        )
    if not arguments.lora:
        return model
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415  (pip install '.[lora]')

    return get_peft_model(model, LoraConfig(r=arguments.lora, target_modules=["c_attn"], fan_in_fan_out=True))


def train(folder: Path, arguments: argparse.Namespace) -> None:
    """Train one peer on its own questions, then ask it those that nobody trains on."""
    limits = {"train_limit": arguments.questions, "test_limit": arguments.questions}
    data = datasets.load("qasc", arguments.data_dir, **limits)
    model = build(arguments, data.details["vocabulary"])
    torch.set_num_threads(1)
    with cesar.Peer.join(folder) as peer:
        ids, labels, _ = data.train.fields
        own = range(peer.id, len(data.train), peer.peers)
        settings = TrainingArguments(
            output_dir=str(folder / "trainer"),
            max_steps=arguments.steps,
            per_device_train_batch_size=4,
            learning_rate=arguments.learning_rate,
            seed=peer.id,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        which = "trainable" if arguments.lora else "all"
        callback = CesarCallback(peer, every=arguments.every, parameters=which)
        examples = [{"input_ids": ids[row], "labels": labels[row]} for row in own]
        Trainer(model, settings, train_dataset=examples, callbacks=[callback]).train()
        accuracy = score(data, model.eval().cpu(), data.test).metrics(data.task)["accuracy"]
        sent = sum(peer.totals()["bytes"].values()) / max(peer.round, 1)
        print(
            f"peer {peer.id}: accuracy {accuracy:.3f} after {peer.round} rounds of {sent:,.0f} bytes",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of peers to run here")
    parser.add_argument("--weights", type=Path, help="local folder with GPT-2's weights")
    parser.add_argument("--layers", type=int, default=2, help="of a new model")
    parser.add_argument("--width", type=int, default=128, help="of a new model")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0 trains everything")
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps")
    parser.add_argument("--every", type=int, default=10, help="optimiser steps between two averages")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--questions", type=int, help="take only the first questions")
    parser.add_argument("--data-dir", type=Path, help="where datasets lie")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("forkserver")  # a process per peer; Transformers is imported once
    context.set_forkserver_preload(["transformers.trainer", "cesar.integrations.transformers"])
    with ProcessPoolExecutor(len(arguments.folders), context) as pool:
        for job in [pool.submit(train, folder, arguments) for folder in arguments.folders]:
            job.result()


if __name__ == "__main__":
    main()
