"""Prefect's clients obey a server of this account only, and read no results where it says.

Whatever answers at `PREFECT_API_URL` is obeyed: it is given the login, and a state that it sends
may name a storage block, whose files Prefect unpickles. No setting of Prefect's changes that.
Prefect is imported in the functions: the first import of it loads our plugin, which needs this.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import urlsplit
from uuid import UUID

import httpcore
from websockets.asyncio.client import connect

from rl_core.system.peers import refuse_stranger

if TYPE_CHECKING:
    from prefect.filesystems import WritableFileSystem

_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


@cache
def obey_own_server_only() -> None:
    """Makes this process close a connection to another user's server before it sends anything.

    Each connection is looked at once it is there: whose port it was a moment before says nothing.
    """
    _check_http()
    _check_websockets()
    _read_own_results_only()


def with_plain_loopback(url: str) -> str:
    """Returns a URL without `localhost`, which means two addresses, and maybe two servers."""
    parts = urlsplit(url)
    if parts.hostname != "localhost":
        return url
    login, at, _ = parts.netloc.rpartition("@")
    port = f":{parts.port}" if parts.port else ""
    return parts._replace(netloc=f"{login}{at}127.0.0.1{port}").geturl()


def _check_http() -> None:
    connected = httpcore.SyncBackend.connect_tcp
    connected_async = httpcore.AnyIOBackend.connect_tcp

    def connect_tcp(backend: Any, host: str, port: int, *args: Any, **options: Any) -> Any:
        stream = connected(backend, host, port, *args, **options)
        _check_stream(host, port, stream)
        return stream

    async def connect_async(backend: Any, host: str, port: int, *args: Any, **options: Any) -> Any:
        stream = await connected_async(backend, host, port, *args, **options)
        _check_stream(host, port, stream)
        return stream

    setattr(httpcore.SyncBackend, "connect_tcp", connect_tcp)  # noqa: B010  # mypy: a method
    setattr(httpcore.AnyIOBackend, "connect_tcp", connect_async)  # noqa: B010


def _check_stream(host: str, port: int, stream: Any) -> None:
    if _is_api(host, port):
        try:
            refuse_stranger(*map(stream.get_extra_info, ("client_addr", "server_addr")))
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error


def _check_websockets() -> None:
    connected = connect.create_connection

    async def create_connection(client: connect) -> Any:
        connection = await connected(client)
        url = urlsplit(client.uri)
        if _is_api(url.hostname, url.port or _PORTS[url.scheme]):
            try:
                refuse_stranger(connection.local_address, connection.remote_address)
            except OSError:
                connection.transport.abort()
                raise
        return connection

    setattr(connect, "create_connection", create_connection)  # noqa: B010


def _is_api(host: str | None, port: int) -> bool:
    from prefect.settings import get_current_settings

    url = urlsplit(get_current_settings().api.url or "")
    return (host, port) == (url.hostname, url.port or _PORTS.get(url.scheme))


def _read_own_results_only() -> None:
    """Makes `results.local_storage_path` the only place of results; none of them is unpickled."""
    from prefect import results
    from prefect.exceptions import MissingResult
    from prefect.filesystems import LocalFileSystem
    from prefect.serializers import PickleSerializer
    from prefect.settings import get_current_settings

    resolve: Any = results.resolve_result_storage

    def local() -> results._DefaultResultStorage:
        folder = get_current_settings().results.local_storage_path
        source = results._DefaultResultStorageSource.LOCAL_STORAGE_PATH
        return results._DefaultResultStorage(LocalFileSystem(basepath=str(folder)), source)

    async def local_async() -> results._DefaultResultStorage:
        return local()

    def resolved(storage: Any, **_: Any) -> WritableFileSystem:
        if isinstance(storage, UUID | str):
            raise MissingResult(f"the block {storage}, which a server names, is not read")
        return cast("WritableFileSystem", resolve(storage, _sync=True))

    async def resolved_async(storage: Any) -> WritableFileSystem:
        return resolved(storage)

    async def read_here(store: type[results.ResultStore], metadata: Any) -> Any:
        if metadata.storage_block_id is not None:
            resolved(metadata.storage_block_id)
        # Prefect would take the folder of an absolute key for the storage.
        return await store(serializer=metadata.serializer).aread(metadata.storage_key)

    def refuse(serializer: PickleSerializer, blob: bytes) -> NoReturn:
        raise MissingResult("a result that is a pickle is not read: it could run any code")

    vars(results).update(
        _get_default_result_storage=local,
        _aget_default_result_storage=local_async,
        resolve_result_storage=resolved,
        aresolve_result_storage=resolved_async,
    )
    setattr(results.ResultStore, "_from_metadata", classmethod(read_here))  # noqa: B010
    setattr(PickleSerializer, "loads", refuse)  # noqa: B010
