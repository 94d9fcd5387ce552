"""Where a response ends by what it says, found as its tokens come (vLLM does this itself)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from rl_core.data.prompts import load_tokenizer


class StopTexts:
    """Texts after which a response ends, whichever tokens spell them.

    Args:
        model_path: folder of the model and its tokenizer.
        texts: each ends in an ASCII character, which no tokenizer cuts in two.
    """

    def __init__(self, model_path: Path, texts: tuple[str, ...]) -> None:
        assert texts, "no text to stop at"
        assert all(text[-1].isascii() for text in texts), texts
        self.texts = texts
        self._tokenizer = load_tokenizer(str(model_path))
        words = self._tokenizer.batch_decode([[i] for i in range(len(self._tokenizer))])
        ends = {text[-1] for text in texts}
        candidates = [i for i, word in enumerate(words) if ends & set(word)]
        self._candidates = torch.tensor(candidates, device="cpu")
        # A token is a byte at least.
        self._longest = max(len(text.encode()) for text in texts)

    def candidates(self, token: Tensor) -> list[int]:
        """Returns which of the tokens, int64 [b], could complete a text: few of many."""
        is_one = torch.isin(token, self._candidates.to(token.device))
        return [int(i) for i in is_one.nonzero().squeeze(-1)]

    def ends(self, ids: Sequence[int]) -> bool:
        """Returns whether a response of these tokens has just completed a text."""
        tail = self._tokenizer.decode(list(ids[-self._longest :]), skip_special_tokens=True)
        return any(text in tail for text in self.texts)
