"""The dense index of one vector store as immutable generations: readers take one and never lock.

A generation holds two segments: `main`, and a short `tail` of new chunks that is cheap to copy when it grows. Deleted
chunks are masked, and dropped when the main segment is built anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rag.types import Attributes, Float32, Int64, VectorStoreRecord
from storage.dense import DenseIndex, Float16, Mask

IndexFactory = Callable[[Float16], DenseIndex]

MAX_DEAD_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Rows:
    """Chunks with their vectors: `ids` int64 (n,), ascending; `attachments` int64 (n,); `vectors` float16 (n, d)."""

    ids: Int64
    attachments: Int64
    vectors: Float16

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """What a hit says about its file."""

    store_id: str
    file_id: str
    filename: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Scored:
    """A chunk that was found: `score` is the inner product with query `query_index`."""

    chunk_id: int
    score: float
    query_index: int


@dataclass(frozen=True, slots=True)
class Segment:
    """An index and what its rows are: by chunk id, and in `runs` of one attachment, which may have several."""

    index: DenseIndex
    ids: Int64
    run_attachments: Int64  # (runs,)
    run_lengths: Int64  # (runs,)
    run_live: Mask  # (runs,)

    @classmethod
    def build(cls, rows: Rows, make: IndexFactory) -> Segment:
        """Every row alive."""
        starts = np.flatnonzero(np.diff(rows.attachments, prepend=-1)).astype(np.int64)
        lengths = np.diff(starts, append=len(rows)).astype(np.int64)
        live = np.ones(len(starts), np.bool_)
        return cls(make(rows.vectors), rows.ids, rows.attachments[starts], lengths, live)

    @property
    def dead(self) -> int:
        """How many rows are deleted."""
        return int(self.run_lengths[~self.run_live].sum())

    def without(self, attachment: int) -> Segment:
        """The rows of the attachment deleted."""
        return replace(self, run_live=self.run_live & (self.run_attachments != attachment))

    def live_rows(self) -> Rows:
        """A copy of what is not deleted."""
        alive = np.repeat(self.run_live, self.run_lengths)
        attachments = np.repeat(self.run_attachments, self.run_lengths)
        return Rows(self.ids[alive], attachments[alive], self.index.take(alive))

    def search(self, queries: Float32, limit: int, attachments: Int64 | None) -> tuple[Float32, Int64]:
        """Scores and chunk ids, both (q, k)."""
        runs = self.run_live
        if attachments is not None:
            runs = runs & np.isin(self.run_attachments, attachments)
        allowed = None if runs.all() else np.repeat(runs, self.run_lengths)
        scores, rows = self.index.search(queries, limit, allowed)
        return scores, self.ids[rows]


@dataclass(frozen=True, slots=True)
class Generation:
    """All chunks of a vector store at one moment, and by attachment the files that they come from."""

    main: Segment
    tail: Segment
    files: Mapping[int, AttachedFile]
    make_main: IndexFactory
    make_tail: IndexFactory
    max_tail: int

    @classmethod
    def build(
        cls,
        rows: Rows,
        files: Mapping[int, AttachedFile],
        *,
        make_main: IndexFactory,
        make_tail: IndexFactory,
        max_tail: int,
    ) -> Generation:
        """Everything in the main segment."""
        empty = Rows(rows.ids[:0], rows.attachments[:0], rows.vectors[:0])
        main, tail = Segment.build(rows, make_main), Segment.build(empty, make_tail)
        return cls(main, tail, files, make_main, make_tail, max_tail)

    @property
    def segments(self) -> tuple[Segment, Segment]:
        return self.main, self.tail

    @property
    def dead(self) -> int:
        """How many deleted chunks still take up room."""
        return self.main.dead + self.tail.dead

    def __len__(self) -> int:
        return len(self.main.ids) + len(self.tail.ids) - self.dead

    @property
    def ids(self) -> Int64:
        """The chunks that can be found, int64 (n,)."""
        return np.concatenate([segment.live_rows().ids for segment in self.segments])

    def with_file(self, attachment: int, file: AttachedFile, rows: Rows) -> Generation:
        """With a new attachment and its chunks."""
        grown = self.with_attributes(attachment, file)
        tail = _join([self.tail.live_rows(), rows])
        if len(tail) > self.max_tail:
            return grown._rebuilt([self.main.live_rows(), tail])
        return replace(grown, tail=Segment.build(tail, self.make_tail))

    def with_attributes(self, attachment: int, file: AttachedFile) -> Generation:
        """With other words about a file."""
        return replace(self, files={**self.files, attachment: file})

    def without(self, attachment: int) -> Generation:
        """Without an attachment and its chunks."""
        smaller = replace(
            self,
            main=self.main.without(attachment),
            tail=self.tail.without(attachment),
            files={key: file for key, file in self.files.items() if key != attachment},
        )
        if smaller.dead <= max(self.max_tail, MAX_DEAD_SHARE * len(smaller)):
            return smaller
        return smaller._rebuilt([segment.live_rows() for segment in smaller.segments])

    def _rebuilt(self, parts: Iterable[Rows]) -> Generation:
        return Generation.build(
            _join(parts), self.files, make_main=self.make_main, make_tail=self.make_tail, max_tail=self.max_tail
        )

    def search(self, queries: Float32, limit: int, attachments: Int64 | None) -> list[Scored]:
        """The best `limit` chunks over all `queries`, each chunk once with the query that it matches best.

        `attachments`, int64, names those whose chunks may be found; None for all.
        """
        found = [segment.search(queries, limit, attachments) for segment in self.segments]
        scores = np.concatenate([part[0] for part in found], axis=1)
        ids = np.concatenate([part[1] for part in found], axis=1)
        asked = np.broadcast_to(np.arange(len(queries))[:, None], ids.shape)
        scores, ids, asked = scores.ravel(), ids.ravel(), asked.ravel()
        order = np.lexsort((asked, ids, -scores))
        _, first = np.unique(ids[order], return_index=True)
        winners = order[np.sort(first)[:limit]]
        return [Scored(int(ids[i]), float(scores[i]), int(asked[i])) for i in winners]


def _join(parts: Iterable[Rows]) -> Rows:
    rows = list(parts)
    ids = np.concatenate([part.ids for part in rows])
    attachments = np.concatenate([part.attachments for part in rows])
    vectors = np.concatenate([part.vectors for part in rows])
    if np.all(ids[:-1] < ids[1:]):
        return Rows(ids, attachments, vectors)
    order = np.argsort(ids)  # of a file that was kept in parts, while others were completed
    return Rows(ids[order], attachments[order], vectors[order])


Change = Callable[[Generation], Generation]


class StoreIndex:
    """The reference to a vector store's current generation, and what the store says of itself.

    Everything but reading `generation` happens on the write thread, so that changes apply in the order of commits.
    """

    def __init__(self, record: VectorStoreRecord) -> None:
        self.loading = threading.Lock()
        self.record = record  # uncounted, and its last use is that of some moment
        self.generation: Generation | None = None
        self._missed: list[Change] | None = None

    def begin_loading(self) -> None:
        """From now on changes are kept for the generation that is being loaded."""
        self._missed = []

    def install(self, generation: Generation | None) -> Generation | None:
        """Publish what was loaded, with the changes since, and give it; None gives up."""
        missed, self._missed = self._missed or [], None
        if generation is not None:
            for change in missed:
                generation = change(generation)
        self.generation = generation
        return generation

    def apply(self, change: Change) -> None:
        """Publish a committed change, if anybody has looked at this index yet."""
        if self._missed is not None:
            self._missed.append(change)
        current = self.generation
        self.generation = None if current is None else self._changed(current, change)

    def _changed(self, current: Generation, change: Change) -> Generation:
        try:
            return change(current)
        except BaseException:
            self.generation = None  # it is loaded again from the database at the next search
            raise
