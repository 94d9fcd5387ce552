"""The teacher of a run: the folder that `teacher.path` names, and whether it reads our tokens."""

from collections.abc import Callable, Mapping
from pathlib import Path

from rl_core.config.run import RunConfig
from rl_core.data.prompts import load_tokenizer, resolve_model
from rl_core.system.model_folder import CONFIG
from rl_core.system.words import did_you_mean


def with_teacher(
    config: RunConfig,
    model_path: Path,
    warn: Callable[[str], None],
    known: Mapping[str, str] | None = None,
) -> RunConfig:
    """Returns the settings with the teacher's folder as `teacher.path`, if there is a teacher.

    `known` are folders by name, of a run that continues: its teacher stays the same one. They stand
    in the run's folder, which may be somebody else's, so only a neighbour of the folder that the
    name leads to now counts: another checkpoint of that run.

    Raises:
        ValueError: there is no such model, or its tokens are not those of `model_path`.
    """
    path = config.teacher.path
    if path is None:
        return config
    folder = find_teacher(config)
    before = Path((known or {}).get(path, "")).resolve()
    if before.parent == folder.parent and (before / CONFIG).is_file():
        folder = before
    check_teacher(config, folder, model_path, warn)
    teacher = config.teacher.model_copy(update={"path": str(folder)})
    return config.model_copy(update={"teacher": teacher})


def find_teacher(config: RunConfig) -> Path:
    """Returns the teacher's folder, fetched if it is a hub's; ValueError if there is none."""
    path = str(config.teacher.path)
    refuse_unknown_run(config)
    try:
        return resolve_model(str(config.teacher_folder or path), config.storage.root)
    except ValueError as error:
        raise ValueError(str(error).replace("model.path=", "teacher.path=")) from None


def refuse_unknown_run(config: RunConfig) -> None:
    """Raises ValueError if `teacher.path` is RUN/best and there is no such checkpoint."""
    path = str(config.teacher.path)
    runs = config.storage.root / "runs"
    run, _, what = path.partition("/")
    if config.teacher_folder is None and what in ("best", "latest"):
        hint = did_you_mean(run, (folder.name for folder in runs.glob("*")))
        raise ValueError(f"teacher.path={path}: no run {run} with a checkpoint in {runs}{hint}")


def check_teacher(
    config: RunConfig, teacher: Path, model_path: Path, warn: Callable[[str], None]
) -> None:
    """Warns of another chat template; ValueError if token ids do not mean the same to both."""
    ours = load_tokenizer(str(model_path))
    theirs = load_tokenizer(str(teacher))
    tokens, others = ({i: token for token, i in x.get_vocab().items()} for x in (ours, theirs))
    differ = sorted(i for i in tokens.keys() | others.keys() if tokens.get(i) != others.get(i))
    if differ:
        first = differ[0]
        raise ValueError(
            f"teacher.path={config.teacher.path} has other tokens than the policy: {len(differ):,} "
            f"ids differ, the first is {first} ({others.get(first)!r}, and {tokens.get(first)!r} "
            "here): choose a teacher of the same family of models"
        )
    if config.env.prompt_template == "chat" and ours.chat_template != theirs.chat_template:
        warn(
            f"teacher.path={config.teacher.path} has another chat template: it reads the policy's, "
            "which it may not have been trained with"
        )
