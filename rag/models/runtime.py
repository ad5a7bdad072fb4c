"""Models under torch: loading, threads, the number format to compute in."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.utils import logging as reports

from rag.errors import ModelUnavailable
from rag.models.placement import Placement

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# What a CPU must have for a half format to be faster than float32; without it, it is many times slower.
INSTRUCTIONS = {torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"), torch.float16: ("amx_fp16", "avx512_fp16")}

# On the CPU small batches stay in the cache. On a GPU large ones fill it, and a second worker prepares its batch
# while the first one's is computed.
CPU_TOKENS = 1024
GPU_TOKENS = 16_384
GPU_WORKERS = 2


def load_pretrained(auto_class: Any, folder: Path, placement: Placement, **options: object) -> Any:
    """The model in `folder`, its weights rounded to the placement's format.

    Raises:
        ModelUnavailable: the folder lacks weights that the architecture needs, or cannot be read.
    """
    with loading(folder):
        module, report = auto_class.from_pretrained(
            folder, dtype=DTYPES[placement.dtype], local_files_only=True, output_loading_info=True, **options
        )
    if missing := sorted(report["missing_keys"]):
        raise ModelUnavailable(f"The model in '{folder}' lacks {len(missing)} weights, among them {missing[0]}.")
    return module.eval()


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Load without progress bars and reports; whatever goes wrong is ModelUnavailable with the folder's name."""
    verbosity = reports.get_verbosity()
    reports.disable_progress_bar()  # type: ignore[no-untyped-call]
    reports.set_verbosity(logging.ERROR)
    try:
        yield
    except (ImportError, OSError, RuntimeError, SafetensorError, ValueError) as error:
        raise ModelUnavailable(f"The model in '{folder}' cannot be loaded: {error}") from error
    finally:
        reports.set_verbosity(verbosity)


def computing_dtype(placement: Placement) -> torch.dtype:
    """The format to compute in: the placement's, but float32 on a CPU that has no instructions for it."""
    wanted = DTYPES[placement.dtype]
    if placement.device == "cuda" or wanted == torch.float32:
        return wanted
    able = torch.cpu.get_capabilities()
    return wanted if any(able.get(name, False) for name in INSTRUCTIONS[wanted]) else torch.float32


def workers_and_tokens(placement: Placement) -> tuple[int, int]:
    """How many threads should call the model at once, and the tokens of a forward pass.

    On the CPU every worker computes on a thread of its own. The threads of one computation would wait for each other
    at every operation, and lose most of their speed where something else uses a core. This holds for the process.
    """
    if placement.device == "cuda":
        return GPU_WORKERS, GPU_TOKENS
    torch.set_num_threads(1)
    return placement.threads, CPU_TOKENS
