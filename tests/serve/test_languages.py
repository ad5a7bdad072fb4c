"""Questions in other languages than English, with the multilingual packaged model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.collections import needs_data, questions, samples
from tests.serve.asking import ingest, misses
from tests.serve.server import Server, serve_run

pytestmark = [pytest.mark.serve, pytest.mark.models, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = {"embedder": {"model": "multilingual-e5-small"}, "reranker": None}
    with serve_run(tmp_path_factory.mktemp("multilingual"), args=args) as running:
        yield running


@needs_data
def test_questions_in_other_languages_are_answered_within_five(server: Server):
    asked = [question for question in questions() if not question.english]
    files = {question.file for question in asked}
    store_id, outcomes = ingest(server, [sample for sample in samples() if sample.file in files])
    assert all(outcome.startswith("completed") for outcome in outcomes.values()), outcomes
    missed = misses(server, store_id, asked)
    print(f"\nOther languages: {len(asked) - len(missed)} of {len(asked)} answered; missed:", *missed, sep="\n  ")
    assert len(missed) <= 0.10 * len(asked), missed
