"""Ray's token for a cluster that is joined: read from the environment, and a refusal in words.

Who reaches a Ray may run programs on all its machines. Ray checks tokens where it was started with
them; a cluster on other machines that does not is refused here, unless the user says otherwise.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rl_core.system.network import PROBE_TIMEOUT_S

RAY_CLUSTER_FILE: Final = Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster"
"""Where `ray start` notes the address that ray_address=auto means."""
_MODE: Final = "RAY_AUTH_MODE"
_TOKEN: Final = "RAY_AUTH_TOKEN"
_TOKEN_FILE: Final = "RAY_AUTH_TOKEN_PATH"
_CALLS: Final = {
    "": "/ray.rpc.NodeInfoGcsService/GetClusterId",
    "ray": "/ray.rpc.RayletDriver/ClusterInfo",
}
"""By the address's scheme: what an empty message asks of Ray's head without changing anything."""


def address_of_auto() -> str | None:
    """Returns what ray_address=auto means here, as Ray reads it; None: `ray start` was not here."""
    noted = RAY_CLUSTER_FILE.read_text().strip() if RAY_CLUSTER_FILE.is_file() else None
    return os.environ.get("RAY_ADDRESS") or noted


def send_token(address: str, reread: Callable[[], None]) -> None:
    """Has Ray's client send the environment's token, where the cluster wants one.

    Args:
        address: `resources.ray_address`.
        reread: makes Ray read its settings again: it has read them when it was imported.

    Raises:
        ValueError: as `mode_for`.
    """
    if (mode := mode_for(address)) is not None:
        os.environ[_MODE] = mode
        reread()


def mode_for(address: str) -> str | None:
    """Returns the RAY_AUTH_MODE with which a cluster can be joined; None: as the environment says.

    Args:
        address: `resources.ray_address`. One that nothing answers at is for Ray to complain of.

    Raises:
        ValueError: the cluster refuses our token or wants one; or it is on other machines and
            takes commands from anybody.
    """
    found = address_of_auto() if address == "auto" else address
    if found is None:
        return None
    mode, (token, source) = os.environ.get(_MODE, "").lower(), _token()
    is_open = _accepts(found, None)
    if is_open:
        if mode != "disabled" and not _is_loopback(found):
            raise ValueError(
                f"resources.ray_address={address}: this Ray takes commands from whoever reaches "
                f"it: start it with {_MODE}=token and {_TOKEN}, or set {_MODE}=disabled here, too"
            )
        return None
    if is_open is None:
        return "token" if token and not mode else None
    if mode == "disabled" or token is None:
        why = f"{_MODE}=disabled sends none" if mode == "disabled" else "there is none"
        raise ValueError(
            f"resources.ray_address={address}: this Ray wants a token and {why}: set {_MODE}=token "
            f"and {_TOKEN} (or {_TOKEN_FILE}, a file) to those that it was started with"
        )
    if _accepts(found, token) is False:
        raise ValueError(
            f"resources.ray_address={address}: this Ray refuses the token of {source}: it wants "
            "the one that it was started with"
        )
    return None if mode else "token"


def _token() -> tuple[str | None, str]:
    """Returns the token as Ray would find it, and where that is."""
    if token := os.environ.get(_TOKEN, "").strip():
        return token, _TOKEN
    named = os.environ.get(_TOKEN_FILE)
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        return file.read_text().strip() or None, str(file)
    except OSError:
        return None, str(file)


def _accepts(address: str, token: str | None) -> bool | None:
    """Says whether Ray's head serves who sends this token, or none; None: it did not answer."""
    import grpc  # not at the start of every command

    wanted = urlsplit(address if "//" in address else f"//{address}")
    metadata: Sequence[tuple[str, str]] = (
        [] if token is None else [("authorization", f"Bearer {token}")]
    )
    no_proxy = [("grpc.enable_http_proxy", 0)]  # as Ray's own channels
    with closing(grpc.insecure_channel(wanted.netloc, options=no_proxy)) as channel:
        ask = channel.unary_unary(_CALLS.get(wanted.scheme, _CALLS[""]))
        try:
            ask(b"", timeout=PROBE_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return None
            return bool(error.code() != grpc.StatusCode.UNAUTHENTICATED)
    return True


def _is_loopback(address: str) -> bool:
    host = urlsplit(address if "//" in address else f"//{address}").hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
