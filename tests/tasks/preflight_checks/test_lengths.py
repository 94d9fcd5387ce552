import json
from pathlib import Path

import pytest

from rl_core.config.run import DataConfig, ModelConfig, RunConfig
from tasks.preflight_checks.plans import length_findings


def found(prompt: int, response: int, path: Path | None = None) -> list[tuple[str, str]]:
    config = RunConfig(
        data=DataConfig(max_prompt_length=prompt, max_response_length=response),
        model=ModelConfig(path=None if path is None else str(path)),
    )
    return [(finding.level, str(finding)) for finding in length_findings(config)]


def test_the_home_made_model_reads_1024_tokens_and_no_more():
    assert found(64, 960) == []
    ((level, said),) = found(64, 961)
    assert level == "fatal"
    assert said == (
        "data.max_prompt_length=64 and data.max_response_length=961 are 1,025 tokens, and the "
        "home-made base model reads 1,024: lower one of them, or set model.path to a model that "
        "reads more"
    )


@pytest.mark.parametrize(
    ("settings", "positions"),
    [
        ({}, 300),
        ({"rope_scaling": None}, 300),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 600),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 300),  # which counts it in
    ],
)
def test_a_folder_says_how_much_its_model_reads(tmp_path, settings, positions):
    settings = {"max_position_embeddings": 300} | settings
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert found(100, positions - 100, tmp_path) == []
    ((level, said),) = found(100, positions - 99, tmp_path)
    assert level == "fatal"
    assert f"{positions + 1} tokens, and {tmp_path} reads {positions}" in said


def test_what_does_not_tell_is_not_asked(tmp_path):
    assert found(100, 5_000, tmp_path) == []
    (tmp_path / "config.json").write_text("{}")
    assert found(100, 5_000, tmp_path) == []
