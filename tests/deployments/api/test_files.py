"""/v1/files: uploads that stream, in every form that clients send them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from deployments.api.forms import Form, Part
from rag.errors import InvalidRequest
from tests.deployments.api.world import MakeWorld, World

MIB = 1024 * 1024
BOUNDARY = "frontier"


def part(name: str, value: bytes, filename: str | None = None, extra: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
    if filename is not None:
        head += f'; filename="{filename}"'
    return f"{head}{extra}\r\n\r\n".encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


async def post(http: httpx.AsyncClient, content: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"} | headers
    return await http.post("/v1/files", content=content, headers=headers)


async def refused(http: httpx.AsyncClient, *parts: bytes) -> dict:
    response = await post(http, form(*parts))
    assert response.status_code == 400, response.text
    return response.json()["error"]


TEXT = part("file", b"night ferry", "a.txt")
PURPOSE = part("purpose", b"assistants")


# --- through the official client ------------------------------------------------------------------------------------


async def test_a_file_lives_from_upload_to_deletion(world: World, client: AsyncOpenAI) -> None:
    made = await client.files.create(file=("night ferry.txt", b"leaves at nine"), purpose="assistants")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", 14, "night ferry.txt", "assistants")
    assert made.id.startswith("file-")
    assert (await client.files.wait_for_processing(made.id)).status == "processed"
    assert await client.files.retrieve(made.id) == made
    assert (await client.files.content(made.id)).content == b"leaves at nine"
    assert (await client.files.delete(made.id)).deleted
    assert list(world.blobs.folder.iterdir()) == []
    for attempt in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            await attempt(made.id)
    assert caught.value.param == "id"


@pytest.mark.parametrize("name", ["зимний паром.txt", "a;b=c.txt", "tide (2).md", "no extension", "pa/th", "🚢.txt"])
async def test_a_name_is_kept_as_it_was_given(client: AsyncOpenAI, name: str) -> None:
    made = await client.files.create(file=(name, b"x"), purpose="user_data")
    assert made.filename == name
    assert (await client.files.content(made.id)).content == b"x"


async def test_an_expiry_is_taken_in_both_forms(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    made = await client.files.create(
        file=("a.txt", b"x"), purpose="assistants", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at == made.created_at + 3600
    expiry = part("expires_after", b'{"anchor":"created_at","seconds":7200}')
    answer = (await post(http, form(TEXT, PURPOSE, expiry))).json()
    assert answer["expires_at"] == answer["created_at"] + 7200


async def test_files_are_listed_by_purpose(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    for purpose in ("assistants", "batch", "assistants"):
        await client.files.create(file=("a.txt", b"x"), purpose=purpose)
    assert len([file async for file in client.files.list(purpose="assistants", limit=1)]) == 2
    assert len((await client.files.list()).data) == 3
    for limit in (0, 10_001):
        assert (await http.get("/v1/files", params={"limit": limit})).status_code == 400


async def test_content_is_never_shown_as_a_page_of_ours(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    made = await client.files.create(file=("page.html", b"<script>alert(1)</script>"), purpose="assistants")
    headers = (await http.get(f"/v1/files/{made.id}/content")).headers
    assert headers["content-disposition"].startswith("attachment")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"].startswith("text/html")


# --- forms ----------------------------------------------------------------------------------------------------------


async def test_the_order_of_fields_does_not_matter(http: httpx.AsyncClient) -> None:
    for order in ((TEXT, PURPOSE), (PURPOSE, TEXT), (part("note", b"x" * 100_000, "n.bin"), TEXT, PURPOSE)):
        response = await post(http, form(*order))
        assert (response.status_code, response.json()["bytes"]) == (200, 11)


async def test_the_extended_form_of_a_name_is_understood(http: httpx.AsyncClient) -> None:
    file = part("file", b"x", "fallback.txt", "; filename*=UTF-8''f%C3%A6rge.txt")
    assert (await post(http, form(file, PURPOSE))).json()["filename"] == "færge.txt"


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ((PURPOSE,), "file"),
        ((TEXT,), "purpose"),
        ((TEXT, part("purpose", b"homework")), "purpose"),
        ((TEXT, TEXT, PURPOSE), "file"),
        ((part("file", b"text"), PURPOSE), "file"),
        ((part("file", b"", "empty.txt"), PURPOSE), "file"),
        ((part("file", b"hello", "x.pdf"), PURPOSE), "file"),
        ((part("file", b"x", "a\x07.txt"), PURPOSE), "file"),
        ((TEXT, part("purpose", b"p" * 20_000)), "purpose"),
        ((TEXT, PURPOSE, part("expires_after", b"soon")), "expires_after"),
        ((TEXT, PURPOSE, part("expires_after", b"[1]")), "expires_after"),
        ((TEXT, PURPOSE, part("expires_after[seconds]", b"3600")), "expires_after.anchor"),
        ((TEXT, PURPOSE, part("expires_after[anchor]", b"created_at")), "expires_after.seconds"),
        (
            (
                *(TEXT, PURPOSE, part("expires_after[anchor]", b"created_at")),
                part("expires_after[seconds]", b"9" * 5000),
            ),
            "expires_after.seconds",
        ),
        ((TEXT, PURPOSE, part("expires_after", b'{"anchor":"created_at","seconds":1}')), "expires_after.seconds"),
        ((TEXT, PURPOSE, part("expires_after", b'{"anchor":"created_at","seconds":true}')), "expires_after.seconds"),
    ],
)
async def test_a_bad_form_names_the_field_and_leaves_nothing(
    world: World, http: httpx.AsyncClient, parts: tuple[bytes, ...], param: str
) -> None:
    assert (await refused(http, *parts))["param"] == param
    assert list(world.blobs.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (form(TEXT, PURPOSE)[:-20], f"multipart/form-data; boundary={BOUNDARY}"),
        (b"", f"multipart/form-data; boundary={BOUNDARY}"),
        (b"no form at all", f"multipart/form-data; boundary={BOUNDARY}"),
        (form(TEXT, PURPOSE), "multipart/form-data"),
        (form(TEXT, PURPOSE), f"multipart/form-data; boundary={'b' * 300}"),
        (form(TEXT, PURPOSE), "application/json"),
        (form(b"--frontier\r\nContent-Disposition: form-data\r\n\r\nx\r\n"), "multipart/form-data; boundary=frontier"),
        (form(part("purpose", b"\xff")), f"multipart/form-data; boundary={BOUNDARY}"),
    ],
)
async def test_a_broken_form_is_refused_and_leaves_nothing(
    world: World, http: httpx.AsyncClient, content: bytes, content_type: str
) -> None:
    response = await http.post("/v1/files", content=content, headers={"content-type": content_type})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "invalid_form"
    assert list(world.blobs.folder.iterdir()) == []


@settings(max_examples=200)
@given(
    values=st.lists(st.tuples(st.booleans(), st.binary(max_size=60) | st.just(b"\r\n--frontie")), max_size=5),
    cuts=st.lists(st.integers(1, 40), min_size=1),
)
async def test_parts_come_out_as_they_went_in_however_they_are_cut(
    values: list[tuple[bool, bytes]], cuts: list[int]
) -> None:
    values = [(skipped, value) for skipped, value in values if b"\r\n--frontier" not in b"\r\n" + value]
    body = form(*(part(f"p{i}", value, f"{i}.bin") for i, (_, value) in enumerate(values)))

    async def pieces() -> AsyncIterator[bytes]:
        at = turn = 0
        while at < len(body):
            yield body[at : at + cuts[turn % len(cuts)]]
            at, turn = at + cuts[turn % len(cuts)], turn + 1

    found: list[tuple[Part, bytes]] = []
    reader = Form(f"multipart/form-data; boundary={BOUNDARY}", pieces())
    async for each in reader.parts():
        skipped, value = values[len(found)]
        found.append((each, value if skipped else b"".join([piece async for piece in reader.data()])))
    assert found == [(Part(f"p{i}", f"{i}.bin"), value) for i, (_, value) in enumerate(values)]


async def test_a_form_that_stops_is_an_error_of_the_caller() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        return
        yield b""

    with pytest.raises(InvalidRequest, match="closing boundary"):
        async for _ in Form(f"multipart/form-data; boundary={BOUNDARY}", nothing()).parts():
            pass


async def test_a_caller_who_leaves_in_the_middle_leaves_nothing(world: World, http: httpx.AsyncClient) -> None:
    body = form(part("file", b"night ferry", "a.txt"), PURPOSE)
    messages = [
        {"type": "http.request", "body": body[:-40], "more_body": True},
        {"type": "http.disconnect"},
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/files",
        "query_string": b"",
        "headers": [(b"content-type", f"multipart/form-data; boundary={BOUNDARY}".encode())],
    }
    sent: list[dict] = []

    async def receive() -> dict:
        return messages.pop(0)

    async def send(message: dict) -> None:
        sent.append(message)

    await world.app(scope, receive, send)
    assert sent == []
    assert list(world.blobs.folder.iterdir()) == []
    assert 'route="/v1/files",status="499"' in (await http.get("/metrics")).text


# --- size and keys --------------------------------------------------------------------------------------------------


class Endless:
    """A body of so many MiB that counts what was taken of it."""

    def __init__(self, mib: int) -> None:
        self.mib = mib
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield PURPOSE + part("file", b"", "large.txt")[:-2]
        for _ in range(self.mib):
            self.taken += 1
            yield bytes(MIB)
        yield b"\r\n" + form()


async def test_an_oversize_upload_is_refused_before_it_is_read(make_world: MakeWorld) -> None:
    world = make_world(max_upload_bytes=10 * MIB, keys={"alice": "sk-a"})
    declared = {"content-length": str(200 * MIB)}
    for key, headers, status, most in (
        (None, declared, 401, 0),
        ("sk-a", declared, 413, 0),
        (None, {}, 401, 0),
        ("sk-a", {}, 413, 12),
    ):
        body = Endless(200)
        async with world.http(key) as http:
            response = await post(http, body, **headers)
        assert response.status_code == status
        assert body.taken <= most
        if status == 413:
            assert str(10 * MIB) in response.json()["error"]["message"]
        assert list(world.blobs.folder.iterdir()) == []


async def test_a_file_of_exactly_the_limit_is_taken_and_one_more_byte_is_not(make_world: MakeWorld) -> None:
    async with make_world(max_upload_bytes=1000).http() as http:
        assert (await post(http, form(part("file", b"x" * 1000, "a.txt"), PURPOSE))).status_code == 200
        over = await post(http, form(part("file", b"x" * 1001, "a.txt"), PURPOSE))
    assert over.status_code == 413
    assert "1000" in over.json()["error"]["message"]
