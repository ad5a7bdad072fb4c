"""Fixtures: a world over doubles, and the two clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from deployments.settings import ApiSettings
from rag.service import ServiceOptions
from tests.deployments.api.world import MakeWorld, World


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    def make(*, reranker: bool = True, options: ServiceOptions | None = None, **settings: object) -> World:
        api = ApiSettings.model_validate(settings)
        options = options or ServiceOptions(max_upload_bytes=api.max_upload_bytes, embedder_aliases=("org/alias",))
        return World(tmp_path, api, options, reranker=reranker)

    return make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with world.http() as client:
        yield client


@pytest.fixture
async def client(world: World) -> AsyncIterator[AsyncOpenAI]:
    async with world.openai() as client:
        yield client
