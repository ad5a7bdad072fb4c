"""In which form of Unicode bytes are, told from how they begin."""

from __future__ import annotations

import codecs

HEAD = 8192  # bytes that are enough to tell

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def marked_form(head: bytes) -> tuple[bytes, str] | None:
    """The byte-order mark at the very beginning and the encoding it stands for."""
    return next(((mark, encoding) for mark, encoding in _BYTE_ORDER_MARKS if head.startswith(mark)), None)


def wide_form(head: bytes) -> str | None:
    """UTF-16 without a mark: every other byte of mostly Latin text is zero."""
    sample = head[:HEAD]
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if max(even, odd) > 0.7 * len(sample) / 2 and min(even, odd) < 0.05 * len(sample):
        return "utf-16-be" if even > odd else "utf-16-le"
    return None


class UnicodeCheck:
    """Takes a stream of bytes as text in a form of Unicode, piece by piece."""

    def __init__(self) -> None:
        self._head = b""
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, data: bytes) -> str:
        """The next characters, without the mark; none while the form is not known yet.

        Raises:
            ValueError: no text in a form of Unicode; the message is a sentence.
        """
        if self._decoder is not None:
            return _decoded(self._decoder, data)
        self._head += data
        return self._begin() if len(self._head) >= HEAD else ""

    def close(self) -> str:
        """The last characters.

        Raises:
            ValueError: as above, or cut off within a character.
        """
        begun = self._begin() if self._decoder is None else ""
        assert self._decoder is not None
        return begun + _decoded(self._decoder, b"", final=True)

    def _begin(self) -> str:
        mark, encoding = marked_form(self._head) or (b"", wide_form(self._head) or "utf-8")
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="strict")
        return _decoded(self._decoder, self._head[len(mark) :])


def _decoded(decoder: codecs.IncrementalDecoder, data: bytes, *, final: bool = False) -> str:
    try:
        return decoder.decode(data, final)
    except UnicodeDecodeError as error:
        reason = f"{error.encoding}: {error.reason}"
        raise ValueError(f"It is not text in a form of Unicode ({reason}); save it as UTF-8.") from error
