from rl_core.data.prompts import encode_prompt
from rl_core.types import Message
from tests.support.harness import benchmark

real_size = benchmark("real_size")


def test_the_tokenizer_has_qwens_size_and_form(tmp_path):
    texts = real_size.write_questions(tmp_path / "gsm8k")[:50]
    texts += real_size.countdown_texts(tmp_path)[:50]
    tokenizer = real_size.make_tokenizer(texts)
    assert len(tokenizer) == 151_665
    assert tokenizer.decode(tokenizer.encode(texts[-1])) == texts[-1]
    message: Message = {"role": "user", "content": texts[0]}
    text, _ = encode_prompt([message], tokenizer, chat_template=True)
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
