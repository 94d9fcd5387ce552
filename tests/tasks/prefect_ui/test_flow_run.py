import importlib
import inspect
import pkgutil
from typing import Any

import pytest
from prefect import Task
from prefect.logging import disable_run_logger

import tasks
from rl_core.checkpoints.store import save_checkpoint
from tasks.prefect_ui.flow_run import is_trained
from tests.support.runs import new_run

SECRET = "a-secret-of-the-hub"


class Leaky:
    """Whatever is done with it ends with an error that quotes a login and a token."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"GET https://me:{SECRET}@hub.example gave 403 for {SECRET}")

    __str__ = __iter__ = __fspath__ = __len__ = lambda self: self.anything


def all_tasks() -> dict[str, Task[..., Any]]:
    modules = [module.name for module in pkgutil.walk_packages(tasks.__path__, "tasks.")]
    return {
        name: value
        for module in (*modules, "flows.countdown_train", "flows.nightly")
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, Task)
    }


def test_no_task_lets_an_error_out_with_a_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    found = all_tasks()
    assert len(found) >= 13
    for name, task in found.items():
        needed = inspect.signature(task.fn).parameters.values()
        given = [Leaky() for one in needed if one.default is inspect.Parameter.empty]
        with disable_run_logger(), pytest.raises(Exception, match=r"hub\.example") as caught:
            task.fn(*given)
        for text in (str(caught.value), repr(caught.value)):
            assert SECRET not in text, name
            assert "https://***@hub.example gave 403 for ***" in text, name


def test_a_run_is_trained_while_its_last_step_has_its_checkpoint(tmp_path):
    run = new_run(tmp_path)
    assert not is_trained(run)
    run.metrics.append(4, {})
    assert not is_trained(run)
    save_checkpoint(run.path, 4, lambda folder: (folder / "w").touch(), None)
    assert is_trained(run)
    run.metrics.append(5, {})
    assert not is_trained(run)
