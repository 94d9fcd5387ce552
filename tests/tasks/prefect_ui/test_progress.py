import io
import logging
from itertools import pairwise
from typing import Any

import pytest

from flows.cli.terminal import LineHandler
from rl_core.config.run import RunConfig
from rl_core.resources.cost import Spread
from rl_core.runs.run_folder import RunFolder
from rl_core.system.log_file import listening, log_to_file
from rl_core.system.waits import OF_TRAINING, Waits
from tasks.prefect_ui.progress import TrainingProgress, describe
from tests.support.runs import new_run

METRICS = {
    "reward/accuracy": 0.25,
    "critic/score/mean": 0.3251,
    "response_length/mean": 61.6,
    "critic/kl": 0.0123,
    "rollout/tokens_per_s": 3120.4,
    "timing_s/step": 10.0,
}


def quiet(price: float | None = None, resources: Any = None, **more: Any) -> TrainingProgress:
    budget = {"price_per_hour": price, "currency": "$"}
    settings = {"budget": budget, "trainer": {"logger": []}, "resources": resources or {}}
    config = RunConfig.model_validate(settings)
    return TrainingProgress(logging.getLogger("progress"), config, **more)


def test_a_step_is_described_in_one_line():
    line = "accuracy 0.250 · score 0.325 · 62 tokens · KL 0.0123 · 3,120 tokens/s"
    assert describe(METRICS) == line


def test_the_ui_shows_tests_with_step_and_time_left_but_not_every_step(caplog):
    caplog.set_level(logging.INFO)
    with quiet(price=3600.0) as progress:
        progress.on_step(0, 4, {"val/accuracy": 0.5})
        progress.on_step(1, 4, METRICS)
        progress.on_step(2, 4, METRICS | {"val/accuracy": 0.625})
    shown = [record for record in caplog.records if record.send_to_api]
    assert [record.message.split(" · ")[:2] for record in shown] == [
        ["step 0/4", "test 0.500"],
        ["step 2/4", "accuracy 0.250"],
    ]
    assert shown[1].message.endswith(" · 20 s, 20.0 $ left")


def test_what_is_left_is_estimated_before_the_fifth_step_and_measured_from_then_on(caplog):
    caplog.set_level(logging.INFO)
    planned, earlier = Spread(5.0, 20.0, 100.0), [{"step": 1, "timing_s/step": 30.0}]
    with quiet(price=36.0, planned=planned, earlier=earlier) as progress:
        for step in range(2, 7):
            progress.on_step(step, 106, METRICS | {"val/accuracy": 0.5})
    left = [record.message.rpartition(" · ")[2] for record in caplog.records]
    # 104 steps of 20 s, between 5 and 100.
    assert left[0] == "35 min (9 min to 2.9 h), 20.8 $ (5.20 to 104.0 $) left by estimate"
    assert [text.endswith("by estimate") for text in left] == [True, True, True, False, False]
    # 100 steps of (30 + 5 x 10) / 6 s.
    assert left[-1] == "22 min, 13.3 $ left"


def test_a_diagnosis_is_said_once_while_training_and_knows_the_steps_before(caplog):
    """Eight steps without any score: five of an attempt before, three of this one and more."""
    caplog.set_level(logging.WARNING)
    earlier = [{"step": step, "critic/score/mean": 0.0} for step in range(1, 6)]
    with quiet(earlier=earlier) as progress:
        for step in range(6, 21):
            progress.on_step(step, 20, METRICS | {"critic/score/mean": 0.0})
    (said,) = [r.message for r in caplog.records if "nothing to learn from" in r.message]
    assert said.startswith("step 10, diagnosis: no response has scored anything yet")


def test_the_diagnosis_is_as_of_the_last_step(monkeypatch, tmp_path):
    shown: dict[str, tuple[str, str]] = {}

    class Artifacts:
        def __init__(self, refresh):
            pass

        def show(self, key, kind, content, description):
            if key == "diagnosis":
                shown[key] = (content(), description)

        def close(self):
            pass

    monkeypatch.setattr("tasks.prefect_ui.progress.LiveArtifacts", Artifacts)
    run = RunFolder.create(RunConfig.model_validate({"storage": {"root": tmp_path}, "run_id": "a"}))
    with quiet(artifacts_of=run) as progress:
        for step in range(1, 24):
            failing = {"reward/verdict/reward_error": 0.5} if step < 12 else {}
            progress.on_step(step, 40, METRICS | failing | {"critic/score/mean": step / 50})
            if step == 10:
                assert shown["diagnosis"][0].startswith("- **env.reward gives no score")
    assert shown["diagnosis"] == ("nothing stands out", "As of step 23.")


def test_between_steps_the_ui_shows_what_training_waits_for(monkeypatch, tmp_path):
    shown: list[tuple[str, float]] = []

    class Artifacts:
        def __init__(self, refresh):
            self.refresh = refresh

        def show(self, key, kind, content, description):
            if key == "training":
                shown.append((description, content()))

        def close(self):
            pass

    monkeypatch.setattr("tasks.prefect_ui.progress.LiveArtifacts", Artifacts)
    run = new_run(tmp_path, "a")
    waits = Waits(run.path / OF_TRAINING)
    waits.begin("gen", 0, "problem <b>17</b>", "engine_0")
    waits.write()
    with quiet(artifacts_of=run) as progress:
        progress._artifacts.refresh()
        progress.on_step(3, 4, METRICS)
        progress._artifacts.refresh()  # too soon
        monkeypatch.setattr(progress, "_refresh_at", 0.0)
        progress._artifacts.refresh()
    words = "gen for 0 s: problem \u2039b\u203a17\u2039/b\u203a, engine_0, 0 s"
    step = f"step 3/4 · {describe(METRICS)} · 10 s left"
    assert shown == [(words, 0.0), (step, 75.0), (f"{step}\n\n{words}", 75.0)]


def test_a_card_that_is_nearly_full_is_told_once_for_each_lever(caplog):
    caplog.set_level(logging.WARNING)
    card = {"learner_gpus": 0.5, "rollout_gpus": 0.5, "gpu_memory_gib": 24}
    roomy = {"memory/card_gib": 24.0, "memory/card_left_gib/update_actor": 1.3}
    tight = roomy | {"memory/card_left_gib/update_actor": 1.1}
    with quiet(resources=card) as progress:
        for step in range(1, 6):
            progress.on_step(step, 40, METRICS | roomy)
        assert caplog.records == []
        for step in range(6, 21):
            progress.on_step(step, 40, METRICS | tight)
        for step in range(21, 41):  # where checkpointing would not help
            progress.on_step(step, 40, METRICS | tight | {"memory/card_left_gib/ref": 0.2})
    first, second = [r.message for r in caplog.records if "nearly full" in r.message]
    assert first == (
        "step 10, diagnosis: the card is nearly full: a longer batch may not fit (update_actor left"
        " 1.10 of 24.0 GiB). Try: model.gradient_checkpointing=true, the next lever"
    )
    assert "ref left 0.20 of 24.0 GiB). Try: rollout.sleep=true, the next lever" in second


@pytest.mark.parametrize("on_console", [False, True])
def test_without_console_only_log_txt_has_the_steps(on_console, tmp_path, capsys, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    logger = logging.getLogger("tasks.prefect_ui.progress")
    loggers = ["console"] if on_console else []
    config = RunConfig.model_validate({"trainer": {"logger": loggers}})
    with (
        log_to_file(tmp_path / "log.txt"),
        listening(LineHandler(links=False)),
        TrainingProgress(logger, config) as progress,
    ):
        progress.on_step(1, 3, METRICS)
        progress.on_step(2, 3, METRICS)
        logger.warning("something is odd")
        full = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
        monkeypatch.setattr("sys.stdout", full)  # as a reader or terminal that is gone
        logger.warning("the run continues")
    logged = (tmp_path / "log.txt").read_text()
    assert "step 1/3 · accuracy 0.250" in logged
    assert "step 2/3 · accuracy 0.250" in logged
    assert "the run continues" in logged
    shown = capsys.readouterr().out
    assert "step 2/3" not in shown  # the bar has it
    assert "something is odd" in shown
    assert ("step 1/3" in shown) is on_console
    assert ("1/3" in terminal.getvalue()) is on_console


def test_a_long_run_is_diagnosed_a_hundred_times_and_not_every_fifth_step(monkeypatch):
    looked_at = []
    monkeypatch.setattr(
        "tasks.prefect_ui.progress.diagnose", lambda rows, _: looked_at.append(len(rows)) or []
    )
    with quiet() as progress:
        for step in range(1, 3_001):
            progress.on_step(step, 3_000, {"critic/kl": 0.1})
    assert looked_at[:3] == [5, 10, 15]
    assert sum(count > 1_500 for count in looked_at) < 100
    assert all(b - a <= 0.02 * b for a, b in pairwise(looked_at[100:]))
