"""The compositions and their configuration files: what Ray does not check is checked here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve._private.build_app import build_app
from ray.serve.schema import DeploymentSchema, ServeDeploySchema

from deployments.app import build, compose
from deployments.launcher import EMBEDDED, Config
from deployments.settings import Settings

CLUSTER = Path(__file__).parents[2] / "serve_config.yaml"
FILES = [EMBEDDED, CLUSTER]
KEYS = {"FLORILEGIUM_API__KEYS": '{"alice": "a-long-random-key"}'}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLORILEGIUM_API__KEYS", KEYS["FLORILEGIUM_API__KEYS"])


def deployments(settings: Settings, options: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    built = build_app(compose(settings, options or {}), name="florilegium")
    return {deployment.name: deployment for deployment in built.deployments}


def test_rays_own_helper_validates_the_arguments_of_the_builder():
    call_user_app_builder_with_args_if_necessary(build, {"embedder": {"model": "all-MiniLM-L6-v2"}})
    with pytest.raises(ValidationError, match="embeder"):
        call_user_app_builder_with_args_if_necessary(build, {"embeder": {"model": "all-MiniLM-L6-v2"}})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_configuration_names_only_what_exists(path: Path):
    config = Config(path)
    ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))
    built = deployments(config.settings, config.deployments)
    assert set(config.deployments) == set(built) == {"Embedder", "Reranker", "Ingestor", "Store", "Ingress"}
    known = set(DeploymentSchema.model_fields)
    for name, options in config.deployments.items():
        assert set(options) <= known, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_everything_but_the_owner_of_the_data_autoscales(path: Path):
    config = Config(path)
    built = deployments(config.settings, config.deployments)
    for name, deployment in built.items():
        scaled = deployment._deployment_config.autoscaling_config
        assert (scaled is None) == (name == "Store"), name
    assert built["Store"].num_replicas == 1
    assert not {"num_replicas", "autoscaling_config"} & set(config.deployments["Store"])


def test_the_cluster_puts_both_models_on_gpus_and_scales_them_apart():
    config = Config(CLUSTER)
    assert config.settings.embedder.model == "BAAI/bge-m3"
    assert config.settings.reranker is not None
    assert config.settings.reranker.model == "BAAI/bge-reranker-v2-m3"
    for name in ("Embedder", "Reranker"):
        assert config.deployments[name]["ray_actor_options"]["num_gpus"] > 0
        assert config.deployments[name]["autoscaling_config"]["max_replicas"] > 1


def test_the_embedded_default_stays_on_loopback():
    raw = yaml.safe_load(EMBEDDED.read_text())
    assert raw["http_options"]["host"] == "127.0.0.1"
    assert Config(EMBEDDED).settings.api.host == "127.0.0.1"


def test_a_replica_takes_at_least_twice_what_a_batch_is_chosen_from_in_calls():
    built = deployments(Settings())
    for name in ("Embedder", "Reranker"):
        assert built[name].max_ongoing_requests >= 256


def test_without_a_reranker_there_is_no_such_deployment():
    assert "Reranker" not in deployments(Settings(reranker=None))
