"""What a model's own files say about its use: window, pooling, prefixes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rag.errors import ModelUnavailable

Pooling = Literal["cls", "mean"]

# These number their positions from the padding id onward, so that some of the position table is never used.
OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert"})
# Tokenizers that know no limit say so with an enormous number.
NO_LIMIT = 1_000_000
KNOWN_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})


@dataclass(frozen=True, slots=True)
class ModelCard:
    """How a model is to be used. `window` is in tokens, special tokens included."""

    window: int
    pooling: Pooling = "mean"
    query_prefix: str = ""
    passage_prefix: str = ""


def read_card(folder: Path) -> ModelCard:
    """The card of a folder in Hugging Face's layout, with or without the files of sentence-transformers.

    Raises:
        ModelUnavailable: the folder says nothing of the window, or asks for a pooling that is not supported.
    """
    prompts = _prompts(folder)
    return ModelCard(_window(folder), _pooling(folder), prompts[0], prompts[1])


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file, empty where there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def position_offset(config: dict[str, Any]) -> int:
    """The number of the first position in the table of position embeddings."""
    return int(config["pad_token_id"]) + 1 if config.get("model_type") in OFFSET_POSITIONS else 0


def _window(folder: Path) -> int:
    config = read_json(folder / "config.json")
    limits = [
        read_json(folder / "sentence_bert_config.json").get("max_seq_length"),
        read_json(folder / "tokenizer_config.json").get("model_max_length"),
    ]
    if positions := config.get("max_position_embeddings"):
        limits.append(positions - position_offset(config))
    known = [int(limit) for limit in limits if limit and limit < NO_LIMIT]
    if not known:
        raise ModelUnavailable(
            f"The files in '{folder}' do not say how many tokens the model reads: neither config.json "
            "(max_position_embeddings) nor tokenizer_config.json (model_max_length)."
        )
    return min(known)


def _pooling(folder: Path) -> Pooling:
    modules = folder / "modules.json"
    if not modules.exists():
        return "mean"  # what sentence-transformers does with a bare model
    paths = {entry["type"].rsplit(".", 1)[-1]: entry["path"] for entry in json.loads(modules.read_text("utf-8"))}
    if unknown := paths.keys() - KNOWN_MODULES:
        raise ModelUnavailable(f"The model in '{folder}' has a module that is not supported: {min(unknown)}.")
    config = read_json(folder / paths.get("Pooling", "1_Pooling") / "config.json")
    modes = {name.removeprefix("pooling_mode_") for name, on in config.items() if on is True and "mode" in name}
    if isinstance(mode := config.get("pooling_mode"), str):
        modes.add(mode)
    if modes <= {"cls_token", "cls"}:
        return "cls" if modes else "mean"
    if modes <= {"mean_tokens", "mean"}:
        return "mean"
    raise ModelUnavailable(f"The model in '{folder}' pools by {', '.join(sorted(modes))}; supported are cls and mean.")


def _prompts(folder: Path) -> tuple[str, str]:
    config = read_json(folder / "config_sentence_transformers.json")
    prompts = config.get("prompts") or {}
    usual = prompts.get(config.get("default_prompt_name") or "", "")
    passage = prompts.get("passage") or prompts.get("document") or usual
    return prompts.get("query") or usual, passage
