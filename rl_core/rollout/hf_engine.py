"""Stage 3 with transformers only: slower than vLLM, but runs wherever torch does.

B requests of a batch, b of them still running, P longest prompt, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from transformers import DynamicCache

from rl_core.data.prompts import load_tokenizer
from rl_core.models.fast_linear import lay_out_for_few_rows, use_fast_products
from rl_core.models.loading import load_causal_lm
from rl_core.models.shared_prefix import sees_all_tokens
from rl_core.models.weight_digest import weight_digest
from rl_core.rollout.model_files import complete_weights, stop_token_ids, weight_shapes
from rl_core.rollout.protocol import RolloutEngine
from rl_core.rollout.shared_prompts import ATTENTION, RoomyLayer, SharedPrompts
from rl_core.system.heap import give_back_heap
from rl_core.types import Completion, GenerationRequest, SamplingSettings

_PROBES: Final = ((1, 2, 3, 4, 5, 6, 7, 8), (8, 7, 6, 5), (8, 7, 6, 5))
_NOISE: Final = 0.1
"""Share of the logits' spread: above what bfloat16 rounds, and below what a lost prompt changes."""


class StopTexts:
    """Texts after which a response ends, whichever tokens spell them.

    Each ends in an ASCII character, which no tokenizer cuts in two.
    """

    def __init__(self, model_path: Path, texts: tuple[str, ...]) -> None:
        assert all(text[-1].isascii() for text in texts), texts
        self.texts = texts
        self._tokenizer = load_tokenizer(str(model_path))
        token_texts = self._tokenizer.batch_decode([[i] for i in range(len(self._tokenizer))])
        ends = {text[-1] for text in texts}
        candidates = [i for i, text in enumerate(token_texts) if ends & set(text)]
        self._candidates = torch.tensor(candidates, device="cpu")
        # A token has at least one byte, so this many tokens hold any of the texts.
        self._longest = max(len(text.encode()) for text in texts)

    def candidates(self, token: torch.Tensor) -> list[int]:
        """Returns which of the tokens, int64 [b], could complete a text: usually few."""
        is_one = torch.isin(token, self._candidates.to(token.device))
        return [int(i) for i in is_one.nonzero().squeeze(-1)]

    def ends(self, ids: Sequence[int]) -> bool:
        """Returns whether a response of these tokens has just completed a text."""
        tail = self._tokenizer.decode(list(ids[-self._longest :]), skip_special_tokens=True)
        return any(text in tail for text in self.texts)


@dataclass
class _Context:
    """The state of the running responses: what their next tokens need."""

    cache: DynamicCache
    """Keys and values; if prompts are shared, only those of the responses."""
    positions: torch.Tensor
    """Of the next tokens, int64 [b, 1]."""
    mask: torch.Tensor | None
    """Real tokens of prompts and responses, int64 [b, tokens], if prompts are not shared."""
    prompts: SharedPrompts | None

    def attention(self) -> dict[str, Any]:
        if self.prompts is not None:
            return {"shared_prompts": self.prompts}
        assert self.mask is not None
        self.mask = torch.cat([self.mask, torch.ones_like(self.positions)], dim=1)
        return {"attention_mask": self.mask}

    def keep(self, rows: torch.Tensor) -> None:
        self.cache.reorder_cache(rows)
        self.positions = self.positions[rows]
        if self.prompts is not None:
            self.prompts = self.prompts.keep(rows.tolist())
        if self.mask is not None:
            self.mask = self.mask[rows]


class HfEngine(RolloutEngine):
    """A transformers model with a KV cache and random numbers per request."""

    def __init__(
        self,
        model_path: Path,
        *,
        dtype: Literal["float32", "bfloat16"],
        max_num_seqs: int,
        on_gpu: bool,
    ) -> None:
        """Loads the model of a Hugging Face folder, for `max_num_seqs` responses at a time."""
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._model: Any = load_causal_lm(model_path, getattr(torch, dtype)).to(self._device)
        self._model.eval()
        use_fast_products(self._model)
        lay_out_for_few_rows(self._model)
        self._has_weights = True
        self._shares_prompts = sees_all_tokens(self._model.get_decoder()) and self._can_share()
        self._shapes = weight_shapes(model_path)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self.digest = self._digest()
        self._stop_ids = torch.tensor(stop_token_ids(model_path), device=self._device)
        self._max_num_seqs = max_num_seqs
        self.policy_version = 0
        self._model_path = model_path
        self._stop_texts: StopTexts | None = None

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> Iterator[tuple[int, Completion]]:
        """Yields completions soon after they have ended; see `RolloutEngine.generate`."""
        if not self._has_weights:
            raise RuntimeError("the engine's weights were released: others must come first")
        for start in range(0, len(requests), self._max_num_seqs):
            batch = requests[start : start + self._max_num_seqs]
            for row, completion in self._generate_batch(batch, sampling):
                yield start + row, completion

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces all weights in place; see `RolloutEngine.update_weights`."""
        state = self._model.state_dict()
        for name, tensor in complete_weights(weights, self._shapes).items():
            memory = state[name].untyped_storage()
            if not memory.nbytes():
                memory.resize_(state[name].nbytes)
            state[name].copy_(tensor)
        self._has_weights = True
        self.digest = self._digest()

    def release_weights(self) -> None:
        """Frees its own weights on a CPU, where the learner needs the memory meanwhile."""
        if self._device.type != "cpu":
            return
        self._has_weights = False
        for weight in self._model.parameters():
            weight.untyped_storage().resize_(0)
        give_back_heap()

    def resize(self, max_num_seqs: int) -> None:
        """Changes the batch size; see `RolloutEngine.resize`."""
        self._max_num_seqs = max_num_seqs

    def close(self) -> None:
        """Frees the model."""
        del self._model

    def _digest(self) -> str:
        """Returns the digest of the weights as they are in the model that generates."""
        weights = self._model.state_dict()
        return weight_digest(((name, weights[name]) for name in self._shapes), self._dtype)

    @torch.inference_mode()
    def _can_share(self) -> bool:
        """Returns whether sharing prompts changes no logits: some classes attend by themselves."""
        requests = [GenerationRequest(prompt, seed=0) for prompt in _PROBES]
        token = torch.ones(len(requests), dtype=torch.int64, device=self._device)
        logits = []
        for shares in (False, True):
            if shares:
                self._model.set_attn_implementation(ATTENTION)
            self._shares_prompts = shares
            try:
                context, _ = self._read_prompts(requests)
                logits.append(self._next_logits(token, context))
            except (IndexError, RuntimeError):  # keys of other heads, or of other layers
                break
        plain, *shared = logits
        if shared and (plain - shared[0]).abs().max() < _NOISE * plain.std():
            return True
        self._model.set_attn_implementation("sdpa")
        return False

    @torch.inference_mode()
    def _generate_batch(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> Iterator[tuple[int, Completion]]:
        """Yields ended rows when they leave the batch: once half of its rows have ended, or all."""
        # Each row's random numbers are drawn at once: they depend on its seed, not on the batch.
        draws = torch.stack(
            [
                torch.rand(
                    sampling.max_tokens,
                    generator=torch.Generator("cpu").manual_seed(r.seed),
                    device="cpu",
                )
                for r in requests
            ]
        ).to(self._device)
        context, logits = self._read_prompts(requests)
        rows = torch.arange(len(requests), device=self._device)
        tokens = torch.zeros_like(draws, dtype=torch.int64)
        logprobs = torch.zeros_like(draws)
        lengths = torch.zeros_like(rows)
        ended = torch.zeros_like(rows, dtype=torch.bool)
        most = [r.max_tokens or sampling.max_tokens for r in requests]
        limits = torch.tensor(most, device=self._device)
        num_steps = min(max(most), sampling.max_tokens)
        has_limits = min(most) < num_steps
        cut = torch.zeros_like(ended)
        stops = self._stops_at(sampling.stop)
        for step in range(num_steps):
            token, logprob = _sample(logits, sampling, draws[rows, step])
            tokens[rows, step] = token
            logprobs[rows, step] = logprob
            # Ended rows stay until half have ended: what they still sample is ignored.
            lengths[rows] += ~ended[rows]
            ended[rows] |= torch.isin(token, self._stop_ids)
            if stops is not None:
                for i in stops.candidates(token):
                    row = int(rows[i])
                    ended[row] |= stops.ends(tokens[row, : step + 1].tolist())
            if has_limits:
                cut[rows] |= ~ended[rows] & (limits[rows] == step + 1)
                ended |= cut
            is_last = bool(ended[rows].all()) or step + 1 == num_steps
            leave = is_last or 2 * int(ended[rows].sum()) >= len(rows)
            leaving = (rows if is_last else rows[ended[rows]]).tolist() if leave else []
            for row in leaving:
                yield (
                    row,
                    Completion(
                        response_ids=tokens[row, : lengths[row]].cpu().numpy(),
                        logprobs=logprobs[row, : lengths[row]].cpu().numpy(),
                        finish_reason="stop" if ended[row] and not cut[row] else "length",
                        policy_version=self.policy_version,
                    ),
                )
            if is_last:
                return
            if leave:
                kept = (~ended[rows]).nonzero().squeeze(-1)
                rows = rows[kept]
                token = token[kept]
                context.keep(kept)
            logits = self._next_logits(token, context)

    def _stops_at(self, texts: tuple[str, ...]) -> StopTexts | None:
        if texts and (self._stop_texts is None or self._stop_texts.texts != texts):
            self._stop_texts = StopTexts(self._model_path, texts)
        return self._stop_texts if texts else None

    def _read_prompts(self, requests: Sequence[GenerationRequest]) -> tuple[_Context, torch.Tensor]:
        """Reads each distinct prompt once; returns the next tokens' context, and logits [B, V].

        Prompts are padded on the left with token 0, masked.
        """
        places: dict[tuple[int, ...], int] = {}
        prompt_of_row = [places.setdefault(r.prompt_ids, len(places)) for r in requests]
        longest = max(len(prompt) for prompt in places)
        padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in places]
        real = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in places]
        input_ids = torch.tensor(padded, device=self._device)
        mask = torch.tensor(real, device=self._device)
        cache = DynamicCache(config=self._model.config)
        read = self._model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache,
            logits_to_keep=1,
        )
        rows = torch.tensor(prompt_of_row, device=self._device)
        positions = mask.sum(1, keepdim=True)[rows]
        if self._shares_prompts:
            keys = [layer.keys for layer in cache.layers]
            values = [layer.values for layer in cache.layers]
            prompts = SharedPrompts.of(keys, values, (mask == 0)[:, None, None], prompt_of_row)
            cache = DynamicCache()
            cache.layers = [RoomyLayer() for _ in keys]
            context = _Context(cache, positions, None, prompts)
        else:
            cache.reorder_cache(rows)
            context = _Context(cache, positions, mask[rows], None)
        return context, read.logits[:, -1].float()[rows]

    def _next_logits(self, token: torch.Tensor, context: _Context) -> torch.Tensor:
        """Returns the logits after a further token int64 [b] of each row, float32 [b, V]."""
        logits = self._model(
            input_ids=token[:, None],
            position_ids=context.positions,
            past_key_values=context.cache,
            **context.attention(),
        ).logits[:, -1]
        context.positions = context.positions + 1
        return cast("torch.Tensor", logits.float())


def likeliest_only(logits: torch.Tensor, *, top_p: float, top_k: int) -> torch.Tensor:
    """Returns logits float32 [b, V] with minus infinity at all but a row's likeliest tokens.

    These are the `top_k` likeliest (-1 or 0: all) and of them, their chances renormalised, the
    fewest that add up to at least `top_p`: at least one. Tokens as likely as the last one stay.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.
    """
    ordered = logits.sort(dim=-1, descending=True).values
    if 0 < top_k < logits.shape[-1]:
        ordered = ordered[:, :top_k]
    probabilities = ordered.softmax(dim=-1)
    is_kept = probabilities.cumsum(dim=-1) - probabilities < top_p  # those before do not suffice
    num_kept = is_kept.sum(dim=-1, keepdim=True).clamp(min=1)
    return logits.masked_fill(logits < ordered.gather(1, num_kept - 1), -torch.inf)


def _sample(
    logits: torch.Tensor, sampling: SamplingSettings, draws: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the next tokens int64 [b] and their log-probs float32 [b], of logits float32 [b, V].

    A token is drawn where the cumulative probabilities pass `draws` (float32 [b] from [0, 1)); at
    temperature 0 it is the likeliest.
    """
    temperature = sampling.temperature
    if temperature == 0:
        token = logits.argmax(dim=-1, keepdim=True)
        log_sums = logits.logsumexp(dim=-1, keepdim=True)
    else:
        logits = logits if temperature == 1 else logits / temperature
        if sampling.top_p < 1 or sampling.top_k > 0:
            logits = likeliest_only(logits, top_p=sampling.top_p, top_k=sampling.top_k)
        log_sums = logits.logsumexp(dim=-1, keepdim=True)
        cumulated = (logits - log_sums).exp_().cumsum(dim=-1)
        total = cumulated[:, -1:].contiguous()
        # Strictly below the total, or rounding would now and then point past the last token.
        cut = torch.minimum(draws[:, None] * total, total.nextafter(torch.zeros_like(total)))
        token = torch.searchsorted(cumulated, cut, right=True)
    return token[:, 0], (logits.gather(1, token) - log_sums)[:, 0]
