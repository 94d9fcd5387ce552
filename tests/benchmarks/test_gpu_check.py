"""`make gpu-check`: what it needs, how it tells, and all of it rehearsed on the CPU."""

import importlib
import importlib.metadata
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.programs import python, run

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "benchmarks.gpu_check"]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.gpu_check.report")


def test_a_part_that_raises_is_a_row_and_the_others_go_on(report, tmp_path):
    file = tmp_path / "rows.jsonl"

    def fails() -> Iterator[object]:
        yield report.Row("before", ok=True, numbers={"ratio": 0.98765})
        raise RuntimeError("CUDA error: an illegal memory access\nand forty lines of C++")

    def works() -> Iterator[object]:
        yield report.Row("told", None, {"bytes": 12_345.6}, "a | b")
        yield report.Row("one of many", ok=True, is_case=True)

    def does_not() -> Iterator[object]:
        yield report.Row("gspo, float32", ok=False, is_case=True)

    report.append(file, {"device": "a card"})
    assert not report.run_part("a", fails, file)
    assert report.run_part("b", works, file)
    assert not report.run_part("b", does_not, file)
    with file.open("a") as lines:
        lines.write('{"part": "c", "che')  # killed in the middle of a line
    rows = report.read(file)
    assert report.unfinished(["a", "b", "c"], rows) == ["c"]
    table = report.table(rows)
    assert table.startswith("device a card\n\n| part | check |")
    assert "| a: learner's step beside the CPU's | before | ok | ratio 0.988 |  |" in table
    assert "| whole part | NOT OK | seconds 0 | RuntimeError: CUDA error: an illegal" in table
    assert "forty lines" not in table
    assert "| b: log-prob op | told |  | bytes 12,346 | a \\| b |" in table
    assert "one of many" not in table
    assert "| gspo, float32 | NOT OK |" in table


def test_a_part_that_hangs_is_stopped(report, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.touch()
    main = importlib.import_module("benchmarks.gpu_check.__main__")
    main.run_apart(["a"], "cpu", file, 0.01)
    (row,) = report.read(file)
    assert (row["part"], row["check"], row["ok"]) == ("a", report.WHOLE, False)
    assert row["note"] == "stopped after 0.01 s"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "a,z"], "no part 'z': one or more of a,b,c"),
        (["--device", "cuda"], "sees no card (--device cpu rehearses)"),
    ],
)
def test_bad_input_is_a_line(arguments, said, tmp_path):
    done = run(*COMMAND, *arguments, "--out", tmp_path / "rows.jsonl", cwd=ROOT)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_missing_is_named_in_one_line():
    """Without site-packages, as on a bare machine."""
    done = run(sys.executable, "-S", "-m", "benchmarks.gpu_check", cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu-check: missing: torch transformers peft ")
    assert len(done.stderr.splitlines()) == 1


def _needs(names: Iterable[str]) -> set[str]:
    """Distributions that a plain `pip install` of the names brings, themselves among them."""
    found: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(wanted.name))
    return found


@pytest.mark.usefixtures("report")
def test_its_parts_import_only_what_it_asks_for():
    """Whatever else is installed here cannot be imported: as on a bare machine with a card."""
    main = importlib.import_module("benchmarks.gpu_check.__main__")
    asked = _needs(main.NEEDED)
    here = importlib.metadata.packages_distributions()
    absent = sorted(
        package
        for package, owners in here.items()
        if not asked & {canonicalize_name(owner) for owner in owners}
        and package not in {"rl_core", "benchmarks"}
    )
    assert {"ray", "vllm", "prefect", "hydra", "polars", "duckdb", "wandb", "pyarrow"} <= {*absent}
    code = (
        f"import pkgutil, sys\nsys.modules.update(dict.fromkeys({absent!r}))\n"
        "from benchmarks.gpu_check import __main__, child\n"
        "for name in child._FUNCTIONS.values():\n"
        "    pkgutil.resolve_name(f'benchmarks.gpu_check.{name}')\n"
        "print(__main__.why_not())"
    )
    done = python(code, cwd=ROOT)
    assert done.stdout == "None\n", done.stderr


@pytest.mark.slow
def test_the_whole_check_is_rehearsed_on_a_cpu(report, tmp_path):
    """The same code as on a card, by tiny shapes: only the device is new there."""
    file = tmp_path / "rows.jsonl"
    done = run(*COMMAND, "--device", "cpu", "--out", file, cwd=ROOT, timeout_s=900)
    rows = report.read(file)
    bad = [line for line in rows if line.get("ok") is False]
    assert bad == [], done.stderr
    assert done.returncode == 0, done.stderr
    assert report.unfinished(list(report.PARTS), rows) == []
    judged = {line["part"] for line in rows if line.get("ok") and line["check"] != report.WHOLE}
    assert judged == report.PARTS.keys()
    assert done.stdout.endswith(report.table(rows) + "\n")
