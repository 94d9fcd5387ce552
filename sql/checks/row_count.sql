-- one row per split that has fewer or more problems than data.train_size or data.test_size.
-- Proves that the data set is as large as the settings say.
-- $train_size: int = 327680 (data.train_size)
-- $test_size: int = 1024 (data.test_size)
select
    split,
    count(*) as num_rows,
    if(split = 'train', $train_size, $test_size) as expected_rows
from problems
group by split
having num_rows != expected_rows
order by split
