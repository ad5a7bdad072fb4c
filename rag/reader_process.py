"""The process that reads documents: takes one after the other from its standard input until that closes.

It is killed whenever a document is too much, so it holds nothing and imports only what reading needs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import resource
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from rag.errors import UnsupportedFile
from rag.parsing import parse
from rag.settings import ReaderSettings
from rag.types import Section

LENGTH = struct.Struct("!Q")
READY = "ready"  # the first message, before any question
Answer = list[Section] | UnsupportedFile


def write_message(stream: IO[bytes], message: object) -> None:
    """A pickled object behind its length. Both ends are ours."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


def read_message(stream: IO[bytes]) -> object:
    """The next message.

    Raises:
        EOFError: the other end is gone.
    """
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)  # noqa: S301 - from our own other end


def main() -> None:
    """Serve until the parent closes the pipe, or dies."""
    os.nice(10)  # whoever searches meanwhile goes first
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not disturb the answers
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it says of damaged files is in the answer
    with contextlib.suppress(EOFError, BrokenPipeError):
        write_message(answers, READY)
        for path, filename, limits in _requests():
            _limit(limits)
            try:
                write_message(answers, _answer(path, filename, limits))
            except MemoryError:  # the text fits, but not a second time: nothing was written yet
                write_message(answers, _out_of_memory(limits))


def _requests() -> Iterator[tuple[Path, str, ReaderSettings]]:
    while True:
        yield cast("tuple[Path, str, ReaderSettings]", read_message(sys.stdin.buffer))


def _limit(limits: ReaderSettings) -> None:
    """Memory for good; processor time from now on. The kernel ends a process that is over it."""
    memory = limits.max_memory_mb * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + limits.max_seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(path: Path, filename: str, limits: ReaderSettings) -> Answer:
    try:
        return parse(path, filename, limits)
    except UnsupportedFile as error:
        return error
    except MemoryError:
        return _out_of_memory(limits)
    except RecursionError:
        return UnsupportedFile("The file is nested too deep to be read.")


def _out_of_memory(limits: ReaderSettings) -> UnsupportedFile:
    return UnsupportedFile(f"Reading the file takes more than the {limits.max_memory_mb} MiB of memory allowed.")


if __name__ == "__main__":
    main()
