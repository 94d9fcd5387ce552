"""ATTACKS by a downloaded model's or adapter's files: links, pointers, brackets, headers."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from rl_core.data.prompts import load_tokenizer, resolve_model
from rl_core.models.folder_check import check_model_folder
from rl_core.models.loading import load_causal_lm
from rl_core.models.saving import save_actor
from rl_core.system.model_folder import check_files, read_object, tensors_of, weight_files
from tasks.export import export_model
from tasks.queries.checkpoint_names import NamedModel
from tests.support.adapters import save_adapter

KEY = "-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXktdjEAAAAABG5vbmU"


@pytest.fixture
def folder(tiny_model_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_path, tmp_path / "model"))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "home" / "id_ed25519"
    file.parent.mkdir()
    file.write_text(KEY)
    return file


def holds_key(root: Path) -> list[str]:
    return [str(f) for f in root.rglob("*") if f.is_file() and KEY.encode() in f.read_bytes()]


def export(folder: Path, root: Path) -> None:
    export_model(NamedModel("any", folder, None, 0), root, dtype="float32", to=root / "to")


@pytest.mark.parametrize("name", ["tokenizer_notes.txt", "chat_template.jinja", "LICENSE", "a.txt"])
@pytest.mark.parametrize(
    "take", [resolve_model, export, lambda folder, _: check_model_folder(folder)]
)
def test_a_link_brings_no_file_of_the_victim_into_a_copy(take, name, folder, key, tmp_path):
    root = tmp_path / "outputs"
    root.mkdir()
    if take is resolve_model:
        save_adapter(folder, tmp_path / "mine")
        for file in folder.glob("tokenizer*"):  # its own tokenizer: the adapter's files are copied
            shutil.copy(file, tmp_path / "mine")
        folder = tmp_path / "mine"
    (folder / name).symlink_to(key)
    with pytest.raises(ValueError, match=rf"{name} is a link that leads out of its ") as caught:
        take(str(folder) if take is resolve_model else folder, root)
    assert "\n" not in str(caught.value)
    assert holds_key(root) == []


def test_a_link_that_came_after_the_check_is_not_followed_into_a_checkpoint(
    folder, key, actor, tmp_path
):
    (folder / "chat_template.jinja").symlink_to(key)
    with pytest.raises(ValueError, match=r"chat_template\.jinja is a link"):
        save_actor(actor, load_file(folder / "model.safetensors"), folder, tmp_path / "step")
    assert holds_key(tmp_path / "step") == []


def test_only_files_of_the_list_are_copied(folder, actor, tmp_path):
    save_adapter(folder, tmp_path / "mine")
    for place in (folder, tmp_path / "mine"):
        (place / "tokenizer_notes.txt").write_text(KEY)
        (place / "chat_history.txt").write_text(KEY)
        (place / "LICENSE").write_text("Apache")
    root = tmp_path / "outputs"
    merged = resolve_model(str(tmp_path / "mine"), root)
    export(folder, root)
    save_actor(actor, load_file(folder / "model.safetensors"), folder, root / "step")
    assert (merged / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (root / "to" / "LICENSE").read_text() == "Apache"
    assert holds_key(root) == []


def as_in_the_hubs_cache(model: Path, repository: Path) -> Path:
    """Returns a snapshot as the hub's own client makes it: each file is a link to ../../blobs."""
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.copy(file, blobs / f"{number:040}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{number:040}")
    return snapshot


@pytest.mark.parametrize("place", ["hub", "elsewhere"])
def test_links_of_the_hubs_cache_are_followed(place, folder, hub_cache, actor, tmp_path):
    save_adapter(folder, tmp_path / "mine")
    snapshot = as_in_the_hubs_cache(folder, tmp_path / place / "models--me--model")
    adapter = as_in_the_hubs_cache(tmp_path / "mine", tmp_path / place / "models--me--lora")
    check_model_folder(snapshot)
    assert load_tokenizer(str(snapshot)).encode("3 + 14")
    config = json.loads((adapter / "adapter_config.json").read_text())
    blob = (adapter / "adapter_config.json").resolve()
    blob.write_text(json.dumps(config | {"base_model_name_or_path": str(snapshot)}))
    merged = resolve_model(str(adapter), tmp_path / "outputs")
    assert (merged / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert not (merged / "tokenizer.json").is_symlink()
    save_actor(actor, load_file(snapshot / "model.safetensors"), snapshot, tmp_path / "step")
    assert not (tmp_path / "step" / "tokenizer.json").is_symlink()
    load_causal_lm(tmp_path / "step", actor.dtype)
    if place == "hub":  # a person's own folder of links into it
        (tmp_path / "linked").mkdir()
        for file in snapshot.iterdir():
            (tmp_path / "linked" / file.name).symlink_to(file)
        check_model_folder(tmp_path / "linked")


def test_a_cache_that_only_looks_like_one_leads_nowhere(folder, key, tmp_path):
    repository = tmp_path / "got" / "models--me--model"
    snapshot = as_in_the_hubs_cache(folder, repository)
    for target in ("../../blobs/../../../home/id_ed25519", "../../blobs/stolen"):
        (snapshot / "vocab.json").unlink(missing_ok=True)
        (repository / "blobs" / "stolen").unlink(missing_ok=True)
        (repository / "blobs" / "stolen").symlink_to(key)
        (snapshot / "vocab.json").symlink_to(target)
        with pytest.raises(ValueError, match=r"vocab\.json is a link that leads out"):
            check_files(snapshot)
    shutil.rmtree(repository / "blobs")
    (repository / "blobs").symlink_to(key.parent)
    (snapshot / "vocab.json").unlink()
    (snapshot / "vocab.json").symlink_to("../../blobs/id_ed25519")
    with pytest.raises(ValueError, match="is a link that leads out"):
        check_files(snapshot)


def test_a_link_inside_the_folder_and_to_folders_are_left_alone(folder, tmp_path):
    (folder / "tokenizer.json").rename(folder / "tok.json")
    (folder / "tokenizer.json").symlink_to("tok.json")
    (folder / "runs").symlink_to(tmp_path)
    check_model_folder(folder)
    (folder / "additional_chat_templates").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="additional_chat_templates is a link"):
        check_files(folder)


def test_a_whole_model_with_an_adapter_in_it_is_refused_wherever_it_is_loaded(folder, tmp_path):
    """transformers would load adapter_model.bin, by torch.load."""
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    (folder / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    refused = r"it holds a whole model \(config\.json\) and an adapter \(adapter_config\.json\)"
    for load in (check_model_folder, lambda path: load_causal_lm(path, None), check_files):
        with pytest.raises(ValueError, match=refused):
            load(folder)
    base = tmp_path / "base"
    (folder / "adapter_config.json").rename(tmp_path / "kept.json")
    shutil.copytree(folder, base)
    save_adapter(base, tmp_path / "mine")
    (tmp_path / "kept.json").rename(base / "adapter_config.json")
    with pytest.raises(ValueError, match=refused):
        resolve_model(str(tmp_path / "mine"), tmp_path / "outputs")


BRACKETS = "[" * 200_000


@pytest.mark.parametrize("text", [BRACKETS, '{"a":' * 200_000, "{", "[]", "\x00", "9" * 6000])
def test_json_that_is_no_object_is_one_line(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    for read in (lambda: read_object(tmp_path / "config.json"), lambda: check_files(tmp_path)):
        with pytest.raises(ValueError, match=r"^config\.json is no JSON object[^\n]*$"):
            read()


def pointer() -> str:
    oid = "ab" * 32
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 17209920\n"


FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.mark.parametrize("name", [*FILES, "chat_template.jinja", "merges.txt", "vocab.json"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pointer().encode(), "is a pointer of Git LFS, and the file itself was not fetched"),
        (b"\xef\xbb\xbf{}", r"begins with a byte order mark \(BOM\)"),
        ("{}".encode("utf-16"), "is not UTF-8"),
        (b'{"a": "\xe9"}', "is not UTF-8"),
    ],
    ids=["pointer", "bom", "utf-16", "latin-1"],
)
def test_files_that_were_saved_or_fetched_otherwise_are_named(name, content, said, folder):
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{name} {said}[^\n]*: [^\n]+"):
        check_files(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_brackets_are_refused_by_the_check_of_a_model(name, folder):
    (folder / name).write_text(BRACKETS)
    with pytest.raises(ValueError, match=rf"{name} is no JSON object \(too many brackets\)"):
        check_model_folder(folder)


def write_header(file: Path, header: bytes, rest: bytes = b"") -> None:
    file.write_bytes(struct.pack("<Q", len(header)) + header + rest)


def test_a_header_of_90_mb_and_one_of_brackets_are_not_read(folder):
    file = folder / "model.safetensors"
    write_header(file, b'{"a":' + BRACKETS.encode())
    with pytest.raises(ValueError, match="no safetensors file, or cut short"):
        check_model_folder(folder)
    with file.open("wb") as sparse:
        sparse.write(struct.pack("<Q", 90_000_000) + b"{")
        os.truncate(file, 90_000_008)
    with pytest.raises(ValueError, match=r"has a header of 90 MB, and at most 16\.8 MB are read"):
        check_model_folder(folder)
    file.write_text(pointer())
    with pytest.raises(ValueError, match=r"model\.safetensors is a pointer of Git LFS"):
        check_model_folder(folder)


def test_shards_without_an_index_speak_of_the_index(folder):
    weights = load_file(folder / "model.safetensors")
    save_file(weights, folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"without model\.safetensors\.index\.json") as caught:
        check_model_folder(folder)
    assert "pickle" not in str(caught.value)


@pytest.mark.parametrize("second", ["consolidated.safetensors", "model-00001-of-00001.safetensors"])
def test_files_of_which_libraries_read_different_ones_are_refused(second, folder):
    shutil.copy(folder / "model.safetensors", folder / second)
    with pytest.raises(ValueError, match=rf"holds model\.safetensors and {second}, and vLLM reads"):
        weight_files(folder)
    index = {"weight_map": dict.fromkeys(tensors_of(folder / second), second)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="vLLM reads other files than transformers"):
        weight_files(folder)
    index = {"weight_map": dict.fromkeys(index["weight_map"], "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_files(folder) == ["model.safetensors"]
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"names model\.safetensors, which is not there"):
        weight_files(folder)
