"""What a GPU engine asks of vLLM, by the installed version's own constructor: no card is needed."""

import dataclasses
import inspect
import pickle
from pathlib import Path
from typing import Any

import pydantic
import pytest
from vllm import LLM
from vllm.engine import arg_utils
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.worker import gpu_worker

from rl_core.config.run import RunConfig
from rl_core.rollout.vllm_engine import VllmEngine
from tests.support.solving import let_countdown_answer


class Asked(Exception):  # noqa: N818  # no error
    """Instead of an engine, for which a card would be needed."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[EngineArgs]:
    """Where vLLM's own constructor leaves what an engine would be made of."""
    args: list[EngineArgs] = []

    def take(engine_args: EngineArgs, **_: Any) -> None:
        args.append(engine_args)
        raise Asked

    monkeypatch.setattr(LLMEngine, "from_engine_args", take)
    let_countdown_answer(monkeypatch)
    return args


def engine_args(asked: list[EngineArgs], model: Path, options: dict[str, Any]) -> EngineArgs:
    sections = {
        "data": {"max_prompt_length": 256, "max_response_length": 1_024},
        "env": {"name": "countdown", "max_turns": options.get("max_turns", 1)},
        "model": {"dtype": "bfloat16"},
        "resources": {"rollout_gpus": 1},
        "rollout": {"gpu_memory_utilization": 0.15}
        | {name: value for name, value in options.items() if name != "max_turns"},
    }
    with pytest.raises(Asked):
        VllmEngine(RunConfig.model_validate(sections), model, 64)
    (args,) = asked
    return args


def kind_of(field: str) -> Any:
    """A field's type; those of some others have names that only type checkers know."""
    (kind,) = (f.type for f in dataclasses.fields(EngineArgs) if f.name == field)
    return eval(kind, vars(arg_utils)) if isinstance(kind, str) else kind


@pytest.mark.parametrize(
    "options",
    [{}, {"sleep": True}, {"tensor_parallel_size": 2}, {"max_turns": 2}],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_vllm_knows_what_a_gpu_engine_asks_of_it(asked, tiny_model_path, options):
    args = engine_args(asked, tiny_model_path, options)
    default = EngineArgs(model=str(tiny_model_path))
    changed = {name: x for name, x in vars(args).items() if x != vars(default)[name]}
    for name, value in changed.items():
        adapter = pydantic.TypeAdapter(kind_of(name), config={"arbitrary_types_allowed": True})
        adapter.validate_python(value)
    assert changed["gpu_memory_utilization"] == 0.15
    assert changed["max_num_seqs"] == 64
    assert changed["logprobs_mode"] == "processed_logprobs"
    assert args.enable_sleep_mode == options.get("sleep", False)
    assert args.tensor_parallel_size == options.get("tensor_parallel_size", 1)
    assert args.skip_tokenizer_init == ("max_turns" not in options)
    # A card's kernels and cache are vLLM's own choice.
    assert not {"kv_cache_memory_bytes", "enforce_eager", "block_size"} & changed.keys()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("sleep", {"level": 1}),
        ("wake_up", {}),
        ("reset_prefix_cache", {}),
        ("collective_rpc", {"method": "replace_weights", "args": ({},)}),
        ("enqueue", {"prompts": [], "sampling_params": [], "use_tqdm": False}),
    ],
)
def test_vllm_takes_the_calls_of_an_engine_that_sleeps(method, arguments):
    inspect.signature(getattr(LLM, method)).bind(None, **arguments)


@pytest.mark.slow
def test_an_engine_starts_where_others_give_memory_of_the_card_back(
    asked, tiny_model_path, monkeypatch
):
    assert "Error in memory profiling" in inspect.getsource(gpu_worker)  # vLLM's own words
    tries = 0

    def disturbed(*_: Any, **__: Any) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise AssertionError(
                "Error in memory profiling. Initial free memory 24.19 GiB, current 102.64"
            )
        raise Asked

    monkeypatch.setattr(LLMEngine, "from_engine_args", disturbed)
    with pytest.raises(Asked):
        VllmEngine(RunConfig.model_validate({"resources": {"rollout_gpus": 1}}), tiny_model_path, 8)
    tries = -9
    with pytest.raises(RuntimeError, match="3 times another process gave memory of this card back"):
        VllmEngine(RunConfig.model_validate({"resources": {"rollout_gpus": 1}}), tiny_model_path, 8)


def test_what_vllm_refuses_is_told_in_a_line_that_can_be_sent(tiny_model_path):
    too_long = {"max_prompt_length": 1, "max_response_length": 1_024}  # of a model that reads 1,024
    config = RunConfig.model_validate({"data": too_long, "model": {"dtype": "float32"}})
    with pytest.raises(ValueError, match="vLLM refuses") as caught:
        VllmEngine(config, tiny_model_path, 8)
    sent = str(pickle.loads(pickle.dumps(caught.value)))
    assert sent == str(caught.value)
    assert "\n" not in sent
    assert "max_model_len (1025) is greater than" in sent
