"""Bytes to text: Unicode in all its forms, what a page declares, and legacy encodings that are certain."""

from __future__ import annotations

import codecs
import re

from charset_normalizer import CharsetMatch, from_bytes

from rag.errors import UnsupportedFile
from rag.readers.unicode_forms import marked_form, wide_form
from rag.types import ErrorCode

_DECLARED = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w:.-]{2,40})", re.IGNORECASE)
_XML_DECLARED = re.compile(rb"\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w:.-]{2,40})", re.IGNORECASE)
_NO_CHARSETS = ("utf-7", "unicode-escape", "raw-unicode-escape", "punycode", "idna")  # no page is written in them
_CONTROL = re.compile(r"[\x01-\x08\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]")  # tab, line ends, escape, NEL left out
_DISORDER = 0.2  # above this share of odd neighbours a guess is no text

_LATIN_ENCODINGS = ("cp1252", "cp1250", "cp1254", "cp1257", "cp1258")
# What other Latin alphabets look like when they are read as Windows-1252.
_NOT_WESTERN = re.compile(r"[ðýþÐÝÞ]|[^\W\d_][¡-©«-´¶-¹¼-¿×÷](?=[^\W\d_])|(?<=[^\W\d_])[º³¹¾¿£¥](?=\W)")
_LATIN_LEAD = 0.03  # how much likelier than the next the best of several Latin readings must be


def decode(data: bytes, *, markup: bool = False) -> str:
    """Bytes to text without byte-order mark and NUL. `markup`: what a page says of its own encoding counts.

    Raises:
        UnsupportedFile: the bytes are no text, or it is not certain in which encoding.
    """
    text = _decoded(data, markup)
    sample = text[:1_000_000]
    if len(_CONTROL.findall(sample)) > 0.02 * len(sample) or sample.count("\0") > 0.3 * len(sample):
        raise UnsupportedFile("The content is binary, not text.", ErrorCode.UNSUPPORTED_FILE)
    return sound(text).removeprefix("\ufeff")


def _decoded(data: bytes, markup: bool) -> str:
    marked = marked_form(data)
    if marked is not None:
        mark, encoding = marked
        return _strictly(data[len(mark) :], encoding)
    declared = _declared(data) if markup else None
    if declared is not None:
        return declared
    wide = wide_form(data)
    if wide:
        return _strictly(data, wide)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _guessed(data, markup, error)


def _strictly(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnsupportedFile(
            f"The text is not valid {encoding.upper()}: {error.reason} at byte {error.start}."
        ) from error


def _declared(data: bytes) -> str | None:
    """The text in the encoding that a page declares, if it is right."""
    found = _XML_DECLARED.match(data[:400]) or _DECLARED.search(data[:4096])
    if found is None:
        return None
    name = found.group(1).decode("ascii", "replace").lower()
    # Browsers read both as Windows-1252, and so do the pages' authors.
    encoding = "cp1252" if name in ("iso-8859-1", "latin1", "us-ascii") else name
    try:
        return None if codecs.lookup(encoding).name in _NO_CHARSETS else data.decode(encoding)
    except (LookupError, UnicodeError):
        return None


def _guessed(data: bytes, markup: bool, error: UnicodeDecodeError) -> str:
    unknown = UnsupportedFile("The encoding of the text cannot be told for certain; save it as UTF-8.")
    if b"\0" in data[:65536]:
        raise UnsupportedFile("The content is binary, not text.", ErrorCode.UNSUPPORTED_FILE)
    high = sum(byte > 0x7F for byte in data)
    valid = sum(len(char.encode()) for char in data.decode("utf-8", "ignore") if ord(char) > 0x7F)
    if valid > 0.8 * high:
        raise UnsupportedFile(f"The text is damaged UTF-8: {error.reason} at byte {error.start}.") from error
    best = from_bytes(data).best()
    if best is None or best.chaos > _DISORDER:
        raise unknown from error
    text = _latin(data) if _is_latin(str(best)) else _whole(data, best)
    if text is None or _CONTROL.search(text):
        raise unknown from error
    return text


def _is_latin(text: str) -> bool:
    strange = [char for char in text[:100_000] if ord(char) > 0x7F and char.isalpha()]
    return sum(char < "\u0250" or "\u1e00" <= char < "\u1f00" for char in strange) * 2 >= len(strange)


def _whole(data: bytes, guess: CharsetMatch) -> str | None:
    try:
        return data.decode(guess.encoding)
    except UnicodeDecodeError:
        return None


def _latin(data: bytes) -> str | None:
    """Latin alphabets share their bytes: Windows-1252 unless its reading is odd, else what is clearly likeliest."""
    western = data.decode("cp1252", "ignore")
    if len(western) == len(data) and not _NOT_WESTERN.search(western):
        return western
    guesses = sorted(
        from_bytes(data, cp_isolation=list(_LATIN_ENCODINGS)), key=lambda guess: guess.chaos - guess.coherence
    )
    if not guesses:
        return None
    lead = [guess.coherence - guess.chaos for guess in guesses]
    if len(guesses) > 1 and lead[0] - lead[1] < _LATIN_LEAD:
        return None
    return _whole(data, guesses[0])


def sound(text: str) -> str:
    """Text that any database and any JSON takes: halves of a character are put together, lone ones and NUL dropped."""
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in set(text)):
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore").replace("\0", "")
    return text
