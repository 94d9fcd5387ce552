"""The real `modelscope_hub` against a server of our own; nothing of it is replaced."""

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rl_core.data.prompts import load_tokenizer, resolve_model
from rl_core.models.loading import load_actor
from tests.support.modelscope_server import ModelScope, modelscope_server

NAME = "modelscope:someone/tiny"
TOKEN = "ms-a-secret-of-mine"


@pytest.fixture
def hub(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModelScope]:
    """ModelScope with the tiny model, and a machine that never asked it for anything."""
    files = {file.name: file.read_bytes() for file in tiny_model_path.iterdir()}
    with modelscope_server(files | {"pytorch_model.bin": b"a pickle", "me.png": b"a"}) as served:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", served.url)
        monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("MODELSCOPE_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield served


def refusal(path: str = NAME) -> str:
    """The one line with which a model is refused."""
    with pytest.raises(ValueError, match="model") as caught:
        resolve_model(path)
    line = str(caught.value)
    assert line.startswith(f"model.path={path}")
    assert "\n" not in line
    return line


def test_a_model_is_fetched_once_and_is_what_lies_there(hub, tiny_model_path):
    folder = resolve_model(NAME)
    loaded = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert loaded == {file.name: file.read_bytes() for file in tiny_model_path.iterdir()}
    assert hub.fetched() == sorted(loaded), "neither pickles nor pictures"
    load_actor(folder, torch.device("cpu"))
    asked = len(hub.asked)
    assert resolve_model(NAME) == folder
    assert load_tokenizer(NAME).decode([2]) == "!"
    assert len(hub.asked) == asked, "the cache was enough"


def test_what_is_sent_is_the_token_and_no_identifier_of_this_machine(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", TOKEN)
    identifiers = []
    for cache in ("one", "two"):
        monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / cache))
        hub.asked.clear()
        resolve_model(NAME)
        assert all(TOKEN in str(headers) for _, headers in hub.asked), "a private model needs it"
        identifiers.append({found for _, headers in hub.asked for found in _sent_id(headers)})
    assert identifiers[0], "the user agent has such a field"
    assert identifiers[0].isdisjoint(identifiers[1])
    assert not (tmp_path / "home").exists()


def _sent_id(headers: dict[str, str]) -> list[str]:
    (agent,) = (value for name, value in headers.items() if name.lower() == "user-agent")
    return re.findall(r"session_id/([^;]*)", agent)


def test_a_broken_download_is_refused_and_goes_on_where_it_broke(hub, tmp_path, monkeypatch):
    hub.cut_after = 30_000
    assert "model.safetensors" in refusal()
    (partial,) = (tmp_path / "cache").rglob("model.safetensors.incomplete")
    there = partial.stat().st_size
    assert 30_000 <= there < len(hub.files["model.safetensors"])

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in refusal(), "half a model is none"
    monkeypatch.delenv("HF_HUB_OFFLINE")

    hub.cut_after = None
    hub.asked.clear()
    folder = resolve_model(NAME)
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert [(path, headers.get("Range")) for path, headers in hub.asked if path != "/"] == [
        ("model.safetensors", f"bytes={there}-")
    ]


def test_a_cache_that_was_filled_elsewhere_is_enough(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refusal()
    folder = tmp_path / "cache" / "models" / "someone--tiny" / "snapshots" / "master"
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        refusal()
        (folder / name).write_bytes(hub.files[name])
    assert resolve_model(NAME) == folder
    assert hub.asked == []


def test_two_runs_that_want_it_at_once_fetch_it_once(hub):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(resolve_model, [NAME, NAME])
    assert first == second
    assert len(hub.fetched()) == len(set(hub.fetched()))


def test_a_file_that_would_lie_outside_the_cache_is_refused(hub, tmp_path):
    hub.files["../../../../../outside.json"] = b"{}"
    assert "outside.json" in refusal()
    assert list(tmp_path.rglob("outside.json")) == []


def test_what_modelscope_has_not_is_one_line(hub, monkeypatch):
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", TOKEN)
    line = refusal("modelscope:someone/else")
    assert "404" in line
    assert "check the name" in line
    assert TOKEN not in line
    hub.files = {"README.md": b"# Soon"}
    assert "no config.json" in refusal()
    hub.asked.clear()
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 does not answer" in refusal()
    assert hub.asked == []


@pytest.mark.parametrize("name", ["", "tiny", "a/b/c", "/b", "a/", "../b", "a/..", "a/b@v1"])
def test_a_name_is_owner_and_name(name):
    assert "modelscope:OWNER/NAME" in refusal(f"modelscope:{name}")


def test_without_the_package_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)
    assert "pip install modelscope-hub" in refusal()
