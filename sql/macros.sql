-- sqlfluff:ignore:parsing
-- What several saved questions compute, as `rl_core/evaluation/statistics.py` does, which names the sources.
-- (The linter cannot read a lambda of two names.)

-- the 95% Wilson interval of a share of problems, [low, high]
create macro wilson(share, problems) as [
    greatest(0, (
        share + 3.841458820694124 / (2 * problems)
        - sqrt(3.841458820694124 * (share * (1 - share) + 3.841458820694124 / (4 * problems)) / problems)
    ) / (1 + 3.841458820694124 / problems)),
    least(1, (
        share + 3.841458820694124 / (2 * problems)
        + sqrt(3.841458820694124 * (share * (1 - share) + 3.841458820694124 / (4 * problems)) / problems)
    ) / (1 + 3.841458820694124 / problems))
];

-- how many problems that are solved or not tell as much as this mean of chances (`chance` in Python)
create macro effective_problems(mean, variance, problems, samples) as problems * case
    when mean in (0, 1) or samples = 1 then 1
    when variance > 0 then least(samples, mean * (1 - mean) / variance)
    else samples
end;

-- how many problems with one sample tell as much about a gain as one with these (`paired` in Python)
create macro effective_pairs(won, lost, variance, problems, samples) as case
    when samples = 1 then 1
    when variance > 0 then least(samples, ((won + lost) / problems - ((won - lost) / problems) ** 2) / variance)
    else samples
end;

-- two-sided p of McNemar's exact test
create macro mcnemar_p(won, lost) as least(
    1,
    2 * list_sum(
        list_transform(
            range(least(won, lost) + 1),
            lambda i: exp(lgamma(won + lost + 1) - lgamma(i + 1) - lgamma(won + lost - i + 1) - (won + lost) * ln(2))
        )
    )
);

-- whether a gain is within the 95% score interval (Tango 1998), by `lean`, which grows with it
create macro is_likely(won, lost, problems, gain, lean) as
(won - lost - problems * gain) ** 2 <= 3.841458820694124 * (
    (sqrt(greatest(0, lean ** 2 + 8 * problems * lost * gain * (1 - gain))) - lean) / 2
    + problems * gain * (1 - gain)
);

create macro is_likely_gain(won, lost, problems, gain) as
is_likely(won, lost, problems, gain, (2 * problems - won + lost) * gain - won - lost);

-- how much of the way from the gain to `side` is likely, bit by bit
create macro likely_way(won, lost, problems, gain, side) as list_reduce(
    list_transform(range(41), lambda i: if(i > 0, 0.5::double ** i, 0)),
    lambda way, bit: way + bit * is_likely_gain(won, lost, problems, gain + (way + bit) * (side - gain))::int
);

-- the 95% score interval of the gain, [low, high]
create macro gain_interval(won, lost, problems) as list_transform(
    [-1, 1],
    lambda side: (won - lost) / problems
    + (side - (won - lost) / problems) * likely_way(won, lost, problems, (won - lost) / problems, side)
);
