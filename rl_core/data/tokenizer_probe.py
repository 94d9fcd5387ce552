"""Tries a downloaded tokenizer and its chat template in a process that may not take much.

A normalizer of 1 kB makes 10^12 letters of one, a template repeats a text without end, and Rust's
library ends the process if it runs out of memory. So each is used here first, on texts that reach
most of its rules.
"""

import math
import resource
import string
import sys
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

from rl_core.system.child_process import Child, channel_to_parent, how_it_ended
from rl_core.system.model_folder import TOKENIZER, read_object
from rl_core.system.words import cut, in_one_line

_MOST_BYTES: Final = 4 * 2**30
_MOST_CPU_S: Final = 20
"""A tokenizer of 256,000 tokens and as many merges takes 0.4 GiB and 1.2 s."""
_LIMITS: Final = f"{_MOST_BYTES // 2**30} GiB or {_MOST_CPU_S} s"
_TEMPLATE: Final = "the chat template"
_MOST_RENDERED: Final = 1_000_000
_TOOL: Final = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
_MOST_GROWTH: Final = 1_000
"""Real normalizers replace a blank by one other letter."""
_MOST_TOKENS_PER_BYTE: Final = 8
_ONE_THREAD: Final = {"RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""The address space that threads set aside would count as memory."""
_TEXTS: Final = (
    "Using the numbers [19, 36, 55, 7], create 98.\n<think> 55 + 36 = 91 </think>",
    string.printable,
    *(300 * one + "!" for one in ("a", "Z", "0", " ", "\n", "-", "é", "中", "ab ", "a1")),
)


def why_unusable(folder: Path) -> str | None:
    """Returns what is wrong with a folder's tokenizer.json or chat template, or None."""
    files = (TOKENIZER, "tokenizer_config.json", "chat_template.jinja")
    times = [file.stat().st_mtime_ns for name in files if (file := folder / name).is_file()]
    return _why_unusable(folder, tuple(times))


@cache
def _why_unusable(folder: Path, _times: tuple[int, ...]) -> str | None:
    child = Child("rl_core.data.tokenizer_probe", folder, _MOST_CPU_S, environment=_ONE_THREAD)
    part = TOKENIZER
    try:
        while (message := child.receive()).get("next") is not None:
            part = message["next"]
        reason: str | None = message["wrong"]
    except (EOFError, ValueError):
        ended = how_it_ended(child.process.wait())
        reason = f"{part} takes more than {_LIMITS} for a short text, or is damaged ({ended})"
    finally:
        child.close()
    return reason


def _try_tokenizer(file: Path) -> None:
    from tokenizers import Tokenizer

    facts = read_object(file)
    if max(_growth(facts.get("normalizer")), _growth(facts.get("decoder"))) > _MOST_GROWTH:
        raise ValueError(f"{TOKENIZER} makes a text more than {_MOST_GROWTH:,} times as long")
    tokenizer = Tokenizer.from_file(str(file))
    for text in _TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) > _MOST_TOKENS_PER_BYTE * len(text.encode()) + 64:
            raise ValueError(f"{TOKENIZER} makes {len(ids):,} tokens of {len(text):,} letters")
        tokenizer.decode(ids)


def _growth(part: Any) -> float:
    """Returns how many times as long a text may get by a normalizer or a decoder."""
    if not isinstance(part, dict):
        return 1
    growth = math.prod(map(_growth, [*part.get("normalizers", ()), *part.get("decoders", ())]))
    if part.get("type") == "Replace":
        # A regular expression may match between two letters, too.
        return max(1, len(part["content"]) + ("Regex" in part["pattern"]))
    return growth


def _try_templates(folder: Path) -> None:
    """Renders all templates as transformers does; only what ends this process is wrong here."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    settings = folder / "tokenizer_config.json"
    named = read_object(settings).get("chat_template") if settings.is_file() else None
    templates = [one["template"] for one in named] if isinstance(named, list) else [named]
    if (file := folder / "chat_template.jinja").is_file():
        templates.append(file.read_text(encoding="utf-8"))
    for template in filter(None, templates):
        conversations = (("user",), ("system", "user"), ("user", "assistant", "user"))
        for roles, tools in product(conversations, (None, [_TOOL])):
            messages = [{"role": role, "content": _TEXTS[0]} for role in roles]
            try:
                compiled = environment.from_string(template)
                given = {"messages": messages, "tools": tools, "add_generation_prompt": True}
                text = compiled.render(given)
            except MemoryError:
                raise ValueError(
                    f"{_TEMPLATE} takes more than {_LIMITS} for a short text"
                ) from None
            except Exception:  # noqa: BLE001  # names that only transformers knows; it says so
                continue
            if len(text) > _MOST_RENDERED:
                raise ValueError(f"{_TEMPLATE} makes {len(text):,} letters of {len(_TEXTS[0])}")


def _main() -> None:
    channel = channel_to_parent()
    folder = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2]) + 5))
    wrong = None
    try:
        if (folder / TOKENIZER).is_file():
            _try_tokenizer(folder / TOKENIZER)
        channel.send({"next": _TEMPLATE})
        _try_templates(folder)
    except ValueError as error:
        wrong = str(error)
    except BaseException as error:  # noqa: BLE001  # Rust's PanicException is no Exception
        wrong = f"{TOKENIZER} cannot be read ({cut(in_one_line(error), 200)})"
    channel.send({"wrong": wrong})


if __name__ == "__main__":
    _main()
