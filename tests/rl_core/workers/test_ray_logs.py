from pathlib import Path

import pytest

from rl_core.workers.session import why_not_started

ERROR = "[2026-11-22 08:50:01,123 E 7 7] (raylet) main.cc:307: Failed to get the system config"
MESSAGE = """Failed to start GCS.  Last 1 lines of error files:
something
.Please check {logs}/gcs_server.out for details."""


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session's folder as Ray leaves it: daemons' logs, errors above stack frames."""
    logs = tmp_path / "rl-x" / "session_2026" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "rl-x" / "session_latest").symlink_to("session_2026")
    (logs / "gcs_server.err").write_text("")
    (logs / "raylet.err").write_text(f"{ERROR}\n*** StackTrace ***\nraylet(+0x263) [0x56]\n")
    return tmp_path / "rl-x"


def test_logs_are_kept_and_named_where_they_lie_then(session, tmp_path):
    run = tmp_path / "run"
    error = RuntimeError(MESSAGE.format(logs=session / "session_latest" / "logs"))
    said = why_not_started(error, session, run)
    assert said == (
        f"Failed to start GCS. Last 1 lines of error files:; raylet.err says: {ERROR}; "
        f"all its logs: {run / 'ray'}"
    )
    assert (run / "ray" / "raylet.err").read_text().startswith(ERROR)


def test_a_path_in_rays_message_becomes_that_of_the_copy_if_there_is_one(session, tmp_path):
    logs = session / "session_2026" / "logs"
    said = why_not_started(RuntimeError(f"see {logs}/raylet.out"), session, tmp_path)
    assert said.startswith(f"see {tmp_path / 'ray'}/raylet.out; ")
    assert str(session) not in said
    said = why_not_started(RuntimeError("timed out"), session, None)
    assert said == f"timed out; raylet.err says: {ERROR}"


def test_a_cluster_that_refuses_has_no_logs_here(tmp_path):
    assert why_not_started(ConnectionError("no"), tmp_path / "empty", tmp_path) == "no"
