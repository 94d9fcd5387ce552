"""Observers of training: functions that measure a step, may stop training, and run after a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rl_core.config.run import RunConfig
from rl_core.resources.cost import Spending
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.diagnosis import hacked_reward
from rl_core.types import Rollout

OnStep = Callable[[int, int, dict[str, float]], None]
"""Called with (step, last step, all metrics of the step) when the step is done and logged, and its
save, if due, has begun; step 0 is the test before the first step."""
_ON_HACKED_REWARD = "budget.stop_on_hacked_reward"
_PER_TOKEN = ("old_log_prob", "ref", "teacher", "values", "adv", "update_critic", "update_actor")


@dataclass(frozen=True)
class StepObserver:
    """The functions of an observer; those that it does not have do nothing."""

    wants_stop: Callable[[], bool] = lambda: False
    """Returns whether the step that ends must be the last; called before it is saved."""
    measure: Callable[[], dict[str, float]] = lambda: {}
    """Returns more metrics of the step that ends."""
    on_step: OnStep = lambda step, last_step, metrics: None


def all_of(observers: Sequence[StepObserver]) -> StepObserver:
    """Returns several observers as one: all of them are called, in their order."""

    def on_step(step: int, last_step: int, metrics: dict[str, float]) -> None:
        for observer in observers:
            observer.on_step(step, last_step, metrics)

    return StepObserver(
        wants_stop=lambda: sum(observer.wants_stop() for observer in observers) > 0,
        measure=lambda: {k: x for observer in observers for k, x in observer.measure().items()},
        on_step=on_step,
    )


class BudgetLimit:
    """Stops before a step that would exceed the run's hours or price, earlier attempts included.

    It also stops after a test that finds the reward hacked, if `budget.stop_on_hacked_reward`.
    """

    def __init__(self, config: RunConfig, run: RunFolder) -> None:
        self._config = config
        self._run = run
        self._spending = Spending(config.budget, run.metrics.values("timing_s/step"))
        self._hacked = self._evidence_of_hacking()
        self.limit: str | None = None
        """What allows no further step, as `budget.max_hours=2`; None if one is allowed."""

    @property
    def way_on(self) -> str:
        """Returns what allows more steps, as `a larger budget.max_hours`."""
        if self._hacked:
            return f"{_ON_HACKED_REWARD}=false"
        return f"a larger {str(self.limit).partition('=')[0]}"

    def wants_stop(self) -> bool:
        """Returns whether the step that ends, not yet counted, and another exceed the budget."""
        return self._exceeds(2)

    def on_step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Counts the step's seconds, and looks at its test, which is in the run's metrics."""
        self._spending.add_step(metrics.get("timing_s/step", 0.0))
        if "val/accuracy" in metrics:
            self._hacked = self._evidence_of_hacking()

    def allows_a_step(self) -> bool:
        """Returns whether one more step fits; only for use between steps."""
        return not self._exceeds(1)

    def reason(self, step: int) -> str | None:
        """Returns why no step after this one is allowed; None if one is allowed."""
        if self.limit is None:
            return None
        why = self._hacked or self._spending
        return f"{self.limit} allows no step after {step} ({why}): training stopped there"

    def next_step(self, step: int) -> str | None:
        """Returns what to do about a run that was stopped after this step; None: nothing."""
        goes_on = f"the same command with {self.way_on} continues from step {step}"
        if self._hacked:
            advice = "read the responses that scored most, mend the reward and begin a new run"
            return f"{advice}; {goes_on}"
        # A night has its hours on purpose: the next one is another run.
        return goes_on if self._run.read().night is None else None

    def _exceeds(self, num_steps: int) -> bool:
        self.limit = self._spending.limit_within(num_steps)
        if self._hacked:
            self.limit = f"{_ON_HACKED_REWARD}=true"
        return self.limit is not None

    def _evidence_of_hacking(self) -> str | None:
        if not self._config.budget.stop_on_hacked_reward:
            return None
        return hacked_reward(self._run.metrics.read(), self._config)


def per_token_ms(seconds: Mapping[str, float], rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns `timing_per_token_ms/*` as verl counts: `gen` by sampled tokens, the rest by all."""
    completions = [rollout.completion for rollout in rollouts]
    num_tokens = sum(len(rollout.prompt_ids) for rollout in rollouts)
    num_tokens += sum(len(completion.response_ids) for completion in completions)
    num_sampled = sum(completion.num_sampled for completion in completions)
    divisors = {"gen": num_sampled, **dict.fromkeys(_PER_TOKEN, num_tokens)}
    return {
        f"timing_per_token_ms/{phase}": 1e3 * seconds[f"timing_s/{phase}"] / divisor
        for phase, divisor in divisors.items()
        if f"timing_s/{phase}" in seconds
    }
