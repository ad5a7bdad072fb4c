"""Documents to text, each in a process that may be killed: a bomb, a loop or a crash costs one file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import IO

from rag.errors import StoreUnavailable, UnsupportedFile
from rag.reader_process import read_message, write_message
from rag.settings import ReaderSettings
from rag.types import Section

log = logging.getLogger(__name__)

FILES_PER_PROCESS = 500  # then a fresh one: libraries leak
# NumPy's threads, one for each core, would take address space that documents are to have.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
START_S = 120.0  # for a process to import what it needs, on a busy machine


class Reader:
    """A few reading processes that are kept warm and replaced when they had to be killed.

    To be used from one event loop.
    """

    def __init__(self, settings: ReaderSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Semaphore(settings.processes)
        self._idle = [_Process()]  # warm before the first document comes
        self._busy: set[_Process] = set()
        self._closed = False

    async def read(self, path: Path, filename: str) -> list[Section]:
        """The text of the document at `path`; its kind is taken from `filename`.

        Raises:
            UnsupportedFile: it cannot be read, or not within the limits.
            StoreUnavailable: the reader was closed, or its process did not start; the document is not to blame.
        """
        async with self._turn:
            self._check_open()
            process = self._ready()
            self._busy.add(process)
            try:
                return await asyncio.to_thread(process.read, path, filename, self._settings)
            except UnsupportedFile:
                self._check_open()
                raise
            except asyncio.CancelledError:
                process.kill()  # nobody waits for this document any more
                raise
            finally:
                self._busy.discard(process)
                if process.usable:
                    self._idle.append(process)
                else:
                    process.dispose()

    async def close(self) -> None:
        """End the processes, also those that read."""
        self._closed = True
        for process in [*self._busy, *self._idle]:
            process.dispose()
        self._idle.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("The document was not read, because the server is shutting down.")

    def _ready(self) -> _Process:
        """A process that lives: one may have died while nobody used it."""
        while self._idle:
            process = self._idle.pop()
            if process.usable:
                return process
            process.dispose()
        return _Process()


class _Process:
    """One reading process and the two ends of its pipes."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "rag.reader_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            env=os.environ | ONE_THREAD,
            close_fds=True,
        )
        self._started = False
        self._files = 0
        self._late = False
        self._killed = False

    @property
    def usable(self) -> bool:
        return not self._killed and self._child.poll() is None and self._files < FILES_PER_PROCESS

    def read(self, path: Path, filename: str, limits: ReaderSettings) -> list[Section]:
        """Blocking; the process is dead afterwards where a limit was hit."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._await_start(self._child.stdout)
        self._files += 1
        timer = Timer(limits.max_seconds, self._out_of_time)
        timer.start()
        try:
            write_message(self._child.stdin, (path.resolve(), filename, limits))
            answer = read_message(self._child.stdout)
        except (EOFError, BrokenPipeError):
            raise self._ended(limits) from None
        finally:
            timer.cancel()
        if isinstance(answer, UnsupportedFile):
            raise answer
        assert isinstance(answer, list)
        return answer

    def _await_start(self, answers: IO[bytes]) -> None:
        """Until it has said that it listens, nothing counts against a document."""
        if self._started:
            return
        timer = Timer(START_S, self.kill)
        timer.start()
        try:
            read_message(answers)
        except EOFError:
            log.error("a reading process ended with %d before it could read", self._child.wait())
            raise StoreUnavailable("The document was not read, because no reading process could be started.") from None
        finally:
            timer.cancel()
        self._started = True

    def _out_of_time(self) -> None:
        self._late = True
        self.kill()

    def _ended(self, limits: ReaderSettings) -> UnsupportedFile:
        code = self._child.wait()
        log.warning("a reading process ended with %d", code)
        if self._late:
            return UnsupportedFile(f"Reading the file takes longer than the {limits.max_seconds:g} seconds allowed.")
        return UnsupportedFile("The file cannot be read: it ended the process that tried, or took too much of it.")

    def kill(self) -> None:
        """End the process now. May be called from any thread, and again."""
        self._killed = True
        self._child.kill()

    def dispose(self) -> None:
        """End the process and leave nothing of it behind."""
        self.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what was not sent to a dead process
                pipe.close()
