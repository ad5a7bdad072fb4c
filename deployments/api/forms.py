"""multipart/form-data, part by part as it arrives: a file is never held or spooled as a whole."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from rag.errors import InvalidRequest

MAX_FIELD_BYTES = 16 * 1024

_EXTENDED_NAME = re.compile(rb"filename\*\s*=\s*(utf-8|iso-8859-1)'[^']*'([^;\s]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """What a part says of itself; `filename` is None for a plain field."""

    name: str
    filename: str | None


class _End:
    """The end of a part's data."""


_Event = Part | bytes | _End


class Form:
    """A form whose parts are read once, in the order in which they were sent."""

    def __init__(self, content_type: str, stream: AsyncIterator[bytes]) -> None:
        """Raises InvalidRequest where the content type is no multipart form."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise _broken("Expected 'Content-Type: multipart/form-data' with a boundary.")
        self._stream = stream
        self._events: deque[_Event] = deque()
        self._disposition = b""
        self._header = b""
        self._complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_begin": self._on_header_begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise _broken(f"The form cannot be read: {error}.") from error

    async def parts(self) -> AsyncIterator[Part]:
        """Each part; what of its data was not taken is skipped before the next."""
        while (event := await self._next()) is not None:
            if isinstance(event, Part):
                yield event

    async def data(self) -> AsyncIterator[bytes]:
        """The bytes of the part that was given last."""
        while isinstance(event := await self._next(), bytes):
            yield event

    async def text(self, part: Part) -> str:
        """A plain field's value.

        Raises:
            InvalidRequest: it is long, or not UTF-8.
        """
        value = b""
        async for piece in self.data():
            value += piece
            if len(value) > MAX_FIELD_BYTES:
                raise InvalidRequest(f"The field '{part.name}' is too long.", part.name, "string_above_max_length")
        return _decode(value)

    async def _next(self) -> _Event | None:
        while not self._events:
            if self._complete:
                return None
            await self._feed()
        return self._events.popleft()

    async def _feed(self) -> None:
        try:
            data = await anext(self._stream)
        except StopAsyncIteration:
            raise _broken("The form ends before its closing boundary.") from None
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _broken(f"The form cannot be read: {error}.") from error

    # --- the parser's side; slices are copied, the buffer is its own -------------------------------------------------

    def _on_part_begin(self) -> None:
        self._disposition = b""

    def _on_header_begin(self) -> None:
        self._header = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition += data[start:end]

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if name is None:
            raise _broken("A part of the form has no name.")
        self._events.append(Part(_decode(name), _filename(self._disposition, options)))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(bytes(data[start:end]))

    def _on_part_end(self) -> None:
        self._events.append(_End())

    def _on_end(self) -> None:
        self._complete = True


def _filename(disposition: bytes, options: dict[bytes, bytes]) -> str | None:
    """The name as it was given, also in the extended form that some clients use for names beyond ASCII."""
    extended = _EXTENDED_NAME.search(disposition)
    if extended:
        charset, value = extended.groups()
        return unquote(value.decode("ascii", "replace"), encoding=charset.decode("ascii"))
    plain = options.get(b"filename")
    return None if plain is None else _decode(plain)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _broken("A name or value in the form is not UTF-8.") from error


def _broken(message: str) -> InvalidRequest:
    return InvalidRequest(message, None, "invalid_form")
