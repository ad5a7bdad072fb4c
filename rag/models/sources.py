"""From the model that the settings name to its files: a packaged model, a local folder, or the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rag.errors import ModelUnavailable
from rag.models.card import ModelCard, read_card
from rag.models.packaged import PACKAGED, PackagedModel
from rag.settings import ModelSettings

ONNX_FILES = ("model.onnx", "onnx/model.onnx")
NOT_TORCH = ("*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.ot", "openvino/*", "imgs/*")
NOT_ONNX = ("*.safetensors", "*.bin", "*.h5", "*.msgpack", "*.ot", "openvino/*", "imgs/*")
SMALL_FILES = ("*.json", "*/config.json")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found. `folder` is one that torch can load as it is; a packaged model may have to be
    unpacked first. `commit` is the hub's."""

    name: str
    card: ModelCard
    tokenizer: Path
    folder: Path | None
    onnx: Path | None
    packaged: PackagedModel | None = None
    commit: str | None = None


def find_model(settings: ModelSettings, *, weights: bool = True) -> ModelSource:
    """Find what `settings.model` names. Without `weights` the hub is asked for the small files alone.

    Raises:
        ModelUnavailable: there is no such model, or its files cannot be used.
    """
    name = settings.model
    if name in PACKAGED:
        source = _packaged(name, PACKAGED[name], weights)
    elif (path := Path(name).expanduser()).is_dir():
        source = _in_folder(path.name, path, None)
    elif path.is_absolute() or name.startswith((".", "~")):
        raise ModelUnavailable(f"There is no folder '{path}' with a model. Correct the setting 'model'.")
    else:
        folder = _from_hub(settings, weights)
        source = _in_folder(name, folder, folder.name)
    return replace(source, card=_adjusted(source.card, settings))


def fingerprint(files: Iterable[Path]) -> str:
    """The first 12 hex digits of the SHA-256 of the files' contents, one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:12]


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights that torch loads, sorted."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def _packaged(name: str, model: PackagedModel, weights: bool) -> ModelSource:
    file = model.weights.locate() if weights else None
    return ModelSource(
        name=name,
        card=model.card,
        tokenizer=model.tokenizer.locate(),
        folder=file.parent if file and model.format == "safetensors" else None,
        onnx=file if model.format == "int8 onnx" else None,
        packaged=model,
    )


def _in_folder(name: str, folder: Path, commit: str | None) -> ModelSource:
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        raise ModelUnavailable(
            f"'{folder}' has no tokenizer.json. Save the model's fast tokenizer there "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...)), or name another model."
        )
    return ModelSource(
        name=name,
        card=read_card(folder),
        tokenizer=tokenizer,
        folder=folder if weight_files(folder) else None,
        onnx=next((folder / file for file in ONNX_FILES if (folder / file).exists()), None),
        commit=commit,
    )


def _from_hub(settings: ModelSettings, weights: bool) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    unwanted: Sequence[str] = NOT_ONNX if settings.engine == "onnx" else NOT_TORCH
    try:
        found = snapshot_download(
            settings.model,
            revision=settings.revision,
            cache_dir=settings.cache_dir,
            allow_patterns=None if weights else list(SMALL_FILES),
            ignore_patterns=list(unwanted) if weights else None,
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        revision = f" (revision '{settings.revision}')" if settings.revision else ""
        raise ModelUnavailable(
            f"The model '{settings.model}'{revision} is neither packaged ({', '.join(PACKAGED)}) nor a local folder, "
            f"and the model hub did not give it: {type(error).__name__}. Set 'model' to a folder that holds it, or "
            "download it once where there is a connection and point 'cache_dir' there."
        ) from error
    return Path(found)


def _adjusted(card: ModelCard, settings: ModelSettings) -> ModelCard:
    """The card as the settings would have it."""
    if settings.max_tokens is not None:
        if settings.max_tokens > card.window:
            raise ModelUnavailable(
                f"max_tokens is {settings.max_tokens}, but {settings.model} reads {card.window} tokens at most."
            )
        card = replace(card, window=settings.max_tokens)
    if settings.query_prefix is not None:
        card = replace(card, query_prefix=settings.query_prefix)
    if settings.passage_prefix is not None:
        card = replace(card, passage_prefix=settings.passage_prefix)
    return card
