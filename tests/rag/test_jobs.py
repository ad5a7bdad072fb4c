from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import numpy as np
import pytest

from rag.errors import ModelFailed, UnsupportedFile
from rag.jobs import ATTEMPTS, PAUSES_S, JobRunner
from rag.settings import FileBatchParams
from rag.types import Chunk, ChunkingStrategy, Embeddings, ErrorCode, FileError, IngestedPart, IngestJob

ONE = Embeddings(np.zeros((1, 4), np.float32), np.ones(1, np.int32))


def part(ordinal: int = 0, total: int = 1) -> IngestedPart:
    return IngestedPart((Chunk(ordinal, "text", 1, 0, 4),), ONE, total, "plan")


DONE = [part()]
Key = tuple[str, str]


def job(store: str = "vs_1", file: str = "file-1", attempt: int = 1) -> IngestJob:
    return IngestJob(store, file, f"{file}.txt", ChunkingStrategy(), attempt)


class Rows:
    """A store of jobs in memory, as durable as the test."""

    def __init__(self, *jobs: IngestJob) -> None:
        self.pending = {(one.store_id, one.file_id): one for one in jobs}
        self.finished: list[Key] = []
        self.failed: dict[Key, FileError] = {}
        self.retried: list[tuple[str, int]] = []
        self.finish_raises: list[Exception] = []
        self.fail_raises: list[Exception] = []
        self.unwanted = False
        self.kept: dict[Key, int] = {}
        self._lock = threading.Lock()

    def pending_jobs(self) -> list[IngestJob]:
        return list(self.pending.values())

    def begin(self, job: IngestJob) -> IngestJob | None:
        return replace(job, kept=self.kept.get((job.store_id, job.file_id), 0))

    def keep(self, job: IngestJob, part: IngestedPart) -> bool:
        key = (job.store_id, job.file_id)
        with self._lock:
            if self.finish_raises:
                raise self.finish_raises.pop(0)
            self.kept[key] = part.chunks[-1].ordinal + 1
            if part.is_last and not self.unwanted:
                self.pending.pop(key, None)
                self.finished.append(key)
        return not self.unwanted

    def fail(self, job: IngestJob, error: FileError) -> None:
        if self.fail_raises:
            raise self.fail_raises.pop(0)
        self.pending.pop((job.store_id, job.file_id), None)
        self.failed[job.store_id, job.file_id] = error

    def retry(self, job: IngestJob) -> None:
        self.retried.append((job.file_id, job.attempt))


class Ingestor:
    """Answers by script, one entry a call; a gate holds every call until it is opened."""

    def __init__(self, *script: object, gate: asyncio.Event | None = None) -> None:
        self.script = list(script)
        self.gate = gate
        self.calls: list[Key] = []
        self.kept: list[int] = []
        self.running: Counter[Key] = Counter()
        self.most = 0
        self.begun = asyncio.Event()

    async def ingest(self, job: IngestJob) -> AsyncGenerator[IngestedPart, None]:
        key = (job.store_id, job.file_id)
        self.calls.append(key)
        self.kept.append(job.kept)
        self.running[key] += 1
        self.most = max(self.most, self.running.total())
        self.begun.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(0)
            answer = self.script.pop(0) if self.script else DONE
            for given in answer if isinstance(answer, list) else [answer]:
                if isinstance(given, Exception):
                    raise given
                yield given
        finally:
            self.running[key] -= 1


@pytest.fixture
async def runner():
    made: list[JobRunner] = []
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def make(rows: Rows, ingestor: object, **options: object) -> JobRunner:
        made.append(JobRunner(rows, ingestor, **{"pause": pause, **options}))
        made[-1].pauses = pauses
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


async def idle(runner: JobRunner) -> None:
    await until(lambda: runner.pending == 0)


# --- outcomes -------------------------------------------------------------------------------------------------------


async def test_a_job_is_ingested_and_finished(runner):
    rows = Rows(job())
    jobs = runner(rows, Ingestor())
    await jobs.resume()
    await jobs.wait("vs_1", "file-1", 60)
    assert (rows.finished, rows.failed, rows.retried, jobs.pending) == ([("vs_1", "file-1")], {}, [], 0)


async def test_a_file_that_cannot_be_read_fails_at_once_with_its_reason(runner):
    rows = Rows()
    ingestor = Ingestor(UnsupportedFile("It is a picture.", ErrorCode.UNSUPPORTED_FILE))
    jobs = runner(rows, ingestor)
    jobs.submit(job())
    await jobs.wait("vs_1", "file-1", 60)
    assert rows.failed == {("vs_1", "file-1"): FileError(ErrorCode.UNSUPPORTED_FILE, "It is a picture.")}
    assert len(ingestor.calls) == 1
    assert rows.retried == jobs.pauses == []


async def test_a_passing_fault_is_tried_again_and_every_attempt_is_put_on_record(runner):
    rows = Rows()
    ingestor = Ingestor(ConnectionError("gone"), ModelFailed("not finite"))
    jobs = runner(rows, ingestor)
    jobs.submit(job())
    await idle(jobs)
    assert rows.finished == [("vs_1", "file-1")]
    assert rows.retried == [("file-1", 1), ("file-1", 2)]
    assert jobs.pauses == list(PAUSES_S)


async def test_the_last_attempt_that_fails_fails_the_file_without_internals_in_the_message(runner):
    rows = Rows()
    ingestor = Ingestor(*[ConnectionError("10.0.0.7:6379 refused, secret=x")] * 9)
    jobs = runner(rows, ingestor)
    jobs.submit(job())
    await idle(jobs)
    assert len(ingestor.calls) == ATTEMPTS
    (error,) = rows.failed.values()
    assert error.code is ErrorCode.SERVER_ERROR
    assert "10.0.0.7" not in error.message
    assert "secret" not in error.message
    assert error.message.endswith(".")


async def test_a_fault_of_our_own_says_what_it_was(runner):
    rows = Rows()
    jobs = runner(rows, Ingestor(*[ModelFailed("The model's output is not finite.")] * 3))
    jobs.submit(job())
    await idle(jobs)
    (error,) = rows.failed.values()
    assert error == FileError(ErrorCode.SERVER_ERROR, "The model's output is not finite.")


async def test_attempts_before_a_restart_count(runner):
    rows = Rows(job(attempt=ATTEMPTS))
    ingestor = Ingestor(*[ConnectionError("gone")] * 9)
    jobs = runner(rows, ingestor)
    await jobs.resume()
    await idle(jobs)
    assert len(ingestor.calls) == 1
    assert rows.retried == []
    assert rows.failed[("vs_1", "file-1")].code is ErrorCode.SERVER_ERROR


async def test_a_job_without_attempts_left_fails_without_being_tried(runner):
    rows = Rows(job(attempt=ATTEMPTS + 1))
    ingestor = Ingestor()
    jobs = runner(rows, ingestor)
    await jobs.resume()
    await idle(jobs)
    assert ingestor.calls == []
    assert rows.failed[("vs_1", "file-1")].code is ErrorCode.SERVER_ERROR


async def test_a_file_that_is_no_longer_wanted_when_it_is_ready_is_no_fault(runner):
    rows = Rows()
    rows.unwanted = True
    jobs = runner(rows, Ingestor())
    jobs.submit(job())
    await idle(jobs)
    assert (rows.failed, rows.retried) == ({}, [])


async def test_a_write_that_fails_is_tried_again(runner):
    rows = Rows()
    rows.finish_raises = [OSError("disk full")]
    ingestor = Ingestor()
    jobs = runner(rows, ingestor)
    jobs.submit(job())
    await idle(jobs)
    assert rows.retried == [("file-1", 1)]
    assert rows.finished == [("vs_1", "file-1")]


async def test_a_store_that_cannot_even_record_a_failure_is_logged_and_other_jobs_go_on(runner, caplog):
    rows = Rows()
    rows.fail_raises = [OSError("disk full")]
    jobs = runner(rows, Ingestor(UnsupportedFile("no")), max_in_flight=1)
    jobs.submit(job())
    jobs.submit(job(file="file-2"))
    with caplog.at_level(logging.ERROR, "rag.jobs"):
        await idle(jobs)
    assert rows.finished == [("vs_1", "file-2")]
    assert "file-1" in caplog.text
    assert "disk full" in caplog.text


async def test_a_job_that_takes_longer_than_the_ceiling_fails(runner):
    rows = Rows()
    jobs = runner(rows, Ingestor(gate=asyncio.Event()), ceiling_s=0.01)
    jobs.submit(job())
    await idle(jobs)
    (error,) = rows.failed.values()
    assert error.code is ErrorCode.SERVER_ERROR
    assert "seconds" in error.message


async def test_a_timeout_within_an_attempt_is_a_passing_fault_not_the_ceiling(runner):
    rows = Rows()
    jobs = runner(rows, Ingestor(TimeoutError()))
    jobs.submit(job())
    await idle(jobs)
    assert rows.retried == [("file-1", 1)]
    assert rows.finished == [("vs_1", "file-1")]


# --- parts ----------------------------------------------------------------------------------------------------------


async def test_every_part_is_kept_in_order(runner):
    rows = Rows(job())
    jobs = runner(rows, Ingestor([part(0, 3), part(1, 3), part(2, 3)]))
    await jobs.resume()
    await idle(jobs)
    assert rows.finished == [("vs_1", "file-1")]
    assert rows.kept == {("vs_1", "file-1"): 3}


async def test_the_next_attempt_goes_on_behind_what_is_kept(runner):
    rows = Rows(job())
    ingestor = Ingestor([part(0, 3), part(1, 3), ConnectionError("gone")], [part(2, 3)])
    jobs = runner(rows, ingestor)
    await jobs.resume()
    await idle(jobs)
    assert ingestor.kept == [0, 2]
    assert rows.finished == [("vs_1", "file-1")]
    assert rows.retried == [("file-1", 1)]


async def test_an_ingestor_that_ends_early_is_a_fault(runner):
    rows = Rows(job())
    jobs = runner(rows, Ingestor([part(0, 3)], [], [part(1, 3), part(2, 3)]))
    await jobs.resume()
    await idle(jobs)
    assert rows.retried == [("file-1", 1), ("file-1", 2)]
    assert rows.finished == [("vs_1", "file-1")]


async def test_a_file_that_is_no_longer_wanted_is_read_no_further(runner):
    rows = Rows(job())
    rows.unwanted = True
    ingestor = Ingestor([part(0, 3), AssertionError("nobody wants this")])
    jobs = runner(rows, ingestor)
    await jobs.resume()
    await idle(jobs)
    assert (rows.failed, rows.retried) == ({}, [])
    assert ingestor.running.total() == 0


# --- waiting --------------------------------------------------------------------------------------------------------


async def test_a_job_that_is_submitted_twice_runs_once(runner):
    gate = asyncio.Event()
    rows = Rows(job())
    ingestor = Ingestor(gate=gate)
    jobs = runner(rows, ingestor)
    for _ in range(3):
        jobs.submit(job())
        await jobs.resume()
    await ingestor.begun.wait()
    jobs.submit(job())
    gate.set()
    await idle(jobs)
    assert ingestor.calls == [("vs_1", "file-1")]


async def test_waiting_ends_at_the_time_given_though_the_job_goes_on(runner):
    gate = asyncio.Event()
    rows = Rows()
    jobs = runner(rows, Ingestor(gate=gate))
    jobs.submit(job())
    await jobs.wait("vs_1", "file-1", 0.001)
    await jobs.wait("vs_1", "file-1", 0)
    await jobs.wait("vs_1", "file-1", -1)
    assert jobs.pending == 1
    assert rows.finished == []
    gate.set()
    await jobs.wait("vs_1", "file-1", 60)
    assert rows.finished == [("vs_1", "file-1")]


async def test_waiting_for_an_unknown_job_returns_at_once(runner):
    await runner(Rows(), Ingestor()).wait("vs_9", "file-9", 60)


async def test_a_waiter_that_is_cancelled_leaves_no_task_behind(runner):
    gate = asyncio.Event()
    ingestor = Ingestor(gate=gate)
    jobs = runner(Rows(), ingestor)
    jobs.submit(job())
    await ingestor.begun.wait()
    before = asyncio.all_tasks()
    waiter = asyncio.ensure_future(jobs.wait("vs_1", "file-1", 60))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert asyncio.all_tasks() == before
    gate.set()
    await idle(jobs)


# --- cancelling -----------------------------------------------------------------------------------------------------

CANCELS = {
    "one": lambda jobs: jobs.cancel("vs_1", "file-1"),
    "store": lambda jobs: jobs.cancel_store("vs_1"),
    "file": lambda jobs: jobs.cancel_file("file-1"),
}


@pytest.mark.parametrize("cancel", CANCELS.values(), ids=CANCELS.keys())
@pytest.mark.parametrize("in_flight", [1, 8], ids=["waiting", "running"])
async def test_a_cancelled_job_is_never_finished_and_its_waiter_is_woken(runner, cancel, in_flight):
    gate = asyncio.Event()
    rows = Rows()
    ingestor = Ingestor(gate=gate)
    jobs = runner(rows, ingestor, max_in_flight=in_flight)
    jobs.submit(job("vs_2", "file-2"))
    jobs.submit(job())
    await ingestor.begun.wait()
    waiter = asyncio.ensure_future(jobs.wait("vs_1", "file-1", 600))
    await asyncio.sleep(0)
    cancel(jobs)
    await waiter
    gate.set()
    await idle(jobs)
    assert rows.finished == [("vs_2", "file-2")]
    assert (rows.failed, rows.retried) == ({}, [])


async def test_cancelling_a_store_spares_the_same_file_elsewhere_and_a_file_the_rest_of_its_store(runner):
    gate = asyncio.Event()
    rows = Rows()
    jobs = runner(rows, Ingestor(gate=gate), max_in_flight=3)
    for store in ("vs_1", "vs_2", "vs_3"):
        for file in ("file-1", "file-2"):
            jobs.submit(job(store, file))
    await asyncio.sleep(0)
    jobs.cancel_store("vs_1")
    jobs.cancel_file("file-2")
    gate.set()
    await idle(jobs)
    assert sorted(rows.finished) == [("vs_2", "file-1"), ("vs_3", "file-1")]


async def test_a_file_may_be_submitted_anew_while_its_cancelled_job_is_still_ending(runner):
    gate = asyncio.Event()
    ending = asyncio.Event()

    class SlowToEnd(Ingestor):
        async def ingest(self, job: IngestJob) -> AsyncGenerator[IngestedPart, None]:
            try:
                async for given in super().ingest(job):
                    yield given
            except asyncio.CancelledError:
                ending.set()
                await gate.wait()
                raise

    rows = Rows()
    ingestor = SlowToEnd(gate=gate)
    jobs = runner(rows, ingestor)
    jobs.submit(job())
    await ingestor.begun.wait()
    jobs.cancel("vs_1", "file-1")
    jobs.submit(job())
    await ending.wait()
    await until(lambda: len(ingestor.calls) == 2)
    gate.set()
    await jobs.wait("vs_1", "file-1", 60)
    assert rows.finished == [("vs_1", "file-1")]
    assert jobs.pending == 0


# --- order ----------------------------------------------------------------------------------------------------------


async def test_a_store_with_a_hundred_files_does_not_starve_another(runner):
    rows = Rows()
    ingestor = Ingestor()
    jobs = runner(rows, ingestor, max_in_flight=1)
    for number in range(100):
        jobs.submit(job("vs_big", f"file-{number}"))
    for number in range(3):
        jobs.submit(job("vs_small", f"file-{number}"))
    await idle(jobs)
    order = [store for store, _ in ingestor.calls]
    assert len(order) == 103
    assert [place for place, store in enumerate(order) if store == "vs_small"] == [2, 4, 6]
    big = [file for store, file in ingestor.calls if store == "vs_big"]
    assert big == [f"file-{number}" for number in range(100)]


async def test_no_more_jobs_run_at_once_than_allowed(runner):
    rows = Rows(*(job(f"vs_{number % 7}", f"file-{number}") for number in range(40)))
    ingestor = Ingestor(*[ConnectionError("gone")] * 2)
    jobs = runner(rows, ingestor, max_in_flight=4)
    await jobs.resume()
    await idle(jobs)
    assert ingestor.most == 4
    assert len(rows.finished) == 40


def batched(batch: str, file: str) -> IngestJob:
    return replace(job("vs_1", file), batch_id=batch)


async def test_of_one_batch_no_more_files_run_at_once_than_allowed_and_others_do(runner):
    gate = asyncio.Event()
    ingestor = Ingestor(gate=gate)
    rows = Rows()
    jobs = runner(rows, ingestor, batches=FileBatchParams(max_concurrent_files_per_batch=2), max_in_flight=6)
    for number in range(9):
        jobs.submit(batched("vsfb_1", f"file-a{number}"))
        jobs.submit(batched("vsfb_2", f"file-b{number}"))
        jobs.submit(job("vs_1", f"file-c{number}"))
    await until(lambda: ingestor.running.total() == 6)
    kinds = Counter(file[5] for _, file in ingestor.calls)
    assert kinds == {"a": 2, "b": 2, "c": 2}
    gate.set()
    await idle(jobs)
    assert len(rows.finished) == 27


async def test_so_many_files_of_a_batch_are_taken_before_it_is_the_next_ones_turn(runner):
    ingestor = Ingestor()
    jobs = runner(Rows(), ingestor, batches=FileBatchParams(file_batch_chunk_size=3), max_in_flight=1)
    for number in range(7):
        jobs.submit(batched("vsfb_1", f"file-a{number}"))
        jobs.submit(batched("vsfb_2", f"file-b{number}"))
    await idle(jobs)
    assert "".join(file[5] for _, file in ingestor.calls) == "abbbaaabbbaaab"  # the first one ran at once


async def test_a_cancelled_batch_leaves_the_others_alone(runner):
    gate = asyncio.Event()
    rows = Rows()
    ingestor = Ingestor(gate=gate)
    jobs = runner(rows, ingestor, max_in_flight=2)
    for number in range(4):
        jobs.submit(batched("vsfb_1", f"file-a{number}"))
        jobs.submit(batched("vsfb_2", f"file-b{number}"))
    await ingestor.begun.wait()
    jobs.cancel_batch("vsfb_1")
    gate.set()
    await idle(jobs)
    assert sorted(file for _, file in rows.finished) == [f"file-b{number}" for number in range(4)]


# --- closing --------------------------------------------------------------------------------------------------------


async def test_closing_wakes_waiters_and_leaves_jobs_pending_for_the_next_runner(runner):
    rows = Rows(*(job("vs_1", f"file-{number}") for number in range(6)))
    ingestor = Ingestor(gate=asyncio.Event())
    jobs = runner(rows, ingestor, max_in_flight=2)
    await jobs.resume()
    await ingestor.begun.wait()
    waiters = [asyncio.ensure_future(jobs.wait("vs_1", f"file-{number}", 600)) for number in range(6)]
    await asyncio.sleep(0)
    await jobs.close()
    await asyncio.gather(*waiters)
    assert (rows.finished, rows.failed, rows.retried) == ([], {}, [])
    assert jobs.pending == ingestor.running.total() == 0
    jobs.submit(job())
    assert jobs.pending == 0

    heir = runner(rows, Ingestor())
    await heir.resume()
    await idle(heir)
    assert sorted(rows.finished) == [("vs_1", f"file-{number}") for number in range(6)]
    assert rows.pending == {}


async def test_closing_twice_or_without_work_is_fine(runner):
    jobs = runner(Rows(), Ingestor())
    await jobs.close()
    await jobs.close()
    await jobs.wait("vs_1", "file-1", 60)
