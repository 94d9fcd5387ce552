"""Prefect's settings come from the environment, the user's profile, and this checkout.

Prefect itself also reads `.env`, `prefect.toml` and `pyproject.toml` of the working folder, and has
no setting that turns this off. There a stranger's file could name a logging file, whose handlers
may be any program, or a server, which then gets the login.
"""

import sys
from collections.abc import Mapping
from functools import cache
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

_PYPROJECT: Final = Path("pyproject.toml")
_OURS: Final = Path(__file__).parents[2] / _PYPROJECT
"""Its `[tool.prefect]` counts wherever a command is called; an installed package has none."""
_BEFORE_THE_FIRST_READ: Final = "prefect.settings.base"


def ignore_working_folder() -> None:
    """Makes Prefect ignore the working folder, in this process; call it before Prefect is imported.

    Prefect is not imported here: most commands do not need it, and it takes a second.
    """
    if _BEFORE_THE_FIRST_READ in sys.modules:
        _replace_readers()
    else:
        sys.meta_path.insert(0, _AtImport())


class _AtImport(MetaPathFinder):
    """Finds no module, but is asked for each: so it acts just before Prefect reads its settings."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == _BEFORE_THE_FIRST_READ:
            _replace_readers()


@cache  # a second call would replace its own readers
def _replace_readers() -> None:
    from prefect.settings import sources

    read_files = sources.TomlConfigSettingsSourceBase._read_files

    def read_ours(source: Any, files: Any, deep_merge: bool = False) -> Mapping[str, Any]:
        return read_files(source, _OURS if files == _PYPROJECT else None, deep_merge)

    replaced: Any = sources
    replaced.TomlConfigSettingsSourceBase._read_files = read_ours
    replaced.DotEnvSettingsSource._read_env_files = lambda source: {}  # pydantic's, for all of it
    # They may also say where the profiles are.
    replaced.dotenv = SimpleNamespace(dotenv_values=lambda file: {})
    replaced._get_profiles_path_from_toml = lambda path, keys: None
