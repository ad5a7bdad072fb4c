"""A client that costs little: prepared requests over kept connections, answers read but not parsed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What a number of clients saw: seconds for all, and each request's latency in seconds."""

    seconds: float
    latencies: tuple[float, ...]

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def median_ms(self) -> float:
        ordered = sorted(self.latencies)
        return ordered[len(ordered) // 2] * 1000

    @property
    def p95_ms(self) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] * 1000


def get(path: str) -> bytes:
    """A whole HTTP request without a body."""
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


def post(path: str, body: object) -> bytes:
    """A whole HTTP request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


def run(port: int, requests: Sequence[bytes], *, clients: int) -> Load:
    """Send all requests, each client its next one as soon as it has its answer."""
    return asyncio.run(_run(port, requests, clients))


async def _run(port: int, requests: Sequence[bytes], clients: int) -> Load:
    waiting = iter(requests)
    latencies: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in waiting:
            started = time.perf_counter()
            writer.write(request)
            await _read_answer(reader)
            latencies.append(time.perf_counter() - started)
        writer.close()
        await writer.wait_closed()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return Load(time.perf_counter() - started, tuple(latencies))


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = next(int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    body = await reader.readexactly(length)
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(f"{head.decode()}{body.decode()[:500]}")
