"""Where and how a model runs: device, engine, number format and threads, from the settings and what is there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rag.errors import ModelUnavailable
from rag.models.sources import ModelSource
from rag.settings import ModelSettings

Device = Literal["cpu", "cuda"]
Engine = Literal["torch", "onnx"]
Dtype = Literal["float32", "float16", "bfloat16"]

# Without one of these no NVIDIA GPU can be used, and torch need not be imported to learn it.
DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


@dataclass(frozen=True, slots=True)
class Placement:
    """`dtype` is what the weights are in under torch; an ONNX file has its own."""

    device: Device
    engine: Engine
    dtype: Dtype
    threads: int


def place(settings: ModelSettings, source: ModelSource, assigned: str | None, threads: int | None) -> Placement:
    """Decide. `assigned` and `threads` are the device and the cores that the cluster gave, where there is one.

    Raises:
        ModelUnavailable: the settings contradict each other, or what is there.
    """
    device = _device(settings, assigned)
    return Placement(
        device=device,
        engine=_engine(settings, source, device),
        dtype=_dtype(settings, device),
        threads=settings.threads or threads or len(os.sched_getaffinity(0)),
    )


def _device(settings: ModelSettings, assigned: str | None) -> Device:
    wanted = settings.device if settings.device != "auto" else assigned
    if wanted == "cpu":
        return "cpu"
    if assigned == "cpu":
        raise ModelUnavailable(
            f"device is 'cuda' for {settings.model}, but no GPU is assigned to it. "
            "Give the deployment num_gpus: 1, or set device to 'cpu' or 'auto'."
        )
    if _sees_gpu():
        return "cuda"
    if wanted is None:
        return "cpu"
    raise ModelUnavailable(
        f"{settings.model} is to run on 'cuda', but torch sees no GPU here. Set device to 'cpu' or 'auto', or install "
        "a GPU driver and a build of torch for it."
    )


def _sees_gpu() -> bool:
    if not any(Path(file).exists() for file in DRIVER_FILES):
        return False
    import torch

    return torch.cuda.is_available()


def _engine(settings: ModelSettings, source: ModelSource, device: Device) -> Engine:
    wanted = settings.engine
    if wanted == "auto":
        prefers_onnx = source.onnx is not None and source.folder is None
        return "onnx" if prefers_onnx and device == "cpu" and settings.dtype == "auto" else "torch"
    if wanted == "onnx":
        if source.onnx is None:
            raise ModelUnavailable(f"engine is 'onnx', but {settings.model} has no model.onnx.")
        if device == "cuda":
            raise ModelUnavailable(f"engine 'onnx' runs on the CPU, but {settings.model} is to run on 'cuda'.")
        if settings.dtype != "auto":
            raise ModelUnavailable(f"An ONNX model has its own number format; dtype is '{settings.dtype}'.")
    return wanted


def _dtype(settings: ModelSettings, device: Device) -> Dtype:
    if settings.dtype != "auto":
        return settings.dtype
    return "float16" if device == "cuda" else "float32"
