"""Scanned pages to text: each is drawn at a bounded size and read by the program tesseract."""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import math
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from rag.errors import UnsupportedFile
from rag.settings import ReaderSettings

logger = logging.getLogger(__name__)

MAX_PIXELS = 12_000_000  # of a page: A3 at 250 dots an inch
_DOTS = 300  # an inch, where that is not too many
_POINTS = 72  # an inch, in a PDF
_MAX_SIDE = 20_000  # pixels
_PR_SET_PDEATHSIG = 1
_PROGRAM = "tesseract"
_OFF = "The PDF has no text layer, and OCR is switched on (the setting `reader.ocr`), but"


class _Unavailable(Exception):
    """OCR is asked for but not installed; the message says what is missing and what to do."""


def recognised(
    data: bytes, numbers: Sequence[int], limits: ReaderSettings, *, needed: bool
) -> Iterator[tuple[int, str]]:
    """The text of these pages of a PDF, counted from 0. Where OCR is not installed: nothing, unless it is needed.

    Raises:
        UnsupportedFile: needed, but not installed; or it fails.
    """
    try:
        program, renderer = _program(), _renderer()
    except _Unavailable as missing:
        if needed:
            raise UnsupportedFile(f"{_OFF} {missing}") from missing
        logger.warning("%d pages have no text, and %s", len(numbers), missing)
        return
    for number in numbers:
        yield number, _read(program, _drawn(renderer, data, number), limits)


def _program() -> str:
    program = shutil.which(_PROGRAM)
    if program is None:
        raise _Unavailable(
            f"the program {_PROGRAM} is not installed where documents are read (Debian: apt-get install tesseract-ocr)."
        )
    return program


def _renderer() -> ModuleType:
    try:
        return importlib.import_module("pypdfium2")
    except ImportError as error:
        raise _Unavailable("the package pypdfium2 is not installed: pip install 'florilegium[ocr]'.") from error


def _drawn(renderer: Any, data: bytes, number: int) -> bytes:
    """A page in shades of grey, as a PGM picture."""
    try:
        with renderer.PdfDocument(data) as document:
            page = document[number]
            width, height = page.get_size()  # points
            scale = min(
                _DOTS / _POINTS, math.sqrt(MAX_PIXELS / max(1.0, width * height)), _MAX_SIDE / max(1.0, width, height)
            )
            bitmap = page.render(scale=scale, grayscale=True)
            picture = bytes(bitmap.buffer)
    except renderer.PdfiumError as error:
        raise UnsupportedFile(f"Page {number + 1} of the PDF cannot be drawn for OCR ({error}).") from error
    rows = (picture[row * bitmap.stride :][: bitmap.width] for row in range(bitmap.height))
    return b"P5 %d %d 255\n" % (bitmap.width, bitmap.height) + b"".join(rows)


def _read(program: str, picture: bytes, limits: ReaderSettings) -> str:
    command = [program, "stdin", "stdout", "-l", limits.ocr_languages]
    bound = functools.partial(_bind, math.ceil(limits.max_seconds))
    process = subprocess.Popen(  # noqa: S603 - the program is tesseract and its languages are checked
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_THREAD_LIMIT": "1"},
        preexec_fn=bound,
    )
    text, errors = process.communicate(picture)
    if process.returncode:
        reason = " ".join(errors.decode(errors="replace").split())[:200]
        raise UnsupportedFile(f"OCR of the PDF failed ({_PROGRAM} -l {limits.ocr_languages}: {reason}).")
    return text.decode(errors="replace").replace("\f", "")


def _bind(seconds: int) -> None:
    """To the process that is to become tesseract: it ends with the one that reads, and has a clock of its own."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
