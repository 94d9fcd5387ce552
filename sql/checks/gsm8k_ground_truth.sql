-- one row per problem whose ground truth is no plain number, or not what stands after #### in its solution.
-- Proves that a right answer can be told from a wrong one.
select
    split,
    index,
    reward_model.ground_truth,
    extra_info.solution
from problems
where
    regexp_full_match(reward_model.ground_truth, '-?[0-9]*\.?[0-9]+') is distinct from true
    -- Marks and blanks are left out of the text: `$ 1,800.` is 1800, and a minus has many forms.
    or regexp_extract(
        regexp_replace(
            regexp_replace(
                translate(
                    string_split(extra_info.solution, '####')[-1],
                    '−‐‑‒–﹣－０１２３４５６７８９．',
                    '-------0123456789.'
                ),
                '(minus|negative)\s',
                '-',
                'i'
            ),
            '[^0-9A-Za-z.-]',
            '',
            'g'
        ),
        '^(?:[A-Za-z]+\.?)?(-?[0-9]*\.?[0-9]+)',
        1
    ) is distinct from reward_model.ground_truth
order by split, index
