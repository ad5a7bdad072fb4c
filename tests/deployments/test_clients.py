"""Handles in, protocols out: what Ray reports becomes one of our own errors."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from deployments.clients import RemoteEmbedder, RemoteStores, call, translate
from rag import errors, protocols
from rag.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
    RagError,
    Retryable,
    StoreUnavailable,
    UnsupportedFile,
)
from rag.types import Embeddings, ErrorCode, PageRequest


def error_classes(root: type[RagError] = RagError) -> Iterator[type[RagError]]:
    if root.__module__ == errors.__name__:  # Ray makes further subclasses as it goes
        yield root
        for child in root.__subclasses__():
            yield from error_classes(child)


def test_every_error_survives_pickling_with_all_it_says():
    for cls in error_classes():
        if issubclass(cls, Retryable):
            error: RagError = cls("words", 7)
        elif issubclass(cls, UnsupportedFile):
            error = cls("words", ErrorCode.UNSUPPORTED_FILE)
        else:
            error = cls("words", "param", "code")
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is cls
        assert vars(copy) == vars(error)
        assert str(copy) == "words"


def test_every_error_is_drawn_in_the_tree():
    assert errors.__doc__ is not None
    drawn = {cls.__name__ for cls in error_classes()} - {"Retryable"}
    assert all(name in errors.__doc__ for name in drawn)


def wrapped(error: Exception) -> RayTaskError:
    return RayTaskError("embed", "Traceback ...", error).as_instanceof_cause()


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (BackPressureError(num_queued_requests=5, max_queued_requests=5), Overloaded),
        (ActorDiedError(), StoreUnavailable),
        (DeploymentUnavailableError("x"), StoreUnavailable),
        (TimeoutError(), StoreUnavailable),
        (wrapped(NotFound("No such File object: file-1", "id")), NotFound),
        (TaskCancelledError(), asyncio.CancelledError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_what_ray_reports_is_translated(reported: Exception, expected: type[BaseException]):
    error = translate(reported, "embedder")
    assert type(error) is expected
    if isinstance(error, RagError):
        assert "Traceback" not in error.message


async def test_an_error_behind_a_handle_keeps_its_words_and_its_parameter():
    async def answer() -> None:
        raise wrapped(InvalidRequest("too long", "input[3]", "string_above_max_length"))

    with pytest.raises(InvalidRequest) as raised:
        await call(answer(), "embedder")
    assert (str(raised.value), raised.value.param, raised.value.code) == (
        "too long",
        "input[3]",
        "string_above_max_length",
    )


class Handle:
    """An object whose methods have `.remote`, as a handle's do."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        handle = self

        class Method:
            @staticmethod
            async def remote(*args: Any, **kwargs: Any) -> Any:
                handle.asked.append((name, args, kwargs))
                answer = handle._answers[name]
                return answer(*args) if callable(answer) else answer

        return Method


async def test_texts_embedded_at_once_share_a_hop_and_fail_apart():
    def embed_all(calls: Any) -> list[Any]:
        return [
            InvalidRequest("empty", "input") if not each.texts[0] else Embeddings(np.ones((1, 2)), np.ones(1))
            for each in calls
        ]

    handle = Handle(embed_all=embed_all)
    embedder = RemoteEmbedder(handle)  # type: ignore[arg-type]
    answers = await asyncio.gather(*(embedder.embed([text]) for text in ("a", "b", "", "c")), return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Embeddings", "Embeddings", "InvalidRequest", "Embeddings"]
    assert len(handle.asked) < 4


async def test_the_stores_client_offers_the_whole_protocol():
    handle = Handle(get_store="a store", list_files="a page")
    stores = RemoteStores(handle)  # type: ignore[arg-type]
    assert await stores.get_store("anna", "vs_1") == "a store"
    assert await stores.list_files("anna", PageRequest()) == "a page"
    for name, method in inspect.getmembers(protocols.VectorStores, inspect.isfunction):
        if not name.startswith("_"):
            mine = inspect.signature(getattr(RemoteStores, name))
            assert list(mine.parameters) == list(inspect.signature(method).parameters), name
