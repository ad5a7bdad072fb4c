"""Models on a GPU give what they give on the CPU; what they cost is printed (pytest -s -m gpu)."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from rag.batching import plan_batches
from rag.errors import ModelUnavailable
from rag.models.registry import load_embedder, load_reranker
from rag.settings import ModelSettings
from rag.types import Kind
from tests.models_made import make_bge_m3, make_bge_reranker, words

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

BGE_M3 = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
LENGTHS = (1, 2, 7, 8, 9, 60, 61, 62, 63, 64, 65, 200, 1000, 1500)


@pytest.fixture(scope="module")
def tiny_m3(tmp_path_factory):
    return make_bge_m3(tmp_path_factory.mktemp("models") / "tiny-bge-m3")


@pytest.fixture(scope="module")
def texts():
    return [" ".join(words(length, length)) for length in LENGTHS]


def encode(model, texts, kind=Kind.PASSAGE):
    """All texts through batches as the queue would make them; rows in the order of the texts."""
    sequences = [model.truncate(ids) for ids in model.tokenize(texts, kind)]
    dense = np.empty((len(texts), model.info.dimension), np.float32)
    for batch in plan_batches([len(ids) for ids in sequences], model.max_batch_tokens):
        dense[batch] = model.encode([sequences[index] for index in batch]).dense
    return dense


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_vectors_are_those_of_the_cpu(tiny_m3, texts, dtype):
    on_cpu = load_embedder(ModelSettings(model=str(tiny_m3)), device="cpu")
    on_gpu = load_embedder(ModelSettings(model=str(tiny_m3), dtype=dtype), device="cuda")
    assert (on_gpu.info.device, on_gpu.info.dtype) == ("cuda", dtype)
    batch = on_cpu.tokenize(texts, Kind.PASSAGE)
    expected, found = on_cpu.encode(batch), on_gpu.encode(batch)
    assert (expected.dense * found.dense).sum(axis=1).min() >= 0.999
    for sparse, reference in zip(found.sparse, expected.sparse, strict=True):
        weights = dict(zip(reference.indices.tolist(), reference.values.tolist(), strict=True))
        ours = dict(zip(sparse.indices.tolist(), sparse.values.tolist(), strict=True))
        gaps = [abs(weights.get(token, 0) - ours.get(token, 0)) for token in weights | ours]
        assert max(gaps, default=0) <= 0.05


def test_a_vector_does_not_depend_on_its_neighbours(tiny_m3, texts):
    model = load_embedder(ModelSettings(model=str(tiny_m3)), device="cuda")
    batch = model.tokenize(texts, Kind.PASSAGE)
    together = model.encode(batch).dense
    alone = np.concatenate([model.encode([ids]).dense for ids in batch])
    assert (together * alone).sum(axis=1).min() >= 0.9999
    assert np.abs(together - alone).max() <= 1e-3


def test_scores_are_those_of_the_cpu(tmp_path, texts):
    folder = make_bge_reranker(tmp_path / "tiny-bge-reranker")
    on_cpu = load_reranker(ModelSettings(model=str(folder)), device="cpu")
    on_gpu = load_reranker(ModelSettings(model=str(folder)), device="cuda")
    pairs = on_cpu.tokenize("which one is it", texts, None)
    assert np.abs(on_cpu.score(pairs) - on_gpu.score(pairs)).max() <= 0.02


@pytest.mark.models
def test_a_ranking_in_half_precision_has_the_same_first_ten(texts):
    try:
        on_cpu = load_embedder(ModelSettings(model="all-MiniLM-L6-v2"), device="cpu")
        on_gpu = load_embedder(ModelSettings(model="all-MiniLM-L6-v2"), device="cuda")
    except ModelUnavailable as missing:
        pytest.skip(missing.message)
    passages = [f"The {noun} of {place}" for noun in NOUNS for place in PLACES]
    queries = [f"Where is the {noun} of {place}?" for noun, place in zip(NOUNS, PLACES, strict=True)]
    exact = encode(on_cpu, queries, Kind.QUERY) @ encode(on_cpu, passages).T
    half = encode(on_gpu, queries, Kind.QUERY) @ encode(on_gpu, passages).T
    for expected, found in zip(exact, half, strict=True):
        tenth = np.sort(expected)[-10]
        assert expected[np.argsort(-found)[:10]].min() >= tenth - 1e-3  # the same ten, but for ties
        assert found.argmax() == expected.argmax()


NOUNS = ["harbour", "library", "bakery", "observatory", "railway station", "orchard", "parliament", "glacier"]
PLACES = ["Lisbon", "Kyoto", "Nairobi", "Quito", "Tromsø", "Samarkand", "Wellington", "Quebec"]


def test_memory_stays_flat_over_two_thousand_requests(tiny_m3):
    model = load_embedder(ModelSettings(model=str(tiny_m3)), device="cuda")
    rng = np.random.default_rng(0)
    allocated, reserved = [], []
    for request in range(2000):
        lengths = rng.integers(3, 4000, rng.integers(1, 5))
        model.encode([rng.integers(5, 100, length).astype(np.int32) for length in lengths])
        if request in (499, 1999):
            allocated.append(torch.cuda.memory_allocated())
            reserved.append(torch.cuda.memory_reserved())
    print(f"\nallocated {allocated} bytes, reserved {reserved} bytes after 500 and 2,000 requests")
    assert allocated[1] <= allocated[0] * 1.05
    assert reserved[1] <= reserved[0] * 1.10


def test_what_a_model_of_the_size_of_bge_m3_does_in_a_second(tmp_path):
    folder = make_bge_m3(tmp_path / "large", **BGE_M3)
    model = load_embedder(ModelSettings(model=str(folder)), device="cuda")
    ceiling = _matrix_product_flops()
    rng = np.random.default_rng(0)
    for length in (32, 128, 512, 2048, 8192):
        batch = [rng.integers(5, 100, length).astype(np.int32) for _ in range(model.max_batch_tokens // length)]
        found = model.encode(batch)
        assert np.isfinite(found.dense).all()
        start = time.perf_counter()
        for _ in range(5):
            model.encode(batch)
        speed = 5 * len(batch) * length / (time.perf_counter() - start)
        share = speed * _flops_per_token(length) / ceiling
        print(
            f"\n{length:5} tokens a text: {speed:10,.0f} tokens/s, {share:.0%} of {ceiling / 1e12:.0f} TFLOP/s", end=""
        )


def _flops_per_token(length: int) -> float:
    width, inner = BGE_M3["hidden_size"], BGE_M3["intermediate_size"]
    linear = 2 * (4 * width * width + 2 * width * inner)
    return BGE_M3["num_hidden_layers"] * (linear + 4 * length * width)


def _matrix_product_flops(size: int = 8192) -> float:
    """What large matrix products reach here, in half precision, per second."""
    one = torch.randn(size, size, device="cuda", dtype=torch.float16)
    (one @ one).sum().item()
    start = time.perf_counter()
    for _ in range(20):
        product = one @ one
    product.sum().item()
    return 20 * 2 * size**3 / (time.perf_counter() - start)
