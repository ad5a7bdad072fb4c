"""`florilegium serve` and the commands beside it, as a person uses them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest

from tests.serve.server import BIN, launched, stop

pytestmark = [pytest.mark.serve, pytest.mark.timeout(600)]


def florilegium(*arguments: str | Path, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in (BIN / "florilegium", *arguments)],
        env={**os.environ, "FLORILEGIUM_URL": f"{url}/v1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_folder_is_ingested_found_kept_over_a_restart_and_nothing_is_left_running(tmp_path: Path):
    folder = tmp_path / "harbour"
    (folder / "pilots").mkdir(parents=True)
    (folder / "ferry.md").write_text("# Ferry\n\nThe night ferry to Skarvik leaves at half past ten.")
    (folder / "pilots" / "boat.txt").write_text("The pilot boat meets ships two miles west of the lighthouse.")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 and then nothing")
    (folder / ".hidden.txt").write_text("not for others")

    with launched(tmp_path) as server:
        first = florilegium("ingest", folder, "--store", "harbour", url=server.address)
        assert "2 added, 0 unchanged, 1 failed" in first.stdout, first.stdout + first.stderr
        assert "broken.pdf" in first.stdout
        assert first.returncode == 1
        (folder / "broken.pdf").unlink()
        (folder / "ferry.md").write_text("# Ferry\n\nThe night ferry to Skarvik leaves at eleven.")
        again = florilegium("ingest", folder, "--store", "harbour", url=server.address)
        assert "1 added, 1 unchanged, 0 failed" in again.stdout, again.stdout + again.stderr
        assert again.returncode == 0
        processes = server.tree()
        stop(server)
        assert not psutil.wait_procs(processes, 10)[1]
        assert server.process.returncode == 0, server.log.read_text()

    with launched(tmp_path) as server:
        found = florilegium("search", "harbour", "When does the night ferry leave?", "-n", "1", url=server.address)
        assert "ferry.md" in found.stdout, found.stdout + found.stderr
        assert "leaves at eleven" in found.stdout
        assert "score" in found.stdout
        missing = florilegium("search", "nowhere", "x", url=server.address)
        assert missing.returncode != 0
        assert "no vector store 'nowhere'" in missing.stderr


def test_the_service_refuses_to_listen_to_strangers_without_keys(tmp_path: Path):
    refused = subprocess.run(
        [str(BIN / "florilegium"), "serve", "--host", "0.0.0.0", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode != 0
    assert "FLORILEGIUM_API__KEYS" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_with_keys_every_route_but_health_needs_one_and_owners_are_apart(tmp_path: Path):
    keys = '{"anna": "key-of-anna", "bert": "key-of-bert"}'
    with launched(tmp_path, env={"FLORILEGIUM_API__KEYS": keys}) as server:
        assert httpx.get(f"{server.address}/health/live").status_code == 200
        refused = httpx.get(f"{server.address}/v1/models")
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        anna = server.client.with_options(api_key="key-of-anna")
        bert = server.client.with_options(api_key="key-of-bert")
        store = anna.vector_stores.create(name="private")
        assert [found.id for found in anna.vector_stores.list()] == [store.id]
        assert list(bert.vector_stores.list()) == []
        answer = httpx.get(
            f"{server.address}/v1/vector_stores/{store.id}", headers={"Authorization": "Bearer key-of-bert"}
        )
        assert answer.status_code == 404
