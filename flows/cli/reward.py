"""The command `countdown-train reward probe`: what a reward pays for, before a night is spent."""

from collections.abc import Sequence

from flows.cli.commands import take_arguments
from flows.cli.terminal import say, show_rows
from flows.errors import BadInputError
from flows.settings.compose import compose
from rl_core.system.named_code import names_code
from tasks.reward_probe import probe


def reward(words: Sequence[str]) -> None:
    """Shows the scores of texts whose worth is known; refuses a reward of which that is not so."""
    arguments, rest = take_arguments("reward", words)
    named = [word for word in rest if "=" not in word]
    settings = [word for word in rest if "=" in word]
    if named[:1] != ["probe"]:
        raise BadInputError("reward takes `probe` first: reward probe MODULE:FUNCTION KEY=VALUE")
    functions = named[1:]
    if strange := [word for word in functions if not names_code(word)]:
        raise BadInputError(f"{strange[0]!r} is neither MODULE:FUNCTION nor KEY=VALUE")
    if functions:
        settings.append(f"env.reward=[{','.join(functions)}]")
        keys = {word.partition("=")[0] for word in settings}
        if "data.train_files" in keys and keys.isdisjoint(("env", "preset")):
            settings.append("env=custom")
    result = probe(compose(settings), arguments.get("response"))
    show_rows(result.rows)
    for finding in result.findings:
        say(f"{finding.level:8} {finding.check:9} {finding}")
    if any(finding.level == "fatal" for finding in result.findings):
        raise BadInputError("right answers do not score full: no night can learn from this reward")
