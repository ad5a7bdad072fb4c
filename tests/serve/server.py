"""A real service: `serve run`, or the launcher, in a process group of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from openai import OpenAI

from deployments.launcher import EMBEDDED, environment, wait_until_ready

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Server:
    """Where it is, and the process that started it."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.address}/v1", api_key="none", max_retries=3, timeout=120)

    def tree(self) -> list[psutil.Process]:
        """Every process that it started."""
        return psutil.Process(self.process.pid).children(recursive=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serve_run(folder: Path, *, args: Mapping[str, object] | None = None, config: Path = EMBEDDED) -> Iterator[Server]:
    """`serve run` of the configuration, with another port and data directory, and `args` on top of its own."""
    port = free_port()
    raw = yaml.safe_load(config.read_text(encoding="utf-8"))
    raw["http_options"] = {"host": "127.0.0.1", "port": port}
    application = raw["applications"][0]
    application["args"].update(args or {})
    if application["args"].get("reranker", "") is None:
        application["deployments"] = [entry for entry in application["deployments"] if entry["name"] != "Reranker"]
    written = folder / "config.yaml"
    written.write_text(yaml.safe_dump(raw), encoding="utf-8")
    data_dir = folder / "data"
    data_dir.mkdir(exist_ok=True)
    command = [BIN / "serve", "run", "--address", "local", written]
    with started(command, folder, port, environment(data_dir)) as server:
        yield server


@contextmanager
def launched(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Server]:
    """`florilegium serve` of the embedded default."""
    port = free_port()
    command = [BIN / "florilegium", "serve", "--port", str(port), "--data-dir", folder / "data", *options]
    with started(command, folder, port, env or {}) as server:
        yield server


@contextmanager
def started(command: list[str | Path], folder: Path, port: int, env: Mapping[str, str]) -> Iterator[Server]:
    """Run `command` until the block ends; then interrupt it and see that nothing is left."""
    log = folder / "service.log"
    address = f"http://127.0.0.1:{port}"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, "HF_HUB_OFFLINE": "1", **env},
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(address, process, log)
    gone = threading.Event()
    threading.Thread(target=lambda: (process.wait(), gone.set()), daemon=True).start()
    try:
        wait_until_ready(address, stop=gone, timeout_s=180)
        assert not gone.is_set(), f"the service ended: {log.read_text(errors='replace')[-4000:]}"
        yield server
    finally:
        stop(server)


def stop(server: Server) -> None:
    """Interrupt as a person would; whatever is then left is killed."""
    if server.process.poll() is not None:
        return
    tree = server.tree()
    server.process.send_signal(signal.SIGINT)
    try:
        server.process.wait(60)
    except subprocess.TimeoutExpired:
        server.process.kill()
    _, alive = psutil.wait_procs(tree, 20)
    for process in alive:
        process.kill()
