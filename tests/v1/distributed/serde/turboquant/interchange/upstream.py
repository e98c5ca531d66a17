# SPDX-License-Identifier: Apache-2.0
"""Encode and decode with the pristine LMCache 0.5.6, in a process of its own.

Run as ``python upstream.py FOLDER PRISTINE`` with PRISTINE, which holds
``lmcache/`` of the pinned wheel, at the front of PYTHONPATH. FOLDER holds

- ``request.json``: the settings of each case, by the case's name;
- ``request.safetensors``: ``NAME/source``, a KV tensor, and ``NAME/payload``, a
  payload of the same shape from elsewhere;

and receives ``response.safetensors``: ``NAME/payload``, the source encoded,
``NAME/restored``, that payload decoded, ``NAME/foreign``, the payload of the
request decoded, and ``NAME/centroids`` and ``NAME/boundaries`` of low-bit keys.

Upstream's public classes do all the work: natively on a GPU, and on the CPU
under Triton's interpreter (TRITON_INTERPRET=1). Two things are put right there,
because the host has no GPU to ask and the interpreter is no GPU:

- float8 keys are e4m3, as on every GPU since compute capability 8.9;
- conversion to float8 e4m3 rounds to nearest even and saturates, as the GPU's
  instruction does. The interpreter of Triton 3.6 loses the carry of a mantissa
  that rounds up, rounds ties up and does not saturate: 31% of the float16 bit
  patterns become another byte than on a GPU. Reading float8 and bfloat16 is
  exact there, and NumPy does its float16.
"""

# Standard
from pathlib import Path
from types import SimpleNamespace
from typing import cast
import json
import os
import sys

# Third Party
from safetensors.torch import load_file, save_file
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
import torch
import triton.language as tl

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.decode_kernel import _FP8_E4B15
from lmcache.v1.distributed.serde.turboquant.turboquant import (
    _make_tq_tensors_for_layer,
)
from lmcache.v1.memory_management import MemoryObj

E4M3_MAX = torch.finfo(torch.float8_e4m3fn).max
KEY = ObjectKey(chunk_hash=b"interchange", model_name="interchange", kv_rank=0)


def main(folder: Path, pristine: Path) -> None:
    """Answer the request in ``folder``.

    Args:
        folder: Where the request is and the response goes.
        pristine: Where every module of LMCache must come from.

    Raises:
        RuntimeError: If a module of LMCache comes from elsewhere, or there is
            neither a GPU nor the interpreter.
    """
    check_modules_are_in(pristine)
    device = choose_device()
    requests = json.loads((folder / "request.json").read_text("utf-8"))
    tensors = load_file(folder / "request.safetensors", device=device)
    answers: dict[str, torch.Tensor] = {}
    for name, settings in requests.items():
        config = TurboQuantSerdeConfig(**settings, cuda_device=device)
        source = tensors[f"{name}/source"]
        payload = encode(config, source)
        answers[f"{name}/payload"] = payload
        answers[f"{name}/restored"] = decode(config, payload, source)
        foreign = tensors[f"{name}/payload"]
        answers[f"{name}/foreign"] = decode(config, foreign, source)
        if not config.key_fp8:
            _, boundaries, centroids = _make_tq_tensors_for_layer(
                config, 0, torch.device(device)
            )
            answers[f"{name}/boundaries"] = boundaries
            answers[f"{name}/centroids"] = centroids
    # The tables are cached upstream, and no two names may share a tensor.
    answers = {name: tensor.cpu().clone() for name, tensor in answers.items()}
    save_file(answers, folder / "response.safetensors")


def check_modules_are_in(pristine: Path) -> None:
    """Raise RuntimeError if a module of LMCache was not loaded from ``pristine``."""
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if name.partition(".")[0] == "lmcache" and origin is not None:
            if not Path(origin).resolve().is_relative_to(pristine.resolve()):
                raise RuntimeError(
                    f"{name} must come from {pristine}, it came from {origin}"
                )


def choose_device() -> str:
    """Return the device to work on; prepare the interpreter where it is the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("Without a GPU, TRITON_INTERPRET must be 1")
    _FP8_E4B15[0] = 0
    convert = InterpreterBuilder.create_fp_to_fp

    def create_fp_to_fp(
        builder: InterpreterBuilder,
        handle: TensorHandle,
        target: tl.dtype,
        rounding_mode: object,
    ) -> TensorHandle:
        if target.scalar != tl.float8e4nv:
            return convert(builder, handle, target, rounding_mode)
        numbers = torch.from_numpy(handle.data)
        if handle.dtype.scalar == tl.bfloat16:
            numbers = numbers.view(torch.bfloat16)
        saturated = numbers.float().clamp(-E4M3_MAX, E4M3_MAX)
        codes = saturated.to(torch.float8_e4m3fn).view(torch.uint8)
        return TensorHandle(codes.numpy(), target.scalar)

    InterpreterBuilder.create_fp_to_fp = create_fp_to_fp
    return "cpu"


def encode(config: TurboQuantSerdeConfig, source: torch.Tensor) -> torch.Tensor:
    """Return the payload of a KV tensor."""
    serializer = TurboQuantSerializer(config)
    layout = MemoryLayoutDesc(shapes=[source.shape], dtypes=[source.dtype])
    size = serializer.estimate_serialized_size(layout)
    payload = torch.zeros(size, dtype=torch.uint8, device=source.device)
    written = serializer.serialize(holding(source), holding(payload), KEY)
    return payload[:written]


def decode(
    config: TurboQuantSerdeConfig, payload: torch.Tensor, like: torch.Tensor
) -> torch.Tensor:
    """Return the KV tensor, of the shape and dtype of ``like``, of a payload."""
    restored = torch.zeros_like(like)
    deserializer = TurboQuantDeserializer(config)
    deserializer.deserialize(holding(payload), holding(restored), KEY)
    return restored


def holding(tensor: torch.Tensor) -> MemoryObj:
    """Return a stand-in for a memory object: the codec reads ``.tensor`` alone."""
    return cast(MemoryObj, SimpleNamespace(tensor=tensor))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
