"""Estimates of shares and means from a sample, with their 95% intervals; all pure.

Legend: N problems, n samples of one problem, c correct ones among them, k samples drawn of the n.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Z_95 = 1.959963984540054
"""Two-sided 95% quantile of the normal distribution."""
BOOTSTRAP_RESAMPLES = 2_000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.as_text(3)

    def as_text(self, decimals: int) -> str:
        """Returns `0.439 (0.397 to 0.483)`, with so many decimals."""
        return f"{self.value:.{decimals}f} ({self.low:.{decimals}f} to {self.high:.{decimals}f})"


@dataclass(frozen=True)
class Paired:
    """How much better a model is than another on the same problems."""

    won: int
    """Problems on which the model is better."""
    lost: int
    """Problems on which the other is better."""
    p_value: float
    gain: Estimate
    """Accuracy of the model minus that of the other."""


def share(num_correct: int, num_total: int) -> Estimate:
    """Returns a share with its Wilson interval."""
    return Estimate(num_correct / num_total, *wilson_interval(num_correct, num_total))


def chance(chances: Sequence[float], num_samples: int) -> Estimate:
    """Returns the mean of the problems' chances in [0, 1], with a Wilson interval.

    Each chance is estimated from `num_samples` samples. If the chances differ less than numbers
    that are 0 or 1, the interval is that of more problems: of so many as give the mean the variance
    that is seen, at most of one per sample. If all are 0 or 1, it is `share`'s.

    Source: Dean and Pagano 2015, "Evaluating Confidence Interval Methods for Binomial Proportions
    in Clustered Surveys", the Wilson interval of the effective sample size.
    """
    mean = float(np.mean(chances))
    variance = float(np.var(chances))
    most = num_samples if 0 < mean < 1 else 1
    problems = len(chances) * min(most, mean * (1 - mean) / variance if variance > 0 else most)
    return Estimate(mean, *wilson_interval(mean * problems, problems))


def paired(correct: Sequence[int], others: Sequence[int], num_samples: int) -> Paired:
    """Returns the comparison of two models' correct samples per problem, of `num_samples` each.

    A problem's samples depend on each other, so problems count, not samples. One sample is
    McNemar's test and Tango's interval. The mean of several has the sign-flip test, which is
    McNemar's then, and Tango's interval of the shares of pairs of samples that are won and lost, of
    so many problems as give their difference the variance that is seen (as in `chance`).
    """
    num_problems = len(correct)
    won = sum(a > b for a, b in zip(correct, others, strict=True))
    lost = sum(b > a for a, b in zip(correct, others, strict=True))
    if num_samples == 1:
        gain = Estimate((won - lost) / num_problems, *gain_interval(won, lost, num_problems))
        return Paired(won, lost, mcnemar_p(won, lost), gain)
    a = np.asarray(correct) / num_samples
    b = np.asarray(others) / num_samples
    pairs_won = float(np.mean(a * (1 - b)))
    pairs_lost = float(np.mean(b * (1 - a)))
    mean = pairs_won - pairs_lost
    variance = float(np.var(a - b))
    of_a_pair = pairs_won + pairs_lost - mean**2
    size = num_problems * min(num_samples, of_a_pair / variance if variance > 0 else num_samples)
    low, high = gain_interval(pairs_won * size, pairs_lost * size, size)
    return Paired(
        won,
        lost,
        sign_flip_p([a - b for a, b in zip(correct, others, strict=True)]),
        Estimate(mean, low, high),
    )


def means(values: npt.ArrayLike) -> list[Estimate]:
    """Returns the mean of each column of float [N, M] with its bootstrap interval."""
    observed = np.asarray(values, dtype=np.float64)
    intervals = bootstrap_intervals(observed, seed=0)
    return [
        Estimate(float(mean), float(low), float(high))
        for mean, (low, high) in zip(observed.mean(axis=0), intervals, strict=True)
    ]


def wilson_interval(num_correct: float, num_total: float) -> tuple[float, float]:
    """Returns the 95% Wilson score interval of a share, in [0, 1].

    For a number that is 0 or 1 per problem. Unlike a bootstrap, it is also useful at the edges: 0
    of 512 is (0, 0.0074), not (0, 0).

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    observed = num_correct / num_total
    z2 = Z_95**2
    centre = (observed + z2 / (2 * num_total)) / (1 + z2 / num_total)
    half = (
        Z_95
        * math.sqrt(observed * (1 - observed) / num_total + z2 / (4 * num_total**2))
        / (1 + z2 / num_total)
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_intervals(values: npt.ArrayLike, *, seed: int) -> npt.NDArray[np.float64]:
    """Returns the 95% percentile bootstrap intervals of the means of columns, float64 [M, 2].

    Problems are resampled, since the samples of one problem depend on each other. `values` are
    float [N, M], M numbers per problem; all columns see the same resamples.

    Source: Efron 1979, "Bootstrap Methods: Another Look at the Jackknife".
    """
    observed = np.asarray(values, dtype=np.float64)
    num_problems = len(observed)
    drawn = np.random.default_rng(seed).integers(
        0, num_problems, (BOOTSTRAP_RESAMPLES, num_problems)
    )
    # How often each problem is drawn: a product with these counts is every resample's sum.
    cells = drawn + num_problems * np.arange(BOOTSTRAP_RESAMPLES)[:, None]
    counts = np.bincount(cells.ravel(), minlength=drawn.size).reshape(drawn.shape)
    resampled = counts.astype(np.float64) @ observed / num_problems
    return np.asarray(np.quantile(resampled, (0.025, 0.975), axis=0).T)


@cache
def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Returns the chance that at least one of k samples is correct, estimated without bias.

    1 - C(n - c, k) / C(n, k): the share of k-subsets of the n samples that hold a correct one. The
    plug-in estimate 1 - (1 - c/n)^k is biased low.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not 0 <= num_correct <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} of {num_correct} correct among {num_samples} samples: "
            "needs 0 <= correct <= samples and 1 <= k <= samples"
        )
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def majority_credit(num_correct: int, wrong_counts: Collection[int]) -> float:
    """Returns 1 if the right value has most votes of a problem's samples, 1/t in a tie of t values.

    `wrong_counts` are samples per wrong value; samples without a value do not vote, and if none
    votes, the credit is 0.

    Source: Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning in Language
    Models".
    """
    if not num_correct or num_correct < max(wrong_counts, default=0):
        return 0.0
    return 1 / (1 + sum(count == num_correct for count in wrong_counts))


def mcnemar_p(num_won: int, num_lost: int) -> float:
    """Returns the two-sided p-value of McNemar's exact test, in (0, 1].

    Problems on which both models do the same are ignored. If the models are alike, each other one
    is a fair coin: twice the chance of a split at least as uneven to the side seen, at most 1.

    Source: McNemar 1947, "Note on the Sampling Error of the Difference Between Correlated
    Proportions or Percentages", with the binomial instead of the chi-square.
    """
    discordant = num_won + num_lost
    tail = sum(math.comb(discordant, i) for i in range(min(num_won, num_lost) + 1))
    return min(1.0, tail / 2 ** (discordant - 1)) if discordant else 1.0


def sign_flip_p(differences: Sequence[int]) -> float:
    """Returns the two-sided p-value of the sign-flip test of paired differences, in (0, 1].

    If two models are alike, each problem's difference is as likely with the other sign: the share
    of all choices of signs whose sum is at least as far from 0 as the one seen, exactly. If all
    differences are -1, 0 or 1, it is McNemar's.

    Source: Fisher 1935, "The Design of Experiments", section 21.
    """
    sizes = [abs(difference) for difference in differences if difference]
    shares = np.ones(1)  # of the choices, by the sum of the sizes with a plus
    for size in sizes:
        shares = (np.pad(shares, (size, 0)) + np.pad(shares, (0, size))) / 2
    sums = 2 * np.arange(len(shares)) - sum(sizes)
    return min(1.0, float(shares[abs(sums) >= abs(sum(differences))].sum()))


def gain_interval(num_won: float, num_lost: float, num_total: float) -> tuple[float, float]:
    """Returns the 95% score interval of the share won minus the share lost, paired, in [-1, 1].

    It holds all gains whose distance from the one seen is at most `Z_95` standard errors, computed
    at that gain (the share of lost problems at its likeliest). Unlike an interval of the won among
    the problems that differ, it counts that their number is chance, too. McNemar's exact test is
    slightly more cautious: at p just above 0.05 the interval may leave out 0.

    Source: Tango 1998, "Equivalence test and confidence interval for the difference in proportions
    for the paired-sample design", Statistics in Medicine 17, 891-908.
    """
    seen = (num_won - num_lost) / num_total

    def is_likely(gain: float) -> bool:
        b = (2 * num_total - num_won + num_lost) * gain - num_won - num_lost
        root = math.sqrt(max(0.0, b * b + 8 * num_total * num_lost * gain * (1 - gain)))
        variance = (root - b) / 2 + num_total * gain * (1 - gain)  # of won - lost
        return (num_won - num_lost - num_total * gain) ** 2 <= Z_95**2 * variance

    ends = []
    for outside in (-1.0, 1.0):
        inside = seen
        for _ in range(40):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if is_likely(middle) else (inside, middle)
        ends.append(inside)
    return ends[0], ends[1]
