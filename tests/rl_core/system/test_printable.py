import pytest

from rl_core.system.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, 'quoted' and \"more\": Größe, 数", "plain, 'quoted' and \"more\": Größe, 数"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
    ],
)
def test_nothing_steers_the_terminal(text, shown):
    assert printable(text) == shown
