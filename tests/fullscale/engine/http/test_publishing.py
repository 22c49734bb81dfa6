import json
from pathlib import Path

import pytest
import torch

from fullscale.engine.http.chunk import ViolationError
from fullscale.engine.http.client import Client, Patience, ServerError
from fullscale.engine.http.publishing import FixedWeights, FromDisk, SglangWeights, VllmWeights, merged
from tests.fullscale.engine.http.standin import Server, standing
from tests.fullscale.engine.small import model

ONCE = Patience(5.0, 1)


class VllmServer(Server):
    """Its development endpoints; it refuses to reload while it is not paused."""

    paused = False
    loaded = ""
    broken = ""

    def says(self, path, body):
        where = path.partition("?")[0]
        if where == "/pause":
            self.paused = True
        elif where == "/resume":
            self.paused = False
        elif where == "/collective_rpc":
            assert self.paused
            assert body["method"] == "reload_weights"
            assert (Path(body["kwargs"]["weights_path"]) / "model.safetensors").exists()
            self.loaded = body["kwargs"]["weights_path"]
        elif where == "/update_weight_version":
            self.version = body["new_version"]
        elif where == "/weight_info":
            return {"weight_version": self.version}
        return {}


def test_vllm_is_paused_reloaded_told_its_version_and_resumed_and_then_asked(tmp_path):
    with standing(VllmServer()) as server:
        publisher = FromDisk(tmp_path, VllmWeights(Client(server.url, ONCE)))
        publisher.publish(12, model())
        assert publisher.held() == "12"
    assert [path for path, _ in server.seen] == [
        "/pause?mode=wait",
        "/collective_rpc",
        "/update_weight_version",
        "/reset_prefix_cache",
        "/resume",
        "/weight_info",
    ]
    assert server.loaded == str((tmp_path / "version-000012").resolve())


def test_vllm_is_resumed_whatever_goes_wrong(tmp_path):
    with standing(VllmServer()) as server:
        server.hook = lambda path, body: (400, b"no such file") if path == "/collective_rpc" else None
        with pytest.raises(ServerError, match="no such file"):
            FromDisk(tmp_path, VllmWeights(Client(server.url, ONCE))).publish(1, model())
    assert not server.paused
    assert server.seen[-1][0] == "/resume"


class SglangServer(Server):
    def says(self, path, body):
        if path == "/model_info":
            return {"weight_version": self.version}
        if not (Path(body["model_path"]) / "model.safetensors").exists():
            return {"success": False, "message": "no weights there"}
        self.version = body["weight_version"]
        return {"success": True, "message": "Succeeded"}


def test_sglang_is_told_folder_and_version_at_once_and_then_asked(tmp_path):
    with standing(SglangServer()) as server:
        publisher = FromDisk(tmp_path, SglangWeights(Client(server.url, ONCE)))
        publisher.publish(12, model())
        assert publisher.held() == "12"
        with pytest.raises(ViolationError, match="did not load version 13: no weights there"):
            SglangWeights(Client(server.url, ONCE)).load(13, tmp_path)
    assert server.seen[0] == (
        "/update_weights_from_disk",
        {"model_path": str((tmp_path / "version-000012").resolve()), "weight_version": "12", "flush_cache": True},
    )


class Loading:
    def __init__(self):
        self.loaded = []

    def load(self, version, folder):
        self.loaded.append((version, json.loads((folder / "weights").read_text())))

    def held(self):
        return str(self.loaded[-1][0])


def test_versions_have_folders_of_their_own_and_the_newest_stay(tmp_path):
    loader = Loading()
    publisher = FromDisk(tmp_path, loader, lambda m, folder: (folder / "weights").write_text(json.dumps(m)), keep=2)
    for version, weights in ((1, "a"), (2, "b"), (2, "b again"), (3, "c")):
        publisher.publish(version, weights)
    assert loader.loaded == [(1, "a"), (2, "b"), (2, "b again"), (3, "c")]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["version-000002", "version-000003"]
    with pytest.raises(ValueError, match="keep = 0"):
        FromDisk(tmp_path, loader, keep=0)


def test_a_model_that_cannot_be_saved_is_never_loaded(tmp_path):
    def full(m, folder):
        (folder / "weights").write_text("half")
        raise OSError("no space left")

    loader = Loading()
    with pytest.raises(OSError, match="no space"):
        FromDisk(tmp_path, loader, full).publish(1, "a")
    assert loader.loaded == []
    assert not (tmp_path / "version-000001").exists()


def test_fixed_weights_accept_the_version_they_have_and_no_other():
    with standing(Server(hook=lambda path, body: (200, {"data": [{"id": "judge-7b"}]}))) as server:
        publisher = FixedWeights(Client(server.url, ONCE), 3, "judge-7b")
        publisher.publish(3, None)
        assert publisher.held() == "3"
        assert FixedWeights(Client(server.url, ONCE), 3, "policy").held() == "another model, 'judge-7b'"
        with pytest.raises(ValueError, match="fixed at version 3, not 4"):
            publisher.publish(4, None)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_is_merged_into_a_copy():
    peft = pytest.importorskip("peft")
    from transformers import LlamaForCausalLM

    plain = LlamaForCausalLM(model().config)
    plain.load_state_dict(model().state_dict())
    adapted = peft.get_peft_model(plain, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before, whole = adapted(ids).logits, merged(adapted)
        assert type(whole) is LlamaForCausalLM
        assert not any("lora" in name for name in whole.state_dict())
        assert torch.allclose(whole(ids).logits, before, atol=1e-4)
        assert not torch.allclose(model()(ids).logits, before, atol=1e-1)
        assert torch.equal(adapted(ids).logits, before)
    assert merged(plain) is plain
