import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.reading.pieces import Pieces

tokenizers = pytest.importorskip("tokenizers", reason="it comes with transformers")
transformers = pytest.importorskip("transformers", reason="the extra trl brings it")


def bytes_of_bpe():
    """A tokenizer whose tokens are bytes and a few words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the garden, the garden, the attic"], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def words_with_a_mark():
    """A tokenizer like SentencePiece: a word holds the space before it, which decoding strips from the first."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"▁a": 0, "▁garden": 1, "s": 2, "<eos>": 3, "<unk>": 4}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", unk_token="<unk>")


BPE, MARKED = bytes_of_bpe(), words_with_a_mark()


@given(st.lists(st.integers(0, len(BPE) - 1), max_size=30))
def test_joined_they_are_the_text_whatever_the_ids(ids):
    found = Pieces(BPE)(ids)
    assert len(found) == len(ids)
    assert "".join(found) == BPE.decode(ids, clean_up_tokenization_spaces=False)


def test_a_character_is_in_the_piece_of_the_token_that_completes_it():
    ids = BPE.encode("the ö, 🌱", add_special_tokens=False)
    found = Pieces(BPE)(ids)
    assert "".join(found) == "the ö, 🌱"
    assert found[-4:] == ["", "", "", "🌱"]
    assert BPE.decode(ids[-1:]) == "\N{REPLACEMENT CHARACTER}"


def test_a_space_is_in_the_piece_of_the_word_after_it():
    assert Pieces(MARKED)([1, 0, 1, 2, 3]) == ["garden", " a", " garden", "s", "<eos>"]


def test_special_tokens_are_written_out():
    ids = [*BPE.encode("a", add_special_tokens=False), BPE.eos_token_id, BPE.pad_token_id]
    assert Pieces(BPE)(ids) == ["a", "<eos>", "<pad>"]
    assert Pieces(BPE)([]) == []
