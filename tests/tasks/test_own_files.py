import json
from pathlib import Path

from rl_core.config.run import RunConfig
from tasks.generate import generate_dataset
from tasks.validate import check_dataset
from tests.support.own_data import SOLVABLE, tinyzero_row
from tests.tasks.test_validate import ten_tokens


def prepared(root: Path, rows: list[dict[str, object]], **env: object) -> tuple[RunConfig, Path]:
    (root / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = RunConfig.model_validate(
        {
            "storage": {"root": root},
            "env": {"name": "countdown", **env},
            "data": {"train_files": str(root / "mine.jsonl"), "test_size": 2},
        }
    )
    return config, generate_dataset(config)


def test_ranges_and_sizes_of_the_generator_do_not_apply(tmp_path):
    rows = [tinyzero_row(*problem, index) for index, problem in enumerate(SOLVABLE)]
    narrow = {"min_operands": 5, "max_operands": 5, "max_number": 2, "max_target": 10}
    config, data = prepared(tmp_path, rows, **narrow)
    checks = check_dataset(config, data, ten_tokens).checks
    results = {result["check"]: result["status"] for result in checks}
    assert set(results.values()) == {"ok"}
    assert not any(name.endswith(("range", "count")) for name in results)
    for name in ("columns", "no_nulls", "unique", "splits_disjoint", "solution", "ground_truth"):
        assert f"countdown_{name}" in results


def test_foreign_prompts_are_a_warning_in_words(tmp_path, caplog):
    rows = [tinyzero_row(*problem, index) for index, problem in enumerate(SOLVABLE)]
    rows[1]["prompt"] = [{"role": "user", "content": "Make 16 of 3, 5 and 8."}]
    config, data = prepared(tmp_path, rows)
    caplog.clear()
    checks = check_dataset(config, data, ten_tokens).checks
    results = {result["check"]: result for result in checks}
    assert results["countdown_prompt"]["status"] == "warning"
    assert results["countdown_prompt"]["rows"] == 1
    (warning,) = caplog.messages
    assert "check countdown_prompt, of your own prompts: not true for 1 row:" in warning
    assert "Make 16 of 3, 5 and 8." in warning
