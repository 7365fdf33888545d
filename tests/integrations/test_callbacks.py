"""Callbacks train over real peers and end where a loop with `peer.average` ends, bit for bit."""

import copy
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cesar.base.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")  # trainers warn about loaders, loggers and hardware
STEPS, BATCH = 6, 4


class Tiny(nn.Module):
    """Takes and returns what a Transformers trainer expects."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs, labels):
        logits = self.head(torch.tanh(self.body(inputs)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture
def start():
    torch.manual_seed(3)
    return Tiny()


def samples(peer_id):
    draw = torch.Generator().manual_seed(peer_id)
    return torch.randn(12, 4, generator=draw), torch.randint(3, (12,), generator=draw)


def state(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def by_hand(start, *, every, parameters="all", average=True):
    def job(peer):
        model = copy.deepcopy(start)
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD(trainable, lr=0.5)
        inputs, labels = samples(peer.id)
        for step in range(STEPS):
            rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(inputs)
            optimiser.zero_grad()
            model(inputs[rows], labels[rows])["loss"].backward()
            optimiser.step()
            due = peer.due() if every is None else (step + 1) % every == 0
            if due and average:
                peer.average(model, parameters=parameters)
        return state(model)

    return job


def with_transformers(start, folder, *, every, parameters="all"):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from cesar.integrations.transformers import CesarCallback  # noqa: PLC0415

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    lock, built = threading.Lock(), threading.Barrier(3)  # accelerate keeps its state in the process

    def make(peer, callback, model):
        settings = transformers.TrainingArguments(
            output_dir=str(folder / f"trainer-{peer.id}"),
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            learning_rate=0.5,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        data = [{"inputs": x, "labels": y} for x, y in zip(*samples(peer.id), strict=True)]
        return InOrder(model, settings, train_dataset=data, callbacks=[callback])

    def job(peer):
        model, callback = copy.deepcopy(start), CesarCallback(peer, every=every, parameters=parameters)
        with lock:
            trainer = make(peer, callback, model)
        built.wait(60)
        trainer.train()
        assert callback.report.round == peer.round - 1
        assert (peer._peer.config.folder / "checkpoint.safetensors").exists()  # with the trainer's own
        return state(model)

    return job


def with_lightning(start, folder, *, every, parameters="all", accumulate=1):
    lightning = pytest.importorskip("lightning.pytorch")
    from cesar.integrations.lightning import CesarCallback  # noqa: PLC0415

    class Wrapped(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = copy.deepcopy(start)

        def training_step(self, batch):
            return self.model(*batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.5)

    def job(peer):
        module, callback = Wrapped(), CesarCallback(peer, every=every, parameters=parameters)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples(peer.id)), BATCH)
        trainer = lightning.Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            devices=1,
            logger=False,
            default_root_dir=folder / f"trainer-{peer.id}",
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accumulate_grad_batches=accumulate,
            callbacks=[callback],
        )
        trainer.fit(module, loader)
        assert callback.report.round == peer.round - 1
        assert callback.state_dict() == {"steps": STEPS}
        trainer.save_checkpoint(folder / f"model-{peer.id}.ckpt")
        assert (peer._peer.config.folder / "checkpoint.safetensors").exists()  # with the trainer's own
        return state(module)

    return job


@pytest.mark.parametrize("trainer", [with_transformers, with_lightning])
@pytest.mark.parametrize("every", [None, 3])
def test_a_callback_ends_where_a_loop_by_hand_ends(trainer, every, start, network, together, tmp_path):
    """`every` from peer.toml (2 there), and given."""
    got = together(network(), trainer(start, tmp_path, every=every))
    expected = together(network(name="hand"), by_hand(start, every=every))
    alone = together(network(name="alone"), by_hand(start, every=every, average=False))
    for mine, theirs, lonely in zip(got, expected, alone, strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.allclose(mine, lonely, atol=1e-3)


@pytest.mark.parametrize("trainer", [with_transformers, with_lightning])
def test_a_callback_leaves_frozen_parameters_alone(trainer, start, network, together, tmp_path):
    for parameter in start.body.parameters():
        parameter.requires_grad_(False)
    got = together(network(), trainer(start, tmp_path, every=2, parameters="trainable"))
    expected = together(network(name="hand"), by_hand(start, every=2, parameters="trainable"))
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(mine[: 4 * 8 + 8], state(start.body))


def test_lightning_counts_optimiser_steps_not_batches(start, network, together, tmp_path):
    """Six steps of two batches each: three rounds at every second step."""
    job = with_lightning(start, tmp_path, every=2, accumulate=2)
    rounds = together(network(), lambda peer: (job(peer), peer.round)[1])
    assert rounds == [3, 3, 3]


def callbacks():
    pytest.importorskip("transformers")
    pytest.importorskip("lightning")
    from cesar.integrations import lightning, transformers  # noqa: PLC0415

    return transformers.CesarCallback, lightning.CesarCallback


def test_a_callback_refuses_what_it_cannot_do():
    for kind in callbacks():
        with pytest.raises(ConfigError, match="1 optimiser step or more"):
            kind(None, every=0)
    transformers, lightning = (kind(None) for kind in callbacks())
    with pytest.raises(ConfigError, match="2 processes"):
        transformers.on_train_begin(SimpleNamespace(world_size=2), None, None)
    with pytest.raises(ConfigError, match="2 processes"):
        lightning.on_train_start(SimpleNamespace(world_size=2), None)


class Novice:
    """A peer that is told of the first model and never averages."""

    def __init__(self):
        self.first = []

    def start_from(self, model, *, parameters):
        self.first.append((model, parameters))


def test_a_callback_tells_the_peer_of_the_first_model():
    transformers, lightning = (kind(Novice(), parameters="trainable") for kind in callbacks())
    transformers.on_train_begin(SimpleNamespace(world_size=1), None, None, model="model")
    lightning.on_train_start(SimpleNamespace(world_size=1, global_step=0), "model")
    for callback in (transformers, lightning):
        assert callback._peer.first == [("model", "trainable")]


def test_lightning_goes_on_counting_after_a_restart():
    _, lightning = (kind(Novice(), every=2) for kind in callbacks())
    lightning.load_state_dict({"steps": 7})
    lightning.on_train_start(SimpleNamespace(world_size=1, global_step=9), None)
    lightning.on_train_batch_end(SimpleNamespace(global_step=9), None, None, None, 0)
    assert lightning.state_dict() == {"steps": 7}


def test_adapters_of_a_frozen_model(network, together):
    """LoRA on a small GPT-2: only adapters travel, and they end as their mean."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch.manual_seed(5)
    config = transformers.GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    base = transformers.GPT2LMHeadModel(config)
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    models = [peft.get_peft_model(copy.deepcopy(base), lora) for _ in range(3)]
    adapters = [[p for p in model.parameters() if p.requires_grad] for model in models]
    for number, parameters in enumerate(adapters):
        draw = torch.Generator().manual_seed(number)
        for parameter in parameters:
            parameter.data = torch.randn(parameter.shape, generator=draw)
    mean = torch.stack([torch.cat([p.detach().flatten() for p in own]) for own in adapters]).mean(0)
    frozen = [p.detach().clone() for p in models[0].parameters() if not p.requires_grad]

    reports = together(network(), lambda peer: peer.average(models[peer.id], parameters="trainable"))
    assert len(mean) * 40 < sum(p.numel() for p in frozen) * 2
    for model, own, report in zip(models, adapters, reports, strict=True):
        assert torch.allclose(torch.cat([p.detach().flatten() for p in own]), mean, atol=1e-6)
        assert all(
            torch.equal(a, b)
            for a, b in zip(frozen, (p for p in model.parameters() if not p.requires_grad), strict=True)
        )
        assert report.bytes["values"] == 2 * 4 * len(mean)  # two neighbours, four bytes a value
