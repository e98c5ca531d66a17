# SPDX-License-Identifier: Apache-2.0
"""``lmcache tool turboquant encode`` and ``decode``."""

# Standard
from collections.abc import Callable
from pathlib import Path
import json

# Third Party
from safetensors.torch import load_file, save_file
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantCodec,
    TurboQuantSerdeConfig,
)

Run = Callable[..., tuple[int, str, str]]
Damage = Callable[[Path, int], None]


def test_encode_and_decode_go_through_payloads(
    run: Run, tmp_path: Path, config: TurboQuantSerdeConfig
) -> None:
    source, target = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    tensors = {
        "layer/0 kv": torch.randn(2, 3, 5, 128).half(),
        "state": torch.arange(6).view(2, 3),
        "empty": torch.empty(2, 3, 0, 128),
    }
    save_file(tensors, source)
    options = ["--preset", config.preset, "--head-dim", "64", "--format", "json"]
    options += ["--skip-first-layers", "1", "--skip-last-layers", "0"]
    status, out, _ = run("encode", source, tmp_path / "payloads", *options)
    assert status == 0
    files = {file["payload"]: file for file in json.loads(out)["metrics"]["files"]}
    assert set(files) == {"layer%2F0%20kv.data", "state.data", "empty.data"}
    status, out, _ = run("decode", tmp_path / "payloads", target)
    assert status == 0
    restored = load_file(target)
    assert set(restored) == set(tensors)
    codec = TurboQuantCodec(config)
    for name, tensor in tensors.items():
        expected = codec.from_bytes(codec.to_bytes(tensor))
        assert torch.equal(restored[name], expected)
    assert torch.equal(restored["state"], tensors["state"])
    assert not torch.equal(restored["layer/0 kv"], tensors["layer/0 kv"])


def test_encode_calibrates_with_the_rotary_base(run: Run, tmp_path: Path) -> None:
    # Keys with a bias that a rotary embedding turned: position p turns dimensions i and
    # i + 32 by p * base ** (-i / 32).
    base, positions, pairs = 1000.0, torch.arange(128.0), torch.arange(32.0)
    angles = positions[:, None] * base ** (-pairs / 32)
    kv = torch.randn(2, 1, 128, 64, generator=torch.Generator().manual_seed(0))
    kv[0] += 8 * torch.cat((angles.cos(), angles.sin()), dim=-1)
    save_file({"kv": kv}, tmp_path / "in")
    options = ["--preset", "turboquant_4bit_cc", "--head-dim", "64"]
    options += ["--skip-first-layers", "0", "--skip-last-layers", "0"]

    def error_of_keys(*given: str) -> float:
        payloads, target = tmp_path / "payloads", tmp_path / "out"
        assert run("encode", tmp_path / "in", payloads, *options, *given)[0] == 0
        assert run("decode", payloads, target)[0] == 0
        return float((load_file(target)["kv"] - kv)[0].square().mean())

    # The distortion of 4 bits is 0.0095 of the variance, which the bias makes 33.
    assert error_of_keys("--rope-theta", str(base)) < 0.012
    assert error_of_keys() > 0.1


def test_encode_names_the_tensor_that_does_not_fit(run: Run, tmp_path: Path) -> None:
    save_file({"kv": torch.randn(1, 3, 5, 128)}, tmp_path / "in")
    status, _, err = run("encode", tmp_path / "in", tmp_path / "payloads")
    assert status == 1
    assert "tensor kv" in err and "kv_layout" in err


def test_decode_writes_nothing_where_a_payload_is_refused(
    run: Run, directory: Path, damage: Damage, tmp_path: Path
) -> None:
    damage(directory / "0.data", 5000)
    status, _, err = run("decode", directory, tmp_path / "out")
    assert status == 1
    assert "0.data" in err and "is corrupt" in err
    assert not (tmp_path / "out").exists()
