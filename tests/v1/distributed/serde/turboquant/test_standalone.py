# SPDX-License-Identifier: Apache-2.0
"""The standalone codec, point by point against tqai's LMCache plugin 0.1.0.

``b5`` and the like number what that plugin does and where it fails.
"""

# Standard
from io import BytesIO
from pathlib import Path

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde import get_registered_serde_types
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantCodec,
    TurboQuantSerdeConfig,
)
from lmcache.v1.distributed.serde.turboquant.record import DTYPE_CODES
from tests.v1.distributed.serde.turboquant.closeness import assert_restored_alike
from tests.v1.distributed.serde.turboquant.helpers import (
    LOW_BIT_PRESET_NAMES,
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    relative_error,
    unskipped,
)

KEYS_ONLY = {"kv_layout": "latent"}
TENSOR = gaussian(2, 4, 20, 2 * 64).bfloat16()
CONFIG = unskipped("turboquant_4bit_nc", 64)
DATA = TurboQuantCodec(CONFIG).to_bytes(TENSOR)
RESTORED = TurboQuantCodec.from_bytes(DATA)


def round_trip(tensor: torch.Tensor, config: TurboQuantSerdeConfig) -> torch.Tensor:
    """Compress a tensor and restore it."""
    return TurboQuantCodec.from_bytes(TurboQuantCodec(config).to_bytes(tensor))


def test_b2_other_serde_types_stay_registered() -> None:
    assert {"fp8", "turboquant"} <= set(get_registered_serde_types())


def test_b3_one_json_configures_serde_and_codec() -> None:
    settings = {"preset": "turboquant_3bit_nc", "head_dim": 64, "skip_last_layers": 1}
    config = TurboQuantSerdeConfig.from_kwargs(settings)
    assert round_trip(TENSOR, config).shape == TENSOR.shape


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_b4_b15_the_serde_and_the_codec_restore_the_same(preset: str) -> None:
    config = unskipped(preset, 64, framed=True)
    stored = encode(TENSOR, config)
    restored = decode(stored, TENSOR, config)
    assert torch.equal(round_trip(TENSOR, config), restored)
    assert torch.equal(TurboQuantCodec.from_bytes(bytes(stored.numpy())), restored)


@pytest.mark.parametrize(
    "data",
    [
        DATA,
        bytearray(DATA),
        memoryview(DATA),
        memoryview(bytearray(b"x" + DATA))[1:],
        torch.tensor(list(DATA), dtype=torch.uint8).view(8, -1).numpy().data,
        BytesIO(DATA),
        DATA + b"\xff" * 1000,
    ],
    ids=["bytes", "bytearray", "view", "odd-address", "matrix", "file", "longer"],
)
def test_b6_b12_any_bytes_restore_without_configuration(data) -> None:
    restored = TurboQuantCodec.from_bytes(data)
    assert restored.dtype == TENSOR.dtype
    assert torch.equal(restored, RESTORED)


def test_b6_files_restore_by_path_or_open(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        sources = (path, str(path), file)
        restored = [TurboQuantCodec.from_bytes(source) for source in sources]
    assert all(torch.equal(tensor, RESTORED) for tensor in restored)
    with (
        path.open(encoding="latin-1") as text,
        pytest.raises(TypeError, match="binary"),
    ):
        TurboQuantCodec.from_bytes(text)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        TurboQuantCodec.from_bytes(tmp_path / "missing")


@pytest.mark.parametrize("data", [None, 7, [1, 2], TENSOR])
def test_b6_what_holds_no_bytes_is_a_type_error(data) -> None:
    with pytest.raises(TypeError, match="expects bytes, a path or a binary file"):
        TurboQuantCodec.from_bytes(data)


def test_b6_scattered_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        TurboQuantCodec.from_bytes(memoryview(DATA)[::2])


def test_b10_a_misfit_names_the_setting() -> None:
    with pytest.raises(ValueError, match="must be divisible by head_dim=96"):
        TurboQuantCodec(unskipped("turboquant_k8v4", 96)).to_bytes(TENSOR)


def test_b10_every_device_reads_and_writes_alike(device: torch.device) -> None:
    data = TurboQuantCodec(CONFIG).to_bytes(TENSOR.to(device))
    restored = TurboQuantCodec.from_bytes(DATA, device=str(device))
    assert restored.device.type == device.type
    assert_restored_alike(restored.cpu(), RESTORED, 64)
    assert data == DATA or device.type != "cpu"
    error = relative_error(TENSOR, TurboQuantCodec.from_bytes(data))
    assert error == pytest.approx(relative_error(TENSOR, RESTORED), rel=1e-3)


@pytest.mark.parametrize("device", ["nonsense", "cuda:4096"])
def test_b10_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="device"):
        TurboQuantCodec.from_bytes(DATA, device=device)


def test_b5_b9_b16_b28_wrong_arguments_say_what_was_expected() -> None:
    with pytest.raises(TypeError, match="TurboQuantSerdeConfig, got int"):
        TurboQuantCodec(4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expects a tensor, got list"):
        TurboQuantCodec(CONFIG).to_bytes([1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expects a device, got float"):
        TurboQuantCodec.from_bytes(DATA, device=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Unsupported TurboQuant preset"):
        TurboQuantCodec(TurboQuantSerdeConfig(preset="turboquant_5bit"))


def test_b18_bytes_do_not_depend_on_threads() -> None:
    used = torch.get_num_threads()
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        settings = {"cpu_threads": threads}
        config = unskipped("turboquant_4bit_nc", 64, **settings)
        assert TurboQuantCodec(config).to_bytes(TENSOR) == DATA
    torch.set_num_threads(used)


@pytest.mark.parametrize("dtype", DTYPE_CODES, ids=str)
def test_b20_every_dtype_is_kept_and_what_is_not_kv_is_exact(
    dtype: torch.dtype,
) -> None:
    tensor = (10 * TENSOR.float()).to(dtype)
    restored = round_trip(tensor, CONFIG)
    assert (restored.shape, restored.dtype) == (tensor.shape, dtype)
    if dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert 0 < relative_error(tensor, restored) < 0.011
    else:
        assert torch.equal(restored.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    "tensor",
    [
        TENSOR.to(torch.complex64),
        TENSOR.float().to_sparse(),
        TENSOR.to("meta"),
        torch.zeros((1,) * 9, dtype=torch.uint8),
    ],
    ids=["complex", "sparse", "meta", "nine-dimensions"],
)
def test_b20_what_a_frame_cannot_hold_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="TurboQuant"):
        TurboQuantCodec(CONFIG).to_bytes(tensor)


@pytest.mark.parametrize("preset", LOW_BIT_PRESET_NAMES)
@pytest.mark.parametrize("dim", [8, 24, 64, 80, 96, 112, 192, 256, 512, 576, 1024])
def test_b21_any_width_of_whole_bytes_is_quantised(preset: str, dim: int) -> None:
    vectors = gaussian(2, 100, dim)
    restored = round_trip(vectors, unskipped(preset, dim, **KEYS_ONLY))
    largest = {"turboquant_4bit_nc": 0.011}.get(preset, 0.04)
    assert 0 < relative_error(vectors, restored) < largest


@pytest.mark.parametrize("dim", [1, 2, 3, 63, 127])
def test_b21_other_widths_are_refused_or_opaque(dim: int) -> None:
    vectors = gaussian(2, 10, dim)
    with pytest.raises(ValueError, match="multiple of 8"):
        unskipped("turboquant_4bit_nc", dim)
    opaque = unskipped("turboquant_4bit_nc", kv_layout="opaque")
    assert torch.equal(round_trip(vectors, opaque), vectors)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_b22_zeros_stay_zeros(preset: str) -> None:
    zeros = torch.zeros_like(TENSOR)
    assert torch.equal(round_trip(zeros, unskipped(preset, 64)), zeros)


@pytest.mark.parametrize(
    "shape", [(2, 0, 20, 128), (2, 4, 0, 128), (2, 4, 20, 0), (2, 2**31, 0, 128)]
)
def test_b22_empty_tensors_keep_their_shape(shape: tuple[int, ...]) -> None:
    assert round_trip(torch.empty(shape), CONFIG).shape == shape


def test_b22_scalars_are_opaque() -> None:
    scalar = torch.tensor(3.5)
    with pytest.raises(ValueError, match="kv_layout"):
        TurboQuantCodec(CONFIG).to_bytes(scalar)
    assert round_trip(scalar, unskipped("turboquant_k8v4", kv_layout="opaque")) == 3.5


@pytest.mark.parametrize("kv_layout", ["split", "opaque"])
def test_b22_gradients_and_strides_do_not_matter(kv_layout: str) -> None:
    config = unskipped("turboquant_4bit_nc", 64, kv_layout=kv_layout)
    expected = TurboQuantCodec(config).to_bytes(TENSOR)
    scattered = TENSOR.transpose(1, 2).contiguous().transpose(1, 2)
    with_gradient = TENSOR.clone().requires_grad_()
    for tensor in (scattered, with_gradient, torch.nn.Parameter(TENSOR)):
        assert TurboQuantCodec(config).to_bytes(tensor) == expected
    assert not TurboQuantCodec.from_bytes(expected).requires_grad


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("plane", [0, 1], ids=["key", "value"])
def test_b23_a_non_finite_number_stays_in_its_row(
    preset: str, poison: float, plane: int
) -> None:
    config = unskipped(preset, 64)
    dirty = TENSOR.clone()
    dirty[plane, 1, 7, 70] = poison
    restored, clean = round_trip(dirty, config), round_trip(TENSOR, config)
    changed = (restored != clean).unflatten(-1, (2, 64)).any(-1).nonzero()
    assert changed.tolist() == [[plane, 1, 7, 1]]


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_b23_large_and_tiny_rows_leave_the_others_alone(preset: str) -> None:
    config = unskipped(preset, 64)
    extreme = TENSOR.clone()
    extreme[:, 1, 7] *= 1e6
    extreme[:, 1, 8] *= 1e-12
    restored, plain = round_trip(extreme, config), round_trip(TENSOR, config)
    assert restored.isfinite().all()
    others = [token for token in range(20) if token not in (7, 8)]
    assert torch.equal(restored[:, :, others], plain[:, :, others])
    assert restored[:, 1, 8].abs().max() < 1e-6
