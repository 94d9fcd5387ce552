"""Stage 2: a model's folder, its tokenizer, and messages -> prompt text and token ids."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import get_json_schema

from rl_core.data.gguf_source import is_unpacked, unpack_model
from rl_core.data.modelscope_source import (
    MODEL_FILES,
    fetch_from_modelscope,
    find_model_here,
    modelscope_name,
)
from rl_core.data.tokenizer_probe import why_unusable
from rl_core.system.model_folder import CONFIG, TOKENIZER, check_files, files_of, read_object
from rl_core.system.words import as_path, cut, in_one_line
from rl_core.types import ChatTemplate, Message, Problem, PromptedProblem

OF_ITS_FILE_ALONE: Final = {"AutoTokenizer": [None, None]}
"""`auto_map` of a tokenizer that is loaded only from its `tokenizer.json`.

Without it AutoTokenizer (transformers 5) ignores `tokenizer_class` in a `qwen2` folder, and builds
Qwen's own splitting and NFC around the file's merges."""
_PROBE = "Using the numbers [19, 36, 55, 7], create 98.\n<think> 55 + 36 = 91, 91 + 7 = 98 yes"
_ANSWER = "Yes, 7 is odd."
_TOGETHER = 1_024
"""Prompts that are tokenized by one call; all of a large data set would take some GB."""
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def resolve_model(path: str, root: Path = Path("outputs")) -> Path:
    """Returns the folder of a model, `path` as in `model.path`, or raises ValueError.

    A GGUF file or an adapter is unpacked below `root`, the run's `storage.root`. What is not in the
    local cache is downloaded, unless `HF_HUB_OFFLINE` is set.
    """
    if (name := modelscope_name(path)) is not None:
        return unpack_model(str(fetch_from_modelscope(name)), root)
    if is_unpacked(path):
        return unpack_model(path, root)
    folder = as_path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(f"model.path={path} is a folder without config.json: no model in it")
        return folder.resolve()
    refused = f"model.path={path} is no folder and no cached hub model"
    if path.startswith((".", "/", "~")) or path.count("/") > 1:  # a hub name is at most OWNER/NAME
        raise ValueError(f"{refused}: check the path")
    try:
        fetched = find_model_here(path) or Path(snapshot_download(path, allow_patterns=MODEL_FILES))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ValueError(
            f"{refused}, and the hub did not give it ({type(error).__name__}): "
            "give a local folder or a model that can be downloaded"
        ) from None
    return unpack_model(str(fetched), root)  # it may be an adapter


def name_for_others(path: str | None, folder: Path) -> str:
    """Returns what others load a model by: a hub's name if it leads to `folder`, else the folder.

    `path` is `model.path`. Unpacked and fine-tuned models are in other folders than it leads to.
    """
    folder = folder.resolve()
    if path is None or as_path(path).exists():
        return str(folder)
    here = find_model_here(path)
    return path if here is not None and here.resolve() == folder else str(folder)


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a model after a test that it is lossless, or raises ValueError."""
    folder = as_path(path).resolve()
    if not (folder / CONFIG).is_file():  # else it has the tokenizer, too, merged or not
        folder = resolve_model(path)
    try:
        tokenizer = _read_tokenizer(folder)
    except ValueError as error:
        raise ValueError(f"model.path={path}: {error}") from error
    # transformers may rebuild a tokenizer by the model's type, with another pre-tokenizer than the
    # one it was trained with: rewards would then be given for text that the model never wrote.
    back = tokenizer.decode(tokenizer.encode(_PROBE, add_special_tokens=False))
    if back != _PROBE:
        raise ValueError(
            f"model.path={path}: the tokenizer is not lossless, {_PROBE!r} comes back as {back!r}; "
            "check its pre-tokenizer and tokenizer_class"
        )
    return tokenizer


def _read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    if not files_of(folder, _VOCABULARIES):
        raise ValueError(
            f"it holds no tokenizer ({', '.join(_VOCABULARIES)}): copy the files of its base "
            "model's tokenizer into it"
        )
    check_files(folder)
    settings = folder / "tokenizer_config.json"
    facts = read_object(settings) if settings.is_file() else {}
    if facts.get("fast_tokenizer_files"):
        raise ValueError(
            f"{settings.name} names other files than {TOKENIZER} (fast_tokenizer_files), which "
            f"are not read: delete that entry if {TOKENIZER} is the model's"
        )
    if (why := why_unusable(folder)) is not None:
        why = why.removesuffix(": copy it from the model again")
        raise ValueError(f"{why}: copy {TOKENIZER} and its settings from the model again")
    try:
        if facts.get("auto_map") == OF_ITS_FILE_ALONE:
            return PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False)
        # Imports torch and every model's code: 2 s and 200 MB in a process that has no model.
        from transformers import AutoTokenizer

        read: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Rust's PanicException is no Exception
        raise ValueError(
            f"transformers reads no tokenizer from {TOKENIZER} and {settings.name} "
            f"({cut(in_one_line(error), 200)}): copy them from the model again"
        ) from error
    return read


def encode_prompt(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, *, chat_template: ChatTemplate
) -> tuple[str, tuple[int, ...]]:
    """Returns a prompt as text and as token ids, or raises ValueError.

    With `chat_template`, the tokenizer's template renders the messages; a mapping is what it gets
    beside them. Otherwise they are one user message that is tokenized raw, after the
    beginning-of-text token if the tokenizer writes one (Llama's, Gemma's; Qwen's has none); special
    tokens in it (`<|im_start|>`) are recognised.
    """
    return next(_encoded([messages], tokenizer, chat_template))


def _encoded(
    prompts: Sequence[Sequence[Message]],
    tokenizer: PreTrainedTokenizerBase,
    chat_template: ChatTemplate,
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields what `encode_prompt` returns; by one call for many prompts: a fifth of the time."""
    beginning = [] if chat_template else _beginning(tokenizer)
    for start in range(0, len(prompts), _TOGETHER):
        texts = [
            _prompt_text(messages, tokenizer, chat_template=chat_template)
            for messages in prompts[start : start + _TOGETHER]
        ]
        # A chat template writes its own special tokens.
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
        for text, ids in zip(texts, encoded["input_ids"], strict=True):
            first = [] if ids[:1] == beginning else beginning
            yield f"{tokenizer.decode(first) if first else ''}{text}", (*first, *ids)


def check_embedded(ids: Iterable[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ValueError if one of these token ids has no row in the model's embedding.

    A model with fewer rows than its tokenizer has tokens would fail with an index out of range.
    """
    path = Path(tokenizer.name_or_path)
    config = read_object(path / CONFIG)
    num_rows = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    highest = max((max(text, default=0) for text in ids), default=0)
    if num_rows is not None and highest >= num_rows:
        raise ValueError(
            f"model.path={path}: {tokenizer.convert_ids_to_tokens(highest)!r}, which prompts hold, "
            f"is token {highest}, and the model has {num_rows:,}: it was added only to the "
            "tokenizer. Call model.resize_token_embeddings(len(tokenizer)) and save the model"
        )


def prompted(
    problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, *, chat_template: ChatTemplate
) -> list[PromptedProblem]:
    """Returns problems with their prompts as text and as ids; see `check_embedded`."""
    prompts = _encoded([problem.messages for problem in problems], tokenizer, chat_template)
    items = [
        PromptedProblem(problem, text, ids)
        for problem, (text, ids) in zip(problems, prompts, strict=True)
    ]
    check_embedded((item.prompt_ids for item in items), tokenizer)
    return items


def text_codec(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Callable[[Sequence[int]], str], Callable[[str], list[int]]]:
    """Returns a decoder of responses, without special tokens, and an encoder of an env's text."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    return decode, encode


def count_tokens(
    prompts: Sequence[Sequence[Message]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    chat_template: ChatTemplate,
) -> list[int]:
    """Returns how many token ids `encode_prompt` gives for each prompt."""
    return [len(ids) for _, ids in _encoded(prompts, tokenizer, chat_template)]


def _prompt_text(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, *, chat_template: ChatTemplate
) -> str:
    if chat_template:
        return rendered(messages, tokenizer, **({} if chat_template is True else chat_template))
    if len(messages) != 1 or messages[0]["role"] != "user":
        raise ValueError(
            f"a raw prompt is one user message, got roles {[m['role'] for m in messages]}: "
            "use a chat template for conversations"
        )
    return messages[0]["content"]


def rendered(
    messages: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    *,
    is_prompt: bool = True,
    **names: object,
) -> str:
    """Returns what the tokenizer's chat template makes of messages, or raises ValueError.

    With `is_prompt`, the assistant's turn begins at its end. `names` are what the template may use
    beside them, before transformers' own; of `tools`, methods, it gets the schemas.
    """
    if not tokenizer.chat_template:
        raise ValueError(
            "env.prompt_template=chat needs a tokenizer with a chat template, and this model's "
            "has none: use env.prompt_template=base"
        )
    plain = [dict(message) for message in messages]
    if "tools" in names:
        names["tools"] = [_schema(tool) for tool in cast(Iterable[Any], names["tools"])]
    try:
        return str(
            tokenizer.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=is_prompt, **names
            )
        )
    except TemplateError as error:  # Gemma 2's takes no system message
        raise ValueError(
            f"the model's chat template refuses a prompt ({cut(in_one_line(error), 200)}): take "
            "env.prompt_template=base, or a model whose template takes these roles: "
            f"{', '.join(message['role'] for message in messages)}"
        ) from None
    except Exception as error:  # whatever Python makes of a template's expressions
        raise ValueError(
            "the model's chat template (chat_template.jinja, or chat_template in "
            f"tokenizer_config.json) fails with {type(error).__name__} "
            f"({cut(in_one_line(error), 200)}): copy it from the model again, or take "
            "env.prompt_template=base"
        ) from error


@cache
def _schema(tool: Callable[..., Any]) -> dict[str, Any]:
    """Returns the JSON schema of a method, or raises ValueError."""
    try:
        return dict(get_json_schema(tool))
    except Exception as error:  # noqa: BLE001  # transformers' own kinds, and a hint's
        raise ValueError(
            f"env: the tool {tool.__name__} has no schema ({cut(in_one_line(error), 200)}): "
            "describe it and each parameter in its docstring, below `Args:`"
        ) from None


def turn_end_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Returns the special token that the chat template writes after an answer; None without one.

    A base model's `eos_token_id` may be another: Qwen's ends texts, and turns end with
    `<|im_end|>`, so that in chat form no response would ever stop.
    """
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "Is 7 odd?"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except Exception:  # noqa: BLE001  # `rendered` says what is wrong with a template that is used
        return None
    after = tokenizer.encode(text.rpartition(_ANSWER)[2].lstrip(), add_special_tokens=False)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return after[0] if after and after[0] in special else None


def _beginning(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the token that the tokenizer writes before a text, empty if it writes none.

    A base model that was trained with it answers badly without it: Gemma 3 repeats one word.
    """
    first = list(tokenizer.encode("")[:1])
    return first if first == [tokenizer.bos_token_id] else []
