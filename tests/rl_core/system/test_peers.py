import os
import socket

import pytest

from rl_core.system.peers import is_anothers, listening_ports, refuse_stranger, refuse_strangers_at
from tests.support.strangers import NOBODY, listening_as, only_root

EVERYWHERE = [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1")]


def check(connection: socket.socket) -> None:
    refuse_stranger(connection.getsockname(), connection.getpeername())


@pytest.mark.parametrize(("host", "to"), EVERYWHERE)
def test_our_own_server_is_ours_before_it_accepts_and_after(host, to):
    with listening_as(os.geteuid(), host) as server:
        port = server.getsockname()[1]
        with socket.create_connection((to, port)) as connection:
            check(connection)
            with server.accept()[0]:
                check(connection)
        assert not is_anothers(to, port)


@only_root
@pytest.mark.parametrize(("host", "to"), EVERYWHERE)
def test_another_users_server_is_refused_before_it_accepts_and_after(host, to):
    with listening_as(NOBODY, host) as server:
        port = server.getsockname()[1]
        with socket.create_connection((to, port)) as connection:
            with pytest.raises(ConnectionRefusedError, match=f"belongs to another user .{NOBODY}."):
                check(connection)
            os.seteuid(NOBODY)
            accepted, _ = server.accept()
            os.seteuid(0)
            with accepted, pytest.raises(ConnectionRefusedError, match=str(NOBODY)):
                check(connection)
        assert is_anothers(to, port)


@only_root
def test_our_server_does_not_vouch_for_a_connection_that_another_accepted():
    """The other may close its listener at once, and our server then takes the same port."""
    with listening_as(NOBODY) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            os.seteuid(NOBODY)
            accepted, _ = server.accept()
            os.seteuid(0)
            server.close()
            with listening_as(os.geteuid(), port=port):
                with accepted, pytest.raises(ConnectionRefusedError, match=str(NOBODY)):
                    check(connection)
                with pytest.raises(ConnectionRefusedError):  # it has closed, with its answer sent
                    check(connection)


@only_root
def test_a_socket_at_all_addresses_does_not_take_what_has_a_socket_of_its_own():
    with listening_as(NOBODY, "::") as server:  # IPv6 only
        port = server.getsockname()[1]
        with listening_as(os.geteuid(), "0.0.0.0", port):
            assert not is_anothers("127.0.0.1", port)
            assert not is_anothers("localhost", port)
            assert is_anothers("::1", port)


@only_root
def test_another_user_who_has_come_to_a_port_of_ours_is_noticed():
    with listening_as(os.geteuid()) as server:
        place = server.getsockname()
        assert place[1] in listening_ports()
        with socket.create_connection(place), server.accept()[0]:
            refuse_strangers_at({place[1]})
        os.seteuid(NOBODY)
        stranger = socket.create_connection(place)
        os.seteuid(0)
        with stranger, server.accept()[0], pytest.raises(ConnectionRefusedError, match=str(NOBODY)):
            refuse_strangers_at({place[1]})


def test_a_server_on_another_machine_is_not_looked_for_here():
    refuse_stranger(("192.0.2.1", 40000), ("192.0.2.2", 4200))
    with pytest.raises(ConnectionRefusedError, match="no process"):
        refuse_stranger(("127.0.0.1", 1), ("127.0.0.1", 2))
