"""The README names what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fastapi.routing import APIRoute
from pydantic import BaseModel

from deployments.api.app import ROUTERS
from deployments.settings import Settings

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def leaves(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Each setting's branch and name."""
    for name, field in model.model_fields.items():
        inner = [kind for kind in (field.annotation, *getattr(field.annotation, "__args__", ())) if is_branch(kind)]
        if inner:
            yield from leaves(inner[0], f"{path}{name}.")
        else:
            yield path, name


def is_branch(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def test_every_setting_is_in_the_table():
    table = "\n".join(line for line in README.splitlines() if line.startswith("|"))
    for path, name in leaves(Settings):
        spelt = f"….{name}" if path in ("embedder.", "reranker.") else f"{path}{name}"
        assert re.search(rf"`{re.escape(spelt)}`", table), spelt


def test_every_route_is_named():
    for module in ROUTERS:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            stem = re.sub(r"/\{[^}]*\}", "", route.path.removeprefix("/v1"))
            assert stem.replace("/content", "").split("/search")[0] in README.replace("/{id}", ""), route.path
