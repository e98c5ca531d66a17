# SPDX-License-Identifier: Apache-2.0
"""The kernels compile for every supported GPU generation, without a GPU."""

# Standard
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any
import os
import subprocess
import sys

# Third Party
import pytest

if find_spec("triton") is None:
    # Importing it here would keep other tests from choosing its interpreter.
    pytest.skip("the GPU backend needs Triton", allow_module_level=True)

CASES = [
    (80, "bfloat16", "turboquant_3bit_nc", 128),
    (89, "float16", "turboquant_4bit_nc", 128),
    (90, "float32", "turboquant_3bit_nc", 128),
    (90, "float32", "turboquant_4bit_nc", 112),
    (100, "bfloat16", "turboquant_4bit_nc", 128),
    (120, "float16", "turboquant_3bit_nc", 64),
    (80, "bfloat16", "turboquant_k8v4", 128),
    (89, "bfloat16", "turboquant_k8v4", 128),
    (120, "bfloat16", "turboquant_k8v4", 128),
    *(
        (86, dtype, preset, 128)
        for dtype in ("float16", "bfloat16", "float32")
        for preset in ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_3bit_nc")
    ),
]
"""Every generation, every dtype with every width of codes, with and without float8.

Compute capability 8.6 takes all of them: it is the newest without float8, and has
the least shared memory and the fewest warps.
"""

CAPABILITIES = (80, 86, 89, 90, 100, 120)

RELATIVE_CASES = [
    (80, "bfloat16", "turboquant_4bit_cc", 0.0),
    (86, "float16", "turboquant_2bit_cc", 1e4),
    (89, "float32", "turboquant_3bit_cc", 1e4),
    (90, "bfloat16", "turboquant_3bit_cc", 1e4),
    (100, "float16", "turboquant_4bit_cc", 0.0),
    (120, "bfloat16", "turboquant_2bit_cc", 1e4),
]
"""Calibrated presets, with and without a rotary embedding."""

POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32"}


def compile_case(capability: int, dtype: str, preset: str, head_dim: int) -> None:
    """Compile encoding and decoding; needs a process where Triton does not interpret.

    Args:
        capability: Compute capability, times ten.
        dtype: Element type of keys and values.
        preset: Name of the preset.
        head_dim: Dimensions of a vector.
    """
    # First Party
    from lmcache.v1.distributed.serde.turboquant.kernels import gpu, gpu_plan
    from lmcache.v1.distributed.serde.turboquant.presets import PRESETS
    from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout

    slot = SlotLayout.for_preset(PRESETS[preset], head_dim, head_dim, keys_only=False)
    plan = gpu_plan.plans_of(slot, have_same_rows=True)[0]
    kernels = (gpu.encode_kernel, gpu.decode_kernel)
    compile_pair(kernels, plan, dtype, capability, {})


def compile_relative(capability: int, dtype: str, preset: str, theta: float) -> None:
    """Compile the kernels of a calibrated preset; as :func:`compile_case`."""
    # First Party
    from lmcache.v1.distributed.serde.turboquant.kernels import (
        gpu,
        gpu_kept,
        gpu_measure,
        gpu_plan,
    )
    from lmcache.v1.distributed.serde.turboquant.presets import CALIBRATED_PRESETS
    from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout

    slot = SlotLayout.for_preset(
        CALIBRATED_PRESETS[preset],
        128,
        128,
        keys_only=False,
        is_calibrated=True,
        rope_theta=theta,
    )
    no_table: dict[str, object] = {} if theta else {"rotary_ptr": None}
    plans = gpu_plan.plans_of(slot, have_same_rows=True)
    kernels = (gpu.encode_relative_kernel, gpu.decode_relative_kernel)
    compile_pair(kernels, plans[0], dtype, capability, no_table)
    compile_pair(
        (gpu.encode_kernel, gpu.decode_kernel), plans[1], dtype, capability, {}
    )
    sizes: dict[str, object] = {"HALF": 64, "COLUMNS": 64, "BLOCKS": 8}
    sizes |= {"BLOCK_TOKENS": gpu_measure.BLOCK_TOKENS} | no_table
    launch: dict[str, object] = {"num_warps": gpu_measure.NUM_WARPS}
    compile_kernel(gpu_measure.measure_kernel, dtype, sizes, launch, capability)
    sizes = {"DIM": 128, "COLUMNS": 128}
    compile_kernel(gpu_kept.put_back_kernel, dtype, sizes, {"num_warps": 1}, capability)


def compile_pair(
    kernels: tuple[Any, Any],
    plan: Any,
    dtype: str,
    capability: int,
    constants: dict[str, object],
) -> None:
    """Compile an encoding and a decoding kernel for a plan."""
    # Third Party
    import torch

    # First Party
    from lmcache.v1.distributed.serde.turboquant.kernels import gpu_launch

    version, element = divmod(capability, 10), getattr(torch, dtype)
    options_of = (gpu_launch.encode_options, gpu_launch.decode_options)
    for kernel, options_for in zip(kernels, options_of, strict=True):
        options = dict(options_for(plan, element, version))
        launch = {key: options.pop(key) for key in list(options) if key.islower()}
        options |= {"IS_SHORT": False} | constants
        known = {key: options[key] for key in options if key in kernel.arg_names}
        compile_kernel(kernel, dtype, known, launch, capability)


def compile_checksum() -> None:
    """Compile the checksum kernel for every generation."""
    # First Party
    from lmcache.v1.distributed.serde.turboquant import checksum
    from lmcache.v1.distributed.serde.turboquant.kernels import gpu_checksum

    constants: dict[str, object] = {
        "CONSTANTS": checksum.CONSTANTS,
        "BLOCK_WORDS": gpu_checksum.BLOCK_WORDS,
    }
    launch: dict[str, object] = {"num_warps": gpu_checksum.NUM_WARPS}
    for capability in CAPABILITIES:
        kernel = gpu_checksum.checksum_kernel
        compile_kernel(kernel, "float16", constants, launch, capability)


def compile_kernel(
    kernel: Any,
    dtype: str,
    constants: dict[str, object],
    launch: dict[str, object],
    capability: int,
) -> None:
    """Compile a kernel to machine code of one compute capability."""
    # Third Party
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    import triton

    decodes = "LOOKUPS" in kernel.arg_names
    # Rows relative to statistics are float32, which is split into bfloat16.
    halves = dtype == "float16" and "statistics_ptr" not in kernel.arg_names
    pointers = {
        "source_ptr": POINTERS[dtype],
        "target_ptr": POINTERS[dtype],
        "slots_ptr": "*u8",
        "masks_ptr": "*i16",
        "matrix_ptr": "*fp16" if decodes or halves else "*bf16",
        "statistics_ptr": "*bf16",
        "rotary_ptr": "*fp32",
        "distances_ptr": "*fp32",
        "positions_ptr": "*i32",
        "kept_ptr": "*bf16",
        "words_ptr": "*i32",
        "total_ptr": "*i64",
    }
    signature = {
        name: "constexpr" if name in constants else pointers.get(name, "i64")
        for name in kernel.arg_names
    }
    signature |= {
        name: "i32" for name in ("num_rows", "num_heads") if name in signature
    }
    source = ASTSource(kernel, signature, constexprs=constants)
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=launch)
    assert compiled.asm["cubin"]


def compile_elsewhere(calls: list[str]) -> str:
    """Make calls in a process of their own; return what went wrong."""
    environment = {key: os.environ[key] for key in os.environ if "TRITON" not in key}
    code = f"from {__spec__.name} import *\n"
    code += "\n".join(f"print({call!r}, flush=True); {call}" for call in calls)
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    return result.stdout + result.stderr if result.returncode else ""


def test_kernels_compile_for_every_generation() -> None:
    calls = [f"compile_case{case}" for case in CASES]
    calls += [f"compile_relative{case}" for case in RELATIVE_CASES]
    calls.append("compile_checksum()")
    with ThreadPoolExecutor(2) as processes:
        failures = list(processes.map(compile_elsewhere, [calls[::2], calls[1::2]]))
    assert failures == ["", ""]
