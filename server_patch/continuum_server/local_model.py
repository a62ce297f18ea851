"""Write a model directory that vLLM can serve, without any download: config.json and a small byte-level BPE tokenizer.

The emulated engine gets the geometry of a real model, the CPU engine that of a tiny Llama with random weights. The
tokenizer is trained on the source of Python's standard library, which takes about two seconds. It encodes any text.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from continuum_server.cache import default_cache
from continuum_server.step_times import hf_config
from continuum_server.step_times.specs import Model

VOCABULARY = 8192
END_OF_TURN = "<|im_end|>"
SPECIAL = ("<|endoftext|>", "<|im_start|>", END_OF_TURN)
FORMAT = 1
"""Increment this number when the written files change, so that old copies in the cache are not used."""

CHAT_TEMPLATE = files(__package__).joinpath("chat_template.jinja").read_text(encoding="utf-8")

TINY = Model(
    name="tiny-random",
    layers=2,
    hidden=256,
    intermediate=512,
    query_heads=4,
    kv_heads=4,
    head_dim=64,
    vocab=VOCABULARY,
    max_context_tokens=32_768,
    tied_embeddings=True,
)

RANDOM = {
    model.name: model
    for model in (
        TINY,
        replace(TINY, name="random-25m", layers=8, hidden=512, intermediate=1408, kv_heads=1),
    )
}
"""Models of engine cpu that need no files. ``random-25m`` keeps the ratios of an 8B model on a data-centre GPU: of the
time to rebuild a context to that of a decode step, and of a chunk to a decode step."""


def ensure_model(model: Model) -> Path:
    """Return the directory of a model, and write it first if it does not exist. Several processes may do so at once."""
    inputs = json.dumps([FORMAT, config_of(model), CHAT_TEMPLATE, sys.version_info[:2]])
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:12]
    folder = default_cache() / f"{model.name}-{digest}"
    if not (folder / "config.json").exists():
        write_model(model, folder)
    return folder


def write_model(model: Model, folder: Path) -> None:
    """Write all files. config.json is the last, so a directory that contains it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    end = SPECIAL.index(END_OF_TURN)
    files: dict[str, Any] = {
        "tokenizer.json": json.loads(_train_tokenizer()),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TURN,
            "pad_token": SPECIAL[0],
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": model.max_context_tokens,
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {"eos_token_id": end},
        "config.json": config_of(model),
    }
    for name, content in files.items():
        temporary = folder / f"{name}.{os.getpid()}"
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(folder / name)


def config_of(model: Model) -> dict[str, Any]:
    """Return the content of config.json: a Llama with the model's geometry and this module's vocabulary."""
    llama = replace(
        model,
        architecture="LlamaForCausalLM",
        hidden=model.llama_hidden,
        vocab=VOCABULARY,
        tied_embeddings=True,
        window_layers=0,
        state_layers=0,
        experts=0,
    )
    ids = {"bos_token_id": None, "eos_token_id": SPECIAL.index(END_OF_TURN)}
    return {**hf_config.config_of(llama), "rope_theta": 500000.0, **ids}


def _train_tokenizer() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - comes with vLLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    tokenizer.train([str(source) for source in sources], trainer)
    return str(tokenizer.to_str())
