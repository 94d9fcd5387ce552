-- one row per column of a split that is missing, unexpected, out of place or of another type.
-- Proves that both files have exactly the columns that this project and verl read, in their order.
-- (extra_info.own is the extra_info of a user's rows, as JSON, if they have one.)
with expected (position, column_name, column_type) as (
    values
    (1, 'data_source', 'VARCHAR'),
    (2, 'prompt', 'STRUCT(role VARCHAR, content VARCHAR)[]'),
    (3, 'ability', 'VARCHAR'),
    (4, 'reward_model', 'STRUCT(style VARCHAR, ground_truth VARCHAR)'),
    (5, 'extra_info', 'STRUCT(split VARCHAR, index BIGINT, num_solutions BIGINT, solution VARCHAR)')
),

found as (
    select
        table_name as split,
        column_index as position,
        column_name,
        replace(data_type, '"', '') as column_type
    from duckdb_columns()
    where table_name in ('train', 'test')
),

wanted as (
    select
        splits.split,
        expected.position,
        expected.column_name,
        expected.column_type
    from expected
    cross join (values ('train'), ('test')) as splits (split)
)

select
    coalesce(found.split, wanted.split) as split,
    coalesce(found.position, wanted.position) as position,
    found.column_name,
    found.column_type,
    wanted.column_name as expected_name,
    wanted.column_type as expected_type
from found
full outer join wanted
    on
        found.split = wanted.split
        and found.position = wanted.position
where
    found.column_name is distinct from wanted.column_name
    or replace(found.column_type, ', own VARCHAR)', ')') is distinct from wanted.column_type
order by split, position
