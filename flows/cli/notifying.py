"""The command `notify test`: a message now; without Prefect, unless a Secret block is named."""

from collections.abc import Sequence

from flows.cli.terminal import say
from flows.errors import BadInputError, RunFailedError
from flows.settings.night import NIGHT_FILE, read_night
from tasks.messages import Listeners, deliver, plain_message


def notify(words: Sequence[str]) -> None:
    """Sends a message, and says who got it."""
    if list(words) != ["test"]:
        raise BadInputError("notify takes one word: countdown-train notify test")
    night = read_night(NIGHT_FILE)
    listeners = Listeners(night.webhook, night.command)
    if not listeners.webhook and not listeners.command:
        raise BadInputError(f"{NIGHT_FILE} names no webhook and no command: see night.example.yaml")
    outcome = deliver(listeners, plain_message("test", "sent by `countdown-train notify test`"))
    for who, refusal in outcome.items():
        say(f"{who}: {refusal or 'got the message'}")
    if any(outcome.values()):
        raise RunFailedError("the message was not delivered to all: see above")
