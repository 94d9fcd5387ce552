"""Preflight's look at a teacher, and at bounds of a response's mean that are too narrow."""

import json
import shutil

import pytest

from tasks.preflight_checks import Finding
from tasks.preflight_checks.model import teacher_findings
from tasks.preflight_checks.plans import importance_findings
from tests.tasks.test_preflight import small


def teacher(root, path, model=None) -> Finding:
    (finding,) = teacher_findings(
        small(
            root,
            algorithm={"estimator": "distill"},
            teacher={"path": str(path)},
            model={"path": None if model is None else str(model)},
        )
    )
    return finding


def test_a_teacher_is_read_before_the_run(tiny_model_path, tmp_path):
    assert teacher(tmp_path, tiny_model_path, tiny_model_path).level == "ok"
    assert teacher(tmp_path, tiny_model_path).level == "ok"  # a home-made policy is made later
    missing = teacher(tmp_path, tmp_path / "nothing")
    assert missing.level == "fatal"
    assert missing.message.startswith("teacher.path=")
    unknown = teacher(tmp_path, "nothing/best")
    assert "no run nothing with a checkpoint" in str(unknown)


def test_a_teacher_with_other_tokens_is_refused_before_the_run(tiny_model_path, tmp_path):
    shutil.copytree(tiny_model_path, tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second, *_ = sorted(vocabulary, key=vocabulary.get)[100:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(tokenizer))
    finding = teacher(tmp_path, tmp_path / "other", tiny_model_path)
    assert finding.level == "fatal"
    assert "has other tokens than the policy" in finding.message
    assert finding.remedy == "choose a teacher of the same family of models"


@pytest.mark.parametrize(("longest", "is_warned"), [(8, True), (400, False)])
def test_short_responses_leave_narrow_bounds_by_rounding(tmp_path, longest, is_warned):
    bounds = {"importance_low": 0.99, "importance_cap": 1.01, "importance_outside": "drop"}
    config = small(
        tmp_path,
        actor={"importance_level": "geometric"} | bounds,
        data={"max_response_length": longest},
    )
    assert bool(list(importance_findings(config))) == is_warned
