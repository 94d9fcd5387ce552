"""CPUs and GPUs of each process, and which processes share a card: as planned, later as placed.

Not here: Ray (cluster.py), bytes (memory_need.py).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.system.words import counted

LEARNER: Final = "learner"
_ALMOST: Final = 1e-4
"""Ray counts ten-thousandths of a card."""
_SETTINGS: Final = {
    "CPU": ("resources.rollout_threads", "resources.learner_threads"),
    "GPU": ("resources.rollout_gpus", "resources.learner_gpus"),
}
"""Settings that decide how much each process requests."""


def engine_name(number: int) -> str:
    """Returns the name of an engine's process: of its log, in errors, in metrics."""
    return f"engine_{number}"


def learner_name(rank: int) -> str:
    """Returns the name of a learner rank's process; the first has the name of a single learner."""
    return f"{LEARNER}_{rank}" if rank else LEARNER


def card_tenants(config: RunConfig) -> list[list[str]]:
    """Returns the processes on each card of one machine, in the order of their start.

    As Ray places them: engines first, then the learner; a share of a card goes to the fullest card
    that has room for it, else to a new one. Processes on the CPU are on none.
    """
    resources = config.resources
    rollout = config.rollout
    per_engine = rollout.tensor_parallel_size * resources.rollout_gpus
    shares = [(engine_name(i), per_engine) for i in range(rollout.num_engines)]
    # Each rank has its own card: in the plan all these cards are alike.
    shares += [(LEARNER, resources.learner_gpus)] * resources.learner_ranks
    cards: list[tuple[float, list[str]]] = []  # (room left, tenants)
    for name, share in shares:
        fitting = [i for i, (room, _) in enumerate(cards) if share <= room + _ALMOST]
        if 0 < share < 1 and fitting:
            fullest = min(fitting, key=lambda i: cards[i][0])
            room, tenants = cards[fullest]
            cards[fullest] = (room - share, [*tenants, name])
        else:
            cards += [(max(1.0 - share, 0.0), [name]) for _ in range(math.ceil(share))]
    return [tenants for _, tenants in cards]


def sequences_at_a_time(config: RunConfig) -> int:
    """Returns how many responses an engine can generate at a time in a training step."""
    num_rollouts = config.data.train_batch_size * config.algorithm.group_size
    return min(config.rollout.max_num_seqs, num_rollouts)


def asked_at_a_time(config: RunConfig) -> tuple[int, int]:
    """Returns the most responses, and the most prompts, that an engine has at a time.

    In a training step or a test. A group's responses share a prompt, unless they have turns.
    """
    data = config.data
    size = config.algorithm.group_size
    rollout = config.rollout
    samples = config.evaluation.samples_that_count
    tests = samples * min(config.trainer.test_problems, data.test_size)
    in_all = (data.train_batch_size * size, tests)
    num_rollouts, num_tests = (
        min(rollout.max_num_seqs, -(-number // rollout.num_engines)) for number in in_all
    )
    num_seqs = max(num_rollouts, num_tests)
    if config.env.max_turns > 1:
        return num_seqs, num_seqs
    return num_seqs, max(-(-num_rollouts // size), -(-num_tests // samples))


def shares_a_card(config: RunConfig) -> bool:
    """Returns whether the learner has an engine on its card."""
    return any(LEARNER in tenants and len(tenants) > 1 for tenants in card_tenants(config))


def loading_queues(cards: Mapping[str, AbstractSet[tuple[str, str]]]) -> list[list[str]]:
    """Returns in which order processes load: each queue one by one, all queues at the same time.

    `cards` has the cards of each process, as (machine, number on it). Processes that share a card
    are in one queue: engines in their order, and learners last.

    At its start vLLM (0.32, v1/worker/gpu_worker.py) looks at the whole card, not at its own
    process. Its share of the TOTAL memory must be free. All memory that is taken until the end of
    profiling counts as vLLM's own and makes its KV cache smaller: if a learner loads meanwhile, the
    engine loses its cache or does not start ("No available memory for the cache blocks"). If
    another process frees memory, an assertion fails. So no other process may load or free then.
    Engines go first: on an empty card any share is free, and the engine keeps it, whatever the
    learner takes or frees. After a learner, it would have to fit next to torch's cache.
    """
    queues: list[tuple[set[tuple[str, str]], list[str]]] = []
    # Stable: engines stay in order.
    for name in sorted(cards, key=lambda name: name.startswith(LEARNER)):
        card_numbers = set(cards[name])
        met = [queue for queue in queues if queue[0] & card_numbers]
        queues = [queue for queue in queues if not queue[0] & card_numbers]
        before = [tenant for _, tenants in met for tenant in tenants]
        queues.append((card_numbers.union(*(taken for taken, _ in met)), [*before, name]))
    return [tenants for _, tenants in queues]


def asked_of_ray(config: RunConfig, *, learner: bool) -> dict[str, dict[str, float]]:
    """Returns the CPUs, and the GPUs if any, that each process requests from Ray.

    An evaluation has only engines, and no learner.
    """
    resources = config.resources
    parts = config.rollout.tensor_parallel_size
    # As one request, so that all GPUs of an engine are on one machine.
    gpus = parts * resources.rollout_gpus
    engine = {"CPU": parts * resources.rollout_threads} | ({"GPU": gpus} if gpus else {})
    bundles = {engine_name(i): engine for i in range(config.rollout.num_engines)}
    if learner:
        gpus = resources.learner_gpus
        rank = {"CPU": resources.learner_threads} | ({"GPU": gpus} if gpus else {})
        bundles |= {learner_name(i): rank for i in range(resources.learner_ranks)}
    return bundles


def lacking(
    bundles: Mapping[str, Mapping[str, float]], machines: Sequence[Mapping[str, float]]
) -> list[str]:
    """Returns the kinds of which all machines together have too little: `CPU`, `GPU`."""
    return [
        kind
        for kind in _SETTINGS
        if sum(x.get(kind, 0) for x in bundles.values())
        > sum(x.get(kind, 0) for x in machines) + _ALMOST
    ]


def too_little(
    bundles: Mapping[str, Mapping[str, float]], machines: Sequence[Mapping[str, float]]
) -> str:
    """Returns, as text, what is requested (see `asked_of_ray`), what there is, and what to do."""
    engines = [bundle for name, bundle in bundles.items() if not name.startswith(LEARNER)]
    ranks = [bundle for name, bundle in bundles.items() if name.startswith(LEARNER)]
    named = {counted(len(engines), "engine"): engines}
    if ranks:
        named["learner" if len(ranks) == 1 else f"{len(ranks)} learner ranks"] = ranks
    parts = [f"{who} of {in_words(x[0])}{' each' * (len(x) > 1)}" for who, x in named.items()]
    alike = Counter(in_words(machine) for machine in machines)
    there = " + ".join(f"{counted(n, 'machine')} of {has}" for has, n in alike.items())
    kinds = lacking(bundles, machines) or _SETTINGS
    settings = [name for kind in kinds for name in _SETTINGS[kind]]
    counts = ["rollout.num_engines", "resources.learner_ranks"][: 1 + (len(ranks) > 1)]
    return (
        f"{' + '.join(parts)} are asked of Ray, which has {there or 'no machine'}: lower "
        f"{', '.join(counts)}, {' or '.join(settings)}, or give it more (resources.ray_address)"
    )


def in_words(bundle: Mapping[str, float]) -> str:
    """Returns CPUs and GPUs as text: `2 CPUs and 1 GPU`."""
    return " and ".join(counted(bundle.get(kind, 0), kind) for kind in _SETTINGS)
