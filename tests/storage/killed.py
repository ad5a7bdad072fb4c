"""A process that writes until it is killed: `python -m tests.storage.killed DATA_DIR POINT`.

It prints every write before it begins and when it is acknowledged. POINT names the place where the process kills
itself, or is a seed for random writes that go on until somebody else kills it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from rag.types import NewAttachment, PageRequest
from storage.database import Database
from storage.generations import StoreIndex
from storage.layout import ShardLayout
from storage.local import LocalStores
from storage.settings import StorageSettings
from tests.storage.made import MODEL, OWNER, STORE, axis, file_record, ingested, job, store_record, units

FILES = [f"file-{number}" for number in range(10)]
EVERYTHING = PageRequest(limit=100)


def die(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def say(*words: str) -> None:
    print(*words, flush=True)


def write(stores: LocalStores, action: str, file_id: str) -> None:
    say("begin", action, file_id)
    if action == "remove":
        stores.detach(OWNER, STORE, file_id)
    else:
        if action == "add":
            stores.attach(OWNER, STORE, NewAttachment(file_id))
        stores.keep(job(file_id), ingested(units(np.random.default_rng(FILES.index(file_id)), 3)))
    say("done", action, file_id)


def prepare(path: Path) -> LocalStores:
    """The first time: ten files, five of them attached. Always: an index that searches use."""
    stores = LocalStores(path, StorageSettings(lock_wait_s=0), threads=1)
    if not stores.list_stores(OWNER, EVERYTHING).items:
        stores.create_store(store_record())
        for file_id in FILES:
            stores.create_file(file_record(file_id))
        for file_id in FILES[:5]:
            write(stores, "add", file_id)
    stores.search(OWNER, STORE, axis(0), model=MODEL, limit=1)
    return stores


def checkpoint_and_die_inside(stores: LocalStores, path: Path) -> None:
    """Die as soon as the database file begins to change."""
    for file_id in FILES[5:]:
        write(stores, "add", file_id)
    database = ShardLayout(path).database
    before = database.stat().st_mtime_ns

    def watch() -> None:
        while database.stat().st_mtime_ns == before:
            continue
        die()

    threading.Thread(target=watch, daemon=True).start()
    stores.checkpoint()
    die()


def write_at_random(stores: LocalStores, seed: int) -> None:
    choose = random.Random(seed)
    while True:
        file_id = choose.choice(FILES)
        attached = {item.file_id for item in stores.list_attachments(OWNER, STORE, EVERYTHING).items}
        write(stores, "remove" if file_id in attached else "add", file_id)
        if choose.random() < 0.1:
            stores.checkpoint()


PLACES: dict[str, tuple[type, str]] = {
    "before-commit": (Database, "commit"),
    "between-commit-and-ledger": (Database, "_write_ledger"),
    "before-publishing": (StoreIndex, "apply"),
}


def main(path: Path, point: str) -> None:
    stores = prepare(path)
    say("ready")
    if point == "checkpoint":
        checkpoint_and_die_inside(stores, path)
    if point.isdigit():
        write_at_random(stores, int(point))
    place, action = point.split(":")
    stores.attach(OWNER, STORE, NewAttachment("file-7"))
    setattr(*PLACES[place], die)
    write(stores, action, "file-1" if action == "remove" else "file-7")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
