"""`countdown-train runs` with filters and a limit."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from flows.settings.compose import compose
from rl_core.runs.run_folder import RunFolder


@pytest.fixture
def names(cli, tmp_path):
    """`names("status=failed")`: the runs that are left, and how many older ones are not shown."""
    for days, (name, status, words) in enumerate(
        [
            ("d", "finished", ["actor.lr=1e-6"]),
            ("c", "failed", ["env=gsm8k"]),
            ("b", "failed", ["trainer.logger=[console,tensorboard]"]),
            ("a", "interrupted", ["preset=tinyzero-3b"]),
        ],
        start=1,
    ):
        config = compose([f"run_id={name}", f"storage.root={tmp_path}", *words])
        run = RunFolder.create(config)
        started = datetime.now(UTC) - timedelta(days=days) + timedelta(hours=1)
        run.update(status=status, started_at=started.isoformat())
    cli("note", "c", "Too Hot")

    def listed(*words):
        answer = json.loads(cli("runs", "--json", *words).out)["answer"]
        return "".join(run["run_id"] for run in answer["runs"]), answer["left_out"]

    return listed


@pytest.mark.parametrize(
    ("words", "runs", "left_out"),
    [
        ("", "dcba", 0),
        ("status=failed", "cb", 0),
        ("status=failed,interrupted --last 2", "cb", 1),
        ("--last 1", "d", 3),
        ("preset=tinyzero-3b", "a", 0),
        ("preset=nope", "", 0),
        ("env=gsm8k", "c", 0),
        ("env=countdown,gsm8k", "dcba", 0),
        ("actor.lr=0.000001 preset=quickstart", "d", 0),
        ("trainer.logger=[console,tensorboard]", "b", 0),
        ("note=hot", "c", 0),
        ("since=2d", "dc", 0),
        ("since=30h status=finished", "d", 0),
        ("since=2020-01-01", "dcba", 0),
        ("b", "b", 0),
    ],
)
def test_filters_and_limit(names, words, runs, left_out):
    assert names(*words.split()) == (runs, left_out)


def test_what_is_left_out_is_named(names, cli):
    assert "3 older runs not shown" in cli("runs", "--last", "1").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("status=faild", "status=faild is no status; did you mean failed? (there are: running"),
        ("actor.lrr=1", "did you mean actor.lr?"),
        ("statsu=failed", "did you mean status?"),
        ("since=yesterday", "since=yesterday is no time: write 7d"),
        ("status=", "status= needs a value"),
        ("status=failed status=finished", "status is given twice"),
        ("a b", "one RUN, or none for all"),
    ],
)
def test_a_wrong_filter_is_refused(fails, words, message):
    assert message in fails("runs", *words.split())
