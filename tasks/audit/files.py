"""What a run holds besides its steps: names, attempts, weights at each sync, and checkpoints."""

from collections import defaultdict
from itertools import pairwise

from rl_core.checkpoints.manifest import Manifest, find_damage, model_digest, read_manifest
from rl_core.checkpoints.store import checkpoints_folder
from rl_core.runs.receipt import AuditLine
from rl_core.system.plain_files import read_json
from rl_core.system.words import in_one_line
from tasks.audit.facts import OLDER, Facts, line, ranges

_LEARNER = "learner"


def check_names(facts: Facts, run_ids: set[str]) -> AuditLine:
    """Compares the run's name in all files with its folder's."""
    name = facts.run.run_id
    record = read_json(facts.run.path / "run.json", below=facts.run.path).get("run_id")
    wrong = [
        f"{place} is of run {other!r}: it was renamed or copied"
        for place, others in (("run.json", {str(record)}), ("a file of rows", run_ids))
        for other in sorted(others - {name})
    ]
    return line("names", f"run.json and all rows are of run {name}, as is the folder", wrong)


def check_attempts(facts: Facts) -> AuditLine:
    """Says what changed between attempts: settings, versions, machine."""
    attempts = facts.attempts
    number = f"{len(attempts)} attempts"
    if not all(attempt.made_with for attempt in attempts):
        words = "the versions and the machine of each attempt: an older version kept the last one's"
        return line("attempts", "", unknown=words)
    changes = []
    for i, (before, after) in enumerate(pairwise(attempts), start=2):
        old = before.made_with
        new = after.made_with
        moved = [
            f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
        if texts := list(filter(None, (*moved, after.changed))):
            changes.append(f"attempt {i}: {', '.join(texts)}")
    if changes:
        return AuditLine("attempts", "note", f"{number}; {'; '.join(changes)}")
    machine = attempts[-1].made_with
    shown = ", ".join(machine[name] for name in ("processor", "gpu") if name in machine)
    words = f"{number if len(attempts) > 1 else '1 attempt'}, with the same settings and versions"
    return AuditLine("attempts", "holds", f"{words}, on {shown}")


def check_weights(facts: Facts, versions: set[int]) -> AuditLine:
    """Compares the digest of each engine's weights with the learner's, at each sync."""
    if not any(note.weights for note in facts.notes):
        return line("weights", "", unknown=OLDER)
    held: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for note in facts.notes:
        for holder, version, digest in note.weights:
            held[version][holder].add(digest)
    wrong = []
    num_compared = 0
    for version, digests in sorted(held.items()):
        of_learner = digests.pop(_LEARNER, set())
        if len(of_learner) > 1:
            wrong.append(f"update {version}: the learner had other weights after a resume")
        for engine, of_engine in sorted(digests.items()):
            num_compared += 1
            if of_learner and of_engine - of_learner:
                wrong.append(
                    f"{engine} held weights {'/'.join(sorted(of_engine))} after update {version}, "
                    f"and the learner {'/'.join(sorted(of_learner))}: it answered with other ones"
                )
        if not of_learner or not digests:
            held[version].clear()
    missing = {version for version in versions if not held[version]}
    unknown = f"nothing was noted of the weights after update {ranges(missing)}"
    return line(
        "weights",
        f"the weights of {num_compared} syncs of engines are the learner's, by the digest of all "
        "tensors",
        wrong,
        unknown if missing else None,
    )


def check_checkpoints(facts: Facts) -> AuditLine:
    """Compares every byte of the checkpoints with their manifests, and these with the receipt."""
    folder = checkpoints_folder(facts.run.path)
    noted = {note.step: note.checkpoint for note in facts.notes if note.checkpoint}
    wrong = []
    steps = []
    num_noted = 0
    for path in sorted(folder.glob("step_*")) if not folder.is_symlink() else ():
        try:
            damage = find_damage(path)
            manifest = read_manifest(path)
        except (OSError, ValueError) as error:
            damage = in_one_line(error)
        if damage is not None or not isinstance(manifest, Manifest):
            wrong.append(f"{path.name}: {damage}")
            continue
        steps.append(manifest.step)
        if path.name != f"step_{manifest.step:06d}":
            wrong.append(f"{path.name} holds the checkpoint of step {manifest.step}")
        elif manifest.step in noted:
            num_noted += 1
            if model_digest(path) != noted[manifest.step]:
                wrong.append(f"{path.name} is not the checkpoint that was saved")
    unknown = None if steps else "there are no checkpoints"
    if steps and not noted:
        unknown = f"{len(steps)} checkpoints are sound; whether they are this run's: {OLDER}"
    return line(
        "checkpoints",
        f"checkpoints of steps {ranges(steps)}: every byte is as saved (crc32), "
        f"{num_noted} of them as noted at the save",
        wrong,
        unknown,
    )
