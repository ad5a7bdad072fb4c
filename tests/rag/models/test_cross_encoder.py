from __future__ import annotations

import numpy as np
import pytest
import torch

from rag.errors import ModelFailed, ModelUnavailable
from rag.models.packaged import PACKAGED
from rag.models.registry import load_reranker
from rag.settings import ModelSettings
from tests.models_made import make_bge_reranker, words

QUERY = "which one is it"
PASSAGES = ["a", *(" ".join(words(count, count)) for count in (1, 5, 40, 300, 9))]


@pytest.fixture(scope="module")
def model(tiny_reranker):
    return load_reranker(ModelSettings(model=str(tiny_reranker)))


def score(model, query=QUERY, passages=PASSAGES, limit=None):
    return model.score(model.tokenize(query, passages, limit))


def test_scores_are_those_of_flag_embedding(model, tiny_reranker):
    from FlagEmbedding import FlagReranker

    flag = FlagReranker(str(tiny_reranker), use_fp16=False, devices="cpu")
    expected = flag.compute_score([[QUERY, passage] for passage in PASSAGES], normalize=True, max_length=8192)
    found = score(model)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() <= 1e-5
    assert np.ptp(found) > 0.01


@pytest.mark.models
def test_scores_of_a_bert_are_those_of_its_own_class(packaged, cache_dir):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    name = "ms-marco-MiniLM-L-12-v2"
    ours = load_reranker(packaged(name, engine="torch"))
    [folder] = cache_dir.glob(f"{name}-*")
    reference, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    inputs = tokenizer(
        [QUERY] * len(PASSAGES), PASSAGES, padding=True, truncation="only_second", return_tensors="pt", max_length=512
    )
    with torch.inference_mode():
        expected = reference(**inputs).logits[:, 0].sigmoid().numpy()
    assert np.abs(score(ours) - expected).max() <= 1e-5
    assert PACKAGED[name].card.window == ours.info.max_tokens


@pytest.mark.models
@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_the_passage_that_answers_comes_first(packaged, engine):
    model = load_reranker(packaged("ms-marco-MiniLM-L-12-v2", engine=engine))
    passages = ["The parliament met on Tuesday.", "Plants turn light into sugar.", "Sugar is sold by weight."]
    found = score(model, "How do plants make food?", passages)
    assert found.argmax() == 1
    assert ((found >= 0) & (found <= 1)).all()


def test_a_score_does_not_depend_on_the_neighbours(model):
    together = score(model)
    alone = np.concatenate([score(model, QUERY, [passage]) for passage in PASSAGES])
    assert np.abs(together - alone).max() <= 1e-6


def test_a_passage_is_scored_by_the_part_that_is_asked_for(model):
    long = " ".join(words(300, 3))
    cut, whole = (score(model, QUERY, [long], limit)[0] for limit in (20, None))
    assert cut != whole
    assert score(model, QUERY, [f"{long} and more"], 20)[0] == cut


def test_a_score_that_is_not_finite_fails(model, monkeypatch):
    monkeypatch.setattr(model, "_head", lambda first: first[:, :1] * float("nan"))
    with pytest.raises(ModelFailed, match="finite"):
        score(model)


def test_a_classifier_with_several_labels_is_no_reranker(tmp_path):
    folder = make_bge_reranker(tmp_path / "three", labels=3)
    with pytest.raises(ModelUnavailable, match="3 labels"):
        load_reranker(ModelSettings(model=str(folder)))
