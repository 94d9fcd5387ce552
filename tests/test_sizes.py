"""How large the house may be, in counts that compression does not lower.

Lower a number when what it counts has shrunk. Raising one needs a line in the changelog that names
what was lowered for it.
"""

import ast
from collections import Counter

from tests.support.seeded_faults import ROOT
from tests.support.walk import Walk

MOST = {
    # what is counted: (at most, aim)
    "statements of the product": (26_036, 18_000),
    "lines of tests": (47_500, 36_000),
    "lines of a file": (400, 400),
    "lines of a function": (72, 90),
    "functions of more than 6 parameters": (8, 8),
    "assignments of unrelated things": (2, 0),
    "starred literals": (0, 0),
    "empty names": (0, 0),
    "stays of a step's rollouts": (24, 24),
}
ROOMS = {
    # room, without the rooms in it: (statements, public names), at most
    "rl_core": (984, 60),
    "rl_core/algos": (305, 52),
    "rl_core/checkpoints": (464, 34),
    "rl_core/config": (548, 42),
    "rl_core/data": (1_333, 88),
    "rl_core/envs": (1_857, 141),
    "rl_core/evaluation": (349, 38),
    "rl_core/learner": (1_120, 46),
    "rl_core/models": (995, 66),
    "rl_core/resources": (1_023, 102),
    "rl_core/rewards": (677, 30),
    "rl_core/rollout": (907, 34),
    "rl_core/runs": (742, 61),
    "rl_core/sft": (550, 30),
    "rl_core/storage": (624, 34),
    "rl_core/system": (1_634, 159),
    "rl_core/tracking": (716, 36),
    "rl_core/workers": (1_125, 31),
    "tasks": (1_817, 104),
    "tasks/audit": (589, 26),
    "tasks/importers": (1_236, 36),
    "tasks/prefect_ui": (480, 40),
    "tasks/preflight_checks": (806, 40),
    "tasks/queries": (599, 39),
    "tasks/report_page": (541, 42),
    "tasks/supervision": (397, 12),
    "flows": (456, 27),
    "flows/cli": (2_057, 94),
    "flows/prefect_patches": (323, 18),
    "flows/runs": (476, 24),
    "flows/settings": (306, 21),
}
EMPTY_NAMES = {"asked", "found", "own", "said", "told", "wanted"}

PATHS = [path for top in ("rl_core", "tasks", "flows") for path in (ROOT / top).rglob("*.py")]
TREES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in PATHS}
NODES = [node for tree in TREES.values() for node in ast.walk(tree)]
FUNCTIONS = [node for node in NODES if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def room_of(path):
    return "/".join(path.parent.parts[:2])


def lines(path):
    return len(path.read_bytes().splitlines())


def statements(nodes):
    """How many there are, without docstrings."""
    texts = (node.value for node in nodes if isinstance(node, ast.Expr))
    docstrings = sum(isinstance(getattr(text, "value", None), str) for text in texts)
    return sum(isinstance(node, ast.stmt) for node in nodes) - docstrings


def public_names(tree):
    """Of functions, classes and constants."""
    for node in tree.body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        names = [getattr(node, "name", ""), *(getattr(one, "id", "") for one in targets)]
        yield from (name for name in names if name and not name.startswith("_"))


def has_many_parameters(function):
    arguments = function.args
    return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) > 6


def is_of_unrelated_things(node):
    """`a, b = x, y`, which may be related, but not a swap."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
        return False
    names = [ast.unparse(name) for name in getattr(node.targets[0], "elts", [])]
    return bool(names) and sorted(names) != sorted(map(ast.unparse, node.value.elts))


def is_starred_literal(node):
    return isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List)


def binds_empty_name(node):
    is_bound = isinstance(node, ast.arg) or isinstance(getattr(node, "ctx", None), ast.Store)
    return is_bound and not EMPTY_NAMES.isdisjoint(
        {getattr(node, "arg", ""), getattr(node, "id", "")}
    )


def test_the_house_keeps_its_budget():
    start = "rl_core.workers.actors:LearnerActor.learn"
    stays = Walk(ROOT, "rl_core", start, "rollouts").stays
    reached = {stay.partition(":")[0] for stay in stays}
    assert {"rl_core.batch", "rl_core.learner.experience", "rl_core.learner.update"} <= reached
    counts = {
        "statements of the product": statements(NODES),
        "lines of tests": sum(map(lines, (ROOT / "tests").rglob("*.py"))),
        "lines of a file": max(map(lines, PATHS)),
        "lines of a function": max(one.end_lineno - one.lineno + 1 for one in FUNCTIONS),
        "functions of more than 6 parameters": sum(map(has_many_parameters, FUNCTIONS)),
        "assignments of unrelated things": sum(map(is_of_unrelated_things, NODES)),
        "starred literals": sum(map(is_starred_literal, NODES)),
        "empty names": sum(map(binds_empty_name, NODES)),
        "stays of a step's rollouts": len(stays),
    }
    assert counts.keys() == MOST.keys()
    assert not {what: n for what, n in counts.items() if n > MOST[what][0]}, "cut something"


def test_rooms_keep_their_budgets():
    sizes, names = Counter(), Counter()
    for path, tree in TREES.items():
        sizes[room_of(path)] += statements([*ast.walk(tree)])
        names[room_of(path)] += len([*public_names(tree)])
    assert sizes.keys() == ROOMS.keys()
    too_large = {
        room: (sizes[room], names[room])
        for room, most in ROOMS.items()
        if sizes[room] > most[0] or names[room] > most[1]
    }
    assert not too_large, "statements, public names: cut something"


def imported(tree, modules):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module


def test_no_room_has_a_circle_of_imports():
    names = {path: ".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in TREES}
    reached = {names[path]: {*imported(TREES[path], names.values())} for path in TREES}
    for middle in reached:
        for to in reached.values():
            to |= reached[middle] if middle in to else set()
    assert not [name for name in names.values() if name in reached[name]], "they import each other"
