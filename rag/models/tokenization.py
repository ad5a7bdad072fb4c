"""Text to token ids, with the `tokenizers` library alone: nothing is cut or padded, and no text can spell a special
token. A tokenizer is never changed after it is loaded, so that any number of threads may share it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from rag.errors import InvalidRequest
from rag.models.base import TokenIds, TokenPair
from rag.models.card import ModelCard
from rag.types import Int32, Kind

# A passage of which the reranker would see less than this is not worth a score.
SMALLEST_PASSAGE = 8

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class TextTokens:
    """`rag.models.base.TextTokenizer` for an embedding model, with what the model itself needs besides."""

    def __init__(self, path: Path, card: ModelCard) -> None:
        """Load the tokenizer.json at `path`."""
        self._tokenizer = load_tokenizer_file(path)
        self._prefixes = {Kind.QUERY: card.query_prefix, Kind.PASSAGE: card.passage_prefix}
        self.max_tokens = card.window
        self.special_tokens = self._tokenizer.num_special_tokens_to_add(False) + self.count(card.passage_prefix)

    def count(self, text: str) -> int:
        """The number of tokens of the bare text."""
        return len(self._bare(text).ids)

    def spans(self, text: str) -> npt.NDArray[np.int32]:
        """Where each token of the bare text lies: int32 (n, 2), start and end in characters, ascending."""
        return np.array(self._bare(text).offsets, np.int32).reshape(-1, 2)

    def encode(self, texts: Sequence[str], kind: Kind) -> list[TokenIds]:
        """One int32 (n,) per text, prefix and special tokens included; never cut."""
        prefix = self._prefixes[kind]
        return [_ids(one) for one in self._tokenizer.encode_batch_fast([prefix + _sound(text) for text in texts])]

    def truncate(self, ids: TokenIds) -> TokenIds:
        """Cut to the window, the closing special token kept."""
        return ids if len(ids) <= self.max_tokens else np.append(ids[: self.max_tokens - 1], ids[-1:])

    def _bare(self, text: str) -> Encoding:
        return self._tokenizer.encode(_sound(text), add_special_tokens=False)


class PairTokens:
    """Query and passage as one sequence, in the way that the tokenizer's own template joins them."""

    def __init__(self, path: Path, window: int) -> None:
        """Load the tokenizer.json at `path`; pairs have at most `window` tokens."""
        self._tokenizer = load_tokenizer_file(path)
        self._window = window
        template = self._tokenizer.encode("a", "b")
        sides = template.sequence_ids
        query, passage = _places(sides, 0), _places(sides, 1)
        ids, types = _ids(template), np.array(template.type_ids, np.int32)
        cuts = (slice(0, query[0]), slice(query[-1] + 1, passage[0]), slice(passage[-1] + 1, None))
        self._fixed_ids = [ids[cut] for cut in cuts]
        self._fixed_types = [types[cut] for cut in cuts]
        self._types = types[query[0]], types[passage[0]]

    def encode(self, query: str, passages: Sequence[str], max_tokens_per_passage: int | None) -> list[TokenPair]:
        """One pair per passage. Only the passage is cut: to `max_tokens_per_passage`, and to what the query leaves.

        Raises:
            InvalidRequest: the query leaves no room for a passage.
        """
        asked = _ids(self._tokenizer.encode(_sound(query), add_special_tokens=False))
        room = self._window - sum(map(len, self._fixed_ids)) - len(asked)
        if room < SMALLEST_PASSAGE:
            limit = self._window - sum(map(len, self._fixed_ids)) - SMALLEST_PASSAGE
            raise InvalidRequest(
                f"The query has {len(asked)} tokens and leaves no room for a passage: the reranker reads "
                f"{self._window} tokens in all. A query may have {limit}.",
                "query",
                "string_above_max_length",
            )
        if max_tokens_per_passage is not None:
            room = min(room, max_tokens_per_passage)
        texts = [_sound(passage) for passage in passages]
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [self._join(asked, _ids(one)[:room]) for one in found]

    def _join(self, query: TokenIds, passage: TokenIds) -> TokenPair:
        head, middle, tail = self._fixed_ids
        head_types, middle_types, tail_types = self._fixed_types
        query_types = np.full(len(query), self._types[0], np.int32)
        passage_types = np.full(len(passage), self._types[1], np.int32)
        return TokenPair(
            np.concatenate([head, query, middle, passage, tail]),
            np.concatenate([head_types, query_types, middle_types, passage_types, tail_types]),
        )


def load_tokenizer_file(path: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, set so that it neither cuts nor pads nor reads special tokens in texts."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["truncation"] = content["padding"] = None
    if content["model"].get("type") == "Unigram":
        _hide_special_pieces(content)
        _strip_ends(content)
    tokenizer: Tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.encode_special_tokens = True
    return tokenizer


def _hide_special_pieces(content: dict[str, Any]) -> None:
    """A Unigram vocabulary lists the special tokens as pieces of score 0, the best there is, so that the letters
    "</s>" would become the special token after all. Renamed with blanks, which no split text has, they keep their
    ids and match nothing."""
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    for piece in content["model"]["vocab"]:
        if piece[0] in special:
            piece[0] = f" {piece[0]} "
    for token in content["added_tokens"]:
        if token["special"]:
            token["content"] = f" {token['content']} "


def _strip_ends(content: dict[str, Any]) -> None:
    """SentencePiece ignores blanks at the ends of a text; some tokenizer files leave that out, and a last line break
    would be a token."""
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    others = [content["normalizer"]] if content["normalizer"] else []
    content["normalizer"] = {"type": "Sequence", "normalizers": [*others, strip]}


def _sound(text: str) -> str:
    """Half a surrogate pair is no character; it becomes the replacement character, as decoders do it."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def _ids(encoding: Encoding) -> Int32:
    return np.array(encoding.ids, np.int32)


def _places(sides: Sequence[int | None], side: int) -> list[int]:
    return [index for index, of in enumerate(sides) if of == side]
