"""Every error is OpenAI's error object, whatever went wrong and wherever."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator

import httpx
import pytest

from deployments.api.errors import STATUSES, answer
from rag import errors
from rag.errors import NotFound, Overloaded, RagError, UnsupportedFile
from rag.types import ErrorCode
from tests.deployments.api.world import MODEL, MakeWorld, World

JSON = {"content-type": "application/json"}


def tree(cls: type[RagError] = RagError) -> Iterator[type[RagError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def the_error(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert isinstance(body["error"]["message"], str)
    return body["error"]


def test_every_error_has_a_status_of_its_own() -> None:
    assert set(tree()) == set(STATUSES)


@pytest.mark.parametrize("cls", list(tree()))
def test_every_error_answers_and_survives_a_journey(cls: type[RagError]) -> None:
    error = pickle.loads(pickle.dumps(cls("what happened")))
    response = answer(error)
    assert response.status_code == STATUSES[cls][0]
    assert b"what happened" in response.body
    assert ("retry-after" in response.headers) == (response.status_code in (429, 503) and hasattr(error, "retry_after"))


def test_an_error_that_another_process_wrapped_keeps_its_words() -> None:
    class Wrapped(NotFound):
        """As such wrappers are: ours by class, a traceback by text."""

        def __init__(self, cause: RagError) -> None:
            super().__init__("Traceback (most recent call last): ...")
            self.cause = cause

    body = answer(Wrapped(NotFound("No such store.", "vector_store_id"))).body
    assert b"No such store." in body
    assert b"Traceback" not in body


def test_an_unknown_child_answers_as_its_parent() -> None:
    class Special(Overloaded):
        pass

    response = answer(Special("full", 9))
    assert (response.status_code, response.headers["retry-after"]) == (429, "9")


def test_a_file_at_fault_has_its_reason_as_code() -> None:
    assert b'"code":"unsupported_file"' in answer(UnsupportedFile("no", ErrorCode.UNSUPPORTED_FILE)).body


async def test_unknown_addresses_and_methods(http: httpx.AsyncClient) -> None:
    for path in ("/", "/v1", "/v1/embeddings/", "/v1/vector_stores/a%2Fb/nope", "/v1/nope", "/docs"):
        the_error(await http.get(path), 404)
    wrong = await http.put("/v1/models")
    the_error(wrong, 405)
    assert wrong.headers["allow"] == "GET"
    for path, methods in (("", "GET, POST"), ("/vs_a", "DELETE, GET, POST"), ("/vs_a/file_batches", "POST")):
        several = await http.request("OPTIONS", f"/v1/vector_stores{path}")
        the_error(several, 405)
        assert several.headers["allow"] == methods


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe{}",
        b'{"model":"m","input":"\xff"}',
        b'{"model":"m","input":"\\ud800"}',
        b'{"model":"m","input":NaN}',
        b'{"model":"m","input":"a","dimensions":-Infinity}',
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
async def test_a_malformed_body_is_the_callers_fault(http: httpx.AsyncClient, body: bytes) -> None:
    for path in ("/v1/embeddings", "/v1/rerank", "/v1/vector_stores/vs_a/search"):
        the_error(await http.post(path, content=body, headers=JSON), 400)


async def test_a_repeated_member_counts_once_and_deep_unknown_members_are_harmless(http: httpx.AsyncClient) -> None:
    deep = b"[" * 100 + b"]" * 100
    body = b'{"model":"x","model":"%s","input":"a","foo":%s}' % (MODEL.encode(), deep)
    assert (await http.post("/v1/embeddings", content=body, headers=JSON)).status_code == 200


async def test_a_body_without_its_content_type_is_told_what_to_send(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/embeddings", content=b'{"model":"m","input":"a"}')
    assert "application/json" in the_error(response, 400)["message"]


async def test_a_missing_parameter_is_named(http: httpx.AsyncClient) -> None:
    error = the_error(await http.post("/v1/embeddings", json={"input": "a"}), 400)
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


async def test_a_body_over_the_limit_is_413(make_world: MakeWorld) -> None:
    async def pieces() -> object:
        for _ in range(100):
            yield b" " * 1000

    async with make_world(max_body_bytes=2000).http() as http:
        declared = await http.post("/v1/embeddings", json={"model": MODEL, "input": "a" * 3000})
        chunked = await http.post("/v1/embeddings", content=pieces(), headers=JSON)
        assert (await http.post("/v1/embeddings", json={"model": MODEL, "input": "a"})).status_code == 200
        nonsense = await http.post("/v1/embeddings", content=b"{}", headers=JSON | {"content-length": "+2"})
    for response in (declared, chunked):
        assert "2000" in the_error(response, 413)["message"]
    the_error(nonsense, 400)


async def test_the_unexpected_tells_nothing_and_is_logged_with_its_request(
    world: World, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: object, **__: object) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(world.embedder, "embed", crash)
    with caplog.at_level(logging.ERROR):
        response = await http.post("/v1/embeddings", json={"model": MODEL, "input": "a"})
    assert "secret" not in the_error(response, 500)["message"]
    assert "the secret inside" in caplog.text
    assert response.headers["x-request-id"] in caplog.text
