"""One real run of the preset `gsm8k-toy` cut small: its files, and what its page in Prefect tells.

What the preset is worth is measured, not tested: `countdown-train run preset=gsm8k-toy` prints both
accuracies, and `benchmarks/README.md` keeps them.
"""

import base64
import itertools
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pytest
from prefect import flow, get_client, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from flows.countdown_train import countdown_train
from flows.evaluate import evaluate
from flows.nightly import nightly
from flows.prune import prune
from rl_core.envs.numbers import score_response
from rl_core.runs.run_folder import RunFolder
from tasks.prefect_ui.artifacts import LiveArtifacts
from tasks.prefect_ui.flow_run import logs_in_ui
from tasks.queries.saved_questions import list_queries
from tasks.queries.sql import ask
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("prefect_harness"),
]

CHAIN = (
    *("preflight", "generate", "base_model", "validate", "train"),
    *("prune", "evaluate", "promote", "report"),
)
SMALL = (
    *("data.train_size=64", "data.test_size=16", "data.train_batch_size=8"),
    *("data.max_response_length=64", "actor.mini_batch_size=4", "algorithm.group_size=4"),
    # Enough to write "####" and a number now and then, right or wrong.
    *("base_model.steps=40", "base_model.hidden_size=64", "base_model.num_heads=2"),
    *("base_model.num_layers=2", "base_model.batch_size=16", "base_model.num_threads=1"),
    *("base_model.warmup_steps=5", "base_model.max_response_tokens=64"),
    *("rollout.num_engines=1", "resources.learner_threads=1"),
    *("trainer.total_steps=2", "trainer.test_freq=1", "evaluation.samples_per_problem=2"),
)
SECRET = "secret-of-a-wandb"


@dataclass
class Page:
    """A flow run on its server."""

    id: UUID | None
    client: SyncPrefectClient

    @property
    def _this(self) -> FlowRunFilter:
        return FlowRunFilter(id=FlowRunFilterId(any_=[self.id]))

    def artifacts(self) -> list[Any]:
        return self.client.read_artifacts(flow_run_filter=self._this)

    def artifact(self, key: str) -> Any:
        return max((a for a in self.artifacts() if a.key == key), key=lambda a: a.created)

    def table(self, key: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.artifact(key).data)
        return rows

    def task_runs(self) -> list[TaskRun]:
        return self.client.read_task_runs(flow_run_filter=self._this)

    def ended(self) -> list[State]:
        states = [run.state for run in self.task_runs()]
        return [state for state in states if state and state.is_final()]

    def names(self) -> set[str]:
        return {run.name for run in self.task_runs()}

    def logs(self) -> list[Any]:
        this = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[self.id]))
        return self.client.read_logs(this, limit=200)

    def wait_for(self, message: str) -> Any:
        """Returns the first line of the log with such a message; lines are sent in batches."""

        def found() -> list[Any]:
            return [log for log in self.logs() if message in log.message]

        wait_for(found, seen=lambda: (message, [log.message for log in self.logs()]))
        return found()[0]


@pytest.fixture(scope="module")
def run_and_page(
    tmp_path_factory: pytest.TempPathFactory, prefect_harness: Path
) -> Iterator[tuple[RunFolder, Page]]:
    root = tmp_path_factory.mktemp("out")
    words = (*SMALL, f"storage.root={root}")
    state = countdown_train(preset="gsm8k-toy", overrides=words, return_state=True)
    assert state.is_completed(), state.message
    (run,) = RunFolder.all_under(root)
    with get_client(sync_client=True) as client:
        yield run, Page(state.state_details.flow_run_id, client)


def test_tags_and_task_runs_say_what_ran(run_and_page):
    run, page = run_and_page
    tags = page.client.read_flow_run(page.id).tags
    assert set(tags) == {"preset:gsm8k-toy", "env:gsm8k", "estimator:grpo"}
    # events are written a moment later
    wait_for(lambda: len(page.names()) >= 9, seen=page.names)
    assert page.names() == {
        "check disk, engine and model",
        "generate 80 problems",
        "warm-start a base model: 40 steps",
        f"check the data set {Path(str(run.read().data)).name}",
        "train",
        "prune checkpoints to 20 GB, rollouts to 20 GB",
        "evaluate base and step_000002 on 16 problems",
        "compare with the champion",
        "write report.html",
    }


def test_the_graph_chains_the_stages(run_and_page):
    """As the page draws it: what stands behind what."""
    _, page = run_and_page

    def edges() -> set[tuple[str, str]]:
        keys = {str(run.id): run.task_key.partition("-")[0] for run in page.task_runs()}
        graph = page.client.request("GET", f"/flow_runs/{page.id}/graph-v2").json()
        return {
            (keys[parent["id"]], keys[node_id])
            for node_id, node in graph["nodes"]
            for parent in node["parents"]
        }

    chain = {(f"{one}_task", f"{other}_task") for one, other in itertools.pairwise(CHAIN)}
    wait_for(lambda: chain <= edges(), seen=edges)


def test_every_artifact_has_a_description_and_training_was_shown_live(run_and_page):
    run, page = run_and_page
    described = {a.key: (a.type, a.description) for a in page.artifacts()}
    kinds = {
        **dict.fromkeys(("preflight", "validation", "checkpoints", "evaluation"), "table"),
        "answers": "markdown",
        "training": "progress",
        **dict.fromkeys(("learning-curve", "samples", "report"), "markdown"),
    }
    assert {key: described[key][0] for key in kinds} == kinds
    assert [key for key, (_, description) in described.items() if not description] == []
    assert page.artifact("training").data == 100.0
    assert page.artifact("training").description.startswith("step 2/2 · ")
    assert len(page.artifacts()) == len(described), "each is there once"
    assert page.artifact("learning-curve").description == "As of step 2."
    for key in ("learning-curve", "report"):
        kind, _, svg = page.artifact(key).data.partition("](")[2].partition(";base64,")
        assert kind == "data:image/svg+xml"
        assert f"{run.run_id}: " in base64.b64decode(svg.partition(")")[0]).decode()
    assert [a.key for a in page.artifacts() if a.task_run_id is None] == ["report"]
    (samples,) = [a for a in page.artifacts() if a.key == "samples"]
    assert samples.data.startswith("Of step 2:\n")
    assert "\n### " in samples.data


def test_tables_show_verdicts_first_and_the_report_is_linked(run_and_page):
    run, page = run_and_page
    preflight = page.table("preflight")
    assert list(preflight[0]) == ["level", "check", "found", "what to do"]
    assert {row["level"] for row in preflight} <= {"warning", "ok"}
    assert page.artifact("preflight").description.startswith("Nothing stops the run: ")
    validation = page.table("validation")
    assert list(validation[0])[:2] == ["status", "check"]
    said = f"All {len(validation)} checks passed. "
    assert page.artifact("validation").description.startswith(said)
    assert list(page.table("evaluation")[0]) == ["measure", "base", "step_000002"]
    report = run.path / "report.html"
    assert f"[{report}](file://{report})" in page.artifact("report").data


def test_the_log_has_what_stages_and_workers_say(run_and_page):
    run, page = run_and_page
    page.wait_for("finished")
    said = {log.name for log in page.logs()}
    assert {"tasks.generate", "tasks.validate", "tasks.evaluate", "prefect.task_runs"} <= said
    model = Path(str(run.read().model)).name
    learner = page.wait_for(f"learner: {model} in float32, micro-batches of up to")
    assert (learner.level, learner.task_run_id is not None) == (logging.INFO, True)
    engine = page.wait_for("engine_0: ")
    evaluated = page.wait_for("base: greedy accuracy")
    assert engine.task_run_id == learner.task_run_id != evaluated.task_run_id is not None
    assert not any("Warning" in log.message for log in page.logs())


def test_groups_are_rolled_out_scored_and_compared(run_and_page):
    run, _ = run_and_page
    rollouts = pl.read_parquet(run.path / "rollouts" / "*.parquet")
    assert rollouts.height == 2 * 8 * 4
    assert set(rollouts["data_source"]) == {"openai/gsm8k"}
    assert set(rollouts["verdict"]) <= {"correct", "wrong_value", "no_answer"}
    groups = rollouts.group_by("step", "group_id").agg(
        pl.len(),
        pl.col("prompt").n_unique(),
        pl.col("advantage_mean").abs().sum(),
        pl.col("reward"),
    )
    assert set(groups["len"]) == {4}
    assert set(groups["prompt"]) == {1}
    for rewards, advantages in groups.select("reward", "advantage_mean").iter_rows():
        assert (len(set(rewards)) > 1) == (advantages > 0)
    for row in rollouts.iter_rows(named=True):
        assert row["prompt"].endswith("Let me solve this step by step.\n<think>")
        assert score_response(row["response"], "1").answer == row["answer"]


def test_both_models_are_evaluated_on_the_test_split(run_and_page):
    run, _ = run_and_page
    record = run.read()
    assert (record.status, record.steps, record.preset) == ("finished", 2, "gsm8k-toy")
    assert 0 <= (record.accuracy_before or 0) <= 1
    assert 0 <= (record.accuracy_after or 0) <= 1
    rows = pl.read_parquet(run.path / "eval" / "*.parquet")
    counts = rows.group_by("model", "mode").len().sort("model", "mode").rows()
    models = ("base", "step_000002")
    assert counts == [(m, *c) for m in models for c in (("greedy", 16), ("sampled", 32))]


def test_every_saved_question_has_an_answer_and_so_has_the_report(run_and_page):
    run, _ = run_and_page
    for query in list_queries():
        ask(query.name, root=run.root, run=run.run_id)
    (summary,) = ask("gain_over_base", root=run.root, run=run.run_id).to_dicts()
    assert summary["problems"] == 16
    page = (run.path / "report.html").read_text()
    assert "pass@k" in page
    assert "#### " in page
    assert "By number of solutions" not in page, "GSM8K has no such label"


def test_secrets_stay_out_of_the_log_whoever_says_them(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)

    @task
    def telling() -> None:
        logging.getLogger("rl_core.anything").info("from ours: %s", SECRET)
        get_run_logger().warning("from Prefect's: %s", SECRET)

    @flow
    def tells() -> None:
        with logs_in_ui():
            telling()

    state = tells(return_state=True)
    with get_client(sync_client=True) as client:
        page = Page(state.state_details.flow_run_id, client)
        assert page.wait_for("from ours").message == "from ours: ***"
        assert page.wait_for("from Prefect's").message == "from Prefect's: ***"
        assert not any(SECRET in log.message for log in page.logs())


LEAKY = f"""
raise RuntimeError("GET https://me:{SECRET}@hub.example/x with {SECRET} gave 403")
"""


def test_no_page_shows_the_secret_in_an_error(tmp_path, tiny_overrides, monkeypatch):
    """ATTACK: a module that fails with a login and a token in its error, in the first stage."""
    (tmp_path / "leaky.py").write_text(LEAKY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    words = (*tiny_overrides, f"storage.root={tmp_path}", "env.reward=leaky:score")
    state = countdown_train(overrides=words, return_state=True)
    with pytest.raises(Exception, match="GET https://") as caught:
        state.result()
    with get_client(sync_client=True) as client:
        page = Page(state.state_details.flow_run_id, client)
        failed = page.wait_for("gave 403").message

        def states() -> list[str]:
            return [str(state.message) for state in page.ended() if state.is_failed()]

        wait_for(states)
        own = client.read_flow_run(page.id).state
        cells = [str(cell) for row in page.table("preflight") for cell in row.values()]
        table = " ".join(cells).replace("\n", " ").replace("\u200b", "")  # as cells wrap it
        shown = [failed, str(caught.value), str(own), table]
        for text in [*shown, *states()]:
            assert "https://***@hub.example/x with *** gave 403" in text
        everything = [*states(), *shown, *(log.message for log in page.logs())]
        everything += [str(artifact.model_dump()) for artifact in page.artifacts()]
        assert not any(SECRET in text for text in everything)


@pytest.mark.parametrize("one", [countdown_train, nightly, evaluate, prune], ids=lambda f: f.name)
def test_no_flow_lets_an_error_out_with_a_secret(one, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    state = one(overrides=(f"run_id='{SECRET}/x'",), return_state=True)
    assert state.is_failed()
    assert "run_id=***/x: use letters, digits" in str(state.message)


def test_a_live_artifact_is_one_that_changes():
    @task
    def showing() -> None:
        live = LiveArtifacts()
        live.show("moving", "markdown", lambda: "first", "1")
        wait_for(page.artifacts)
        live.show("moving", "markdown", lambda: "second", "2")
        live.show("moving", "markdown", lambda: "third", "3")
        live.close()
        next_attempt = LiveArtifacts()
        next_attempt.show("moving", "markdown", lambda: "fourth", "4")
        next_attempt.close()

    @flow
    def shows() -> None:
        page.id = UUID(flow_run.get_id())
        showing()

    with get_client(sync_client=True) as client:
        page = Page(None, client)
        shows()
        (artifact,) = page.artifacts()
    assert (artifact.data, artifact.description) == ("fourth", "4")
    assert artifact.task_run_id is not None
