"""A Llama as a GGUF file, the form in which llama.cpp reads weights: every number in float32, nothing rounded.

Hugging Face keeps the two halves of a rotated head one after the other, llama.cpp takes turns between them; so the rows of
queries and keys are reordered. Source: llama.cpp, docs/gguf and its converter for ``LlamaForCausalLM``.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

__all__ = ["NAME", "gguf_saver", "write_gguf"]

NAME = "model.gguf"
"""Name of the file in its folder."""
_CONTROL, _NORMAL, _UNUSED = 3, 1, 5


def gguf_saver(tokenizer: Any) -> Callable[[Any, Path], None]:
    """Return how a policy is written for llama.cpp: as :data:`NAME` in a folder, its tokens without their texts."""
    return lambda model, folder: write_gguf(model, tokenizer, folder / NAME, texts=False)


def write_gguf(model: Any, tokenizer: Any, path: Path, *, texts: bool = True) -> None:
    """Write a Llama and its byte-level BPE tokenizer.

    Parameters
    ----------
    texts
        Whether tokens keep their texts, which a server needs that reads text. One that is sent ids and asked for ids does
        not, and is better without: llama.cpp's returns no log-prob for a token that leaves a character unfinished.

    Raises
    ------
    ValueError
        For another architecture, a bias, scaled rotary positions, or a tokenizer that splits text in a way not known here.
    ModuleNotFoundError
        Without the package ``gguf``.
    """
    import gguf

    _check(model)
    out = gguf.GGUFWriter(path, "llama")
    _write_shape(out, model.config)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    _write_tokenizer(out, tokenizer, model.config.vocab_size, texts)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        theirs = names.get_name(name, try_suffixes=(".weight",))
        if theirs is None:
            raise ValueError(f"llama.cpp's Llama has no tensor {name!r}")
        out.add_tensor(theirs, _ordered(name, tensor, model.config).contiguous().numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _check(model: Any) -> None:
    config = model.config
    if config.model_type != "llama":
        raise ValueError(f"{config.model_type} is no Llama; for other models use llama.cpp's own converter")
    if config.rope_parameters.get("rope_type", "default") != "default" or config.attention_bias or config.mlp_bias:
        raise ValueError("scaled rotary positions or biases are not written; use llama.cpp's own converter")


def _write_shape(out: Any, config: Any) -> None:
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_dimension_count(config.head_dim)
    out.add_rope_freq_base(config.rope_parameters["rope_theta"])
    out.add_vocab_size(config.vocab_size)


def _write_tokenizer(out: Any, tokenizer: Any, rows: int, texts: bool) -> None:
    core = json.loads(tokenizer.backend_tokenizer.to_str())
    names = {i: token if texts else f"token{i}" for token, i in tokenizer.get_vocab().items()}
    special = {each["id"] for each in core["added_tokens"] if each["special"]} | set(tokenizer.all_special_ids)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(_splitting(core["pre_tokenizer"]))
    out.add_token_list([names.get(i, f"[UNUSED{i}]") for i in range(rows)])
    out.add_token_types([_CONTROL if i in special else _NORMAL if i in names else _UNUSED for i in range(rows)])
    merges = [each if isinstance(each, str) else " ".join(each) for each in core["model"]["merges"]]
    out.add_token_merges(merges if texts else ["t o"])  # none at all is refused
    for add, number in (
        (out.add_bos_token_id, tokenizer.bos_token_id),
        (out.add_eos_token_id, tokenizer.eos_token_id),
        (out.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if number is not None:
            add(number)
    out.add_add_bos_token(False)
    out.add_add_space_prefix(False)
    if tokenizer.chat_template:
        out.add_chat_template(tokenizer.chat_template)


def _splitting(rule: Any) -> str:
    """Return llama.cpp's name of the way in which text is split before it is encoded."""
    parts = rule["pretokenizers"] if rule["type"] == "Sequence" else [rule]
    kinds = [(each["type"], each.get("individual_digits")) for each in parts]
    known = {(("ByteLevel", None),): "gpt-2", (("Digits", True), ("ByteLevel", None)): "smollm"}
    if tuple(kinds) not in known:
        raise ValueError(f"a tokenizer that splits text by {[kind for kind, _ in kinds]} is not known here")
    return known[tuple(kinds)]


def _ordered(name: str, tensor: Tensor, config: Any) -> Tensor:
    """Return a tensor in float32, rows of queries and keys in llama.cpp's order."""
    found = tensor.detach().float().cpu()
    for kind, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
        if kind in name:
            halves = found.reshape(heads, 2, -1, found.shape[-1])
            found = halves.transpose(1, 2).reshape(found.shape)
    return found
