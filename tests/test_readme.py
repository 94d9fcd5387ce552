"""README and docs: their commands do what they say, and what they point at is there."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import polars as pl
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows.cli.commands import parse, take_arguments
from flows.cli.main import run_command
from flows.nightly import Night, message
from flows.settings.compose import compose
from flows.settings.keys import CHOICES, ENVS
from flows.settings.night import EVENTS
from rl_core.config.mistakes import known_keys
from rl_core.config.run import RunConfig
from rl_core.evaluation.statistics import share
from rl_core.runs.run_folder import RunFolder
from tasks.importers.verl_table import NAMES, meaning
from tests.support.learning_curves import NUMBERS, PICTURE, picture
from tests.support.listeners import hook
from tests.support.programs import cli, python
from tests.support.reference_pages import pages as reference_pages

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")),
    *sorted(ROOT.glob("docs/*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FOLDERS = ("rl_core", "tasks", "flows", "sql", "tests", "benchmarks", "deployments", "docs")
PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./*-]*")
SETTING = re.compile(r"([a-z_]+\.[a-z_]+)(?:=.*)?")
PREFECT = re.compile(r"prefect ((?:--[\w-]+ )*)([a-z-]+)(?: ([a-z-]+))?")
HELP_OF_EACH = """
import sys
from prefect.cli import app
asked, unknown = sys.argv[1:], []
for words in asked:
    sys.argv = ["prefect", *words.split(), "--help"]
    try:
        app()
    except SystemExit as left:
        unknown += [words] if left.code else []
print("unknown:", unknown)
"""
SCRIPT = """python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=256 \\
    actor_rollout_ref.actor.optim.lr=1e-6
"""
LOG = """step:1 - critic/score/mean:0.05 - response_length/mean:181.0 - actor/lr:1e-06
step:2 - critic/score/mean:0.06 - response_length/mean:180.0 - actor/lr:1e-06
"""
TOO_MUCH = (
    *("tinyzero-0.5b-24gb", "Jiayi-Pan", "gsm8k-ppo", "preset=train.yaml"),
    *("countdown-0.5b-sft-24gb", "countdown-1.5b-24gb", "checkpoint=..."),
    *("Which of these numbers",),  # to a run of another env
    *("play env=",),
    *("preset=smollm2-laptop",),  # half a minute to unpack its weights
)
"""A card, the hub, a night, a person: of these lines only the words are checked."""
ENDS_WITH = {
    "preflight preset=tinyzero-3b": (0, 2),  # without a card it says so
    "preflight --json preset=tinyzero-3b": (0, 2),
    "evaluate checkpoint=champion": (0, 2),  # two steps make none
    "notify test": (2,),  # no file names anybody
    "export RUN/best to=FOLDER adapter=true": (2,),  # that run has no adapters
    "stop RUN": (2,),  # it has ended
    "stop": (2,),
    "sync": (1,),  # nobody answers there
    "serve status": (1,),  # nothing serves there
    "open ui": (1,),
    "note": (2,),
    "reward probe": (0, 2),  # without env or data
    "rescore": (2,),  # without what changes
}
"""Exit codes other than 0."""


def shell_lines() -> Iterator[tuple[str, str]]:
    """Each command line of each page's shell blocks, without its comment, and the page's name."""
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text()):
            whole = re.sub(r"\\\n\s*", "", block)
            for line in whole.splitlines() if language == "sh" else ():
                if words := line.partition("  #")[0].strip():
                    yield page.name, words


def code_spans() -> Iterator[tuple[str, str]]:
    """What stands in backticks in a page's sentences, and the page's name."""
    for page in PAGES:
        for span in CODE.findall(FENCE.sub("", page.read_text())):
            yield page.name, " ".join(span.split())


def commands() -> list[str]:
    """The words behind `countdown-train` of every line and every example in a sentence."""
    every = {line for _, line in (*shell_lines(), *code_spans())}
    ours = {line for line in every if line.startswith("countdown-train ")}
    return sorted(line.removeprefix("countdown-train ") for line in ours)


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`, made of the headings as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short():
    lines = README.read_text().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


def test_the_readme_leads_to_every_page():
    linked = {(ROOT / link.partition("#")[0]) for link in LINK.findall(README.read_text())}
    assert set(PAGES) - linked == {README}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        assert not link.startswith("http"), "a page of ours needs no network"
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_files_and_folders_that_are_named_are_there():
    named = [(page, word) for page, text in code_spans() for word in text.split()]
    missing = {
        f"{page}: {word}"
        for page, word in named
        if PATH.fullmatch(word) and not any(ROOT.glob(word.rstrip("/")))
    }
    assert missing == set()


def test_settings_that_are_named_are_there():
    known = {key for env in ENVS for key in known_keys(env)} | {"env.name"}
    sections = {key.partition(".")[0] for key in known}
    for page, span in code_spans():
        found = SETTING.fullmatch(span)
        if not found or found[1].partition(".")[0] not in sections or found[1].endswith(".py"):
            continue
        is_verls = found[1] in NAMES or meaning(found[1], "") is not None
        assert found[1] in known or is_verls, f"{page}: {span}"


@pytest.mark.parametrize(("name", "text"), reference_pages().items(), ids=reference_pages())
def test_pages_that_are_written_from_the_code_are_current(name, text):
    written = (ROOT / "docs" / name).read_text()
    assert written == text, "run: .venv/bin/python -m tests.support.reference_pages"


def test_every_preset_and_room_has_its_words():
    settings, rooms = (
        (ROOT / "docs" / name).read_text() for name in ("settings.md", "architecture.md")
    )
    assert [preset for preset in CHOICES["preset"] if f"`{preset}`" not in settings] == []
    for layer in ("rl_core", "tasks", "flows"):
        section = re.split(rf"^## The rooms of {layer}.*$", rooms, flags=re.MULTILINE)[1]
        table = re.findall(r"^\| (`.*?) \|", section.split("\n## ")[0], re.MULTILINE)
        named = {name for row in table for name in re.findall(r"`([\w./]+)`", row)}
        there = {f"{file.parent.name}/" for file in ROOT.glob(f"{layer}/*/__init__.py")}
        assert len(there) > 3
        assert {name for name in named if name.endswith("/")} == there
        assert [name for name in named if not (ROOT / layer / name).exists()] == []


def test_the_learning_curves_are_drawn_from_their_numbers():
    numbers = json.loads(NUMBERS.read_text())
    assert PICTURE.read_text() == picture(numbers), "python -m tests.support.learning_curves"
    ElementTree.fromstring(PICTURE.read_text())
    quickstart, smollm2 = numbers.values()
    readme = README.read_text()
    for label, right in zip(("before", "after"), quickstart["right"], strict=True):
        assert f"accuracy {label:<6}  {share(right, quickstart['problems'])}\n" in readme
    assert smollm2["problems"] == 512


def own_task(folder: Path) -> tuple[str, list[str]]:
    """README's program `orders.py`, written into a folder, and the words of its command."""
    program = next(block for name, block in FENCE.findall(README.read_text()) if name == "python")
    (folder / "orders.py").write_text(program)
    (line,) = (line for page, line in shell_lines() if page == "README.md" and "orders:" in line)
    return program, shlex.split(line)[2:]


def test_the_readme_s_own_task_is_made_and_scored(tmp_path, monkeypatch, capsys):
    program, words = own_task(tmp_path)
    made = python("import runpy; runpy.run_path('orders.py', run_name='__main__')", cwd=tmp_path)
    (tmp_path / "orders.jsonl").write_text(made.stdout)
    rows = [json.loads(line) for line in made.stdout.splitlines()]
    assert len(rows) == 1200
    assert all(row["answer"] in row["prompt"] for row in rows)
    names: dict[str, Any] = {}
    exec(program, names)
    score = names["score"]
    assert [score(text, "Oslo") for text in ("Oslo", " Oslo.\n", "to Oslo", "")] == [1, 1, 0, 0]
    monkeypatch.chdir(tmp_path)
    assert run_command(["generate", *words]) == 0
    assert "1,072" in capsys.readouterr().out


def test_the_rewards_of_own_task_return_what_its_table_says():
    page = (ROOT / "docs" / "own-task.md").read_text()
    names: dict[str, Any] = {}
    exec(next(block for _, block in FENCE.findall(page) if "def exact" in block), names)
    row = r"^\| `(\w+)` \| `(.*?)` \| (?:`(.*?)`)? ?\| `(.*?)` \|$"
    rows = re.findall(row, page, re.MULTILINE)
    for name, response, answer, result in rows:
        given = (response, answer) if answer else (response,)
        assert str(names[name](*given)) == result
    assert {name for name, *_ in rows} == {name for name in names if name in page} - {"re"}


def test_the_tickets_of_own_task_are_made_and_scored(tmp_path):
    page = (ROOT / "docs" / "own-task.md").read_text()
    program = next(block for _, block in FENCE.findall(page) if "DESKS" in block)
    (tmp_path / "tickets.py").write_text(program)
    made = python("import runpy; runpy.run_path('tickets.py', run_name='__main__')", cwd=tmp_path)
    rows = [json.loads(line) for line in made.stdout.splitlines()]
    assert len(rows) == len({row["prompt"] for row in rows}) == 216
    assert made.stdout.splitlines()[0] in page


def test_the_chat_program_of_nightly_posts_what_the_chats_read():
    page = (ROOT / "docs" / "nightly.md").read_text()
    (program,) = (block for name, block in FENCE.findall(page) if name == "python")
    with hook() as server:
        url = f"http://127.0.0.1:{urlsplit(server.url).port}"
        local = program.replace("https://api.telegram.org", url)
        for variables in (
            {"DISCORD_URL": url},
            {"TELEGRAM_TOKEN": "t", "TELEGRAM_CHAT": "7"},
        ):
            subprocess.run(
                [sys.executable, "-c", local],
                input='{"text": "good"}',
                env=variables,
                text=True,
                check=True,
            )
    assert server.told == [{"content": "good"}, {"chat_id": "7", "text": "good"}]


def test_nightly_names_each_field_of_a_message(tmp_path):
    config = RunConfig.model_validate({"storage": {"root": tmp_path}, "run_id": "calm-fox"})
    RunFolder.create(config)
    fields = message("finished", Night(None, config), "no gain")
    page = (ROOT / "docs" / "nightly.md").read_text()
    table = page.split("| field | type | contents |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set(fields)
    events = re.findall(
        r"^\| `(\w+)` \| ", page.split("| event | when |")[1].split("\n\n")[0], re.M
    )
    assert set(events) == set(EVENTS)


def test_the_commands_are_found():
    named = {line.split()[0] for line in commands()}
    assert len(commands()) > 30
    assert named >= {"run", "generate", "validate", "evaluate", "sql", "import", "data", "ask"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of somebody who follows the README."""
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "verl_demo.log").write_text(LOG)
    for name in ("train.yaml", "FILE.yaml"):
        (tmp_path / name).write_text("trainer: {total_steps: 3}\n")
    questions = [{"question": f"Which letter is {c}?", "answer": c} for c in "abcdefgh"]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", commands())
def test_every_command_is_understood(place, line):
    command, *words = shlex.split(line)
    options = parse([command, *words])
    settings = [word for word in options["words"] if re.match(r"[a-z][\w.]*=", word)]
    compose(take_arguments(command, settings)[1])
    if command == "sql" and words and re.fullmatch(r"\w+", words[0]):
        assert list(ROOT.glob(f"sql/*/{words[0]}.sql")), "no saved question"


def test_the_other_lines_are_understood():
    """make, prefect, pytest and python: targets, commands, files and modules that are there."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set()
    for page, line in shell_lines():
        words = [word for word in shlex.split(line.removesuffix("&")) if "=" not in word]
        program, *rest = words or ["export"]
        named.add(program)
        if program == "make":
            assert set(rest) <= targets, f"{page}: {line}"
        elif program == ".venv/bin/pytest":
            assert (ROOT / rest[0]).is_file(), f"{page}: {line}"
        elif program == ".venv/bin/python" and rest[0] == "-m":
            assert importlib.util.find_spec(rest[1]), f"{page}: {line}"
        elif program == ".venv/bin/python":
            assert (ROOT / rest[0]).is_file(), f"{page}: {line}"
    assert named == {
        *("countdown-train", "make", "prefect", "export", ".", "git", "apt-get", "python"),
        *(".venv/bin/pytest", ".venv/bin/python"),
    }
    in_sentences = re.compile(r"(?:\w+=\S+ )?make ([a-z-]+)\b.*")
    made = {found[1] for _, span in code_spans() if (found := in_sentences.fullmatch(span))}
    assert {"env", "train", "chaos"} <= made <= targets


def test_prefects_commands_are_there():
    """`prefect GROUP COMMAND`; tests/deployments/ runs them on a server."""
    called = [PREFECT.match(text) for _, text in (*shell_lines(), *code_spans())]
    asked = {(found[2], found[3]) for found in called if found}
    assert len(asked) > 5
    words = [group if group == "deploy" else f"{group} {command}" for group, command in asked]
    done = python(HELP_OF_EACH, *words, timeout_s=120)
    assert done.stdout.splitlines()[-1] == "unknown: []"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_does_what_it_says(place, tiny_overrides, capsys, monkeypatch):
    """In one storage root with one small run; `run` itself in a process, as by hand."""
    small = [*tiny_overrides, "rollout.engine=hf", "trainer.total_steps=2"]
    home = place / "prefect"
    environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
    words = ["preset=quickstart", *small, "run_id=RUN"]
    done = cli("run", *words, env=environment, more={"PREFECT_HOME": str(home)}, timeout_s=900)
    assert done.returncode == 0, done.stderr
    (data,) = (file.parent for file in place.glob("outputs/data/*/train.parquet"))
    rows = pl.read_parquet(data / "*.parquet").select("nums", "target").to_dicts()
    (place / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shutil.copytree(place / "outputs/runs/RUN", place / "outputs/runs/RUN2", symlinks=True)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    more = {"validate": small, "data": small, "train": small}
    others: list[str] = []

    # The server of the flow tests may be up in this process: a newcomer's machine has none.
    no_server = ({PREFECT_HOME: home}, None, {PREFECT_API_URL})
    for line in commands():
        command, *words = shlex.split(line)
        if command == "run" or any(word in line for word in TOO_MUCH):
            continue
        if line == "compare RUN RUN":
            words = ["RUN", "RUN2"]
        if line == "generate preset=tinyzero-3b":
            words.append("data.train_size=4000")  # all of them: tasks/test_generate.py
        if line.startswith("evaluate") and "against" in line:
            words = ["checkpoint=RUN/base", "against=RUN"]
        if command == "data":  # of the run's data set
            words = [word for word in words if not word.startswith("preset=")]
        if command == "import":
            (place / "train.yaml").unlink(missing_ok=True)  # it writes over no file
        given = set(words)
        words += [word for word in more.get(command, ()) if word not in given]
        with temporary_settings(*no_server):
            code = run_command([command, *words])
        said = capsys.readouterr()
        if code not in ENDS_WITH.get(line, (0,)) or not (said.out or code):
            others.append(f"{line}: {code}, {said.err}")
    assert others == []
