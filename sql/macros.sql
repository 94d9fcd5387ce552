-- how likely so uneven a split of `won` and `lost` problems is by chance: McNemar's exact test, two-sided.
create macro mcnemar_p(won, lost) as least(
    1,
    2 * list_sum(
        list_transform(
            range(least(won, lost) + 1),
            lambda i: exp(
                lgamma(won + lost + 1) - lgamma(i + 1) - lgamma(won + lost - i + 1) - (won + lost) * ln(2)
            )
        )
    )
)
