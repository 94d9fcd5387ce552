"""Whether a server answers, within seconds: only servers that the user named are asked."""

import configparser
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

PROBE_TIMEOUT_S: Final = 3.0
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_PORTS = {"http": 80, "https": 443}


def wandb_url() -> str:
    """Returns where wandb sends a run: what the environment names, or the user's own settings."""
    folder = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
    settings = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, OSError, UnicodeError, RuntimeError):  # or no home
        settings.read(folder.expanduser() / "settings")
    configured = settings.get("default", "base_url", fallback="https://api.wandb.ai")
    return os.environ.get("WANDB_BASE_URL") or configured


def hubs_are_off() -> bool:
    """Returns whether `HF_HUB_OFFLINE` forbids asking any hub for models."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def spare_loopback() -> None:
    """Makes this process and its children reach this machine's own servers without a proxy."""
    for name in ("no_proxy", "NO_PROXY"):  # libraries read the one or the other
        spared = os.environ.get(name) or os.environ.get(name.swapcase(), "")
        hosts = [host.strip() for host in spared.split(",") if host.strip()]
        if "*" not in hosts:
            hosts += [host for host in LOOPBACK if host not in hosts]
        os.environ[name] = ",".join(hosts)


def why_unreachable(url: str) -> str | None:
    """Returns why nothing accepts a connection at `url`, or at its proxy; None if it does."""
    parts = urlsplit(url)
    host = f"{parts.hostname}:{parts.port or _PORTS.get(parts.scheme, 443)}"
    proxy = None if proxy_bypass(host) else getproxies().get(parts.scheme)
    contact = urlsplit(proxy if "//" in proxy else f"//{proxy}") if proxy else parts
    port = contact.port or _PORTS.get(contact.scheme, 443)
    try:
        with socket.create_connection((contact.hostname or "", port), timeout=PROBE_TIMEOUT_S):
            return None
    except (OSError, UnicodeError) as error:
        return f"{contact.hostname}:{port}: {error}"


def why_silent(url: str) -> str | None:
    """Returns why no HTTP server answers at `url`, or None if one does, whatever the status.

    Unlike `why_unreachable` it notices a server, or a firewall, that accepts and never answers.
    """
    import httpx

    try:
        with httpx.stream("GET", url, timeout=PROBE_TIMEOUT_S):
            return None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return str(error) or type(error).__name__
