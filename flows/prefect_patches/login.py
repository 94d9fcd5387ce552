"""The login of the Prefect servers that this account starts, and who is given it.

Without one, Prefect's API takes a deployment from every user of the machine, and from every web
page that the browser shows; a deployment may run any command. A private server has its own.
"""

from __future__ import annotations

import os
import secrets
import stat
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from rl_core.system.atomic import locked
from rl_core.system.network import LOOPBACK
from rl_core.system.peers import is_anothers

if TYPE_CHECKING:
    from prefect.settings import Settings

AUTH_STRING: Final = "PREFECT_API_AUTH_STRING"  # where Prefect's clients look for the login
SERVER_AUTH_STRING: Final = "PREFECT_SERVER_API_AUTH_STRING"


def new_login() -> str:
    """Returns a random login, `name:password` as Prefect calls for."""
    return f"countdown-train:{secrets.token_urlsafe(32)}"


def login_file(home: Path) -> Path:
    """Returns where the login of this account's servers is kept, below PREFECT_HOME."""
    return home / "countdown-train.login"


def own_login(home: Path, *, renew: bool = False) -> str:
    """Returns the login of this account's servers; the first call, or `renew`, makes a new one."""
    file = login_file(home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(home):
        if renew or not os.path.lexists(file):
            with NamedTemporaryFile("w", dir=home, delete=False) as text:  # mode 0600
                text.write(f"{new_login()}\n")
                text.flush()
                os.fsync(text.fileno())
            Path(text.name).replace(file)
    return _read(file)


def login_for(url: str | None, settings: Settings) -> str | None:
    """Returns the login for an API, the settings' or ours; None if the server is not our user's."""
    address = urlsplit(url or "")
    host = address.hostname
    if host not in LOOPBACK or is_anothers(host, address.port or 80):
        return None
    if settings.server.api.auth_string is not None:
        return settings.server.api.auth_string.get_secret_value()
    return _read(file) if (file := login_file(settings.home)).exists() else None


def server_environment(settings: Settings, *, renew: bool = False) -> dict[str, str]:
    """Returns the variables that a server needs and the user did not set.

    They give it a login, let only its own pages read it, and ask for a token with each change.
    """
    values: dict[str, Any] = {
        "auth_string": partial(own_login, settings.home, renew=renew),
        "cors_allowed_origins": partial(_origins, settings.server.ui.api_url),
        "csrf_protection_enabled": lambda: "true",
    }
    return {
        f"PREFECT_SERVER_API_{name.upper()}": value()
        for name, value in values.items()
        if name not in settings.server.api.model_fields_set
    }


def _origins(url: str | None) -> str:
    """Returns the origin of an address, under each of its machine's names if that is this one."""
    address = urlsplit(url or "")
    names = LOOPBACK if address.hostname in LOOPBACK else [address.hostname or ""]
    port = f":{address.port}" if address.port else ""
    hosts = [f"[{name}]" if ":" in name else name for name in names]
    return ",".join(f"{address.scheme}://{host}{port}" for host in hosts)


def _read(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror}): delete it") from None
    with os.fdopen(descriptor) as text:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ValueError(
                f"{file} must be yours and readable by you only (mode 0600): "
                "delete it, and the next server makes another login"
            )
        return text.read().strip()
