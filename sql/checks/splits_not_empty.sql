-- one row per split without a single problem.
-- Proves that there is something to train on and something to test on.
with counts as (
    select
        'train' as split,
        count(*) as num_rows
    from train
    union all
    select
        'test' as split,
        count(*) as num_rows
    from test
)

select
    split,
    num_rows
from counts
where num_rows = 0
