"""What a model of preset=smollm2-laptop can do, apart from the form of its answers.

    python benchmarks/real_model.py DATA MODEL [MODEL ...]

DATA is the folder of a data set of env=number_questions, each MODEL a model's folder. For each:
- accuracy by kind with the form of the answer given: the response begins "The largest number is ",
  and only digits may follow, so that nothing is left to learn but the number;
- general ability: perplexity of a page of English, and 20 other questions.

Not measured here: its free answers, which `countdown-train evaluate` measures.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path

import torch
import transformers

from rl_core.data.dataset import read_problems
from rl_core.data.prompts import encode_prompt, load_tokenizer
from rl_core.types import Message, Problem

BATCH = 32
MAX_DIGITS = 4
BEGINNINGS = {
    "largest": "The largest number is ",
    "smallest": "The smallest number is ",
    "times": "The answer is ",
}
PAGE = """The lighthouse stood at the end of a long and narrow road, and for most of the year
nobody went there but the keeper and the woman who brought his bread. In summer,
children came out from the village to swim from the rocks, and the keeper showed them
how the great lamp turned on its bed of oil. He had been a sailor once, and he told them
about islands where the sand was black, and about a storm in which the ship had lost two
of its three masts. In autumn the wind came back. Then the door had to be tied with
rope, the windows were white with salt, and the light went round and round over an empty
sea. One morning in November a small boat lay on the beach below the tower. Its sail was
torn, and in it, under a blanket, a dog was asleep. The keeper carried it up the stairs,
gave it milk and a place by the stove, and from that day on he did not live alone."""
QUESTIONS = (
    ("What is the capital of France?", "Paris"),
    ("What is the capital of Italy?", "Rome"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Egypt?", "Cairo"),
    ("Which planet do we live on?", "Earth"),
    ("What is the largest ocean?", "Pacific"),
    ("What gas do plants take in from the air?", "carbon dioxide"),
    ("What is frozen water called?", "ice"),
    ("Which animal barks?", "dog"),
    ("What do bees make?", "honey"),
    ("Who wrote Romeo and Juliet?", "Shakespeare"),
    ("Who painted the Mona Lisa?", "Leonardo"),
    ("What is the opposite of hot?", "cold"),
    ("What is the opposite of up?", "down"),
    ("What colour is the sky on a clear day?", "blue"),
    ("What colour do you get from red and yellow?", "orange"),
    ("How do you say hello in Spanish?", "hola"),
    ("Which star gives us daylight?", "sun"),
    ("What is the first month of the year?", "January"),
    ("What language is spoken in Brazil?", "Portuguese"),
)


def main() -> None:
    """Prints the results of each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    problems = read_problems(options.data / "test.parquet")
    for folder in options.models:
        asked = Asked(folder)
        by_kind = asked.with_the_form_given(problems)
        right = sum(sum(answers) for answers in by_kind.values())
        print(f"{folder.name}: form given {right / len(problems):.3f} of {len(problems)}")
        for kind, answers in by_kind.items():
            print(f"  {kind} {sum(answers) / len(answers):.3f} of {len(answers)}")
        known = [said.lower() in asked.answer(question).lower() for question, said in QUESTIONS]
        print(f"  page: perplexity {asked.perplexity(PAGE):.2f}", end="; ")
        print(f"other questions: {sum(known)} of {len(known)}", flush=True)


class Asked:
    """A model that answers greedily."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_tokenizer(str(folder))
        self._tokenizer.padding_side = "left"
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model = model.eval()
        self._digits = self._tokenizer.convert_tokens_to_ids([str(d) for d in range(10)])
        self._ends = [self._tokenizer.eos_token_id, self._tokenizer.convert_tokens_to_ids(".")]

    def with_the_form_given(self, problems: list[Problem]) -> dict[str, list[bool]]:
        """Returns which answers are right, by kind."""
        right: dict[str, list[bool]] = defaultdict(list)
        for start in range(0, len(problems), BATCH):
            part = problems[start : start + BATCH]
            kinds = [problem.data_source.rpartition("/")[2] for problem in part]
            texts = [
                self._prompt(problem.messages) + BEGINNINGS[kind]
                for problem, kind in zip(part, kinds, strict=True)
            ]
            for problem, kind, said in zip(part, kinds, self._numbers(texts), strict=True):
                right[kind].append(said == problem.ground_truth)
        return dict(right)

    def answer(self, question: str) -> str:
        """Returns the response to a question, of at most 24 tokens."""
        inputs = self._encode([self._prompt([Message(role="user", content=question)])])
        out = self._model.generate(**inputs, max_new_tokens=24, do_sample=False)
        text = self._tokenizer.decode(out[0, inputs["input_ids"].shape[1] :])
        return str(text)

    @torch.no_grad()
    def perplexity(self, page: str) -> float:
        """Returns the perplexity of a text, per token."""
        ids = torch.tensor([self._tokenizer.encode(" ".join(page.split()))])
        return math.exp(float(self._model(input_ids=ids, labels=ids).loss))

    def _prompt(self, messages: list[Message] | tuple[Message, ...]) -> str:
        return encode_prompt(messages, self._tokenizer, chat_template=True)[0]

    def _encode(self, texts: list[str]) -> transformers.BatchEncoding:
        return self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)

    def _numbers(self, texts: list[str]) -> list[str]:
        inputs = self._encode(texts)
        length = inputs["input_ids"].shape[1]

        def allowed(_: int, ids: torch.Tensor) -> list[int]:
            if len(ids) == length:
                return list(self._digits)
            return [*self._digits, *self._ends] if int(ids[-1]) in self._digits else self._ends[:1]

        out = self._model.generate(
            **inputs, max_new_tokens=MAX_DIGITS, do_sample=False, prefix_allowed_tokens_fn=allowed
        )
        said = self._tokenizer.batch_decode(out[:, length:], skip_special_tokens=True)
        return [text.removesuffix(".") for text in said]


if __name__ == "__main__":
    main()
