"""Preflight's look at the model: its files, its tokenizer, its numbers, and what ends a text."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.data.gguf_source import is_unpacked, local_folder, unpack_model
from rl_core.data.modelscope_source import (
    cached_from_modelscope,
    find_model_here,
    modelscope_name,
    modelscope_url,
)
from rl_core.data.template_check import look_at_template
from rl_core.data.user_files import first_own_problems
from rl_core.envs import ENVS
from rl_core.models.folder_check import check_model_folder, refuse_for_vllm
from rl_core.sft.named_data import check_rows, check_sft
from rl_core.system.model_folder import weight_files
from rl_core.system.network import hubs_are_off, why_unreachable
from rl_core.system.process_env import importing
from rl_core.system.words import GIB, as_path, counted, cut, disk_size, printable
from rl_core.types import Problem
from tasks.preflight_checks import Finding, fatal, ok, refused, warning

_MOST_READ_BYTES: Final = 8 * GIB
"""Some 8 s from a disk of 1.1 GiB/s, as measured, 2 s from the page cache."""
_ROWS: Final = 64
_MOST_SFT_ROWS: Final = 20_000  # read in some seconds
_VOCABULARIES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")


def model_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields what the model is, and what of it would end the run later, or mislead it."""
    try:
        check_sft(config)
        check_rows(config, most=_MOST_SFT_ROWS)
    except ValueError as error:
        yield refused("model", error)
    path = config.model.path
    if path is None:
        yield _home_made_model(config)
        return
    try:
        what, folder = _what_and_where(config, path)
        if folder is not None:
            what = f"{what}; {_check(folder, config)}"
            if config.env.prompt_template == "chat":
                yield from _template_findings(config, folder)
    except ValueError as error:
        yield refused("model", error)
    else:
        yield ok("model", what)


def teacher_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields whether the teacher is a model, with the policy's tokens if that is here."""
    if config.teacher.path is None:
        return
    from rl_core.runs.teacher import check_teacher, refuse_unknown_run

    warnings: list[str] = []
    try:
        refuse_unknown_run(config)
        what, folder = _what_and_where(config, str(config.teacher_folder or config.teacher.path))
        if folder is not None:
            what = f"{what}; {_check(folder, config)}"
            policy = local_folder(config.model.path or "", config.storage.root)
            if config.model.path is not None and policy.is_dir():
                check_teacher(config, folder, policy, warnings.append)
    except ValueError as error:
        yield refused("teacher", str(error).replace("model.path=", "teacher.path="))
    else:
        yield warning("teacher", warnings[0]) if warnings else ok("teacher", what)


def _template_findings(config: RunConfig, folder: Path) -> Iterator[Finding]:
    """Yields what the chat template would make of the first prompts, or of a question."""
    from rl_core.data.prompts import load_tokenizer, rendered
    from rl_core.data.tool_form import tool_form

    tokenizer = load_tokenizer(str(folder))
    problems: list[Problem] = []
    with suppress(ValueError, OSError):  # the check of the files reports it
        problems = first_own_problems(config.env, config.data, _ROWS)
    prompts = [problem.messages for problem in problems] or [tuple(config.env.prompt("Is 7 odd?"))]
    placed = [({"row": row}, prompt) for row, prompt in enumerate(prompts, start=1)]
    chat_args = config.env.chat_args
    first_with = partial(rendered, prompts[0], tokenizer)
    first_prompt = first_with(**chat_args)
    for name, value in chat_args.items():
        if first_with(**{key: chat_args[key] for key in chat_args if key != name}) == first_prompt:
            yield warning(
                "template",
                f"env.chat_args.{name}={json.dumps(value)} changes nothing of the first prompt",
                "check the name in the model's chat_template, or leave it out",
            )
    silent = chat_args | {"enable_thinking": False}
    if config.evaluation.decoding == "greedy" and first_with(**silent) != first_prompt:
        yield warning(
            "template",
            "this model thinks before it answers, and decoded greedily it may repeat itself until "
            "it is cut: tests and evaluation would be too low",
            "evaluation.decoding=sampled with the model card's evaluation.temperature and top_p, "
            "or env.chat_args={enable_thinking: false}",
        )
    form = tool_form(tokenizer, config.env.chat_template)
    if form is not None and not form.shows_tools:
        yield warning(
            "template",
            "the model's chat template does not show the tools of the env",
            "take a model that was trained to call tools, or describe them in the questions",
        )
    for one in look_at_template(placed, partial(rendered, tokenizer=tokenizer, **chat_args)):
        if one.broken:
            verb = "breaks" if len(one.broken) == 1 else "break"
            first = printable(cut(json.dumps(one.broken[0], ensure_ascii=False), 200))
            yield (fatal if one.refuses else warning)(
                "template",
                f"{counted(len(one.broken), 'prompt')} {verb} the rule that {one.proves}; first: "
                f"{first}",
                one.remedy,
            )


def _check(folder: Path, config: RunConfig) -> str:
    """Returns the findings about a model that is here; ValueError if it cannot be trained."""
    with importing():
        from rl_core.data.prompts import load_tokenizer
        from rl_core.rollout.model_files import check_finite, stop_token_ids  # bring torch
    check_model_folder(folder)
    if config.rollout.engine == "vllm":
        refuse_for_vllm(folder)
    stops = load_tokenizer(str(folder)).convert_ids_to_tokens(stop_token_ids(folder))
    ends = f"responses end with {' or '.join(map(printable, stops))}"
    num_bytes = sum((folder / name).stat().st_size for name in weight_files(folder))
    if num_bytes > _MOST_READ_BYTES:
        return (
            f"its {disk_size(num_bytes)} are not read here, so NaN is found when it loads; {ends}"
        )
    check_finite(folder)
    return f"all its numbers are finite; {ends}"


def _what_and_where(config: RunConfig, path: str) -> tuple[str, Path | None]:
    """Returns what `model.path` is, and its folder if it is here; ValueError if it is no model."""
    if is_unpacked(path):  # a run would unpack it next, and the plans need its shape
        folder = unpack_model(path, config.storage.root)
        return f"{path}, unpacked in {folder}", folder
    folder = as_path(path)
    if folder.is_dir():
        _refuse_half_a_model(folder)
        return f"local folder {folder}", folder
    if path.startswith("modelscope:"):
        name = modelscope_name(path)
        assert name is not None, "only names on ModelScope begin so"
        is_cached = cached_from_modelscope(name) is not None
        where = {"hub": "ModelScope", "url": modelscope_url()}
        return _hub_model(path, config.storage.root, is_cached=is_cached, **where)
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        if not reads_as_hub_name(path):
            raise ValueError
        files = (try_to_load_from_cache(path, x) for x in ("config.json", "adapter_config.json"))
        is_cached = any(isinstance(file, str) for file in files)
    except ValueError:  # of the hub's library: the name has letters that the hub does not allow
        raise ValueError(
            f"model.path={path}: there is no such folder: give a folder that exists, "
            "ORGANISATION/NAME of the Hugging Face hub, or modelscope:OWNER/NAME"
        ) from None
    url = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    return _hub_model(path, config.storage.root, is_cached=is_cached, hub="the hub", url=url)


def _hub_model(
    path: str, root: Path, *, is_cached: bool, hub: str, url: str
) -> tuple[str, Path | None]:
    if is_cached:
        here = find_model_here(path)
        folder = unpack_model(str(here), root) if here else None  # it may be an adapter
        return f"{path}, from the local cache of {hub}", folder
    lacking = f"model.path={path} is not in the local cache of {hub}"
    if hubs_are_off():
        raise ValueError(
            f"{lacking}, and HF_HUB_OFFLINE is set: unset HF_HUB_OFFLINE to fetch it, or give a "
            "local folder"
        )
    if (why := why_unreachable(url)) is not None:
        raise ValueError(
            f"{lacking}, and {hub} does not answer ({why}): connect this machine, fill the cache "
            "elsewhere, or give a local folder"
        )
    return f"{path}, from {hub}", None


def _home_made_model(config: RunConfig) -> Finding:
    env = config.env
    if env.sft is None or not env.sft.is_taught(env) or env.prompt_template == "chat":
        taught = [one.sft for one in ENVS.values() if one.sft]
        problems = " and ".join(sft.problems for sft in taught)
        return fatal(
            "model",
            f"the home-made base model learns only {problems}, without chat tags",
            f"set model.path, or {', or '.join(sft.chosen_by for sft in taught)}"
            if env.sft is not None
            else f"env={env.name} needs a model that already reads and answers: model.path=FOLDER, "
            "or a name such as Qwen/Qwen2.5-1.5B-Instruct",
        )
    return ok("model", "home-made base model, cached by its settings")


def _refuse_half_a_model(folder: Path) -> None:
    facts = {
        "config.json": (folder / "config.json").is_file(),
        "a tokenizer (tokenizer.json)": any((folder / name).is_file() for name in _VOCABULARIES),
        "weights (*.safetensors)": any(folder.glob("*.safetensors")),
    }
    if missing := [name for name, is_there in facts.items() if not is_there]:
        raise ValueError(
            f"model.path={folder} is not a model folder, without {', '.join(missing)}: "
            "save_pretrained of model and tokenizer writes all of them"
        )


def reads_as_hub_name(path: str) -> bool:
    """True for ORGANISATION/NAME; else (another number of slashes, a leading dot) a folder."""
    parts = path.split("/")
    return len(parts) == 2 and all(parts) and parts[0] not in (".", "..", "~")
