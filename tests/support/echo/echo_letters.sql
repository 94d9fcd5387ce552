-- one row per problem with a letter that is not asked for.
-- Proves that letters are the first ones of the alphabet.
-- $num_letters: int = 26 (how many)
select
    extra_info.index,
    reward_model.ground_truth.letter
from train
where ascii(reward_model.ground_truth.letter) >= ascii('a') + $num_letters
