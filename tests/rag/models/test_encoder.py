from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.errors import ModelFailed, ModelUnavailable
from rag.models import transformer as passes
from rag.models.card import ModelCard
from rag.models.encoder import Encoder
from rag.models.packaged import PACKAGED
from rag.models.placement import Placement
from rag.models.registry import load_embedder
from rag.models.runtime import load_pretrained
from rag.models.tokenization import TextTokens
from rag.models.transformer import Transformer
from rag.settings import ModelSettings
from rag.types import Kind, ModelInfo
from tests.models_made import words

PLACEMENT = Placement("cpu", "torch", "float32", 2)

TEXTS = [
    "Plants turn light into sugar.",
    "What is the capital of Mongolia?",
    "",
    "Ein Satz mit Umlauten: äöü, und ein paar Zahlen 1234567890.",
    "东京是日本的首都。",
    " ".join(words(150)),
    "one two three " * 25,
]


@pytest.fixture(scope="module")
def encoder(tiny_encoder):
    return load_embedder(ModelSettings(model=str(tiny_encoder)))


def encode(model, texts, kind=Kind.PASSAGE):
    return model.encode([model.truncate(ids) for ids in model.tokenize(texts, kind)])


def in_half(folder: Path) -> Encoder:
    """The encoder computing in bfloat16, whether this CPU is quick at it or not."""
    from transformers import AutoModel

    module = load_pretrained(AutoModel, folder, PLACEMENT, add_pooling_layer=False)
    card = ModelCard(8192, "cls")
    tokens = TextTokens(folder / "tokenizer.json", card)
    return Encoder(Transformer(module, "cpu", torch.bfloat16), tokens, card, PLACEMENT, ModelInfo("half", "0", 0, 8192))


@pytest.mark.models
@pytest.mark.parametrize("model", [name for name, entry in PACKAGED.items() if not entry.reranks])
def test_vectors_are_those_of_sentence_transformers(packaged, model, cache_dir):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from sentence_transformers.sentence_transformer.modules import Transformer as Body

    ours = load_embedder(packaged(model, engine="torch"))
    entry = PACKAGED[model]
    folder = entry.weights.locate().parent if entry.format == "safetensors" else next(cache_dir.glob(f"{model}-*"))
    body = Body(str(folder), max_seq_length=entry.card.window)
    reference = SentenceTransformer(modules=[body, Pooling(ours.info.dimension, entry.card.pooling)], device="cpu")
    expected = reference.encode([entry.card.passage_prefix + text for text in TEXTS], normalize_embeddings=True)
    found = encode(ours, TEXTS)
    assert found.dense.dtype == np.float32
    assert (found.dense * expected).sum(axis=1).min() >= 0.9999


@pytest.mark.models
def test_a_half_format_changes_vectors_by_little(packaged):
    whole, half = (load_embedder(packaged("all-MiniLM-L6-v2", dtype=dtype)) for dtype in ("float32", "bfloat16"))
    assert half.info.dtype == "bfloat16"
    assert (encode(whole, TEXTS).dense * encode(half, TEXTS).dense).sum(axis=1).min() >= 0.999


@given(counts=st.lists(st.integers(0, 120), min_size=1, max_size=12), place=st.integers(0, 11))
@settings(max_examples=25)
def test_a_vector_does_not_depend_on_its_neighbours(encoder, counts, place):
    batch = encoder.tokenize([" ".join(words(count, seed)) for seed, count in enumerate(counts)], Kind.PASSAGE)
    place %= len(batch)
    together, alone = encoder.encode(batch), encoder.encode([batch[place]])
    assert np.abs(together.dense[place] - alone.dense[0]).max() <= 1e-5
    assert together.token_counts.tolist() == [len(ids) for ids in batch]
    assert np.abs(np.linalg.norm(together.dense, axis=1) - 1).max() <= 1e-5


@pytest.mark.parametrize("lengths", [(3, 17, 1, 8), (5, 5, 5), (7,)])
def test_attention_over_a_padded_batch_is_attention_over_each_sequence(lengths):
    body = Transformer.__new__(Transformer)
    body.device = torch.device("cpu")
    packed = body.pack([np.arange(length, dtype=np.int32) for length in lengths])
    qkv = torch.randn(sum(lengths), 3 * 32, generator=torch.Generator().manual_seed(0))
    each, padded = passes._attend_each(qkv, packed, 4), passes._attend_padded(qkv, packed, 4)
    assert torch.allclose(each, padded, atol=1e-5)


def test_several_workers_give_what_one_gives(encoder):
    batches = [encoder.tokenize([" ".join(words(1 + n % 30, n))] * 3, Kind.QUERY) for n in range(40)]
    with ThreadPoolExecutor(encoder.workers) as pool:
        together = list(pool.map(encoder.encode, batches))
    for batch, found in zip(batches, together, strict=True):
        assert np.abs(found.dense - encoder.encode(batch).dense).max() <= 1e-6


def test_a_text_as_long_as_the_window_is_encoded(encoder):
    [ids] = encoder.tokenize([" ".join(words(6000))], Kind.PASSAGE)
    assert len(ids) > encoder.info.max_tokens == 8192
    found = encoder.encode([encoder.truncate(ids)])
    assert found.token_counts.tolist() == [8192]


def test_a_batch_that_is_too_much_for_the_memory_is_halved(encoder, monkeypatch):
    batch = encoder.tokenize([" ".join(words(n + 1, n)) for n in range(11)], Kind.PASSAGE)
    expected = encoder.encode(batch)
    sizes = []
    hidden = encoder._transformer.hidden

    def small_memory(packed, dtype):
        sizes.append(len(packed.lengths))
        if sizes[-1] > 3:
            raise torch.OutOfMemoryError("no more")
        return hidden(packed, dtype)

    monkeypatch.setattr(encoder._transformer, "hidden", small_memory)
    found = encoder.encode(batch)
    assert np.abs(found.dense - expected.dense).max() <= 1e-6
    assert sizes[0] == 11
    assert sum(size for size in sizes if size <= 3) == 11


def test_one_text_that_is_too_much_for_the_memory_fails(encoder, monkeypatch):
    def no_memory(*_):
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(encoder._transformer, "hidden", no_memory)
    with pytest.raises(ModelFailed, match="memory"):
        encode(encoder, ["a", "b"])


def spoil(encoder, monkeypatch, *, where, row=1):
    """Let one sequence of a batch overflow when the dtype is among `where`; gives the calls that were made."""
    calls = []
    hidden = encoder._transformer.hidden

    def overflowing(packed, dtype):
        state = hidden(packed, dtype).clone()
        calls.append((len(packed.lengths), dtype))
        if dtype in where:
            state[packed.rows == min(row, len(packed.lengths) - 1)] = float("nan")
        return state

    monkeypatch.setattr(encoder._transformer, "hidden", overflowing)
    return calls


def test_a_vector_that_is_not_finite_in_half_is_computed_again_in_float32(tiny_encoder, encoder, monkeypatch):
    half = in_half(tiny_encoder)
    calls = spoil(half, monkeypatch, where={torch.bfloat16})
    found, expected = encode(half, TEXTS), encode(encoder, TEXTS)
    assert calls == [(len(TEXTS), torch.bfloat16), (1, torch.float32)]
    cosines = (found.dense * expected.dense).sum(axis=1)
    assert cosines.min() >= 0.999


@pytest.mark.parametrize("half", [True, False])
def test_a_vector_that_is_not_finite_in_float32_fails(tiny_encoder, encoder, monkeypatch, half):
    model = in_half(tiny_encoder) if half else encoder
    spoil(model, monkeypatch, where={torch.bfloat16, torch.float32})
    with pytest.raises(ModelFailed, match="finite"):
        encode(model, TEXTS)


def test_a_vector_without_length_fails(encoder, monkeypatch):
    hidden = encoder._transformer.hidden
    monkeypatch.setattr(encoder._transformer, "hidden", lambda packed, dtype: hidden(packed, dtype) * 0)
    with pytest.raises(ModelFailed, match="finite"):
        encode(encoder, ["a"])


def test_another_architecture_is_refused_by_name():
    from transformers import DistilBertConfig, DistilBertModel

    small = DistilBertModel(DistilBertConfig(vocab_size=20, dim=8, hidden_dim=8, n_layers=1, n_heads=1))
    with pytest.raises(ModelUnavailable, match="distilbert"):
        Transformer(small, "cpu", torch.float32)


def test_a_placement_decides_how_many_workers_there_are(tiny_encoder):
    model = load_embedder(ModelSettings(model=str(tiny_encoder)), device="cpu", threads=3)
    assert model.workers == 3
    assert load_embedder(ModelSettings(model=str(tiny_encoder), threads=1), threads=3).workers == 1
    assert replace(model.info, revision="") == ModelInfo(tiny_encoder.name, "", 64, 8192)
