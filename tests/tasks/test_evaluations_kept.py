import re
from pathlib import Path
from typing import Any

import pytest

from flows.cli.stages import evaluate
from rl_core.evaluation.rows import evaluation_of, read_rows
from rl_core.evaluator import Evaluator, checkpoint_name
from rl_core.runs.run_folder import RunFolder
from tasks.evaluate import evaluate_models, evaluate_with
from tasks.promote import promote_run
from tasks.queries import sql
from tasks.queries.checkpoint_names import find_model
from tasks.report import write_report
from tests.tasks.report_page.test_browser import text_of
from tests.tasks.test_evaluate import KnowingEngines, finished_run, settings, write_data

OF_TWO = {"samples_per_problem": 2, "max_problems": 2}
OWN = ["base.parquet", "step_000007.parquet"]
"""Files of the run's own evaluation."""


class Place:
    """A run that was evaluated by its own settings on four problems: 0.25 -> 1."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root / "out", model
        self.data = write_data(root / "data")
        self.config = settings(self.root)
        self.run = finished_run(self.config, model)
        self.run.update(status="finished", steps=7, model=str(model), data=str(self.data))
        self.checkpoint = self.run.path / "checkpoints" / "step_000007"

    def evaluated(self, **changes: Any) -> str:
        """Evaluates both models, and returns which evaluation it was."""
        config = settings(self.root, **changes)
        evaluate_with(KnowingEngines(self.model), config, self.run, self.data, self.model)
        return Evaluator(config, self.data).evaluation

    def knows_the_checkpoint(self, **changes: Any) -> None:
        """Keeps what the checkpoint answers under these settings: no engine need be started."""
        engines = KnowingEngines(self.model)
        engines.load_weights(self.checkpoint)
        evaluator = Evaluator(settings(self.root, **changes), self.data)
        evaluator.ask(engines, checkpoint_name(self.checkpoint), self.checkpoint)

    def problems_in(self, file: str) -> int:
        rows = read_rows(self.run.path / "eval" / file)
        return sum(row["mode"] == "greedy" for row in rows)

    def files(self) -> list[str]:
        folder = self.run.path / "eval"
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))


@pytest.fixture
def place(tmp_path: Path, tiny_model_path: Path) -> Place:
    return Place(tmp_path, tiny_model_path)


def test_an_evaluation_of_fewer_problems_lies_beside_the_runs_own(place, cli):
    own = place.evaluated()
    before = {name: (place.run.path / "eval" / name).read_bytes() for name in place.files()}
    assert sorted(before) == OWN
    record = place.run.read()
    place.knows_the_checkpoint(evaluation=OF_TWO)
    command = ["evaluate", "checkpoint=r", "evaluation.max_problems=2"]
    said = cli(*command, root=place.root).out
    (named,) = re.findall(r"^rows: (.*)$", said, re.MULTILINE)
    (page,) = re.findall(r"^right and wrong answers: (.*)$", said, re.MULTILINE)
    fewer = Path(named).parent.name
    assert "r/step_000007: 2 of 2 right" in said
    assert re.fullmatch(r"2-problems-[0-9a-f]{8}", fewer)
    assert place.files() == [f"{fewer}/step_000007.parquet", *before]
    assert {name: (place.run.path / "eval" / name).read_bytes() for name in before} == before
    assert place.problems_in(f"{fewer}/step_000007.parquet") == 2
    assert Path(page) == Path(named).with_suffix(".html")
    assert place.run.read() == record

    # SQL and report keep the run's own, and name the other one, too.
    kept = sql.ask("kept_evaluations", root=place.root)
    assert kept.select("evaluation", "is_default", "model", "problems").rows() == [
        (own, True, "base", 4),
        (own, True, "step_000007", 4),
        (fewer, False, "step_000007", 2),
    ]
    summary = sql.ask("evaluation_summary", root=place.root)
    assert summary.select("model", "problems", "accuracy").rows() == [
        ("base", 4, 0.25),
        ("step_000007", 4, 1.0),
    ]
    assert sql.ask("gain_over_base", root=place.root)["problems"].to_list() == [4]
    text = text_of(write_report(place.run.path).html.read_text())
    assert "3 problems won and 0 lost of 4" in text
    assert "greedy answers to 4 problems" in text
    assert f"{fewer} step_000007 2 1.000" in text

    # The same again: the rows are read, not asked.
    cli(*command, root=place.root)
    assert place.files() == [f"{fewer}/step_000007.parquet", *before]


def test_other_settings_of_both_models_change_neither_record_nor_champion(place, capsys):
    place.evaluated()
    promote_run(place.config, place.run, place.data, place.model)
    record, champions = place.run.read(), list((place.root / "champions").glob("*.json"))
    other = place.evaluated(evaluation=OF_TWO)
    evaluate([f"storage.root={place.root}", "evaluation.max_problems=2"])
    said = capsys.readouterr().out
    assert re.search(r"^problems +2 +2$", said, re.MULTILINE)
    assert "kept next to its own evaluation" in said
    assert place.run.read() == record
    assert list((place.root / "champions").glob("*.json")) == champions
    assert place.files() == [*(f"{other}/{name}" for name in OWN), *OWN]


def test_as_many_problems_as_there_are_is_the_same_evaluation(place):
    own = place.evaluated()
    assert place.evaluated(evaluation={"samples_per_problem": 2, "max_problems": 4}) == own
    assert place.files() == OWN


def test_settings_that_a_run_goes_on_with_move_its_older_evaluation_aside(place):
    """`run run_id=r evaluation.max_problems=2`: the record is of the new one, the old one stays."""
    own = place.evaluated()
    finished_run(settings(place.root, evaluation=OF_TWO), place.model)
    new = place.evaluated(evaluation=OF_TWO)
    assert place.files() == [*(f"{own}/{name}" for name in OWN), *OWN]
    assert [place.problems_in(name) for name in place.files()] == [4, 4, 2, 2]
    assert (place.run.path / "eval" / own / "base.html").exists()
    assert place.run.read().accuracy_before == 0.5
    # And back: nothing is there twice.
    finished_run(place.config, place.model)
    assert place.evaluated() == own
    assert [place.problems_in(name) for name in place.files()] == [2, 2, 4, 4]
    assert {evaluation_of(file) for file in (place.run.path / "eval").glob("*.parquet")} == {own}
    assert new != own


def test_without_an_evaluation_of_its_own_the_largest_of_most_models_is_taken(place):
    place.knows_the_checkpoint(evaluation=OF_TWO | {"max_problems": 3})
    three = settings(place.root, evaluation=OF_TWO | {"max_problems": 3})
    evaluate_models(three, place.data, find_model("r", place.root))
    data = write_report(place.run.path)
    # The tests of training asked other problems: no accuracy of theirs stands beside it.
    assert "**Greedy accuracy - → 1.000**" in data.markdown
    assert "only the trained model has answered these 3 problems" in text_of(data.html.read_text())
    both = place.evaluated(evaluation=OF_TWO)
    taken = sql.run_query("select distinct evaluation from evaluations", root=place.root)
    assert taken["evaluation"].to_list() == [both]
    assert place.run.read().accuracy_after is None
    own = place.evaluated()
    taken = sql.run_query("select distinct evaluation from evaluations", root=place.root)
    assert taken["evaluation"].to_list() == [own]
    assert place.run.read().accuracy_after == 1.0


def test_a_run_is_its_settings_own_even_where_they_cannot_be_read(place):
    own = Evaluator(place.config, place.data)
    other = Evaluator(settings(place.root, evaluation=OF_TWO), place.data)
    assert (own.is_own_of(place.run), other.is_own_of(place.run)) == (True, False)
    (place.run.path / "config.yaml").write_text("of: something else")
    assert other.is_own_of(place.run)
    place.evaluated()
    assert not other.is_own_of(RunFolder(place.run.path))
