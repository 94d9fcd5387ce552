from typing import Any

import yaml
from prefect.events.schemas.automations import AutomationCore

from flows.cli.serve import says_the_same
from tests.support.harness import ROOT


def automation(**changes: Any) -> AutomationCore:
    data = yaml.safe_load((ROOT / "deployments" / "automations.yaml").read_text())
    lost: dict[str, Any] = data["automations"][0]
    return AutomationCore.model_validate(lost | changes)


def test_only_an_automation_that_says_something_else_is_changed():
    """A change makes the server forget for which runs' heartbeats it waits."""
    assert says_the_same(automation(), automation())
    assert says_the_same(automation(enabled=False), automation())
    trigger = automation().trigger.model_dump(mode="json")
    assert not says_the_same(automation(trigger=trigger | {"within": 30}), automation())
    assert not says_the_same(automation(description="other"), automation())
