"""A model whose tokenizer knows a token that it does not, as fine-tuning by hand may leave one."""

import shutil
from pathlib import Path

from rl_core.data.prompts import load_tokenizer


def add_a_token(model: Path, folder: Path, token: str) -> Path:
    """Returns a copy of a model's folder; its embedding gets no row for the new token."""
    shutil.copytree(model, folder)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens([token])
    tokenizer.save_pretrained(folder)
    return folder
