"""A language model that needs no download: a Llama of random weights, and a tokenizer trained on a few lines.

Everything that runs on a real model runs on it, in milliseconds: grouped-query attention, rotary positions, a head that is
the embedding or one of its own, a chat template, tokens that hold the end of one tag and the beginning of the next, and
characters that are split over tokens.
"""

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["CHAT_TEMPLATE", "tiny_config", "tiny_model", "tiny_tokenizer"]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML."""
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEXT = """
<think>I should search for this.</think><search>capital of France</search>
<information>Doc 1 (Title: Paris) Paris is the capital of France.</information>
<think>Now I know the answer.</think><answer>Paris</answer><|
<verify>Paris</verify> <read>Paris</read> Question: Who wrote it? What is the capital of Spain? Madrid.
You are a helpful assistant. Answer the question. You may search, read, verify and answer as you see fit.
"""


def tiny_tokenizer(vocabulary: int = 400) -> Any:
    """Return a byte-level BPE tokenizer of at most so many tokens, the same every time.

    Raises
    ------
    ValueError
        For fewer tokens than there are bytes and special tokens.
    """
    least = 256 + len(_SPECIAL)
    if vocabulary < least:
        raise ValueError(
            f"vocabulary = {vocabulary} must be at least {least}: every byte and {len(_SPECIAL)} special tokens"
        )
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_TEXT.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


def tiny_config(
    *, vocabulary: int = 400, layers: int = 4, width: int = 64, tied: bool = True, context: int = 2048
) -> LlamaConfig:
    """Return the shape of a tiny Llama: heads of 16, two query heads to a key head."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        num_key_value_heads=max(1, width // 32),
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        attention_dropout=0.0,
    )


def tiny_model(
    config: LlamaConfig | None = None, *, seed: int = 0, scale: float = 8.0, dtype: torch.dtype = torch.float32
) -> Any:
    """Return a tiny Llama with random weights, the same for a seed.

    Parameters
    ----------
    scale
        Multiplies its matrices: at 1, the usual beginning of training, all tokens are about as likely and what stands
        before hardly matters; at 8 the model has opinions.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(tiny_config() if config is None else config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(scale)
    return model.to(dtype).eval()
