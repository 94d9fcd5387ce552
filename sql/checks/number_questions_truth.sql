-- one row per question whose truth is not the largest, smallest or product of the numbers that it names.
-- Proves that every question has the answer that is scored as right.
with asked as (
    select
        split,
        index,
        data_source,
        reward_model.ground_truth as truth,
        cast(regexp_extract_all(prompt[1].content, '[0-9]+') as bigint[]) as numbers
    from problems
)

select
    split,
    index,
    data_source,
    numbers,
    truth
from asked
where
    len(numbers) < 2
    or truth is distinct from case data_source
        when 'number_questions/largest' then cast(list_max(numbers) as varchar)
        when 'number_questions/smallest' then cast(list_min(numbers) as varchar)
        when 'number_questions/times' then cast(numbers[1] * numbers[2] as varchar)
    end
order by split, index
