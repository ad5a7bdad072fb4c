"""The command `florilegium`: serve, ingest, search, evaluate, and care for the data."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console

from deployments import maintenance
from deployments.launcher import EMBEDDED, serve
from deployments.settings import Settings
from rag.errors import RagError

DEFAULT_URL = "http://127.0.0.1:8000/v1"

console = Console()


def _remote(command: click.decorators.FC) -> click.decorators.FC:
    url = click.option("--url", envvar="FLORILEGIUM_URL", default=DEFAULT_URL, show_default=True, help="The service.")
    key = click.option("--key", envvar="FLORILEGIUM_KEY", default="none", help="API key, where the service asks.")
    return url(key(command))


def _offline(command: Callable[[Settings], None]) -> Callable[..., None]:
    """A command on the data directory itself, which the service must not be using."""

    @click.option(
        "--data-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), help="./data by default."
    )
    @wraps(command)
    def run(data_dir: Path | None) -> None:
        try:
            command(Settings() if data_dir is None else Settings(data_dir=data_dir))
        except (ValidationError, RagError) as error:
            raise click.ClickException(_in_words(error)) from None

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A self-hosted retrieval server: it gathers the right excerpts and says where they stand."""


@main.command("serve")
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=EMBEDDED)
@click.option("--host", help="Where to listen; anything but loopback needs keys.")
@click.option("--port", type=int, help="8000 by default.")
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where everything is kept; ./data by default.")
def serve_command(config: Path, host: str | None, port: int | None, data_dir: str | None) -> None:
    """Start the service on this machine: the embedded default, or what CONFIG says. Ctrl-C stops it."""
    given = {"API__HOST": host, "API__PORT": port, "DATA_DIR": data_dir}
    os.environ.update({f"FLORILEGIUM_{name}": str(value) for name, value in given.items() if value is not None})
    try:
        serve(config, say=lambda line: console.print(line, highlight=False, soft_wrap=True))
    except (ValidationError, RagError) as error:
        raise click.ClickException(_in_words(error)) from None


def _in_words(error: ValidationError | RagError) -> str:
    if isinstance(error, RagError):
        return error.message
    return "\n".join(
        f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].removeprefix('Value error, ')}" for fault in error.errors()
    )


@main.command("ingest")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--store", required=True, help="Name of the vector store; made where there is none.")
@click.option("--parallel", default=4, show_default=True, help="Files under way at once.")
@_remote
def ingest_command(folder: Path, store: str, parallel: int, url: str, key: str) -> None:
    """Upload the files of FOLDER and attach them; files that are there already, unchanged, are left alone."""
    from deployments.folder import ingest_folder

    params = Settings().file_ingestion_params
    outcome = ingest_folder(folder, store, params, url=url, key=key, parallel=parallel, console=console)
    for path, reason in outcome.failed:
        console.print(f"[red]failed[/red] {path}: {reason}", highlight=False, soft_wrap=True)
    console.print(
        f"{outcome.added} added, {outcome.unchanged} unchanged, {len(outcome.failed)} failed; "
        f"{outcome.chunks} chunks, {outcome.tokens} tokens in {outcome.seconds:.1f} s",
        highlight=False,
    )
    sys.exit(1 if outcome.failed else 0)


@main.command("search")
@click.argument("store")
@click.argument("query")
@click.option("-n", "--results", default=5, show_default=True, help="How many excerpts, 1 to 50.")
@click.option("--ranker", default="auto", show_default=True, help="none skips the reranker.")
@_remote
def search_command(store: str, query: str, results: int, ranker: str, url: str, key: str) -> None:
    """Print the excerpts of STORE (a name or an id) that answer QUERY best."""
    from deployments.folder import print_hits

    print_hits(store, query, results=results, ranker=ranker, url=url, key=key, console=console)


@main.command("evaluate")
@click.argument("dataset", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--model", help="The embedding model; the configured one by default.")
@click.option("--reranker", help="The reranker; the configured one by default, 'none' for none.")
@click.option("--limit", type=int, help="Evaluate on so many queries only.")
def evaluate_command(dataset: Path, model: str | None, reranker: str | None, limit: int | None) -> None:
    """Ingest a collection (BEIR's layout) into a store of its own and measure what is found, without Ray."""
    from deployments.evaluation import evaluate

    evaluate(dataset, model=model, reranker=reranker, limit=limit, console=console)


@main.command("verify")
@_offline
def verify_command(settings: Settings) -> None:
    """Look for anything that exists on one side only: rows, chunks, the index, uploaded bytes. Mends nothing."""
    found = maintenance.verify(settings)
    for sentence in found:
        console.print(sentence, style="red", highlight=False, soft_wrap=True)
    console.print(f"{len(found)} contradictions found in {settings.data_dir}.", highlight=False, soft_wrap=True)
    sys.exit(1 if found else 0)


@main.command("reembed")
@_offline
def reembed_command(settings: Settings) -> None:
    """Embed the chunks of stores that another model filled anew, with the configured model. May be interrupted."""
    from deployments.reembedding import reembed

    count = asyncio.run(reembed(settings, console))
    console.print(f"{count} vector stores embedded anew with {settings.embedder.model}.", highlight=False)


@main.command("compact")
@_offline
def compact_command(settings: Settings) -> None:
    """Give the space of what was deleted back to the disk."""
    before, after = maintenance.compact(settings)
    console.print(f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after.", highlight=False)


if __name__ == "__main__":
    main()
