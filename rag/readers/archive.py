"""ZIP archives that documents are packed in: bombs until proven otherwise. Nothing is ever written to disk."""

from __future__ import annotations

import functools
import io
import lzma
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import lxml.etree

from rag.errors import UnsupportedFile
from rag.readers import kinds
from rag.settings import ReaderSettings
from rag.types import ErrorCode

MAX_MEMBERS = 20_000
_LOCKED = 0x1  # the bit of a member's flags
_MIB = 1024 * 1024
_STEP = 65_536
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, ValueError)
# By which member a kind of document is known.
_FOLDERS = {
    kinds.ARCHIVES[".docx"]: "word/",
    kinds.ARCHIVES[".pptx"]: "ppt/",
    kinds.ARCHIVES[".xlsx"]: "xl/",
    kinds.ARCHIVES[".epub"]: "META-INF/container.xml",
}
_STRICT = b"http://purl.oclc.org/ooxml/"  # a variant with other names for everything
_DECLARED_ENTITY = re.compile(rb"<!ENTITY\s+(?:%\s+)?([^\s>]{1,100})")


def unpacked(data: bytes, kind: str, limits: ReaderSettings) -> dict[str, bytes]:
    """The members by name: whole, within the limit, and without XML entities.

    Raises:
        UnsupportedFile: cut off, damaged, locked, too large when unpacked, or with declared XML entities.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except _BROKEN as error:
        raise UnsupportedFile(
            f"{_capital(kind)} is an archive, and this one is cut off or damaged: its directory is missing."
        ) from error
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise UnsupportedFile(f"The archive holds {len(members)} members; at most {MAX_MEMBERS} are read.")
    # A member gives never more bytes than it declares: so the sum bounds the work before any is done.
    if sum(member.file_size for member in members) > limits.max_unpacked_mb * _MIB:
        raise UnsupportedFile(f"The archive unpacks to more than {limits.max_unpacked_mb} MiB.")
    found = {}
    for member in members:
        if member.flag_bits & _LOCKED:
            raise UnsupportedFile(f"The file is {kind} that is locked: it needs a password to open.")
        found[member.filename] = _unpack(archive, member)
        _refuse_entities(member.filename, found[member.filename])
    _check_kind(found, kind)
    return found


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Step by step, since a member may lie: at once it would grow in memory beyond what it declares."""
    try:
        with archive.open(member) as stream:
            return b"".join(iter(functools.partial(stream.read, _STEP), b""))
    except _BROKEN as error:
        name = member.filename[:200]
        raise UnsupportedFile(f"The archive is damaged: its member '{name}' cannot be unpacked ({error}).") from error


def _check_kind(members: Mapping[str, bytes], kind: str) -> None:
    """Is the archive the kind of document that its name says?

    Raises:
        UnsupportedFile: it is another one, or none.
    """
    kinds_found = [other for other, folder in _FOLDERS.items() if any(name.startswith(folder) for name in members)]
    if not kinds_found:
        raise UnsupportedFile(f"The file is a ZIP archive that does not hold the parts of {kind}.")
    if kind not in kinds_found:
        message = f"The content is {kinds_found[0]}, though the name says {kind}."
        raise UnsupportedFile(message, ErrorCode.UNSUPPORTED_FILE)
    if _STRICT in members.get("_rels/.rels", b""):
        message = f"The file is {kind} saved as 'Strict Open XML', which is not read; save it in the usual form."
        raise UnsupportedFile(message, ErrorCode.UNSUPPORTED_FILE)


def repacked(members: Mapping[str, bytes]) -> io.BytesIO:
    """The members as a plain archive for a library: it sees nothing that was not looked at."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    buffer.seek(0)
    return buffer


def _refuse_entities(name: str, data: bytes) -> None:
    """Entities grow without bound or name files of the server; no document needs them."""
    if b"\0" in data[:256] and not data.startswith((b"<", b"\xff\xfe", b"\xfe\xff", b"\0<", b"\0\0")):
        return  # a picture or the like
    plain = data.replace(b"\0", b"")  # so that UTF-16 looks like ASCII
    if b"<!DOCTYPE" not in plain:
        return
    found = _DECLARED_ENTITY.findall(plain)
    if found:
        names = ", ".join(f"'{entity.decode('ascii', 'replace')}'" for entity in found[:3])
        part = name[:200]
        raise UnsupportedFile(f"The part '{part}' declares XML entities ({names}), which are not read.")


def parse_xml(data: bytes) -> lxml.etree._Element:
    """The root of an XML part; entities stay unread and nothing outside is fetched.

    Raises:
        lxml.etree.XMLSyntaxError: it is no XML.
    """
    parser = lxml.etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, remove_comments=True)
    return lxml.etree.fromstring(data, parser)


@contextmanager
def reading(kind: str) -> Iterator[None]:
    """Whatever a library raises over a file from outside means that the file is damaged.

    Raises:
        UnsupportedFile: in place of any other error.
    """
    try:
        yield
    except (UnsupportedFile, MemoryError, RecursionError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UnsupportedFile(f"The file is {kind} that is damaged and cannot be read ({reason}).") from error


class Bounded:
    """Counts characters while they come, since few bytes may name the same text again and again."""

    def __init__(self, limits: ReaderSettings) -> None:
        self._left = self._limit = limits.max_characters

    def take(self, text: str) -> str:
        """The same text.

        Raises:
            UnsupportedFile: more than the limit in all.
        """
        self._left -= len(text)
        if self._left < 0:
            raise UnsupportedFile(f"The file holds more than {self._limit} characters of text.")
        return text


def joined(parts: Iterable[str], glue: str = "\n\n") -> str:
    """The parts that show anything, with `glue` between."""
    return glue.join(part for part in parts if part.strip())


def resolved(base: str, target: str) -> str:
    """The name of a member that another one refers to; names are keys of a dictionary and never paths on disk."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), target)).lstrip("/")


def _capital(kind: str) -> str:
    return kind[0].upper() + kind[1:]
