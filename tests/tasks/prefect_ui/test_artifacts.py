from __future__ import annotations

import socket
import threading

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.prefect_ui import artifacts
from tasks.prefect_ui.artifacts import LiveArtifacts, create_table_artifact

pytestmark = pytest.mark.filterwarnings("ignore:Artifact creation outside")


def test_a_server_that_is_away_costs_the_artifact_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}):
            create_table_artifact([{"a": 1}], key="numbers")
            live = LiveArtifacts()
            live.show("training", "progress", lambda: 50.0, "half")
            live.close()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the Prefect server did not take the artifact numbers",
        "the Prefect server did not take the artifact training",
    ]


@pytest.mark.timeout(60)
def test_a_server_that_hangs_does_not_hold_up_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and says nothing: Prefect's client would wait for minutes, each time."""
    monkeypatch.setattr(artifacts, "_LAST_UPDATE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}):
            live = LiveArtifacts()
        for step in range(100):
            live.show("training", "progress", lambda: 1.0, f"step {step}")
        live.close()


def test_what_cannot_be_made_costs_itself_and_is_made_in_no_step_of_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[str] = []

    def fail() -> str:
        raise ValueError("no picture today\nmore of it")

    live = LiveArtifacts()
    live.show("learning-curve", "image", fail, "")
    live.show("samples", "markdown", lambda: made.append(threading.current_thread().name), "")
    live.close()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == "the artifact learning-curve could not be made: no picture today"
    assert made != []
    assert made != [threading.current_thread().name]
