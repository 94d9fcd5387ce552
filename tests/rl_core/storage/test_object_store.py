import os
import re
import traceback
from urllib.parse import urlsplit

import pytest

from rl_core.storage.object_store import Conflict, ObjectStore, StoreError, why_unusable
from tests.support import s3
from tests.support.http_server import Handler, serving


def test_what_is_put_comes_back_in_parts_too(store, tmp_path):
    big = tmp_path / "big"
    big.write_bytes(os.urandom(20 * 2**20 + 1))
    store.put("a/small", b"words")
    store.put("ab/small", b"of another folder")
    e_tag = store.put("a/big", big)
    listed = store.list("a/")
    sizes = {key: entry.size for key, entry in listed.items()}
    assert sizes == {"a/big": 20 * 2**20 + 1, "a/small": 5}
    assert listed["a/big"].e_tag == e_tag
    store.download("a/big", listed["a/big"], tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    assert store.read("a/small")[0] == b"words"
    store.delete(["a/small", "a/never-there"])
    assert store.read("a/small") is None


def test_a_conditional_write_is_done_by_one(store):
    first = store.put_if("lock", b"1", None)
    with pytest.raises(Conflict):
        store.put_if("lock", b"2", None)
    second = store.put_if("lock", b"3", first)
    with pytest.raises(Conflict):
        store.put_if("lock", b"4", first)
    assert store.read("lock") == (b"3", second)


def test_what_was_replaced_since_it_was_listed_is_not_taken(store, tmp_path):
    store.put("a", b"old")
    (entry,) = store.list().values()
    store.put("a", b"new")
    with pytest.raises(Conflict):
        store.download("a", entry, tmp_path / "a")


@pytest.mark.parametrize("fault", ["503", "reset"])
def test_a_store_that_fails_says_so_in_a_line_without_keys(proxy, fault):
    proxy.fault = fault
    with pytest.raises(StoreError) as failed:
        ObjectStore(s3.URL).put("a", b"")
    said = str(failed.value)
    assert said.startswith(s3.URL)
    assert "\n" not in said
    assert len(said) < 400
    assert all(value not in said for value in list(s3.KEYS.values())[:2])
    proxy.fault = "none"
    ObjectStore(s3.URL).put("a", b"")


def test_a_lost_part_fails_the_whole_and_the_next_try_is_whole(proxy, tmp_path):
    big = tmp_path / "big"
    big.write_bytes(os.urandom(9 * 2**20))
    store = ObjectStore(s3.URL)
    proxy.fault = "lost part"
    with pytest.raises(StoreError, match="NoSuchUpload"):
        store.put("big", big)
    proxy.fault = "none"
    assert store.list() == {}
    store.put("big", big)
    assert store.list()["big"].size == 9 * 2**20


def test_what_keeps_a_store_from_being_used_is_said_with_its_remedy(s3_port, monkeypatch):
    assert why_unusable(s3.URL) is None
    assert ObjectStore(s3.URL).list() == {}
    assert why_unusable("s3://nobody/x")[0].endswith("s3://nobody/x: there is no such bucket")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    found = why_unusable(s3.URL)
    assert "\n" not in found[0]
    assert "AWS_ENDPOINT_URL" in found[1]


class _Echo(Handler):
    """Refuses everything, and repeats what it was told, signature and key in an address too."""

    says, status = "", 403

    def respond(self) -> None:
        signature = self.headers["authorization"][-64:]
        told = f"{self.headers} https://host/x?X-Amz-Signature={signature}"
        self.answer(self.status, self.says.format(told=told).encode())


@pytest.mark.parametrize("status", [400, 403, 404])
@pytest.mark.parametrize(
    "body",
    [
        "<Error><Code>SignatureDoesNotMatch</Code><Message>{told}</Message></Error>",
        "{told}",
        "<Error><Code>{told}</Code></Error>",
        "<html>https://me:testing-secret-key@host/ {told}",
    ],
)
def test_a_store_that_repeats_our_credentials_is_not_quoted(body, status, monkeypatch, caplog):
    """ATTACK: a server, or a proxy before it, that puts what it was sent into its refusal."""
    with serving(type("_Own", (_Echo,), {"says": body, "status": status})) as url:
        for name, value in s3.environment(urlsplit(url).port).items():
            monkeypatch.setenv(name, value)
        found = why_unusable(s3.URL)
        with pytest.raises((StoreError, FileNotFoundError)) as caught:
            ObjectStore(s3.URL).list("")
    assert str(status) in found[0] or "there is no such bucket" in found[0]
    said = f"{found[0]} {''.join(traceback.format_exception(caught.value))} {caplog.text}"
    assert s3.KEYS["AWS_SECRET_ACCESS_KEY"] not in said
    assert s3.KEYS["AWS_ACCESS_KEY_ID"] not in said
    assert re.search("[0-9a-f]{64}", said) is None  # a signature
