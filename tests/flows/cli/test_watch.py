import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli.watch import spark, view
from rl_core.runs.lock import owned
from rl_core.runs.run_folder import RunFolder
from rl_core.system.waits import OF_TRAINING, Waits
from tests.support.runs import new_run, write_rollouts

HOSTILE = "\x1b[2Jgone\n[bold]bold[/bold]"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = new_run(tmp_path, "one", trainer={"total_steps": 20})
    measured = {"critic/score/mean": 0.0, "timing_s/step": 60.0, "memory/peak_gib/gen": 1.25}
    for step in range(1, 11):
        run.metrics.append(step, measured)
    write_rollout(run, HOSTILE)
    return run


def write_rollout(run: RunFolder, response: str) -> None:
    truth = json.dumps({"numbers": [3, 14, 7], "target": 35})
    row = {"verdict": "no_answer", "response": response, "truth": truth}
    write_rollouts(run.path, [row], step=10)


def shown(run: RunFolder) -> str:
    with (console := Console(width=1_000)).capture() as captured:
        console.print(view(run))
    return captured.get()


def test_the_end_shows_what_the_evaluation_came_to(run):
    assert "evaluated" not in shown(run)
    run.update(status="finished", accuracy_before=0.25, accuracy_after=0.5)
    assert "evaluated: accuracy 0.250 before, 0.500 after" in shown(run)
    assert "accuracy in tests" not in shown(run)


def test_sampled_decoding_is_named(tmp_path):
    sampled = {"decoding": "sampled", "samples_per_problem": 4, "temperature": 0.7}
    run = new_run(tmp_path, "night", evaluation=sampled)
    protocol = "mean of 4 samples, temperature 0.7"
    assert f"accuracy in tests and evaluation: {protocol}" in shown(run)


def test_a_curve_as_bars_by_hand():
    assert spark([]) == ""
    assert spark([3.0, 3.0]) == "▁▁"
    assert spark([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert spark([0, 0, 7, 7], width=2) == "▁█"
    assert spark([0, 1, 7], width=2) == "▁█"  # means of (0) and (1, 7)


def test_one_look_shows_progress_curves_memory_samples_and_what_is_wrong(cli, run):
    said = cli("watch", "one").out
    assert "step 10 of 20, 10 min left" in said
    assert "s per step  ▁▁▁▁▁▁▁▁▁▁  60 -> 60" in said
    assert "gen 1.25" in said
    assert "no response has scored anything yet" in said
    assert "step 10: no_answer, 0" in said
    assert "3, 14, 7 -> 35" in said
    assert "attempt" not in said
    run.add_attempt("continued after: out of memory in update_actor")
    assert "attempt 2, continued after: out of memory in update_actor" in cli("watch", "one").out
    assert "\x1b[2J" not in said
    assert "[bold]bold[/bold]" in said  # a model's text is no markup
    held = {"memory/host_gib/learner": 2.5, "memory/host_gib/trainer": 0.25}
    run.metrics.append(11, held | {"memory/host_available_gib": 18.0})
    said = " ".join(cli("watch", "one").out.split())
    assert "memory held, GiB learner 2.50, trainer 0.25; 18.0 are left" in said


def test_what_a_run_waits_for_is_shown_while_it_goes_on(cli, run):
    waits = Waits(run.path / OF_TRAINING)
    for name in ("Ray", "engine_0"):
        with waits.on("start", name):
            pass
    waits.begin("gen", 0, "problem \x1b[2J17", "engine_0")
    run.note_startup(waits.startup_s | {"all": 14.25, "engine_0": 12.0, "Ray": 2.0})
    waits.write()
    said = " ".join(cli("watch", "one").out.split())
    assert r"gen for 0 s: problem \x1b[2J17, engine_0, 0 s" in said
    assert "attempt 1 started in 14.2 s (engine_0 12.0 s, Ray 2.0 s)" in said
    run.update(status="failed")
    assert "gen for" not in cli("watch", "one").out


def test_only_the_end_of_a_long_response_is_shown(run):
    write_rollout(run, "\n1 + 2\n")
    assert "│ 1 + 2 " in shown(run)
    write_rollout(run, "a" * 300 + "b" * 400)
    assert f"│ … {'b' * 400} " in shown(run)


def test_ctrl_c_leaves_a_watch_without_a_word(cli, run, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("flows.cli.watch.time.sleep", interrupt)
    said = cli("watch", "one")
    assert "step 10 of 20" in said.out
    assert said.err == ""


def test_a_run_that_is_killed_while_it_is_watched_ends_the_watch(cli, run, monkeypatch):
    with ExitStack() as process:
        process.enter_context(owned(run))
        looks = iter([lambda: None, process.close])  # its lock goes as with a SIGKILL
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setattr("flows.cli.watch.time.sleep", lambda seconds: next(looks)())
        said = cli("watch", "one").out
    assert "running" in said
    assert "its process is gone" in said


@pytest.mark.parametrize(
    "command", [["watch", "one"], ["report", "one"], ["compare", "one", "one"]]
)
def test_a_run_that_was_killed_before_is_not_said_to_run(cli, command, run):
    with owned(run):
        pass
    is_refused = command[0] == "compare"  # one run is no comparison
    cli(*command, code=2 * is_refused)
    assert run.read().status == "interrupted"


def test_a_run_that_has_only_begun_is_shown(cli, tmp_path):
    folder = tmp_path / "runs" / "new"
    folder.mkdir(parents=True)
    record = {"run_id": "new", "preset": "quickstart", "started_at": "2026-11-21T00:00:00"}
    (folder / "run.json").write_text(json.dumps(record))
    assert "step 0" in cli("watch").out


def test_runs_watch_and_sql_attempts_show_what_to_do_next(cli, run):
    run.add_attempt("out of memory in gen", {"rollout.max_num_seqs": (256, 128)})
    run.add_attempt("continued", overrides="budget.max_hours=4")
    run.update(status="failed", reason="it broke", next_step="mend it, then the same command")
    assert "what to do next: mend it, then the same command" in shown(run)
    assert json.loads(cli("sql", "runs_overview", "--format", "json").out)[0]["next_step"] == (
        "mend it, then the same command"
    )
    assert "mend it, then the same command" in cli("runs", "one").out
    starts = json.loads(cli("sql", "attempts", "--format", "json").out)
    columns = ("from_step", "changed_by_retry", "changed_by_you", "next_step")
    assert [tuple(start[name] for name in columns) for start in starts] == [
        (0, None, None, None),
        (0, "rollout.max_num_seqs=128", None, None),
        (0, None, "budget.max_hours=4", "mend it, then the same command"),
    ]
