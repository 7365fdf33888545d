"""A GPT-2 small enough to train on a processor, whose tensors differ in size as those of a trained one do.

`model.name = "small_gpt2:model"` in an experiment, with this folder on PYTHONPATH; see docs/results/ring-gpt2.toml.
"""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {
    "wte": 0.14,
    "wpe": 0.12,
    "ln_f.weight": 1.5,
    "ln_": 0.3,
    "c_attn.weight": 0.2,
    "c_proj.weight": 0.1,
    "bias": 0.05,
}
"""Part of a name → how large values of such a tensor are (standard deviation; weights of norms: mean)."""


def model() -> nn.Module:
    """Random weights of these sizes. A trained model's tensors differ as much: that is what a scale for each is for."""
    shape = GPT2Config(
        n_embd=32, n_layer=2, n_head=2, n_positions=256, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    module = GPT2LMHeadModel(shape)
    with torch.no_grad():
        for name, values in module.named_parameters():
            size = next((size for part, size in SIZES.items() if part in name), 0.15)
            if "ln_" in name and name.endswith("weight"):
                values.fill_(size)
            else:
                values.normal_(0.0, size)
    return module
