"""`make env` takes a Python that the pinned packages have wheels for, or says which it needs."""

import os
import shutil
import sys
import tomllib
from pathlib import Path

import hypothesis
import pytest
from packaging.specifiers import SpecifierSet

from tests.support.programs import Done, run

ROOT = Path(__file__).parent.parent
ALLOWED = SpecifierSet(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What `make env` reads, where nothing was built yet, and a folder `bin` on the PATH."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    return tmp_path


def install_python(clone: Path, name: str, version: str) -> None:
    """Puts an interpreter there that says it is another, and makes no environments."""
    numbers = tuple(int(part) for part in version.split("."))
    pretend = f"import sys; sys.version_info = {numbers}; exec(sys.argv[1])"
    script = clone / "bin" / name
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {version}" && exit\n'
        f'[ "$1" = -m ] && echo "called $0" && exit 1\n'
        f'exec {sys.executable} -c "{pretend}" "$2"\n'
    )
    script.chmod(0o755)


def make_env(clone: Path, *arguments: str) -> Done:
    # `make test` calls this, too: what make hands down would make this one a sub-make.
    without_make = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    more = {"PATH": f"{clone / 'bin'}:/usr/bin:/bin", "TORCH_FIND_LINKS": "/"}
    return run("make", "env", *arguments, cwd=clone, env=without_make, more=more)


@pytest.mark.parametrize("version", ["3.10.13", "3.11.7", "3.12.1", "3.13.0", "3.14.0"])
def test_it_refuses_what_the_project_cannot_be_installed_with(clone, version):
    install_python(clone, "python3", version)
    done = make_env(clone, "PYTHON=python3")
    assert ("called" in done.stdout) == (version in ALLOWED)
    if version not in ALLOWED:
        line, failed = done.stderr.splitlines()
        assert line == (
            f"python3 is Python {version}, and Python 3.11, 3.12 or 3.13 is needed: "
            "install one, or name it: make env PYTHON=python3.12"
        )
        assert failed.startswith("make: ***")
        assert not (clone / ".venv").exists()


def test_it_finds_a_supported_one_beside_a_newer_default(clone):
    install_python(clone, "python3", "3.14.0")
    install_python(clone, "python3.13", "3.13.0")
    assert f"called {clone}/bin/python3.13" in make_env(clone).stdout


def test_one_that_is_not_there_is_told_so(clone):
    assert make_env(clone, "PYTHON=python9").stderr.startswith("python9 is not there, and Python")


@pytest.mark.parametrize(
    ("there", "gpu", "is_cleared"),
    [
        ("cpu", "GPU=1", True),
        ("gpu", "GPU=", True),
        ("gpu", "DEV=", False),  # it stays a GPU's
        ("cpu", "DEV=", False),
        ("cpu", "GPU=", False),
    ],
)
def test_the_other_build_begins_with_an_empty_environment(clone, there, gpu, is_cleared):
    (clone / ".venv").mkdir()
    (clone / ".venv" / f".built-{there}").touch()
    os.utime(clone / ".venv" / f".built-{there}", (0, 0))
    done = make_env(clone, "--dry-run", f"PYTHON={sys.executable}", gpu)
    assert ("-m venv --clear .venv" in done.stdout) == is_cleared, done.stderr
    chosen = {"GPU=1": "gpu", "GPU=": "cpu"}.get(gpu, there)
    assert f"--editable '.[{chosen}" in done.stdout


def test_examples_are_the_same_each_time_but_for_make_fuzz():
    assert hypothesis.settings.get_profile("suite").derandomize
    assert not hypothesis.settings.get_profile("fuzz").derandomize
    assert "hypothesis" not in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize(
    ("compiler", "extras"), [("true", "cpu,dev,reasoning-gym"), ("false", "cpu,dev")]
)
def test_what_is_compiled_is_left_out_where_nothing_compiles(clone, compiler, extras):
    done = make_env(clone, "--dry-run", f"PYTHON={sys.executable}", f'COMPILER=print("{compiler}")')
    assert f"--editable '.[{extras}]'" in done.stdout, done.stderr


@pytest.mark.parametrize("folder", ["", "/wheels"])
def test_only_torch_is_taken_from_its_index(clone, folder):
    install_python(clone, "python3", "3.11.7")
    environment = {"PATH": f"{clone / 'bin'}:/usr/bin:/bin", "TORCH_FIND_LINKS": folder}
    said = run("make", "--dry-run", "env", "GPU=", cwd=clone, env=environment).stdout
    (install,) = [line for line in said.splitlines() if "uv pip install" in line]
    wheels = f"--find-links {folder}" if folder else "--torch-backend cpu"
    assert f" {wheels} --editable" in install
    assert "index" not in install
    assert "UV_INDEX" not in (clone / "Makefile").read_text()
