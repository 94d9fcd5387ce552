-- one row per split that has fewer or more problems than data.train_size or data.test_size.
-- Proves that the data set is as large as the settings say.
-- $train_size: int = 327680 (data.train_size)
-- $test_size: int = 1024 (data.test_size)
with counts as (
    select
        'train' as split,
        count(*) as num_rows,
        $train_size as expected_rows
    from train
    union all
    select
        'test' as split,
        count(*) as num_rows,
        $test_size as expected_rows
    from test
)

select
    split,
    num_rows,
    expected_rows
from counts
where num_rows != expected_rows
