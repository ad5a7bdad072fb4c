from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import rag.reader
from rag.errors import StoreUnavailable, UnsupportedFile
from rag.reader import Reader
from rag.settings import ReaderSettings
from tests.documents_made import SOUND
from tests.pdfs_made import (
    cut_in_half,
    form_in_itself,
    image_without_end,
    text_pdf,
    tree_in_itself,
    two_million_operators,
)

HEAVY = ("torch", "ray", "duckdb", "faiss", "transformers", "onnxruntime", "fastapi")


def children() -> dict[int, psutil.Process]:
    """The processes of this one, ended ones that nobody has looked after included."""
    return {child.pid: child for child in psutil.Process().children(recursive=True)}


@pytest.fixture
async def reader():
    before = set(children())
    made: list[Reader] = []

    def make(**limits: object) -> Reader:
        made.append(Reader(ReaderSettings(**limits)))
        return made[-1]

    yield make
    for one in made:
        await one.close()
    assert set(children()) <= before


@pytest.fixture
def tide(tmp_path) -> Path:
    path = tmp_path / "tide.txt"
    path.write_text("The tide turned.", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def endless(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "endless.pdf"
    path.write_bytes(two_million_operators())
    return path


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.005)


async def busy_child(reader: Reader, before: set[int]) -> int:
    """The process id of the only child that works on a document."""
    await until(lambda: any(child.cpu_times().user > 1.5 for pid, child in children().items() if pid not in before))
    (pid,) = set(children()) - before
    return pid


async def text_of(reader: Reader, path: Path, filename: str | None = None) -> str:
    return "\n".join(section.text for section in await reader.read(path, filename or path.name))


async def test_documents_are_read_at_once_and_one_after_the_other_by_the_same_processes(reader, tide, tmp_path):
    before = set(children())
    some = reader(processes=2)
    (tmp_path / "boats.pdf").write_bytes(text_pdf("The boats came home.", "Night fell."))
    used = []
    for _ in range(3):
        texts = await asyncio.gather(*(text_of(some, path) for path in [tide, tmp_path / "boats.pdf"] * 3))
        assert texts == ["The tide turned.", "The boats came home.\nNight fell."] * 3
        pids = set(children()) - before
        assert len(pids) == 2
        used.append(pids)
    assert used[0] == used[1] == used[2]


async def test_one_process_serves_document_after_document(reader, tide):
    before = set(children())
    one = reader(processes=1)
    pids = set()
    for _ in range(3):
        await one.read(tide, "tide.txt")
        pids |= set(children()) - before
    assert len(pids) == 1


async def test_the_kind_is_taken_from_the_name_not_the_path(reader, tmp_path):
    (tmp_path / "file-1").write_bytes(b"# Lamps\nThey burn oil.")
    (section,) = await reader().read(tmp_path / "file-1", "lamps.md")
    assert section.heading == "Lamps"
    with pytest.raises(UnsupportedFile, match=r"\.exe"):
        await reader().read(tmp_path / "file-1", "lamps.exe")


async def test_endless_work_is_ended_at_its_limit_while_other_documents_are_read(reader, tide, endless):
    before = set(children())
    some = reader(processes=2, max_seconds=4)
    await asyncio.gather(some.read(tide, "a.txt"), some.read(tide, "b.txt"))
    warm = set(children()) - before
    hostile = asyncio.ensure_future(some.read(endless, "endless.pdf"))
    for _ in range(5):
        assert await text_of(some, tide) == "The tide turned."
    assert not hostile.done()
    with pytest.raises(UnsupportedFile, match="4 seconds"):
        await hostile
    assert len(warm & set(children())) == 1
    assert await text_of(some, tide) == "The tide turned."


HOSTILE = {
    "page tree in itself": (tree_in_itself, "damaged"),
    "inline image without end": (image_without_end, "no text|damaged"),
    "cut in half": (cut_in_half, "cut off"),
    "no PDF at all": (lambda: b"hello", "not a PDF"),
}


@pytest.mark.parametrize(("made", "reason"), HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_damaged_pdf_is_refused_and_the_next_one_read(reader, tide, tmp_path, made, reason):
    (tmp_path / "x.pdf").write_bytes(made())
    one = reader(processes=1)
    refused, text = await asyncio.gather(
        one.read(tmp_path / "x.pdf", "x.pdf"), text_of(one, tide), return_exceptions=True
    )
    assert isinstance(refused, UnsupportedFile)
    assert re.search(reason, refused.message)
    assert text == "The tide turned."


async def test_a_form_that_draws_itself_gives_its_text(reader, tmp_path):
    (tmp_path / "x.pdf").write_bytes(form_in_itself())
    assert "A form in a form." in await text_of(reader(), tmp_path / "x.pdf")


async def test_too_much_memory_costs_the_file_and_is_named(reader, tide, tmp_path):
    (tmp_path / "bomb.txt").write_bytes(b"tide " * 20_000_000)
    one = reader(processes=1, max_memory_mb=256)
    with pytest.raises(UnsupportedFile, match="256 MiB of memory"):
        await one.read(tmp_path / "bomb.txt", "bomb.txt")
    assert await text_of(one, tide) == "The tide turned."


async def test_more_text_than_allowed_is_refused_with_the_limit(reader, tide):
    with pytest.raises(UnsupportedFile, match="at most 10 "):
        await reader(max_characters=10).read(tide, "tide.txt")


async def test_a_process_killed_while_it_reads_costs_one_file(reader, tide, endless):
    before = set(children())
    one = reader(processes=1, max_seconds=600)
    reading = asyncio.ensure_future(one.read(endless, "endless.pdf"))
    os.kill(await busy_child(one, before), signal.SIGKILL)
    with pytest.raises(UnsupportedFile, match="cannot be read"):
        await reading
    assert await text_of(one, tide) == "The tide turned."


async def test_a_process_killed_while_it_is_idle_costs_no_file(reader, tide):
    before = set(children())
    one = reader(processes=1)
    await one.read(tide, "tide.txt")
    (pid,) = set(children()) - before
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert await text_of(one, tide) == "The tide turned."
    assert pid not in children()


async def test_who_no_longer_waits_frees_the_place_at_once(reader, tide, endless):
    before = set(children())
    one = reader(processes=1, max_seconds=600)
    reading = asyncio.ensure_future(one.read(endless, "endless.pdf"))
    waiting = asyncio.ensure_future(text_of(one, tide))
    pid = await busy_child(one, before)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert pid not in children()
    assert await waiting == "The tide turned."


async def test_closing_ends_all_processes_and_does_not_blame_the_documents(reader, tide, endless):
    before = set(children())
    one = reader(processes=1, max_seconds=600)
    reading = asyncio.ensure_future(one.read(endless, "endless.pdf"))
    waiting = asyncio.ensure_future(one.read(tide, "tide.txt"))
    await busy_child(one, before)
    await one.close()
    assert set(children()) <= before
    for read in (reading, waiting):
        with pytest.raises(StoreUnavailable):
            await read
    assert set(children()) <= before


async def test_a_process_that_does_not_start_is_no_fault_of_the_document(reader, tide, tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    broken.chmod(0o700)
    monkeypatch.setattr(rag.reader.sys, "executable", str(broken))
    with pytest.raises(StoreUnavailable, match="could be started"):
        await reader().read(tide, "tide.txt")


async def test_a_process_is_replaced_before_its_libraries_have_leaked_much(reader, tide, monkeypatch):
    monkeypatch.setattr(rag.reader, "FILES_PER_PROCESS", 2)
    before = set(children())
    one = reader(processes=1)
    pids = []
    for _ in range(4):
        await one.read(tide, "tide.txt")
        pids.append(frozenset(set(children()) - before))
    assert pids[0]
    assert not pids[1]
    assert pids[2] not in (pids[0], frozenset())


async def test_a_process_that_reads_maps_no_model_cluster_or_database(reader, tmp_path):
    before = set(children())
    one = reader(processes=1)
    for name, data in {
        "a.pdf": text_pdf("The tide turned."),
        "b.html": b"<title>Lamps</title><h1>Oil</h1>They burn.",
        **{name: make() for name, make in SOUND.items()},
        "c.txt": "Žluťoučký kůň pěl ďábelské ódy. Příliš žluťoučký kůň.".encode("cp1250") * 20,
    }.items():
        (tmp_path / name).write_bytes(data)
        await one.read(tmp_path / name, name)
    (pid,) = set(children()) - before
    assert psutil.Process(pid).num_threads() == 1  # each thread of a library would take of the memory allowed
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    assert not [name for name in HEAVY if f"/site-packages/{name}/" in maps]


def test_the_reading_process_imports_neither_models_nor_cluster_nor_database():
    program = f"import rag.reader_process, sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_reading_process_ends_when_its_parent_is_gone():
    done = subprocess.run(
        [sys.executable, "-m", "rag.reader_process"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr == b""
