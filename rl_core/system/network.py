"""Whether a server answers, within seconds: asked only about what the user wants to reach."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

PROBE_TIMEOUT_S = 3.0
_PORTS = {"http": 80, "https": 443}


def wandb_url() -> str:
    """Returns where wandb would send a run."""
    return os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"


def hub_url() -> str:
    """Returns where a model of the Hugging Face hub would come from."""
    from huggingface_hub.constants import ENDPOINT

    return os.environ.get("HF_ENDPOINT") or str(ENDPOINT)


def hubs_are_off() -> bool:
    """Says whether the user forbade to ask any hub for models: `HF_HUB_OFFLINE`."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def why_unreachable(url: str, timeout_s: float = PROBE_TIMEOUT_S) -> str | None:
    """Returns why nothing accepts a connection at `url`, or None: something does.

    Through a proxy, if the environment names one, it is the proxy that is asked.
    """
    wanted = urlsplit(url)
    proxy = os.environ.get(f"{wanted.scheme}_proxy") or os.environ.get(
        f"{wanted.scheme.upper()}_PROXY"
    )
    asked = urlsplit(proxy) if proxy else wanted
    port = asked.port or _PORTS.get(asked.scheme, 443)
    try:
        with socket.create_connection((asked.hostname or "", port), timeout=timeout_s):
            return None
    except (OSError, UnicodeError) as error:
        return f"{asked.hostname}:{port}: {error}"


def why_silent(url: str, timeout_s: float = PROBE_TIMEOUT_S) -> str | None:
    """Returns why no HTTP server answers at `url`, or None: one does, whatever it says.

    Unlike `why_unreachable` it notices a server, or a firewall, that accepts and says no word.
    """
    import httpx

    try:
        with httpx.stream("GET", url, timeout=timeout_s):
            return None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return str(error) or type(error).__name__
