"""The program that is llama.cpp's server: ``python -m fullscale.engine.http.llama_server OPTIONS``, a JSON object.

It ends when its standard input is closed, so it does not outlive whoever started it.
"""

import json
import sys
from importlib import import_module
from typing import Any

__all__ = ["main"]


def main(options: str) -> None:
    """Serve until standard input is closed."""
    xllamacpp: Any = import_module("xllamacpp")
    said = json.loads(options)
    params = xllamacpp.CommonParams()
    params.model.path = said["path"]
    params.model_alias = [said["name"]]
    params.port = said["port"]
    params.n_parallel = said["slots"]
    params.n_ctx = said["slots"] * said["context_tokens"]  # each slot has its share
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = said["threads"]
    # The defaults, a cache in 16 bits and flash attention, move log-probs by 1e-3.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup = params.ui = False
    server = xllamacpp.Server(params)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main(sys.argv[1])
