"""Starts the service on this machine and stops what it started: `florilegium serve`."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from deployments.settings import Settings
from rag.errors import StoreLocked

APPLICATION = "florilegium"
EMBEDDED = Path(__file__).with_name("embedded.yaml")

# Without these a request costs several times as much; whoever sets them otherwise is listened to.
FAST_SERVE = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    "RAY_SERVE_HAPROXY_NBTHREAD": "2",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.4",  # at its default the idle controller takes a fifteenth of a core
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray lowers the priority of its workers, which is for batch jobs
}
READY_TIMEOUT_S = 300.0


class Config:
    """A configuration file: the product's settings and, apart from them, replicas and resources."""

    def __init__(self, path: Path) -> None:
        self._raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        (self._application,) = self._raw["applications"]
        self.settings = Settings(**self._application.get("args", {}))

    @property
    def proxy_location(self) -> str:
        return str(self._raw.get("proxy_location", "HeadOnly"))

    @property
    def deployments(self) -> dict[str, dict[str, Any]]:
        """Options by deployment."""
        return {
            entry["name"]: {key: value for key, value in entry.items() if key != "name"}
            for entry in self._application.get("deployments", [])
        }


def environment(data_dir: Path) -> dict[str, str]:
    """What Ray's processes must find, set before Ray starts. Ports and files of the proxy are this instance's own: two
    services on one machine that shared them would answer each other's requests."""
    number = int(hashlib.sha256(str(data_dir).encode()).hexdigest()[:8], 16)
    run = _run_folder(number)
    first_port = 20_000 + number % 400 * 25
    return {
        **FAST_SERVE,
        "FLORILEGIUM_DATA_DIR": str(data_dir),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first_port),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first_port + 24),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(_free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(_free_port()),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(run / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(run / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(run),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(run / "server-state"),
    }


def _run_folder(number: int) -> Path:
    """A folder closed to others. Its path is short: Ray adds 57 characters, and a socket's may have about 100."""
    folder = Path(tempfile.gettempdir()) / f"fl-{number:x}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise StoreLocked(f"{folder} belongs to somebody else. Use another data directory, or have it removed.")
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serve(config_path: Path, *, say: Callable[[str], None]) -> None:
    """Start, say where it is once it can embed and rerank, and stay until interrupted."""
    config = Config(config_path)
    settings = config.settings
    data_dir = settings.data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    for name, value in environment(data_dir).items():
        os.environ.setdefault(name, value)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    _refuse_taken_port(settings.api.host, settings.api.port)

    started = time.monotonic()
    say(
        f"Starting on {data_dir} with {settings.embedder.model}"
        f" and {settings.reranker.model if settings.reranker else 'no reranker'} …"
    )
    with _Cluster(config):
        address = f"http://{_reachable(settings.api.host)}:{settings.api.port}"
        wait_until_ready(address, stop=stop)
        if not stop.is_set():
            say(
                f"Ready after {time.monotonic() - started:.0f} s at {address}/v1 (Ctrl-C stops it). A request to try:\n"
            )
            say(_example(address, settings))
        stop.wait()
        say("Stopping …")
    say("Stopped.")


def _example(address: str, settings: Settings) -> str:
    model = settings.embedder.served_id or settings.embedder.model
    key = " -H 'Authorization: Bearer <your key>'" if settings.api.keys else ""
    body = f'{{"model": "{model}", "input": "a tern colony"}}'
    return f"  curl {address}/v1/embeddings{key} -H 'Content-Type: application/json' -d '{body}'\n"


class _Cluster:
    """Ray and Serve for as long as the block lasts. Ray reads its environment when it is imported, hence here."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __enter__(self) -> None:
        import ray
        from ray import serve

        from deployments.app import compose

        settings = self._config.settings
        ray.init(address="local", include_dashboard=False, logging_level=logging.WARNING, log_to_driver=False)
        try:
            serve.start(
                proxy_location=self._config.proxy_location,
                http_options={"host": settings.api.host, "port": settings.api.port},
                logging_config={"log_level": "WARNING"},
            )
            serve.run(compose(settings, self._config.deployments), name=APPLICATION, route_prefix="/")
        except BaseException:
            ray.shutdown()
            raise

    def __exit__(self, *_: object) -> None:
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()


def wait_until_ready(address: str, *, stop: threading.Event | None = None, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Return once the service has embedded and reranked a text, or `stop` is set.

    Raises:
        TimeoutError: it has not within `timeout_s`; with its last answer.
    """
    stop = stop or threading.Event()
    deadline = time.monotonic() + timeout_s
    answer = "no answer"
    with httpx.Client(timeout=30, trust_env=False) as client:
        while not stop.is_set():
            try:
                response = client.get(f"{address}/health/ready")
            except httpx.TransportError as error:
                answer = str(error)
            else:
                if response.is_success:
                    return
                answer = response.text
            if time.monotonic() > deadline:
                raise TimeoutError(f"{address} is not ready after {timeout_s:.0f} s: {answer}")
            stop.wait(0.2)


def _refuse_taken_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SystemExit(
                f"{host}:{port} is not free ({error.strerror}). Is the service running already? "
                "Another port: florilegium serve --port 8001"
            ) from None


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - comparing, not binding
