"""A run's network: loaded, of random weights, or only its shape."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fullscale.model import smollm2
from fullscale.model.tiny import tiny_config, tiny_model, tiny_tokenizer

__all__ = ["DTYPES", "SMOLLM2", "TINY", "adapted", "checkpointed", "loaded", "shape_of", "shaped", "tokenizer_of"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The dtypes of a run, by name."""
SMOLLM2 = "smollm2"
"""The model that comes out of a package; see :mod:`fullscale.model.smollm2`."""
TINY = "tiny"
"""Random weights and a tokenizer of a few hundred tokens; see :mod:`fullscale.model.tiny`."""


def loaded(source: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return a causal LM, in evaluation mode, and its tokenizer.

    Parameters
    ----------
    source
        :data:`SMOLLM2`, :data:`TINY`, a folder, or a hub's name.

    Raises
    ------
    OSError
        When there is no such model; what to install, or where it was looked for.
    """
    if source == SMOLLM2:
        return smollm2.load(dtype)
    if source == TINY:
        tokenizer = tiny_tokenizer()
        return tiny_model(tiny_config(vocabulary=len(tokenizer)), dtype=dtype), tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="sdpa")
    return model.eval(), AutoTokenizer.from_pretrained(source)


def tokenizer_of(source: str) -> Any:
    """Return a model's tokenizer, without the model."""
    if source == TINY:
        return tiny_tokenizer()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2.obtain() if source == SMOLLM2 else source)


def shape_of(source: str, shape: Mapping[str, Any] | None) -> Any:
    """Return the Hugging Face config of a model without loading its weights.

    Parameters
    ----------
    shape
        The config's own fields, ``model_type`` among them; None to ask the source.
    """
    from transformers import AutoConfig

    if shape is not None:
        fields = dict(shape)
        return AutoConfig.for_model(fields.pop("model_type"), **fields)
    if source == TINY:
        return tiny_config(vocabulary=len(tiny_tokenizer()))
    return AutoConfig.from_pretrained(smollm2.obtain() if source == SMOLLM2 else source)


def shaped(config: Any, dtype: torch.dtype) -> Any:
    """Return a causal LM of this shape; on the meta device, or among fake tensors, it takes no memory."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")


def checkpointed(model: Any) -> Any:
    """Make every layer keep only its input for the backward and run again there; return the model."""
    enable: Callable[[dict[str, bool]], None] = (
        getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    )
    enable({"use_reentrant": False, "preserve_rng_state": False})
    return model.train()


def adapted(model: Any, rank: int, alpha: int, targets: tuple[str, ...], seed: int = 0) -> Any:
    """Return the model under a low-rank adapter, whose parameters alone want a gradient; `seed` draws what is not 0.

    Raises
    ------
    ModuleNotFoundError
        Without ``peft``.
    ValueError
        When the model has no layer of these names.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError:
        raise ModuleNotFoundError("an adapter needs peft; pip install peft (the extra `full`)") from None
    shape = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it asks transformers for an attribute under an old name
        torch.manual_seed(seed)
        return get_peft_model(model, shape)
