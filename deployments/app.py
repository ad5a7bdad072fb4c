"""The composition for a Ray cluster: settings in, an application out.

This module does without postponed annotations: Ray reads the builder's annotation to validate the `args` of a
configuration file, and a string would make it skip that.
"""

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
    """Embedder, reranker, ingestor, store and ingress, each a deployment of its own."""
    embedder = (
        serve.deployment(EmbedderDeployment)
        .options(name="Embedder", autoscaling_config=_AUTOSCALED, **_MODEL)
        .bind(settings.embedder)
    )
    reranker = None
    if settings.reranker is not None:
        reranker = (
            serve.deployment(RerankerDeployment)
            .options(name="Reranker", autoscaling_config=_AUTOSCALED, **_MODEL)
            .bind(settings.reranker)
        )
    ingestor = (
        serve.deployment(IngestorDeployment)
        .options(
            name="Ingestor",
            autoscaling_config={"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 4},
            max_ongoing_requests=16,
        )
        .bind(settings, embedder)
    )
    store = (
        serve.deployment(StoreDeployment)
        .options(name="Store", max_ongoing_requests=512, max_queued_requests=1024, graceful_shutdown_timeout_s=20)
        .bind(settings, ingestor)
    )
    return (
        serve.deployment(IngressDeployment)
        .options(
            name="Ingress",
            autoscaling_config={"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 64},
            max_ongoing_requests=512,
        )
        .bind(settings, embedder, reranker, store)
    )
