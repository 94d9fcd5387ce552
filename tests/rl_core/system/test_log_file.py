import logging
import re

from rl_core.system.log_file import log_to_file


def test_lines_have_utc_time_level_and_logger(tmp_path):
    file = tmp_path / "run" / "log.txt"
    logger = logging.getLogger("rl_core.some_module")
    for text in ("first", "second"):
        with log_to_file(file):
            logger.info("%s", text)
            logger.debug("too quiet")
            logging.getLogger("prefect.flow_runs").warning("from Prefect")
            logging.getLogger("somebody.else").warning("not ours")
    logger.warning("after the block")
    lines = file.read_text().splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    expected = [
        "INFO rl_core.some_module: first",
        "WARNING prefect.flow_runs: from Prefect",
        "INFO rl_core.some_module: second",
        "WARNING prefect.flow_runs: from Prefect",
    ]
    assert [re.sub(f"^{stamp} ", "", line) for line in lines] == expected
    assert all(re.match(stamp, line) for line in lines)
    assert logging.getLogger("rl_core").handlers == []


def test_a_traceback_is_redacted_too(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    with log_to_file(tmp_path / "log.txt"):
        try:
            raise RuntimeError("login with 0123456789abcdef failed")
        except RuntimeError:
            logging.getLogger("rl_core").exception("at https://a:b@host")
    text = (tmp_path / "log.txt").read_text()
    assert "login with *** failed" in text
    assert "https://***@host" in text
    assert "0123456789abcdef" not in text
