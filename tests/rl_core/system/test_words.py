"""Numbers and texts as all of the program shows them."""

from rl_core.system import words


def test_numbers_are_said_as_people_say_them():
    sizes = map(words.disk_size, (-5, 999, 1_500, 999_700, 4_500_000_000, 1_234_567_890_123))
    assert list(sizes) == ["0 B", "999 B", "1.5 kB", "1 MB", "4.5 GB", "1.23 TB"]
    about = map(words.duration, (89.4, 90, 5_399, 91_800))
    assert list(about) == ["89 s", "2 min", "90 min", "25.5 h"]
    exact = map(words.exact_duration, (0.04, 300, 7_505))
    assert list(exact) == ["0.0 s", "5 min 00 s", "2 h 05 min"]
    counts = (words.counted(number, "CPU") for number in (0, 0.5, 1.0, 12_345_678))
    assert list(counts) == ["0 CPUs", "0.5 CPUs", "1 CPU", "12345678 CPUs"]


def test_a_text_is_cut_only_if_it_is_longer():
    assert [words.cut("abcde", longest) for longest in (5, 4)] == ["abcde", "abc…"]
    assert [words.without_middle("abcdef", n) for n in (6, 4)] == ["abcdef", "ab [...] ef"]
    assert words.in_one_line(ValueError("one\n  two\t three ")) == "one two three"


def test_a_home_is_found_and_no_users_name_stays_a_name(monkeypatch):
    monkeypatch.setenv("HOME", "/a/home")
    paths = ("~/x", "~", "/x/~", "~no-such-user/x")
    assert [str(words.as_path(path)) for path in paths] == [
        "/a/home/x",
        "/a/home",
        "/x/~",
        "~no-such-user/x",
    ]


def test_nothing_steers_the_terminal():
    plain = "plain, 'quoted' and \"more\": Größe, 数"
    hostile = [plain, "\x1b[31mred\x07", "two\nlines\r\t", "\x9b2J\x7f", "abc\u202egnp", "\ud800"]
    shown = [r"\x1b[31mred\x07", r"two\nlines\r\t", r"\x9b2J\x7f", r"abc\u202egnp", r"\ud800"]
    assert list(map(words.printable, hostile)) == [plain, *shown]
