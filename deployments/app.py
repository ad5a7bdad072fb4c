"""The composition for a Ray cluster: settings in, an application out.

This module does without postponed annotations: Ray reads the builder's annotation to validate the `args` of a
configuration file, and a string would make it skip that.
"""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application

from deployments.embedder import EmbedderDeployment
from deployments.ingestor import IngestorDeployment
from deployments.ingress import IngressDeployment
from deployments.reranker import RerankerDeployment
from deployments.settings import Settings
from deployments.store import StoreDeployment

# A replica takes more than it works on, for its own queue to choose batches from; that queue is bounded by
# `max_queued` and refuses beyond it. Resources and numbers of replicas belong into the configuration file.
_MODEL = {"max_ongoing_requests": 256, "max_queued_requests": 512, "health_check_period_s": 10}
_AUTOSCALED = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 16}


def build(settings: Settings) -> Application:
    """The builder that configuration files name; Ray adds what their `deployments` say."""
    return compose(settings, {})


def compose(settings: Settings, options: Mapping[str, Mapping[str, Any]]) -> Application:
    """Embedder, reranker, ingestor, store and ingress, each a deployment of its own. `options` by name win over the
    defaults here."""

    def deploy(cls: type, name: str, *args: Any, **defaults: Any) -> Application:
        deployment = serve.deployment(name=name, **{**defaults, **options.get(name, {})})(cls)
        return deployment.bind(*args)

    embedder = deploy(EmbedderDeployment, "Embedder", settings.embedder, autoscaling_config=_AUTOSCALED, **_MODEL)
    reranker = None
    if settings.reranker is not None:
        reranker = deploy(RerankerDeployment, "Reranker", settings.reranker, autoscaling_config=_AUTOSCALED, **_MODEL)
    ingestor = deploy(
        IngestorDeployment,
        "Ingestor",
        settings,
        embedder,
        autoscaling_config={"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 4},
        max_ongoing_requests=16,
    )
    store = deploy(
        StoreDeployment,
        "Store",
        settings,
        ingestor,
        max_ongoing_requests=512,
        max_queued_requests=1024,
        graceful_shutdown_timeout_s=20,
    )
    return deploy(
        IngressDeployment,
        "Ingress",
        settings,
        embedder,
        reranker,
        store,
        autoscaling_config={"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 64},
        max_ongoing_requests=512,
    )
