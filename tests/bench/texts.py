"""Texts to measure with: words of a real collection, in lengths that vary as real ones do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from rag.evaluation import load_collection
from tests.collections import DATA

WORDS_PER_TOKEN = 0.7


@cache
def _words() -> tuple[str, ...]:
    collection = load_collection(DATA / "scifact")
    return tuple(" ".join(document.full_text for document in collection.documents[:500]).split())


def passage(random_: random.Random, tokens: int) -> str:
    """A stretch of running text of about so many tokens."""
    count = max(1, round(tokens * WORDS_PER_TOKEN))
    start = random_.randrange(len(_words()) - count)
    return " ".join(_words()[start : start + count])


def mixed(count: int, *, seed: int = 0, longest: int = 170) -> list[str]:
    """Log-normal lengths around 100 tokens."""
    random_ = random.Random(seed)
    return [passage(random_, min(longest, int(random_.lognormvariate(4.6, 0.6)))) for _ in range(count)]


def short(count: int, *, seed: int = 1) -> list[str]:
    """Questions of a few words."""
    random_ = random.Random(seed)
    return [passage(random_, random_.randint(8, 16)) for _ in range(count)]


def batches(texts: Sequence[str], size: int) -> list[list[str]]:
    return [list(texts[start : start + size]) for start in range(0, len(texts), size)]
