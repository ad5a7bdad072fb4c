from __future__ import annotations

import json

import pytest

from rag.errors import ModelUnavailable
from rag.models.card import ModelCard, read_card


@pytest.fixture
def folder(tmp_path):
    """Writes files of a model's folder: name to content."""

    def write(**files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True)
            path.with_suffix(".json").write_text(json.dumps(content))
        return tmp_path

    return write


def modules(*kinds):
    return [{"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}"} for i, kind in enumerate(kinds)]


def test_the_window_is_the_smallest_that_the_files_name(folder):
    at = folder(
        config={"model_type": "bert", "max_position_embeddings": 512},
        tokenizer_config={"model_max_length": 300},
        sentence_bert_config={"max_seq_length": 256},
    )
    assert read_card(at) == ModelCard(256, "mean")


def test_xlm_r_cannot_use_all_of_its_positions(folder):
    at = folder(
        config={"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1},
        tokenizer_config={"model_max_length": 10**30},
    )
    assert read_card(at).window == 512


def test_a_folder_that_says_nothing_of_the_window_is_refused(folder):
    with pytest.raises(ModelUnavailable, match="max_position_embeddings"):
        read_card(folder(config={"model_type": "bert"}))


@pytest.mark.parametrize(
    ("modes", "pooling"), [({"pooling_mode_cls_token": True}, "cls"), ({"pooling_mode": "mean"}, "mean")]
)
def test_pooling_is_as_sentence_transformers_writes_it(folder, modes, pooling):
    at = folder(
        config={"model_type": "bert", "max_position_embeddings": 512},
        modules=modules("Transformer", "Pooling", "Normalize"),
        **{"1_Pooling__config": modes | {"pooling_mode_max_tokens": False, "word_embedding_dimension": 8}},
    )
    assert read_card(at).pooling == pooling


@pytest.mark.parametrize(
    ("kinds", "modes", "named"),
    [(("Transformer", "Dense"), {}, "Dense"), (("Transformer", "Pooling"), {"pooling_mode_max_tokens": True}, "max")],
)
def test_what_is_not_supported_is_named(folder, kinds, modes, named):
    at = folder(
        config={"model_type": "bert", "max_position_embeddings": 512},
        modules=modules(*kinds),
        **{"1_Pooling__config": modes},
    )
    with pytest.raises(ModelUnavailable, match=named):
        read_card(at)


def test_prompts_of_sentence_transformers_are_the_prefixes(folder):
    at = folder(
        config={"model_type": "bert", "max_position_embeddings": 512},
        config_sentence_transformers={"prompts": {"query": "q: ", "document": "d: "}},
    )
    assert read_card(at) == ModelCard(512, "mean", "q: ", "d: ")


def test_a_default_prompt_stands_before_both_kinds(folder):
    at = folder(
        config={"model_type": "bert", "max_position_embeddings": 512},
        config_sentence_transformers={"prompts": {"sts": "s: "}, "default_prompt_name": "sts"},
    )
    assert read_card(at) == ModelCard(512, "mean", "s: ", "s: ")
