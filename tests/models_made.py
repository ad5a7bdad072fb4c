"""Tiny random models in the folders' layout of the real ones, made on the spot: XLM-R with a tokenizer of its own."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification, XLMRobertaModel
from transformers.utils import logging as reports

WIDTH = 64
WINDOW = 8192
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?-_/()<>[]'äöüßéабвгдежзийклмн世界"


def words(count: int, seed: int = 0) -> list[str]:
    """Pronounceable words, the same for the same seed."""
    numbers = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(SYLLABLES), (count, 3), generator=numbers).tolist()
    return ["".join(SYLLABLES[pick] for pick in three) for three in picks]


def make_bge_m3(folder: Path, *, dropped: str | None = None, **shape: int) -> Path:
    """A model in the layout of BAAI/bge-m3, without the file `dropped`. `shape` overrides the configuration."""
    config = _config(**shape)
    torch.manual_seed(1)
    _save(XLMRobertaModel(config), folder)
    width = config.hidden_size
    torch.save(torch.nn.Linear(width, width).state_dict(), folder / "colbert_linear.pt")
    torch.save(torch.nn.Linear(width, 1).state_dict(), folder / "sparse_linear.pt")
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    entries = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    if dropped:
        (folder / dropped).unlink()
    return folder


def make_bge_reranker(folder: Path, *, labels: int = 1, **shape: int) -> Path:
    """A model in the layout of BAAI/bge-reranker-v2-m3, with weights large enough that scores differ."""
    torch.manual_seed(2)
    model = XLMRobertaForSequenceClassification(_config(num_labels=labels, initializer_range=0.2, **shape))
    return _save(model, folder)


def _config(**overrides: float) -> XLMRobertaConfig:
    shape = {
        "vocab_size": _tokenizer().get_vocab_size(),
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": WINDOW + 2,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "layer_norm_eps": 1e-5,
    }
    return XLMRobertaConfig(**(shape | overrides))


def _save(model: torch.nn.Module, folder: Path) -> Path:
    reports.disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(folder)
    _tokenizer().save(str(folder / "tokenizer.json"))
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    config = {f"{name}_token": token for name, token in names.items()}
    config |= {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": WINDOW}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False, initial_alphabet=list(LETTERS)
    )
    tokenizer.train_from_iterator([" ".join(words(12, seed)) for seed in range(200)] + list(LETTERS), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer
