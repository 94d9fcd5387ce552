"""Makes the pictures of README and docs: Prefect's pages of a quickstart run that had no memory.

python -m tests.support.pictures      (five minutes on two cores)
"""

import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Page

from tests.support.browser import open_browser
from tests.support.harness import ROOT, WORKER, FlowRun, Prefect, hungry_after

IMAGES = ROOT / "deployments" / "images"
_STEPS = 12
_NUM_COLOURS = 128
_DRAWN_MS = 3_000
"""A canvas tells nobody when it is drawn; a picture that is not is seen and taken again."""
_WIDTH_PX = 1280
_TIME_LINE_PX = 512
"""Where the flow run's time line ends on its page, and a margin."""
_HEADLINES_PX = 760
"""The report's first page."""


def main() -> None:
    """Runs the preset under a worker of its own server, and takes both pictures."""
    with (
        tempfile.TemporaryDirectory(prefix="pf-", ignore_cleanup_errors=True) as folder,
        Prefect(Path(folder), {"TMPDIR": folder}).up() as prefect,
    ):
        prefect.deploy()
        # What takes the memory away sees one thread of a learner.
        settings = ["resources.learner_threads=1"]
        run = FlowRun(prefect, "countdown-train", settings, hungry_after(_STEPS))
        with prefect.running(*WORKER):
            run.ends(limit_s=7200)
        take_pictures(prefect, run.id)


def take_pictures(prefect: Prefect, flow_run_id: str) -> None:
    """Writes `flow_run.png` and `report.png`."""
    IMAGES.mkdir(exist_ok=True)
    with open_browser(_WIDTH_PX, logged_in=prefect) as pages:
        pages.show_flow_run(prefect, flow_run_id, "artifacts")
        pages.page.get_by_text("report", exact=True).first.wait_for()
        _save(pages.page, "flow_run", _TIME_LINE_PX)
        pages.show_artifact(prefect, flow_run_id, "report")
        pages.page.get_by_text("Show raw data").wait_for()
        _save(pages.page, "report", _HEADLINES_PX)


def _save(page: Page, name: str, height: int) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(_DRAWN_MS)
    part = FloatRect(x=0, y=0, width=_WIDTH_PX, height=height)
    picture = Image.open(BytesIO(page.screenshot(clip=part))).convert("RGB")
    picture.quantize(_NUM_COLOURS, dither=Image.Dither.NONE).save(
        IMAGES / f"{name}.png", optimize=True
    )


if __name__ == "__main__":
    main()
