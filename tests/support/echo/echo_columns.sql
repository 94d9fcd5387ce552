-- one row per split without a letter in its truths' type.
-- Proves that each truth holds a letter.
select table_name as split
from duckdb_columns()
where
    table_name in ('train', 'test')
    and column_name = 'reward_model'
    and data_type not like '%letter VARCHAR%'
