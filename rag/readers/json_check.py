"""Whether a stream is JSON that nests within bounds, without a value being built from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ijson

MAX_DEPTH = 64
_STEP = 65_536  # bytes at once, so that few events wait
_OPENING, _CLOSING = ("start_map", "start_array"), ("end_map", "end_array")


class JsonCheck:
    """Takes UTF-8 piece by piece."""

    def __init__(self) -> None:
        self._events: Any = ijson.sendable_list()
        self._parser = ijson.basic_parse_coro(self._events)
        self._depth = 0

    def feed(self, data: bytes) -> None:
        """Look at the next piece.

        Raises:
            ValueError: it is no JSON, or nests too deep; the message is a sentence.
        """
        for start in range(0, len(data), _STEP):
            with _as_sentence():
                self._parser.send(data[start : start + _STEP])
            self._count()

    def close(self) -> None:
        """All has been fed.

        Raises:
            ValueError: the JSON is not complete.
        """
        with _as_sentence():
            self._parser.close()
        self._count()

    def _count(self) -> None:
        for event, _ in self._events:
            if event in _OPENING:
                self._depth += 1
                if self._depth > MAX_DEPTH:
                    raise ValueError(f"The JSON is nested more than {MAX_DEPTH} levels deep.")
            elif event in _CLOSING:
                self._depth -= 1
        del self._events[:]


@contextmanager
def _as_sentence() -> Iterator[None]:
    try:
        yield
    except ijson.JSONError as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ValueError(f"The content is not JSON ({reason}).") from error
    except (ValueError, ArithmeticError, SystemError) as error:
        # The parser's C code hands on in this way that Python takes no number of so many digits.
        if isinstance(error, SystemError) and not isinstance(error.__cause__, ValueError):
            raise
        raise ValueError("The JSON holds a number that is too long to be read.") from error
