"""Access to Ray: a private Ray takes commands only on loopback, with a token of its own.

Anyone who reaches a Ray may run programs on all its machines. Ray checks tokens if it was started
with them. To join a cluster, the token is read from the environment; a cluster on other machines
that checks none is refused here, unless the user says otherwise.
"""

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rl_core.system.network import PROBE_TIMEOUT_S
from rl_core.system.peers import is_anothers
from rl_core.system.process_env import environment_of_child

RAY_CLUSTER_FILE: Final = Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster"
"""Where `ray start` notes the address that ray_address=auto means."""
_FOREIGN_NOTE: Final = (
    "resources.ray_address=auto: {} is another user's: name the address, host:port, in "
    "resources.ray_address"
)
_MODE: Final = "RAY_AUTH_MODE"
_TOKEN: Final = "RAY_AUTH_TOKEN"
_TOKEN_FILE: Final = "RAY_AUTH_TOKEN_PATH"
_PRIVATE: Final = {
    _MODE: "token",
    # Else Ray replaces 127.0.0.1 by the machine's address, and listens at every address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
_ZERO_COPY: Final = "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"
"""With it workers share tensors in memory. Ray's import reads it; a driver would load torch."""
_CALL: Final = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""A call to Ray's head that takes an empty message and changes nothing."""


def address_of_auto() -> str | None:
    """Returns what ray_address=auto means here; None: this user has called no `ray start` here.

    Ray itself would take any user's file, and the address of any running Ray that it sees. Here
    another user's file raises ValueError, and so does a port that our Ray once had.
    """
    if named := os.environ.get("RAY_ADDRESS"):
        return named
    try:
        note = os.open(RAY_CLUSTER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:  # a link, or not readable for us
        raise ValueError(_FOREIGN_NOTE.format(RAY_CLUSTER_FILE)) from None
    with os.fdopen(note) as file:
        if os.fstat(note).st_uid != os.getuid():
            raise ValueError(_FOREIGN_NOTE.format(RAY_CLUSTER_FILE))
        address = file.read().strip()
    parts = urlsplit(f"//{address}")
    if parts.hostname and parts.port and is_anothers(parts.hostname, parts.port):
        raise ValueError(_FOREIGN_NOTE.format(f"what listens at {address}"))
    return address or None


@contextmanager
def private() -> Iterator[None]:
    """Makes a Ray that starts in the block listen only on loopback, with a new token.

    The token is in no file, and only in the environment of Ray's own processes, which get no other
    credentials. Ray's library in this process keeps it until `reread_settings`.
    """
    from ray._private import ray_constants  # preflight asks for a token without loading Ray

    variables = {_ZERO_COPY: "1"} | environment_of_child()
    variables |= {**_PRIVATE, _TOKEN: secrets.token_hex(32)}
    before = {
        name: os.environ.get(name)
        for name in {*os.environ, *variables}
        if os.environ.get(name) != variables.get(name)
    }
    is_cluster = ray_constants.ENABLE_RAY_CLUSTER
    _set_variables({name: variables.get(name) for name in before})
    ray_constants.ENABLE_RAY_CLUSTER = False  # read when Ray was imported
    reread_settings()
    try:
        yield
    finally:
        _set_variables(before)
        ray_constants.ENABLE_RAY_CLUSTER = is_cluster


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def reread_settings() -> None:
    """Makes an unconnected Ray read its settings and its token again, as when it was imported."""
    import ray

    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def send_token(address: str) -> None:
    """Makes Ray send the environment's token to a cluster that asks for one; see `mode_for`."""
    if (mode := mode_for(address)) is not None:
        os.environ[_MODE] = mode
        reread_settings()


def mode_for(address: str) -> str | None:
    """Returns the RAY_AUTH_MODE with which a cluster can be joined; None: as the environment says.

    If nothing answers at the address, Ray itself will raise the error.

    Raises:
        ValueError: the cluster refuses our token or needs one; or it takes commands from anybody,
            and is on other machines or was not named; or the address is of Ray's client; or see
            `address_of_auto`.
    """
    host = address_of_auto() if address == "auto" else address
    if host is None:
        return None
    if "//" in host:
        means = "" if address == host else f", which means {host},"
        raise ValueError(
            f"resources.ray_address={address}{means} is for programs outside of the cluster, and a "
            "run starts on one of its machines: give host:port there, or use `ray job submit`"
        )
    mode = os.environ.get(_MODE, "").lower()
    (token, source) = _token()
    is_open = _accepts(host, None)
    if is_open:
        if mode != "disabled" and (address == "auto" or not _is_loopback(host)):
            raise ValueError(
                f"resources.ray_address={address}: this Ray takes commands from anyone who reaches "
                f"it: start it with {_MODE}=token and {_TOKEN}, or set {_MODE}=disabled here, too"
            )
        return None
    if is_open is None:
        return "token" if token and not mode else None
    if mode == "disabled" or token is None:
        why = f"{_MODE}=disabled sends none" if mode == "disabled" else "there is none"
        raise ValueError(
            f"resources.ray_address={address}: this Ray needs a token and {why}: set {_MODE}=token "
            f"and {_TOKEN} (or {_TOKEN_FILE}, a file) to those that it was started with"
        )
    if _accepts(host, token) is False:
        raise ValueError(
            f"resources.ray_address={address}: this Ray refuses the token of {source}: it needs "
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
    """Returns whether Ray's head accepts this token, or none; None if it did not answer."""
    import grpc  # not at the start of every command

    metadata: Sequence[tuple[str, str]] = (
        [] if token is None else [("authorization", f"Bearer {token}")]
    )
    no_proxy = [("grpc.enable_http_proxy", 0)]  # as Ray's own channels
    with closing(grpc.insecure_channel(address, options=no_proxy)) as channel:
        ask = channel.unary_unary(_CALL)
        try:
            ask(b"", timeout=PROBE_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return None
            return bool(error.code() != grpc.StatusCode.UNAUTHENTICATED)
    return True


def _is_loopback(address: str) -> bool:
    host = urlsplit(f"//{address}").hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
