"""The replica that speaks HTTP: whom it serves, and what it puts on an answer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.types import Message, Receive, Scope, Send

from deployments.ingress import IngressDeployment, without_request_id
from deployments.settings import Settings

Plain = IngressDeployment.__mro__[1]  # without Serve's wrapper


@pytest.mark.parametrize("host", ["0.0.0.0", None])
def test_where_serve_listens_decides_whatever_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str | None
):
    monkeypatch.delenv("FLORILEGIUM_API__KEYS", raising=False)
    where = SimpleNamespace(http_config=SimpleNamespace(host="127.0.0.1"))
    monkeypatch.setattr("deployments.ingress._get_global_client", lambda: where)
    settings = Settings(data_dir=tmp_path)
    Plain(settings, None, None, None)
    where.http_config.host = host
    with pytest.raises(ValueError, match="no API key"):
        Plain(settings, None, None, None)


async def test_an_answer_leaves_with_the_request_id_to_serve():
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"1"), (b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"text"})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    await without_request_id(app)({"type": "http"}, receive, send)
    assert sent[0]["headers"] == [(b"a", b"b")]
    assert sent[1]["body"] == b"text"
