"""What Ray assigned to this replica: the only thing that decides between GPU and CPU.

With `num_gpus: 0` the GPUs stay visible to the process, so asking torch would be asking the wrong one.
"""

from __future__ import annotations

import os

import ray


def assigned_device() -> str:
    """`cuda` where this replica was given a GPU or a part of one, else `cpu`."""
    return "cuda" if ray.get_runtime_context().get_accelerator_ids().get("GPU") else "cpu"


def assigned_threads() -> int:
    """Whole CPU cores that this replica was given; all that the process may use where it reserved none."""
    reserved = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))
    return reserved or len(os.sched_getaffinity(0))
