"""Who is sent Ray's token, and what a refusal says: a stand-in's answers first, then Ray's."""

import os
import socket
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray._raylet import AuthenticationMode, get_authentication_mode

from rl_core.config.run import ResourcesConfig, RunConfig
from rl_core.workers import ray_auth
from rl_core.workers.ray_auth import mode_for, private, reread_settings, send_token
from rl_core.workers.session import ray_session
from tasks.preflight import preflight
from tasks.preflight_checks import Finding
from tests.support.harness import ROOT
from tests.support.programs import Done, run
from tests.support.ray_head import environment_of_ray, ray_head
from tests.support.strangers import NOBODY, listening_as, only_root

TOKEN = "a-token-of-thirty-two-characters"
OTHER = "of-another-cluster-of-thirty-two"
ANYBODY = None
COMMAND = str(Path(sys.executable).with_name("countdown-train"))
ELSEWHERE = socket.gethostname()
"""This machine too, but by no name of loopback."""


class _Guard(grpc.GenericRpcHandler):
    """Answers whatever is asked, as Ray's head does, those who send the token."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def service(self, details: Any) -> Any:
        sent = dict(details.invocation_metadata).get("authorization")

        def answer(request: bytes, context: Any) -> bytes:
            if self._token is not None and sent != f"Bearer {self._token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def guarded_by(token: str | None) -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(2), handlers=(_Guard(token),))
    port = server.add_insecure_port("0.0.0.0:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ray_auth, "RAY_CLUSTER_FILE", tmp_path / "ray_current_cluster")


def by_variable(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("RAY_AUTH_TOKEN", TOKEN)


def by_named_file(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "token").write_text(f"{TOKEN}\n")
    patch.setenv("RAY_AUTH_TOKEN_PATH", str(folder / "token"))


def by_rays_own_file(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / ".ray").mkdir()
    (folder / ".ray" / "auth_token").write_text(TOKEN)


@pytest.mark.parametrize("given", [by_variable, by_named_file, by_rays_own_file])
def test_a_token_is_sent_wherever_it_stands(given, tmp_path, monkeypatch):
    given(tmp_path, monkeypatch)
    with guarded_by(TOKEN) as port:
        for address in (f"127.0.0.1:{port}", f"{ELSEWHERE}:{port}"):
            assert mode_for(address) == "token"
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        assert mode_for("auto") == "token"
        try:
            send_token("auto")
            assert get_authentication_mode() is AuthenticationMode.TOKEN
            assert mode_for("auto") is None  # as the environment says
        finally:
            monkeypatch.delenv("RAY_AUTH_MODE")
            reread_settings()


@pytest.mark.parametrize(
    ("wanted", "given", "mode", "said"),
    [
        (TOKEN, OTHER, "", "this Ray refuses the token of RAY_AUTH_TOKEN"),
        (TOKEN, "", "", "this Ray needs a token and there is none: set RAY_AUTH_MODE=token and"),
        (TOKEN, TOKEN, "disabled", "this Ray needs a token and RAY_AUTH_MODE=disabled sends none"),
        (ANYBODY, TOKEN, "", "this Ray takes commands from anyone who reaches it: start it with"),
    ],
)
def test_a_refusal_is_one_line_without_the_token(wanted, given, mode, said, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", given)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with guarded_by(wanted) as port, pytest.raises(ValueError, match=said) as refused:
        mode_for(f"{ELSEWHERE}:{port}")
    line = str(refused.value)
    assert line.startswith(f"resources.ray_address={ELSEWHERE}:{port}: ")
    assert "\n" not in line
    assert TOKEN not in line
    assert OTHER not in line


def test_a_ray_without_a_token_is_joined_on_loopback_or_where_the_user_says_so(monkeypatch):
    with guarded_by(ANYBODY) as port:
        assert mode_for(f"127.0.0.1:{port}") is None
        assert mode_for(f"localhost:{port}") is None
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        assert mode_for(f"{ELSEWHERE}:{port}") is None


def refused(address: str, folder: Path, said: str) -> Finding:
    """What the preflight finds of a Ray with which no session starts."""
    config = RunConfig(resources=ResourcesConfig(ray_address=address))
    with pytest.raises(ValueError, match=said), ray_session(config, folder, None, learner=True):
        pass
    (ray,) = [finding for finding in preflight(config) if finding.check == "ray"]
    assert ray.level == "fatal"
    return ray


@pytest.mark.parametrize("by_variable", [False, True])
def test_rays_client_is_refused_for_a_job_in_the_cluster(by_variable, tmp_path, monkeypatch):
    address = "auto" if by_variable else "ray://127.0.0.1:10001"
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    ray = refused(address, tmp_path, r"use `ray job submit`$")
    assert "ray://127.0.0.1:10001" in ray.message
    assert "ray job submit" in ray.remedy


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes another user's file")
@pytest.mark.parametrize("link", [False, True])
def test_another_users_note_is_not_taken_for_ours(tmp_path, link):
    note = tmp_path / "ray_current_cluster"
    with guarded_by(ANYBODY) as port:
        (tmp_path / "own").write_text(f"127.0.0.1:{port}")
        if link:
            note.symlink_to(tmp_path / "own")
        else:
            note.write_text(f"127.0.0.1:{port}")
            os.chown(note, 65534, 65534)
        said = "ray_current_cluster is another user's: name the address"
        with pytest.raises(ValueError, match=said):
            mode_for("auto")
        assert said.partition(":")[0] in refused("auto", tmp_path, said).message


@only_root
def test_a_port_that_another_user_has_taken_since_is_not_sent_the_token(tmp_path, monkeypatch):
    by_variable(tmp_path, monkeypatch)
    with listening_as(NOBODY) as server:
        port = server.getsockname()[1]
        (tmp_path / "ray_current_cluster").write_text(f"127.0.0.1:{port}")
        with pytest.raises(ValueError, match=f"what listens at 127.0.0.1:{port} is another user's"):
            mode_for("auto")


def test_what_was_not_named_is_joined_with_a_token_only(tmp_path, monkeypatch):
    with guarded_by(ANYBODY) as port:
        (tmp_path / "ray_current_cluster").write_text(f"127.0.0.1:{port}")
        with pytest.raises(ValueError, match="=auto: this Ray takes commands from anyone who"):
            mode_for("auto")
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        assert mode_for("auto") is None
    monkeypatch.delenv("RAY_AUTH_MODE")
    by_variable(tmp_path, monkeypatch)
    with guarded_by(TOKEN) as port:
        (tmp_path / "ray_current_cluster").write_text(f"127.0.0.1:{port}")
        assert mode_for("auto") == "token"


def test_the_shell_neither_opens_nor_learns_of_a_private_ray(tmp_path, monkeypatch):
    by_variable(tmp_path, monkeypatch)
    by_named_file(tmp_path, monkeypatch)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    before, tokens = dict(os.environ), set()
    try:
        for _ in range(2):
            with private():
                assert get_authentication_mode() is AuthenticationMode.TOKEN
                assert "RAY_AUTH_TOKEN_PATH" not in os.environ
                tokens.add(os.environ["RAY_AUTH_TOKEN"])
            assert dict(os.environ) == before
        assert len(tokens - {TOKEN}) == 2
        assert {len(token) for token in tokens} == {64}
    finally:
        reread_settings()
    assert get_authentication_mode() is AuthenticationMode.DISABLED


def test_where_nothing_answers_it_is_for_ray_to_complain(monkeypatch):
    assert mode_for("auto") is None
    assert mode_for("127.0.0.1:9") is None
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    assert mode_for("127.0.0.1:9") == "token"  # with TLS, say, where we cannot ask


GENERATES = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from rl_core.config.run import ResourcesConfig, RolloutConfig, RunConfig
    from rl_core.types import GenerationRequest, SamplingSettings
    from rl_core.workers.cluster import Workers

    address, model, logs = sys.argv[1:]
    config = RunConfig(
        rollout=RolloutConfig(engine="hf"), resources=ResourcesConfig(ray_address=address)
    )
    with Workers.start(config, Path(model), learner=False, log_folder=Path(logs)) as workers:
        asked = [GenerationRequest((5, 6, 7), seed=0)]
        (answer,) = workers.engines.generate(asked, SamplingSettings(max_tokens=4, temperature=0.0))
        print(len(answer.response_ids))
    """
)


@pytest.mark.slow
def test_a_real_ray_serves_who_has_its_token_and_says_who_has_not(tmp_path, tiny_model_path):
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with ray_head(environment_of_ray(tmp_path, **settings)) as address:

        def ask(*words: object, **variables: str) -> Done:
            return run(*words, env=environment_of_ray(tmp_path, **variables), cwd=ROOT)

        def generate(at: str, **variables: str) -> Done:
            words = (sys.executable, "-c", GENERATES, at, tiny_model_path, tmp_path)
            return ask(*words, **variables)

        done = generate(address, RAY_AUTH_TOKEN=TOKEN)
        assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
        wrong = generate(address, RAY_AUTH_TOKEN=OTHER)
        refusal = "this Ray refuses the token of RAY_AUTH_TOKEN"
        assert wrong.stderr.splitlines()[-1].startswith(
            f"ValueError: resources.ray_address={address}: {refusal}"
        )
        told = ask(
            *(COMMAND, "run", f"storage.root={tmp_path / 'outputs'}"),
            f"resources.ray_address={address}",
            RAY_AUTH_TOKEN=OTHER,
        )
        assert told.returncode == 2, told.stderr
        assert told.stderr.count("\n") == 1
        assert f"resources.ray_address={address}: {refusal}" in told.stderr
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        assert TOKEN.encode() not in file.read_bytes(), file
        assert OTHER.encode() not in file.read_bytes(), file
