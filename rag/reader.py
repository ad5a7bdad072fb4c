"""Documents to text, each in a process that may be killed: a bomb, a loop or a crash costs one file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from pathlib import Path
from threading import Timer

from rag.errors import UnsupportedFile
from rag.reader_process import read_message, write_message
from rag.settings import ReaderSettings
from rag.types import Section

log = logging.getLogger(__name__)

FILES_PER_PROCESS = 500  # then a fresh one: libraries leak


class Reader:
    """A few reading processes that are kept warm and replaced when they had to be killed.

    To be used from one event loop.
    """

    def __init__(self, settings: ReaderSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Semaphore(settings.processes)
        self._idle = [_Process()]  # warm before the first document comes
        self._busy: set[_Process] = set()

    async def read(self, path: Path, filename: str) -> list[Section]:
        """The text of the document at `path`; its kind is taken from `filename`.

        Raises:
            UnsupportedFile: it cannot be read, or not within the limits.
        """
        async with self._turn:
            process = self._idle.pop() if self._idle else _Process()
            self._busy.add(process)
            try:
                return await asyncio.to_thread(process.read, path, filename, self._settings)
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
        """End the processes."""
        for process in self._busy:
            process.kill()  # who reads from it disposes of it
        for process in self._idle:
            process.dispose()
        self._idle.clear()


class _Process:
    """One reading process and the two ends of its pipes."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "rag.reader_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            close_fds=True,
        )
        self._files = 0
        self._late = False
        self._killed = False

    @property
    def usable(self) -> bool:
        return not self._killed and self._child.poll() is None and self._files < FILES_PER_PROCESS

    def read(self, path: Path, filename: str, limits: ReaderSettings) -> list[Section]:
        """Blocking; the process is dead afterwards where a limit was hit."""
        self._files += 1
        timer = Timer(limits.max_seconds, self._out_of_time)
        timer.start()
        try:
            assert self._child.stdin is not None
            assert self._child.stdout is not None
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
