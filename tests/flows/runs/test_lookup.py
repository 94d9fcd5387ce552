import pytest

from flows.cli.sql import storage_root
from flows.errors import BadInputError
from flows.settings.compose import compose


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["storage.root=/a/b-c/d.e_f"],
        ["storage.root='/a (b)'"],
        ["storage.root=/a b"],
        ["preset=tinyzero-3b", "storage.root=/a"],
        ["seed=1"],
    ],
)
def test_the_short_way_to_the_root_ends_where_the_settings_do(overrides):
    assert storage_root(overrides) == compose(overrides).storage.root


@pytest.mark.parametrize("overrides", [["storage.root=null"], ["storage.rot=/a"], ["root=/a"]])
def test_what_is_no_root_is_refused_as_any_setting(overrides):
    with pytest.raises(BadInputError):
        storage_root(overrides)
