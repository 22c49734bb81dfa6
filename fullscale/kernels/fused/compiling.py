"""Every kernel compiled for a Hopper card where there is none, and its machine code looked at.

    python -m fullscale.kernels.fused.compiling [--json]

What a compiler did to a kernel shows in its instructions: whether the tensor cores multiply (HGMMA), whether tiles come and
go through the copy engine (UTMALDG, UTMASTG), and whether registers did not suffice, so that some are kept in memory (STL,
LDL). Speed and the order in which tensor cores add do not show.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fullscale.kernels.contract import Tile
from fullscale.kernels.fused.machine_code import counts, loops
from fullscale.kernels.fused.tiling import Plan, elementwise, parts, plan

__all__ = ["SHARED_BYTES", "Report", "Variant", "faults", "main", "report", "variants"]

SHARED_BYTES = 232_448
"""Shared memory that one block of compute capability 9.0 may have: 227 KiB."""
_TARGET = ("cuda", 90, 32)
_SHOWN = ("HGMMA", "HMMA", "UTMALDG", "UTMASTG", "STL", "LDL")
_POINTERS = {"targets": "*i64", "index": "*i64", "edges": "*i32"}
_SIZES = frozenset(
    ("n", "width", "strips", "begin", "end", "first", "start", "size", "kept_rows", "stride", "tile_first", "dz_stride")
)
_ARITHMETIC = frozenset({"FFMA", "FMUL", "FADD"})
_PRODUCTS = ("forward", "kl_forward", "dlogits", "kl_dlogits")


@dataclass(frozen=True)
class Variant:
    """A kernel as one kind of problem needs it."""

    kernel: str
    """Name of the kernel and of its module."""
    with_: frozenset[str] = frozenset()
    """What it does beside the least: entropy, bias, softcap, cache, kl, reference, aligned."""
    dtype: torch.dtype = torch.bfloat16
    """Of the operands."""

    def __str__(self) -> str:
        exact = " float32" if self.dtype == torch.float32 else ""
        return " ".join([self.kernel, *sorted(self.with_)]) + exact

    @property
    def tensor_cores(self) -> bool:
        """Whether it multiplies matrices, and does it on tensor cores."""
        return self.kernel in _PRODUCTS and self.dtype != torch.float32


@dataclass(frozen=True)
class Report:
    """What a variant came to."""

    variant: str
    """Which."""
    tile: str
    """Rows x columns x depth of one head; empty for a kernel without a product."""
    registers: int
    """Of a thread, 255 at most."""
    shared_bytes: int
    """Of a block."""
    stack_bytes: int
    """Of a thread, in local memory."""
    counts: Mapping[str, int]
    """Instructions by name."""
    loop_arithmetic: int
    """FFMA, FMUL and FADD in main loops: the innermost loops among those that load tiles (UTMALDG)."""


def variants() -> Iterator[Variant]:
    """Yield every variant that the backend can ask for, of bfloat16 operands."""
    for bias, softcap in itertools.product((False, True), repeat=2):
        head = _named(bias=bias, softcap=softcap)
        for entropy in (False, True):
            yield from (Variant("forward", head | _named(entropy=entropy, cache=cache)) for cache in (False, True))
            yield Variant("kl_forward", head | _named(entropy=entropy))
        yield from (Variant("dlogits", head), Variant("kl_dlogits", head))
    for softcap, aligned in itertools.product((False, True), repeat=2):
        yield Variant("cached_dlogits", _named(softcap=softcap, aligned=aligned))
    for entropy, reference in itertools.product((False, True), (frozenset(), {"reference"}, {"reference", "kl"})):
        yield Variant("merge", _named(entropy=entropy) | reference)


def report(variant: Variant, how: Plan | None = None) -> Report:
    """Compile a variant and look at it; `how` is the backend's own plan unless given.

    Raises
    ------
    RuntimeError
        In a process in which Triton interprets kernels, and when one of its tools fails.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, how = _kernel(variant.kernel), how or _plan(variant)
    constants = _constants(variant, how, kernel.arg_names)
    signature = {name: "constexpr" if name in constants else _type(name, variant, how) for name in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    built = triton.compile(source, target=GPUTarget(*_TARGET), options=how.options)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(built.asm["cubin"])
        usage = _tool(triton.knobs.nvidia.cuobjdump.path, "-res-usage", cubin)
        code = _tool(triton.knobs.nvidia.nvdisasm.path, "-c", cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {usage[-500:]!r}")
    return Report(
        variant=str(variant),
        tile=f"{how.tile.rows}x{how.tile.columns}x{how.tile.depth}" if variant.kernel in _PRODUCTS else "",
        registers=int(found[1]),
        stack_bytes=int(found[2]),
        shared_bytes=built.metadata.shared,
        counts=counts(code),
        loop_arithmetic=sum(loop[name] for loop in loops(code, "UTMALDG") for name in _ARITHMETIC),
    )


def faults(found: Report, *, tensor_cores: bool) -> list[str]:
    """Return what is wrong with a variant, nothing if it is as it should be.

    None may spill or ask for more shared memory than there is. One with `tensor_cores` must multiply on Hopper's, load tiles
    by the copy engine, not use the older tensor cores' instructions, and do no arithmetic of its own in a main loop.
    """
    seen = found.counts
    wrong = []
    if found.stack_bytes or seen["STL"] or seen["LDL"]:
        wrong.append(f"spills: {found.stack_bytes} bytes of stack, {seen['STL']} STL, {seen['LDL']} LDL")
    if found.shared_bytes > SHARED_BYTES:
        wrong.append(f"{found.shared_bytes} bytes of shared memory, of {SHARED_BYTES}")
    if tensor_cores:
        wrong += [f"no {name}" for name in ("HGMMA", "UTMALDG") if not seen[name]]
        if seen["HMMA"]:
            wrong.append(f"{seen['HMMA']} HMMA")
        if found.loop_arithmetic:
            wrong.append(f"{found.loop_arithmetic} FFMA, FMUL or FADD in a main loop")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile everything and print a table; return 1 if anything is wrong with any of it."""
    parser = argparse.ArgumentParser(prog="python -m fullscale.kernels.fused.compiling", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each variant")
    given = parser.parse_args(arguments)
    if not given.json:
        sys.stdout.write(_row("variant", "tile", "regs", "shared", "stack", *_SHOWN, "loop FP32"))
    failed = False
    for variant in variants():
        found = report(variant)
        wrong = faults(found, tensor_cores=variant.tensor_cores)
        failed |= bool(wrong)
        if given.json:
            sys.stdout.write(json.dumps(vars(found) | {"faults": wrong}) + "\n")
        else:
            numbers = (found.registers, found.shared_bytes, found.stack_bytes)
            shown = (found.counts[name] for name in _SHOWN)
            sys.stdout.write(_row(found.variant, found.tile, *numbers, *shown, found.loop_arithmetic, *wrong))
        sys.stdout.flush()
    return int(failed)


def _named(**given: bool) -> frozenset[str]:
    return frozenset(name for name, wanted in given.items() if wanted)


def _row(variant: str, *cells: object) -> str:
    return f"{variant:<40}" + "".join(f"{cell!s:>11}" for cell in cells) + "\n"


def _plan(variant: Variant) -> Plan:
    if variant.kernel not in _PRODUCTS:
        return elementwise(Tile())
    return plan(Tile(), variant.dtype, heads=2 if "kl" in variant.kernel else 1, bias="bias" in variant.with_)


def _kernel(name: str) -> Any:
    """Return a kernel as the compiler takes it."""
    from fullscale.kernels.fused import launching

    if launching.INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET is set, so that Triton interprets and does not compile; unset it")
    return getattr(getattr(launching, name), name)


def _constants(variant: Variant, how: Plan, names: Sequence[str]) -> dict[str, Any]:
    """Return what is known when a variant is compiled: sizes, and None for what it does without."""
    has = variant.with_
    count = parts(1.0 if "softcap" in has else None)
    known: dict[str, Any] = {
        "ROWS": how.tile.rows,
        "COLUMNS": how.tile.columns,
        "DEPTH": how.tile.depth,
        "INTERPRET": False,
        "ALIGNED": 8 if "aligned" in has else 1,
    }
    if variant.kernel == "cached_dlogits":
        known["COLUMNS"] = how.tile.columns // count
    absent = {
        "bias": ("bias", "reference_bias"),
        "softcap": ("softcap",),
        "cache": ("cache", "offset"),
        "entropy": ("moment", "moment_out", "entropy_out"),
        "reference": tuple(n for n in names if n.startswith("reference_")),
        "kl": ("cross", "kl_out"),
    }
    if variant.kernel != "merge":
        del absent["reference"], absent["kl"]
    if variant.kernel == "cached_dlogits":
        del absent["cache"]
    known |= {name: None for feature, without in absent.items() if feature not in has for name in without}
    if variant.dtype == torch.float32:
        known["offset"] = None
    return {name: value for name, value in known.items() if name in names}


def _type(name: str, variant: Variant, how: Plan) -> str:
    """Return the type of an argument, as Triton spells it."""
    operand = "fp32" if variant.dtype == torch.float32 else "bf16"
    tile = how.tile
    part = tile.columns // parts(1.0 if "softcap" in variant.with_ else None)
    if variant.kernel in _PRODUCTS:
        blocks = {"hidden": (tile.rows, tile.depth), "weight": (tile.columns, tile.depth), "cache": (tile.rows, part)}
        blocks["dz"] = (tile.rows, tile.columns // 4)
        if (block := blocks.get(name.removeprefix("reference_"))) is not None:
            return f"tensordesc<{operand}[{block[0]},{block[1]}]>"
    elif name in ("cache", "dz"):
        return f"*{operand}"
    if name in ("bias", "reference_bias"):
        return f"*{operand}"
    if name == "softcap":
        return "fp32"
    if name.removeprefix("reference_") in _SIZES:
        return "i32"
    return _POINTERS.get(name, "*fp32")


def _tool(path: str, *arguments: object) -> str:
    done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{path} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
