import threading

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.prefect_ui import artifacts
from tasks.prefect_ui.artifacts import LiveArtifacts, create_table_artifact, fitted
from tests.support.fake_wandb import black_hole, closed_port


def test_a_server_that_is_away_costs_the_artifact_and_a_warning(caplog):
    with closed_port() as url, temporary_settings({PREFECT_API_URL: f"{url}/api"}):
        create_table_artifact([{"a": 1}], key="numbers", description="some")
        live = LiveArtifacts()
        live.show("training", "progress", lambda: 50.0, "half")
        live.close()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the Prefect server did not take the artifact numbers",
        "the Prefect server did not take the artifact training",
    ]


@pytest.mark.timeout(60)
def test_a_server_that_hangs_does_not_hold_up_training(monkeypatch):
    """It takes connections and says nothing: Prefect's client would wait for minutes, each time."""
    monkeypatch.setattr(artifacts, "_LAST_UPDATE_S", 0.1)
    with black_hole() as url:
        with temporary_settings({PREFECT_API_URL: f"{url}/api"}):
            live = LiveArtifacts()
        for step in range(100):
            live.show("training", "progress", lambda: 1.0, f"step {step}")
        live.close()


def test_what_cannot_be_made_costs_itself_and_is_made_in_no_step_of_training(caplog):
    made: list[str] = []

    def fail() -> str:
        raise ValueError("no picture today\nmore of it")

    live = LiveArtifacts()
    live.show("learning-curve", "markdown", fail, "")
    live.show("samples", "markdown", lambda: made.append(threading.current_thread().name), "")
    live.close()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == "the artifact learning-curve could not be made: no picture today"
    assert made != []
    assert made != [threading.current_thread().name]


def test_a_table_has_lines_that_fit_rounded_numbers_and_no_lists():
    long = f"{'card' * 7}s - set rollout.sleep=true, which makes room"
    rows = [
        {"level": "warning", "found": long, "what to do": "x" * 200, "seconds": 1.23456789},
        {"level": "ok", "found": "first\n second", "first rows": [3, 0.125999], "seconds": 7},
    ]
    table = fitted(rows)
    assert [list(row) for row in table] == [[*rows[0], "first rows"]] * 2
    assert (table[0]["seconds"], table[1]["seconds"]) == (1.235, 7)
    assert (table[0]["first rows"], table[1]["first rows"]) == (None, "3, 0.126")
    assert table[1]["found"] == "first\n second"
    found, odd = (table[0][name].split("\n") for name in ("found", "what to do"))
    assert (max(map(len, found)) <= 31, max(map(len, odd))) == (True, 36)
    (setting,) = fitted([{"changed": "model.gradient_checkpointing=true"}])
    assert setting["changed"] == "model.gradient_checkpointing=true", "a name stays whole"
    assert " ".join(found).replace("\u200b", "") == long.strip()
    assert "".join(odd) == "x" * 200
    assert not any(line.startswith("- ") for line in found), "it would be a list"
