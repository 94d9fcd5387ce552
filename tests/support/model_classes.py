"""What works with a small model of each decoder class that transformers has.

`python -m tests.support.model_classes [KIND ...] [-COLUMN ...]` tries them, and writes
docs/models.md: all but these columns, or with `+COLUMN` only this one, and the others stay.
"""

import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import peft
import torch
import transformers

from rl_core.batch import collate
from rl_core.models.folder_check import check_model_folder, refuse_for_vllm
from rl_core.models.forward import forward_pass
from rl_core.models.loading import (
    checkpoint_gradients,
    complete_weights,
    load_actor,
    load_causal_lm,
)
from rl_core.models.lora import add_adapters, peft_name, save_adapter
from rl_core.models.packing import allow_packing
from rl_core.models.saving import save_actor
from rl_core.resources.memory_plan import frozen_bytes
from rl_core.resources.model_shape import ModelShape
from rl_core.rollout.protocol import RolloutEngine
from rl_core.types import Completion, Problem, Rollout, ScoredText
from tests.support.engines import ask, make_hf, make_vllm, perturb
from tests.support.learners import check_that_a_resume_is_exact
from tests.support.runs import run_config
from tests.support.small_models import KINDS, write_small_model

PAGE: Final = Path(__file__).parents[2] / "docs" / "models.md"
CPU: Final = torch.device("cpu")
REFUSED: Final = "refused"
UNTRIED: Final = "not tried"
TOLERANCE: Final = 1e-5


def _rollouts() -> list[Rollout]:
    """Three groups of two, with prompts of other lengths: longer and shorter than a window."""
    rng = np.random.default_rng(0)
    rollouts = []
    for group, length in enumerate((20, 3, 9)):
        prompt = tuple(rng.integers(2, 258, length).tolist())
        for sample in range(2):
            ids = rng.integers(2, 258, int(rng.integers(2, 11)))
            completion = Completion(ids, np.full(len(ids), -5.0, np.float32), "stop")
            problem = Problem(group, "countdown", (), {}, 0)
            scored = ScoredText(float(sample), ("wrong_value", "correct")[sample], None)
            rollouts.append(Rollout(problem, group, sample, "", prompt, completion, "", scored))
    return rollouts


ROLLOUTS: Final = _rollouts()


def checked(kind: str, folder: Path, columns: Collection[str]) -> dict[str, str]:
    """What of this package works with a small model of a kind: `yes` by column, or the reason."""
    try:
        write_small_model(kind, folder / "base")
    except Exception as error:  # noqa: BLE001  # of classes whose settings are of another form
        return {UNTRIED: f"no small model can be made: {_line(error)}"}
    try:
        check_model_folder(folder / "base")
    except ValueError as error:
        return {REFUSED: _line(error).partition(": ")[2]}
    return {name: _outcome(check, folder) for name, check in CHECKS.items() if name in columns}


def _outcome(check: Callable[[Path], None], folder: Path) -> str:
    try:
        check(folder)
    except Exception as error:  # noqa: BLE001  # whatever a class raises is the table's content
        line = _line(error) or type(error).__name__
        is_remedied = isinstance(error, ValueError) and re.match(
            r"(model|rollout)\.\w+|vLLM ", line
        )
        return f"{REFUSED if is_remedied else 'no'}: {line.removeprefix('model.path: ')}"
    return "yes"


def _line(error: Exception) -> str:
    text = " ".join(str(error).replace("|", "/").split())
    return re.sub(r"model\.path=\S+ ?", "model.path: ", text)[:160]


def plain_model(folder: Path) -> Any:
    """transformers' own, with the plainest attention: the only one that does all that it should."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def plain_logprobs(model: Any, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """All tokens' log-probs after each of a response's predecessors, by one pass of one row."""
    ids = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    result: torch.Tensor = logits.log_softmax(-1)
    return result


def check_plan(folder: Path) -> None:
    """Weights, adapters and packed weights take the planned bytes, within a tenth."""
    shape = ModelShape.from_folder(folder / "base")
    model = load_actor(folder / "base", CPU, in_4bit=_has_linear_layers(folder))
    packed = sum(x.numel() * x.element_size() for x in model.parameters())
    sections = {"path": str(folder / "base"), "lora_rank": 4, "load_in_4bit": True}
    planned = {"weights": (shape.num_parameters, plain_model(folder / "base").num_parameters())}
    if _has_linear_layers(folder):
        planned["4 bits"] = (frozen_bytes(shape, run_config(model=sections)), packed)
    add_adapters(model, rank=4, alpha=8)
    learned = sum(x.numel() for x in model.parameters() if x.requires_grad)
    planned["adapters"] = (shape.num_adapter_parameters(4), learned)
    for what, (plan, real) in planned.items():
        assert abs(plan / real - 1) < 0.1, f"{what} are planned as {plan / real:.2f} of what is"


def _has_linear_layers(folder: Path) -> bool:
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(folder / "base")
        model = transformers.AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    return any(isinstance(x, torch.nn.Linear) and x is not head for x in model.modules())


def check_learner(folder: Path) -> None:
    """Loss and gradient are plain transformers', however rows are laid out."""
    plain = plain_model(folder / "base")
    loss = torch.zeros(())
    for one in ROLLOUTS:
        response = one.completion.response_ids.tolist()
        rows = plain_logprobs(plain, one.prompt_ids, response)
        loss = loss - rows.gather(1, torch.tensor(response)[:, None]).mean()
    loss.backward()
    expected = {name: x.grad for name, x in plain.named_parameters() if x.grad is not None}
    size = torch.cat([x.flatten() for x in expected.values()]).norm()
    actor = load_actor(folder / "base", CPU)
    allow_packing(actor)
    batch = collate(ROLLOUTS, pad_id=0)
    alone = dataclasses.replace(batch, group_ids=torch.arange(len(batch)))
    for layout, rows in (("padded", alone), ("shared", batch), ("checkpointed", batch)):
        if layout == "checkpointed":
            if not actor.supports_gradient_checkpointing:
                continue
            checkpoint_gradients(actor)
        actor.zero_grad()
        logprobs = forward_pass(rows, actor=actor, compute_dtype=torch.float32).logprobs
        assert logprobs is not None
        ours = -(logprobs.sum(1) / rows.response_lengths).sum()
        ours.backward()
        gap = float(((ours - loss) / loss).detach().abs())
        assert gap < TOLERANCE, f"{layout}: the loss differs by {gap:.0e}"
        grads = {name: x.grad for name, x in actor.named_parameters() if x.grad is not None}
        assert grads.keys() == expected.keys(), layout
        gaps = torch.cat([(grads[name] - x).flatten() for name, x in expected.items()])
        gap = float(gaps.norm() / size)
        assert gap < TOLERANCE, f"{layout}: the gradient differs by {gap:.0e}"


def check_engine(engine: RolloutEngine, plain: Any) -> None:
    """Greedy answers of a batch, shared and padded prompts in it, are those of single rows."""
    prompts = [one.prompt_ids for one in ROLLOUTS]
    for prompt, answer in zip(prompts, ask(engine, prompts), strict=True):
        ids = answer.response_ids.tolist()
        with torch.no_grad():
            rows = plain_logprobs(plain, prompt, ids)
        chosen = rows.gather(1, torch.tensor(ids)[:, None])[:, 0]
        gap = float((chosen - torch.tensor(answer.logprobs)).abs().max())
        assert gap < 2e-3, f"log-probs differ by {gap:.0e}"
        assert float((rows.max(-1).values - chosen).max()) < 2e-3, "another token is likelier"


def check_hf(folder: Path) -> None:
    _check_updated(make_hf, folder)


def check_vllm(folder: Path) -> None:
    refuse_for_vllm(folder / "base")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    _check_updated(make_vllm, folder)


def _check_updated(make: Callable[[Path], RolloutEngine], folder: Path) -> None:
    plain = plain_model(folder / "base")  # before the engine: vLLM changes transformers' classes
    for module in plain.modules():
        module.do_not_compile = True  # which only vLLM's own have, and its changed classes read
    engine = make(folder / "base")
    check_engine(engine, plain)
    perturb(plain, 1)
    engine.update_weights(complete_weights(plain))
    check_engine(engine, plain)
    engine.close()


def check_adapters(folder: Path) -> None:
    """PEFT loads the adapter by its names, and the merged folder gives the same logits."""
    _check_merged(folder, in_4bit=False)


def check_4bit(folder: Path) -> None:
    _check_merged(folder, in_4bit=True)


@torch.no_grad()
def _check_merged(folder: Path, *, in_4bit: bool) -> None:
    ids = torch.tensor([ROLLOUTS[0].prompt_ids])
    model = load_actor(folder / "base", CPU, in_4bit=in_4bit)
    model.requires_grad_(False)
    add_adapters(model, rank=4, alpha=8)
    perturb(model, 1, only="lora_B")
    expected = model(input_ids=ids, use_cache=False).logits
    saved = folder / f"merged-{in_4bit}"
    save_actor(model, complete_weights(model), folder / "base", saved)
    check_model_folder(saved)
    loaded = [load_causal_lm(saved, torch.float32)]
    if not in_4bit:
        learned = {peft_name(name): x for name, x in model.named_parameters() if x.requires_grad}
        save_adapter(learned, folder / "adapter", rank=4, alpha=8, base=str(folder / "base"))
        loaded.append(
            peft.PeftModel.from_pretrained(plain_model(folder / "base"), folder / "adapter")
        )
    for other in loaded:
        gap = (other.eval()(input_ids=ids, use_cache=False).logits - expected).abs().max()
        gap = float(gap / expected.std())
        assert gap < 1e-3, f"logits differ by {gap:.0e}"


def check_resume(folder: Path) -> None:
    config = run_config(
        data={"train_batch_size": 3},
        actor={"mini_batch_size": 3, "micro_batch_tokens": 256, "lr": 1e-4},
        algorithm={"estimator": "grpo", "group_size": 2, "kl_mode": "none"},
    )
    batch = collate(ROLLOUTS, pad_id=0)
    saved = folder / "saved"
    check_that_a_resume_is_exact(config, folder / "base", saved, lambda *_, **__: batch)
    check_model_folder(saved)


CHECKS: Final = {
    "plan": check_plan,
    "learner": check_learner,
    "hf": check_hf,
    "adapters": check_adapters,
    "4 bits": check_4bit,
    "resume": check_resume,
    "vllm": check_vllm,
}
"""What is tried of each kind, by the table's column."""
COLUMNS: Final = tuple(CHECKS)


def rows_of_page() -> dict[str, str]:
    """The page's rows by kind."""
    rows = (line for line in PAGE.read_text().splitlines() if re.match(r"\| `\w\S*` \| \w", line))
    return {row.split("`")[1]: row for row in rows}


def row(kind: str, outcomes: Mapping[str, str]) -> str:
    start = f"| `{kind}` | {KINDS[kind]} |"
    for word in (REFUSED, UNTRIED):
        if word in outcomes:
            return f"{start} {word} |{' |' * (len(COLUMNS) - 1)} {outcomes[word]} |"
    cells = (outcomes.get(name, UNTRIED).partition(":")[0] for name in COLUMNS)
    reasons = [
        f"{name}: {outcomes[name].partition(': ')[2]}"
        for name in COLUMNS
        if ": " in outcomes.get(name, "")
    ]
    return f"{start} {' | '.join(cells)} | {'; '.join(reasons)} |"


def outcomes_of(row: str) -> dict[str, str]:
    """What a row says, by column."""
    *cells, remark = (cell.strip() for cell in row.split("|")[3:-1])
    names = "|".join(COLUMNS)
    reasons = dict(re.findall(rf"({names}): (.*?)(?=; (?:{names}): |$)", remark))
    return {
        name: f"{cell}: {reasons[name]}" if name in reasons else cell
        for name, cell in zip(COLUMNS, cells, strict=True)
        if cell
    }


def page(rows: Mapping[str, str]) -> str:
    """The text of docs/models.md: what is above its table stays."""
    heads = ["model_type", "class", *COLUMNS, "remark"]
    table = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    above = PAGE.read_text().partition(table[0])[0]
    return above + "\n".join([*table, *(rows[kind] for kind in sorted(rows)), ""])


def main(words: Sequence[str]) -> None:
    """Checks these kinds, or all, and writes their rows; see the module's words for columns."""
    left_out = {word[1:] for word in words if word.startswith("-")}
    only = {word[1:] for word in words if word.startswith("+")} or set(COLUMNS) - left_out
    transformers.utils.logging.set_verbosity_error()
    for kind in [word for word in words if word[0] not in "+-"] or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = checked(kind, Path(folder), only)
        sys.stdout.write(f"{kind}: {outcomes}\n")
        sys.stdout.flush()
        rows = rows_of_page()
        if only < set(COLUMNS) and outcomes.keys() <= set(COLUMNS) and kind in rows:
            outcomes = outcomes_of(rows[kind]) | outcomes
        PAGE.write_text(page(rows | {kind: row(kind, outcomes)}))


if __name__ == "__main__":
    main(sys.argv[1:])
