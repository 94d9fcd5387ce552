import os
import socket
from collections.abc import Iterator

import httpx
import pytest

from rl_core.system.network import spare_loopback, why_silent, why_unreachable

PROXY = "http://127.0.0.1:9"
"""Nothing listens there."""


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for spelt in (name, name.upper()):
            monkeypatch.setenv(spelt, "")
            monkeypatch.delenv(spelt)
    return monkeypatch


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_this_machine_is_not_asked_for_by_a_proxy(no_variables, port, name):
    no_variables.setenv(name, PROXY)
    spare_loopback()
    for host in ("127.0.0.1", "localhost"):
        assert why_unreachable(f"http://{host}:{port}") is None
    with pytest.raises(httpx.ReadTimeout):  # it was reached, and says nothing
        httpx.get(f"http://127.0.0.1:{port}", timeout=0.2)
    assert "refused" in str(why_silent("http://example.org"))  # that goes to the proxy


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_what_the_user_spares_stays_spared_and_the_reason_names_who_was_asked(no_variables, name):
    no_variables.setenv("http_proxy", PROXY)
    no_variables.setenv(name, "spared.invalid, .inside")
    assert "127.0.0.1:9: " in str(why_unreachable("http://other.invalid:7"))
    assert "spared.invalid:7: " in str(why_unreachable("http://spared.invalid:7"))
    spare_loopback()
    for there in ("http://spared.invalid:7", "http://x.inside:7"):
        assert "127.0.0.1:9" not in str(why_unreachable(there))
    spare_loopback()  # twice is once

    assert os.environ["no_proxy"] == "spared.invalid,.inside,127.0.0.1,localhost,::1"
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"]


def test_a_star_spares_all(no_variables):
    no_variables.setenv("http_proxy", PROXY)
    no_variables.setenv("NO_PROXY", "*")
    spare_loopback()
    assert "other.invalid:7" in str(why_unreachable("http://other.invalid:7"))
