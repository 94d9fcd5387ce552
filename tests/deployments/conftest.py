import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_core.system.atomic import alone_in
from tests.support.harness import Prefect

_SETTINGS = {"PREFECT_WORKER_QUERY_SECONDS": "2"}


@pytest.fixture(scope="session")
def deployed(of_all_workers: Path) -> Path:
    """The PREFECT_HOME of a server with all deployments; only the nightly one is due soon."""
    folder = of_all_workers / "deployed"
    folder.mkdir(exist_ok=True)
    done = folder / "done"
    with alone_in(folder, wait=True):
        if not done.exists():
            with Prefect(folder, _SETTINGS).up() as prefect:
                noon = 'cron: "0 12 * * *"'
                prefect.deploy({noon: 'cron: "0 12 29 2 *"'}, at="* * * * *")
            done.touch()
    return folder / "prefect"


@pytest.fixture(scope="session")
def undisturbed(of_all_workers: Path) -> Path:
    """A storage root for the one run that all disturbed ones are compared with.

    The first test that needs the run makes it.
    """
    root = of_all_workers / "undisturbed"
    root.mkdir(exist_ok=True)
    return root


@pytest.fixture(scope="module")
def prefect(deployed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    """A server of the file's own: which files ran before it on its worker is chance."""
    # Short, for Ray's sockets; what a killed run leaves in its temporary folder goes with it.
    with tempfile.TemporaryDirectory(prefix="pf-", ignore_cleanup_errors=True) as temp_dir:
        prefect = Prefect(tmp_path_factory.mktemp("server"), {**_SETTINGS, "TMPDIR": temp_dir})
        shutil.copytree(deployed, prefect.folder / "prefect", dirs_exist_ok=True)
        with prefect.up():
            yield prefect
