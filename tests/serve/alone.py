"""The whole service in one process: `python -m tests.serve.alone DATA_DIR PORT`. It can be killed as one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvicorn

from deployments.api.app import create_app
from deployments.local import local_service
from deployments.settings import Settings


async def main(data_dir: Path, port: int) -> None:
    settings = Settings(data_dir=data_dir, reranker=None)
    async with local_service(settings) as service:
        config = uvicorn.Config(create_app(service, settings.api), port=port, log_level="warning")
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
