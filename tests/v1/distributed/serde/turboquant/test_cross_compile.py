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

POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32"}


def compile_case(capability: int, dtype: str, preset: str, head_dim: int) -> None:
    """Compile both kernels; needs a process where Triton does not interpret."""
    # Third Party
    import torch

    # First Party
    from lmcache.v1.distributed.serde.turboquant.kernels import gpu, gpu_launch
    from lmcache.v1.distributed.serde.turboquant.slot import PRESETS, SlotLayout

    slot = SlotLayout.for_preset(PRESETS[preset], head_dim, head_dim, keys_only=False)
    version = divmod(capability, 10)
    matrix = "*fp16" if dtype == "float16" else "*bf16"
    kernels = {
        gpu.encode_kernel: (gpu_launch.encode_options, "source_ptr", matrix),
        gpu.decode_kernel: (gpu_launch.decode_options, "target_ptr", "*fp16"),
    }
    for kernel, (options_of, tensor_name, matrix_type) in kernels.items():
        options = dict(options_of(slot, getattr(torch, dtype), version))
        launch = {key: options.pop(key) for key in list(options) if key.islower()}
        signature = dict.fromkeys(kernel.arg_names, "constexpr") | {
            tensor_name: POINTERS[dtype],
            "slots_ptr": "*u8",
            "masks_ptr": "*i16",
            "matrix_ptr": matrix_type,
            "value_offset": "i64",
            "layer_stride": "i64",
            "row_stride": "i32",
            "slots_stride": "i64",
            "num_rows": "i32",
        }
        options["IS_SHORT"] = False
        compile_kernel(kernel, signature, options, launch, capability)


def compile_checksum() -> None:
    """Compile the checksum kernel for every generation."""
    # First Party
    from lmcache.v1.distributed.serde.turboquant import checksum
    from lmcache.v1.distributed.serde.turboquant.kernels import gpu_checksum

    signature = {
        "words_ptr": "*i32",
        "total_ptr": "*i64",
        "num_words": "i64",
        "first_position": "i64",
        "CONSTANTS": "constexpr",
        "BLOCK_WORDS": "constexpr",
    }
    options: dict[str, object] = {
        "CONSTANTS": checksum.CONSTANTS,
        "BLOCK_WORDS": gpu_checksum.BLOCK_WORDS,
    }
    launch: dict[str, object] = {"num_warps": gpu_checksum.NUM_WARPS}
    for capability in CAPABILITIES:
        kernel = gpu_checksum.checksum_kernel
        compile_kernel(kernel, signature, options, launch, capability)


def compile_kernel(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, object],
    launch: dict[str, object],
    capability: int,
) -> None:
    """Compile a kernel to machine code of one compute capability."""
    # Third Party
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    import triton

    source = ASTSource(kernel, signature, constexprs=constants)
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=launch)
    assert compiled.asm["cubin"]


def compile_elsewhere(calls: list[str]) -> str:
    """Make calls in a process of their own; return what went wrong."""
    environment = {key: os.environ[key] for key in os.environ if "TRITON" not in key}
    code = f"from {__spec__.name} import compile_case, compile_checksum\n"
    code += "\n".join(f"print({call!r}, flush=True); {call}" for call in calls)
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    return result.stdout + result.stderr if result.returncode else ""


def test_kernels_compile_for_every_generation() -> None:
    calls = [f"compile_case{case}" for case in CASES] + ["compile_checksum()"]
    with ThreadPoolExecutor(2) as processes:
        failures = list(processes.map(compile_elsewhere, [calls[::2], calls[1::2]]))
    assert failures == ["", ""]
