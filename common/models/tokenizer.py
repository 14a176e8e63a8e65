"""Tokenizers: loading or making one, and the fingerprint by which both services know that they share it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import xxhash

from common.config.model import ModelConfig
from common.errors import ConfigError
from common.models.paths import brief, is_local, resolve_source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHARACTERS_PREFIX = "characters:"
PAD_TOKEN = "<pad>"  # noqa: S105 - a token of a vocabulary
EOS_TOKEN = "<eos>"  # noqa: S105 - a token of a vocabulary
_SPECIAL_ROLES = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
_PROBE = "Hello, w\u00f6rld!\n\t 12345  a=b [\u6f22\u5b57] \U0001f642 <eos></s><|im_end|>"
"""Encoded with a slow tokenizer, whose rules cannot be read: words, digits, spaces, accents, end tokens as text."""


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer that `model.tokenizer` names, or the model's own.

    It always has an end token; a missing padding token is set to it. Raises ConfigError naming the key.
    """
    source = config.tokenizer if config.tokenizer is not None else config.path
    key = "model.tokenizer" if config.tokenizer is not None else "model.path"
    if source is None:
        raise ConfigError("model.tokenizer: missing, and `model.architecture` brings none along")
    if source.startswith(CHARACTERS_PREFIX):
        return character_tokenizer(source.removeprefix(CHARACTERS_PREFIX))
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds, which `characters:` and --help need not wait for

    resolved = resolve_source(key, source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            resolved, trust_remote_code=config.trust_remote_code, local_files_only=is_local(resolved)
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"{key}: cannot load a tokenizer from {source!r}: {brief(error)}") from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"{key}: the tokenizer of {source!r} has no end token, so no response would ever end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def character_tokenizer(characters: str) -> PreTrainedTokenizerBase:
    """One token a character: id 0 pads, id 1 ends, the characters follow in their order.

    Text with any other character raises when it is encoded. Raises ConfigError when a character is given twice.
    """
    if not characters or len(set(characters)) != len(characters):
        raise ConfigError(f"model.tokenizer: {CHARACTERS_PREFIX}{characters}: give each character once, at least one")
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 - as below
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - slow to import

    vocabulary = {token: index for index, token in enumerate((PAD_TOKEN, EOS_TOKEN, *characters))}
    backend = Tokenizer(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        clean_up_tokenization_spaces=False,
    )


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hex xxh3-128 over what makes token ids mean what they mean: vocabulary, special tokens, rules.

    Stays the same over `save_pretrained` and loading again; padding and truncation, which callers set, are left out.
    """
    behaviour: dict[str, Any] = {
        "vocabulary": tokenizer.get_vocab(),
        "special": {role: getattr(tokenizer, role, None) for role in _SPECIAL_ROLES},
    }
    if getattr(tokenizer, "is_fast", False):
        rules = json.loads(tokenizer.backend_tokenizer.to_str())
        behaviour["rules"] = {name: rules[name] for name in sorted(rules) if name not in {"padding", "truncation"}}
    else:
        behaviour["probe"] = tokenizer.encode(_PROBE)
    return xxhash.xxh3_128_hexdigest(json.dumps(behaviour, sort_keys=True).encode())
