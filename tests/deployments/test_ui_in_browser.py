"""What a person sees of a deployment's run that ran out of memory: Prefect's pages, in Chromium."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from playwright.sync_api import Locator, expect

from flows.settings.compose import PresetName
from rl_core.runs.run_folder import RunFolder
from tests.support.browser import Pages, open_browser
from tests.support.harness import WORKER, FlowRun, Prefect, hungry_after
from tests.support.runs import short
from tests.support.waiting import wait_for

NUM_STEPS = 4
LEARNS_STEPS = 2
"""Before the learner is hungry, see hungry/sitecustomize.py."""
ARTIFACTS = (
    *("preflight", "validation", "training", "attempts", "checkpoints"),
    *("evaluation", "champion", "learning-curve", "report"),
)
CHANGED = "model.gradient_checkpointing=true"
ALL_COMPLETED = re.compile(r"^\s*\(\d+ completed\)\s*$", re.IGNORECASE)
_PATIENCE_MS = 120_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Retried:
    """A deployment's run whose training ran out of memory, in its first attempt.

    Or in the next, after one that a busy machine had no time to start Ray for.
    """

    def __init__(self, prefect: Prefect, overrides: list[str]) -> None:
        self.prefect = prefect
        root = prefect.folder / "pages"
        sizes = {"total_steps": NUM_STEPS, "save_freq": LEARNS_STEPS, "test_freq": NUM_STEPS}
        settings = [*short(overrides, **sizes), f"storage.root={root}"]
        hungry = hungry_after(LEARNS_STEPS)
        self.flow_run = FlowRun(prefect, "countdown-train", settings, hungry)
        with prefect.running(*WORKER):
            self.flow_run.ends(limit_s=1500)
        (folder,) = (root / "runs").iterdir()
        self.run = RunFolder(folder)
        attempts = self.run.read().attempts
        self.number, self.from_step = len(attempts), attempts[-1].from_step
        self.name = (
            f"train attempt {self.number} after out of memory in update_critic: "
            f"gradient checkpointing, from step {self.from_step}"
        )


@pytest.fixture(scope="module")
def retried(prefect: Prefect, tiny_overrides: list[str]) -> Retried:
    prefect.pause_nights()
    prefect.disable_automations()
    return Retried(prefect, tiny_overrides)


@pytest.fixture
def pages(
    retried: Retried, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pages]:
    """A window of its own for each test, whose last sight is kept beside pytest's other files."""
    # So high that the list of artifacts shows: the page draws only those that are in sight.
    with open_browser(height=2_400, logged_in=retried.prefect) as pages:
        yield pages
        pages.page.screenshot(path=tmp_path_factory.getbasetemp() / f"{request.node.name}.png")
        assert pages.elsewhere == []


def see(*what: Locator) -> None:
    for locator in what:
        expect(locator).to_be_visible(timeout=_PATIENCE_MS)


@pytest.mark.chaos
def test_the_page_of_a_run_names_its_retry_and_what_it_changed(retried, pages, survived):
    page = pages.page
    pages.show_flow_run(retried.prefect, retried.flow_run.id, "task-runs")
    see(page.get_by_text(retried.flow_run.name), page.get_by_text(ALL_COMPLETED))
    page.get_by_text(retried.name, exact=True).click()
    see(
        page.get_by_text("Run Count").locator("xpath=..").get_by_text(str(retried.number)),
        page.get_by_text(f"Retry {retried.number - 1}/"),
        page.get_by_text(f"attempt {retried.number}, from step {retried.from_step} with {CHANGED}"),
        page.get_by_text(f"training continues after step {retried.from_step}", exact=True),
    )
    steps = {row["step"] for row in retried.run.metrics.read()}
    survived(
        "OOM",
        "update_critic of a deployment's run, seen in a browser",
        steps_lost=LEARNS_STEPS - retried.from_step,
        rows_lost=len(set(range(NUM_STEPS + 1)) - steps),
    )


def test_its_artifacts_are_listed_and_tell_why_there_was_a_retry(retried, pages):
    page = pages.page
    pages.show_flow_run(retried.prefect, retried.flow_run.id, "artifacts")
    see(*(page.get_by_text(key, exact=True).first for key in ARTIFACTS))
    see(page.get_by_text(f"step {NUM_STEPS}/{NUM_STEPS} · accuracy"))
    pages.show_artifact(retried.prefect, retried.flow_run.id, "attempts")
    see(
        page.get_by_role("cell").get_by_text(CHANGED, exact=True),
        page.get_by_role("cell").get_by_text(re.compile(r"out of\s*memory in\s*update_critic:")),
    )


def test_its_report_shows_what_was_reached_and_the_picture_is_drawn(retried, pages):
    page, record = pages.page, retried.run.read()
    pages.show_artifact(retried.prefect, retried.flow_run.id, "report")
    see(
        page.get_by_text(f"{record.accuracy_before:.3f} → {record.accuracy_after:.3f}"),
        page.get_by_text(f", retried from step {retried.from_step} with {CHANGED}"),
    )
    pages.show_artifact(retried.prefect, retried.flow_run.id, "learning-curve")
    picture = page.get_by_role("img").and_(page.locator("[src^=data]"))
    see(picture)
    expect(page.get_by_text("data:image")).to_have_count(0)
    assert picture.evaluate("picture => picture.decode().then(() => picture.naturalWidth)") > 100


def test_the_form_offers_presets_and_overrides_and_makes_a_run_of_them(retried, pages):
    page, prefect = pages.page, retried.prefect
    deployment = prefect.deployment("countdown-train")
    page.goto(f"{prefect.url}/deployments/deployment/{deployment['id']}/run")
    page.get_by_role("button", name="quickstart").press("Space")
    for preset in get_args(PresetName):
        see(page.get_by_role("option", name=preset, exact=True))
    page.get_by_role("option", name="gsm8k-toy", exact=True).click()
    page.get_by_role("button", name="Add item").click()
    page.locator("textarea").fill("seed=7")
    before = [run["id"] for run in prefect.flow_runs("countdown-train")]

    def made() -> list[dict[str, Any]]:
        return [run for run in prefect.flow_runs("countdown-train") if run["id"] not in before]

    page.get_by_role("button", name="Submit").click()
    wait_for(made)
    (run,) = made()
    prefect.delete(run)
    assert run["parameters"] == {"preset": "gsm8k-toy", "overrides": ["seed=7"]}
