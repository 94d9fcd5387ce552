"""A Prefect API as its own clients speak to it: with the login, and a token for each change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from flows.prefect_patches.login import login_file

_PATIENCE_S = 600


class Api:
    """One API under the login that its server made below a PREFECT_HOME; without it, if none."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self._home = home
        self._csrf: dict[str, str] = {}

    def login(self) -> str | None:
        file = login_file(self._home)
        return file.read_text().strip() if file.exists() else None

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        login = self.login()
        auth = httpx.BasicAuth(*login.split(":", 1)) if login else None
        with httpx.Client(auth=auth, timeout=_PATIENCE_S, trust_env=False) as client:
            answer = client.request(method, self.url + path, json=body, headers=self._csrf)
            if answer.status_code == httpx.codes.FORBIDDEN:
                asked = client.get(f"{self.url}/csrf-token", params={"client": "tests"})
                token = asked.raise_for_status().json()["token"]
                self._csrf = {"Prefect-Csrf-Client": "tests", "Prefect-Csrf-Token": token}
                answer = client.request(method, self.url + path, json=body, headers=self._csrf)
        return answer
