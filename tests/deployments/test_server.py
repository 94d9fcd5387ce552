"""A real server takes the commands of docs/operations.md, and nobody without the login."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.support.browser import open_browser
from tests.support.harness import Prefect
from tests.support.waiting import wait_for

DEPLOYMENT = {
    "name": "evil",
    "entrypoint": "x.py:f",
    "work_pool_name": "countdown",
    "pull_steps": [{"prefect.deployments.steps.run_shell_script": {"script": "id"}}],
}
POLLS = 60
_PATIENCE_MS = 120_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def answer(prefect: Prefect, path: str, method: str = "POST", **request: Any) -> httpx.Response:
    return httpx.request(method, prefect.api + path, timeout=120, trust_env=False, **request)


def test_nobody_makes_a_deployment_without_the_login(prefect):
    deployment = prefect.deployment("countdown-train")
    body = {**DEPLOYMENT, "flow_id": deployment["flow_id"]}
    token = answer(prefect, "/csrf-token", "GET", params={"client": "x"})
    assert token.status_code == 401
    made_up = {"Prefect-Csrf-Client": "x", "Prefect-Csrf-Token": "x"}
    for auth in (None, ("countdown-train", "guess"), ("", "")):
        for headers in ({}, made_up, {"Host": "rebound.example"}):
            refused = answer(prefect, "/deployments/", json=body, auth=auth, headers=headers)
            assert refused.status_code in (401, 403), (auth, headers)
        read = answer(prefect, f"/deployments/{deployment['id']}", "GET", auth=auth)
        assert read.status_code == 401
    assert len(prefect.post("/deployments/filter", {})) == 4
    assert answer(prefect, "/health", "GET").json() is True  # a probe needs no login


def test_a_page_that_makes_the_browser_send_the_login_along_changes_nothing(prefect):
    """A form and `fetch` without a content type are sent without asking the server first."""
    login = httpx.BasicAuth(*prefect.login.split(":", 1))
    evil = {"Origin": "http://evil.example"}
    for simple in ({}, {"Content-Type": "text/plain"}):
        refused = answer(prefect, "/deployments/", content=b"{}", auth=login, headers=evil | simple)
        assert refused.status_code == 403
    to_post = {**evil, "Access-Control-Request-Method": "POST"}
    asked = answer(prefect, "/deployments/", "OPTIONS", headers=to_post)
    assert asked.status_code == 400
    given = {"params": {"client": "x"}, "auth": login, "headers": evil}
    token = answer(prefect, "/csrf-token", "GET", **given)
    for said in (asked, token):
        assert "access-control-allow-origin" not in said.headers  # no page may read it


def test_the_page_asks_once(prefect):
    with open_browser() as pages:
        page = pages.page
        page.goto(f"{prefect.url}/deployments")
        page.wait_for_url("**/login**")
        field = page.locator("input[type=password]")
        button = page.get_by_role("button", name=re.compile("log ?in|sign in", re.IGNORECASE))
        field.fill("countdown-train:wrong")
        button.click()
        expect(page.get_by_text("Authentication failed").first).to_be_visible(timeout=_PATIENCE_MS)
        field.fill(prefect.login)
        button.click()
        listed = page.get_by_text("countdown-train-nightly").first
        page.goto(f"{prefect.url}/deployments")
        expect(listed).to_be_visible(timeout=_PATIENCE_MS)
        page.reload()
        expect(listed).to_be_visible(timeout=_PATIENCE_MS)
        assert pages.elsewhere == []


def test_many_polls_of_workers_never_find_the_database_locked(prefect):
    def poll(_: int) -> None:
        prefect.post("/work_pools/countdown/get_scheduled_flow_runs", {})

    with ThreadPoolExecutor(8) as workers:
        list(workers.map(poll, range(POLLS)))
    log = Path(prefect.folder / "server.log").read_text()
    assert "database is locked" not in log


def test_the_nightly_schedule_makes_runs_within_a_minute(prefect):
    """Prefect's scheduler fails silently with sqlalchemy 2.1: this notices."""
    wait_for(lambda: prefect.flow_runs("countdown-train-nightly") != [], limit_s=60)
    runs = prefect.flow_runs("countdown-train-nightly")
    assert {run["state_type"] for run in runs} == {"SCHEDULED"}
    assert all(run["auto_scheduled"] for run in runs)


@pytest.mark.parametrize("overrides", [[], ["seed=1", "actor.lr=1e-4"]])
def test_the_bare_name_makes_a_run_of_the_default_preset_and_the_full_one_takes_overrides(
    prefect, overrides
):
    name = "countdown-train/countdown-train"
    words = (name, "--param", f"overrides={json.dumps(overrides)}")
    said = prefect.command("deployment", "run", *(words if overrides else ("countdown-train",)))
    assert f"for deployment '{name}'" in said
    (run,) = prefect.flow_runs("countdown-train")
    assert run["state_type"] == "SCHEDULED"
    assert run["parameters"] == {"preset": "quickstart", "overrides": overrides}
    prefect.delete(run)


def test_outside_of_the_repository_the_profile_teaches_bare_names(prefect, tmp_path):
    prefect.command("config", "set", "PREFECT_PLUGINS_ENABLED=true", cwd=tmp_path)
    said = prefect.command("deployment", "run", "countdown-train", cwd=tmp_path)
    assert "for deployment 'countdown-train/countdown-train'" in said
    (run,) = prefect.flow_runs("countdown-train")
    prefect.delete(run)
    with pytest.raises(AssertionError) as unknown:
        prefect.command("deployment", "run", "countdown", cwd=tmp_path)
    prefect.command("config", "unset", "PREFECT_PLUGINS_ENABLED", "--yes", cwd=tmp_path)
    assert "Deployment 'countdown' not found!" in str(unknown.value)
    assert "Traceback" not in str(unknown.value)


def test_the_file_switches_its_nights_off_and_on_and_a_person_stays_master(prefect):
    def deployed(at: str | None) -> tuple[str, bool]:
        printed = prefect.deploy(at=at)
        (schedule,) = prefect.deployment("countdown-train-nightly")["schedules"]
        lines = [line for line in printed.splitlines() if line.startswith("no night: ")]
        assert len(lines) < 2
        return "".join(lines), schedule["active"]

    def switch(is_on: bool) -> None:
        night = prefect.deployment("countdown-train-nightly")
        path = f"/deployments/{night['id']}/schedules/{night['schedules'][0]['id']}"
        prefect.request("PATCH", path, {"active": is_on})

    by_file = "no night: deployments/night.yaml says at: null"
    by_person = (
        "the schedule of nightly/countdown-train-nightly is switched off in the UI; switch it on "
        "there"
    )
    assert deployed("02:00") == ("", True)
    assert deployed(None) == (by_file, False)
    assert deployed(None) == (by_file, False)
    assert deployed("03:00") == ("", True)
    switch(False)
    assert deployed("03:00") == (f"no night: {by_person}", False)
    assert deployed(None) == (f"{by_file}, and {by_person}", False)
    assert deployed("03:00") == (f"no night: {by_person}", False)
    switch(True)
    assert deployed("03:00") == ("", True)
    assert prefect.deployment("countdown-train-nightly")["tags"] == ["countdown-train", "nightly"]


def test_a_schedule_that_nobody_means_is_refused_in_a_line(prefect):
    with pytest.raises(AssertionError) as refused:
        prefect.deploy(at="0 0 1 * * *")
    (line,) = [line for line in str(refused.value).splitlines() if "has 6 fields" in line]
    assert line.startswith("countdown-train: ")
    assert "Traceback" not in str(refused.value)
