"""A headless Chromium that opens pages of this machine, and remembers what they asked for."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Page, Request, sync_playwright

from tests.support.harness import Prefect

_PATIENCE_S = 120
_LIGHT = """localStorage.setItem("color-scheme", '"light"')"""
"""Prefect's UI is dark unless it was told otherwise, whatever the browser prefers."""

_LOGGED_IN = """localStorage.setItem("prefect-password", btoa("%s"))"""


@dataclass
class Pages:
    """A browser's window, and what its pages did."""

    page: Page
    elsewhere: list[str] = field(default_factory=list)
    """Addresses on other machines that were asked for; none of them was reached."""
    errors: list[str] = field(default_factory=list)
    """Of the console, and exceptions that nothing caught."""

    def show_flow_run(self, prefect: Prefect, flow_run_id: str, tab: str = "logs") -> None:
        """Opens a flow run's page at one of its tabs."""
        self.page.goto(f"{prefect.url}/runs/flow-run/{flow_run_id}")
        self.page.locator(f"li#{tab}").click()

    def show_artifact(self, prefect: Prefect, flow_run_id: str, key: str) -> None:
        """Opens an artifact of a flow run, by a click on its name."""
        self.show_flow_run(prefect, flow_run_id, "artifacts")
        self.page.get_by_text(key, exact=True).first.click()
        self.page.wait_for_url("**/artifacts/artifact/*")


@contextmanager
def open_browser(
    width: int = 1280, height: int = 900, *, logged_in: Prefect | None = None
) -> Iterator[Pages]:
    """Yields a window of these pixels, light, that may have the login of a server."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "these tests need Chromium: apt-get install chromium"
    arguments = [
        "--no-sandbox",  # it refuses to be root with one
        "--disable-dev-shm-usage",  # containers have little of it
        # No name is looked up, so nothing beyond this machine is reached.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=arguments, timeout=_PATIENCE_S * 1000
        )
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="light"
        )
        context.set_default_timeout(_PATIENCE_S * 1000)
        context.add_init_script(_LIGHT)
        if logged_in is not None:
            context.add_init_script(_LOGGED_IN % logged_in.login)
        pages = Pages(context.new_page())

        def note_request(request: Request) -> None:
            _note_address(request.url, pages)

        def note_message(message: ConsoleMessage) -> None:
            if message.type == "error":
                pages.errors.append(message.text)

        context.on("request", note_request)
        context.on("console", note_message)
        context.on("weberror", lambda error: pages.errors.append(str(error.error)))
        pages.page.on("websocket", lambda socket: _note_address(socket.url, pages))
        yield pages
        browser.close()


def _note_address(url: str, pages: Pages) -> None:
    address = urlsplit(url)
    if address.scheme not in ("file", "data", "blob") and address.hostname != "127.0.0.1":
        pages.elsewhere.append(url)
