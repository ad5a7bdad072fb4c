from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rag.errors import ModelFailed, ModelUnavailable
from rag.models.card import ModelCard
from rag.models.onnx_engine import OnnxEncoder, OnnxSession
from rag.models.packaged import PACKAGED
from rag.models.placement import Placement
from rag.models.registry import load_embedder, load_reranker
from rag.models.tokenization import TextTokens
from rag.settings import ModelSettings
from rag.types import Kind, ModelInfo

TEXTS = ["Plants turn light into sugar.", "", "東京", "one two three " * 60, "What is the capital of Mongolia?"]

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def encoder(packaged):
    return load_embedder(packaged("bge-small-en-v1.5"), device="cpu", threads=2)


def encode(model, texts):
    return model.encode(model.tokenize(texts, Kind.PASSAGE))


def test_the_packaged_onnx_model_is_served_as_it_is(encoder):
    info = encoder.info
    assert (info.engine, info.device, info.dtype, info.dimension) == ("onnx", "cpu", "int8", 384)
    assert encoder.workers == 2


def test_a_vector_is_the_same_whatever_else_is_in_the_batch(encoder):
    together = encode(encoder, TEXTS)
    assert together.token_counts.tolist() == [len(ids) for ids in encoder.tokenize(TEXTS, Kind.PASSAGE)]
    for index, text in enumerate(TEXTS):
        assert np.array_equal(encode(encoder, [text]).dense[0], together.dense[index])


def test_quantized_vectors_are_near_those_of_the_unpacked_weights(encoder, packaged):
    whole = load_embedder(packaged("bge-small-en-v1.5", engine="torch"))
    assert whole.info.revision != encoder.info.revision
    assert (encode(encoder, TEXTS).dense * encode(whole, TEXTS).dense).sum(axis=1).min() >= 0.98


def test_threads_share_a_session_and_do_not_disturb_each_other(encoder):
    alone = encode(encoder, TEXTS).dense
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: encode(encoder, TEXTS).dense, range(24)):
            assert np.array_equal(found, alone)


def test_scores_are_the_same_whatever_else_is_in_the_batch(packaged):
    model = load_reranker(packaged("ms-marco-MiniLM-L-12-v2"))
    pairs = model.tokenize("How do plants make food?", TEXTS, None)
    together = model.score(pairs)
    assert together.dtype == np.float32
    assert together.tolist() == [float(model.score([pair])[0]) for pair in pairs]
    assert together.argmax() == 0


@pytest.mark.parametrize("place", ["model.onnx", "onnx/model.onnx"])
def test_a_folder_with_an_onnx_model_alone_is_served_by_onnx_runtime(packaged, encoder, tmp_path, place):
    entry = PACKAGED[packaged("bge-small-en-v1.5").model]
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(entry.weights.locate())
    (tmp_path / "tokenizer.json").symlink_to(entry.tokenizer.locate())
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    model = load_embedder(ModelSettings(model=str(tmp_path)), device="cpu")
    assert (model.info.engine, model.info.max_tokens) == ("onnx", 128)
    assert model.info.revision == encoder.info.revision
    with pytest.raises(ModelUnavailable, match="safetensors"):
        load_embedder(ModelSettings(model=str(tmp_path), engine="torch"), device="cpu")
    with pytest.raises(ModelUnavailable, match="384 labels"):
        load_reranker(ModelSettings(model=str(tmp_path)), device="cpu")


def test_a_file_that_is_no_model_is_named(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ModelUnavailable, match=r"model\.onnx"):
        OnnxSession(tmp_path / "model.onnx")


class Made(OnnxSession):
    """A session that gives what it was told."""

    width = 2

    def __init__(self, output):
        self._made = np.array(output, np.float32)

    def run(self, ids, type_ids=None):
        return self._made


@pytest.mark.parametrize(
    ("output", "pooling", "expected"),
    [([[3, 4], [0, 1]], "cls", [0.6, 0.8]), ([[2, 0], [0, 2]], "mean", [0.7071068] * 2), ([3, 4], "mean", [0.6, 0.8])],
)
def test_hidden_states_are_pooled_and_sentence_vectors_taken_as_they_are(packaged, output, pooling, expected):
    model = made(packaged, output, pooling)
    assert encode(model, ["a"]).dense[0].tolist() == pytest.approx(expected)


def test_an_output_that_is_not_finite_fails(packaged):
    with pytest.raises(ModelFailed, match="finite"):
        encode(made(packaged, [[np.nan, 1]], "cls"), ["a"])


def made(packaged, output, pooling):
    entry = PACKAGED[packaged("bge-small-en-v1.5").model]
    card = ModelCard(512, pooling)
    tokens = TextTokens(entry.tokenizer.locate(), card)
    return OnnxEncoder(
        Made(output), tokens, card, Placement("cpu", "onnx", "float32", 1), ModelInfo("made", "0", 0, 512)
    )


def test_a_model_served_by_onnx_runtime_never_imports_torch(packaged):
    packaged("bge-small-en-v1.5")
    code = (
        "import sys\n"
        "from rag.models.registry import load_embedder, load_reranker\n"
        "from rag.settings import ModelSettings\n"
        "load_embedder(ModelSettings(model='bge-small-en-v1.5', device='cpu'))\n"
        "load_reranker(ModelSettings(model='ms-marco-MiniLM-L-12-v2'), device='cpu')\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
