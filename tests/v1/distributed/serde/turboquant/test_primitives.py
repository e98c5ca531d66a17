# SPDX-License-Identifier: Apache-2.0
"""Device functions of the GPU backend, each alone."""

# Standard
from collections.abc import Callable

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE, HAS_CUDA

# isort: split

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant import reference, tables
from lmcache.v1.distributed.serde.turboquant.kernels import (
    gpu_codes,
    gpu_constants,
    gpu_float8,
    gpu_lookup,
    gpu_rotation,
)

ROWS, WIDTH = 16, 32
BITS = [2, 3, 4]


@triton.jit
def pack_kernel(codes_ptr, words_ptr, numbers_ptr, BITS: tl.constexpr):
    row = tl.arange(0, 16)[:, None]
    places = row * 32 + tl.arange(0, 32)[None, :]
    codes = tl.load(codes_ptr + places)
    words = gpu_codes.pack(
        codes.to(tl.float32) + gpu_codes.INTEGER_STEP, BITS, gpu_codes.INTEGER_STEP_BITS
    )
    tl.store(words_ptr + row * 4 + tl.arange(0, 4)[None, :], words)
    numbers = gpu_codes.join_positions(gpu_codes.unpack(words, BITS))
    tl.store(numbers_ptr + places, numbers)


@triton.jit
def bucketise_kernel(
    coordinates_ptr, indices_ptr, factor, BITS: tl.constexpr, POLYNOMIAL: tl.constexpr
):
    places = tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    coordinates = tl.load(coordinates_ptr + places)
    factors = tl.zeros((16,), tl.float32) + factor
    stepped = gpu_codes.bucketise(coordinates, factors, BITS, POLYNOMIAL, False)
    tl.store(indices_ptr + places, (stepped - gpu_codes.INTEGER_STEP).to(tl.int32))


@triton.jit
def float8_kernel(
    numbers_ptr, codes_ptr, restored_ptr, SIZE: tl.constexpr, FLOAT8: tl.constexpr
):
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    codes = gpu_float8.encode_e4m3(tl.load(numbers_ptr + place), FLOAT8)
    tl.store(codes_ptr + place, codes)
    tl.store(restored_ptr + place, gpu_float8.decode_e4m3(codes, FLOAT8))


@triton.jit
def lane_order_kernel(source_ptr, ordered_ptr, restored_ptr, RUN: tl.constexpr):
    places = tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    ordered = gpu_rotation.to_lane_order(tl.load(source_ptr + places), RUN)
    tl.store(ordered_ptr + places, ordered)
    tl.store(restored_ptr + places, gpu_rotation.from_lane_order(ordered, RUN))


@pytest.mark.parametrize("bits", BITS)
def test_unpack_undoes_pack(bits):
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 2**bits, (ROWS, WIDTH), generator=generator)
    codes[0], codes[1] = 0, 2**bits - 1
    words = torch.empty(ROWS, WIDTH // 8, dtype=torch.int32, device=DEVICE)
    numbers = torch.empty(ROWS, WIDTH, device=DEVICE)
    pack_kernel[(1,)](codes.int().to(DEVICE), words, numbers, bits)
    packed = words.cpu().view(torch.uint8).view(ROWS, -1, 4)[..., :bits]
    assert torch.equal(packed.flatten(-2), reference.pack(codes, bits))
    assert torch.equal(numbers.cpu(), 1 + codes / 2**bits)


@pytest.mark.parametrize("bits", BITS)
def test_bucketise_at_every_boundary(bits):
    boundaries = tables.boundaries(1, bits)
    steps = torch.tensor([1 - 3e-6, 1 + 3e-6])
    around = (boundaries[:, None] * steps).flatten()
    around = around[around != 0]
    extremes = torch.tensor([0.0, 5.0, -5.0, 1e30, -1e30, float("inf"), float("nan")])
    coordinates = torch.zeros(ROWS * WIDTH)
    values = torch.cat([around, extremes, torch.linspace(-4.9, 4.9, 300)])
    coordinates[: len(values)] = values
    indices = torch.empty(ROWS * WIDTH, dtype=torch.int32, device=DEVICE)
    factor = gpu_constants.index_factor(1, bits)
    polynomial = gpu_constants.index_polynomial(bits)
    bucketise_kernel[(1,)](coordinates.to(DEVICE), indices, factor, bits, polynomial)
    expected = torch.bucketize(coordinates, boundaries, right=True)
    assert torch.equal(indices.cpu().long(), expected)


@pytest.mark.parametrize("hardware", [False, True] if HAS_CUDA else [False])
def test_float8_of_every_bfloat16_and_of_ties(hardware):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    grid = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (grid[1:] + grid[:-1]) / 2
    ties = torch.stack([ties, ties.nextafter(grid[1:]), ties.nextafter(grid[:-1])])
    numbers = torch.cat([every.view(torch.bfloat16).float(), ties.flatten()])
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % 1024))
    codes = torch.empty(len(numbers), dtype=torch.uint8, device=DEVICE)
    restored = torch.empty(len(numbers), device=DEVICE)
    grid_size = (len(numbers) // 1024,)
    float8_kernel[grid_size](numbers.to(DEVICE), codes, restored, 1024, hardware)
    nan = numbers.isnan()
    expected = numbers.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(codes.cpu()[~nan], expected.view(torch.uint8)[~nan])
    assert (codes.cpu()[nan] == 0x7F).all()
    assert torch.equal(restored.cpu()[~nan], expected.float()[~nan])
    assert restored.cpu()[nan].isnan().all()


@pytest.mark.parametrize("run", [2, 4])
def test_lane_order_is_undone(run):
    source = torch.arange(ROWS * WIDTH, device=DEVICE).view(ROWS, WIDTH)
    ordered, restored = torch.empty_like(source), torch.empty_like(source)
    lane_order_kernel[(1,)](source, ordered, restored, run)
    assert torch.equal(restored, source)
    assert torch.equal(ordered, source[:, gpu_constants.lane_order(WIDTH, run)])


@pytest.mark.parametrize("run", [2, 4])
@pytest.mark.parametrize("width", [16, 32])
def test_rotation_matrix_is_a_multiple_of_an_orthonormal_one(width, run):
    cpu = torch.device("cpu")
    matrix = gpu_constants.rotation_matrix(width, run, torch.bfloat16, cpu).double()
    unit = gpu_constants.rotation_unit(width)
    identity = torch.eye(width, dtype=torch.float64) * width * unit**2
    assert torch.equal(matrix @ matrix.T, identity)
    assert unit <= width**-0.5


@pytest.mark.parametrize("bits", BITS)
def test_index_polynomial_rises_and_meets_the_boundaries(bits):
    unit = gpu_constants.index_unit(bits)
    polynomial = gpu_constants.index_polynomial(bits)

    def count(multiples: torch.Tensor) -> torch.Tensor:
        slope = torch.zeros_like(multiples)
        for coefficient in polynomial:
            slope = slope * multiples**2 + coefficient
        return multiples * slope

    boundaries = tables.boundaries(1, bits).double()
    ranks = torch.arange(1 - 2 ** (bits - 1), 2 ** (bits - 1), dtype=torch.float64)
    assert torch.allclose(count(boundaries / unit), ranks, rtol=0, atol=1e-12)
    inside = torch.linspace(-0.5, 0.5, 100_001, dtype=torch.float64)
    assert (count(inside).diff() < 0).all()
    assert count(inside[:1]) < 2 ** (bits - 1)


@pytest.mark.parametrize("bits", BITS)
def test_centroids_in_float16_are_as_close_as_stated(bits):
    terms = gpu_constants.centroid_terms(bits)
    high, low = (
        torch.tensor(t).to(torch.int16).view(torch.half).double() for t in terms
    )
    codebook = tables.centroids(1, bits).double()
    scale = gpu_constants.CENTROID_SCALE[bits]
    error = (high / scale - codebook).square().mean().sqrt()
    assert error < {2: 1e-6, 3: 8e-6, 4: 7e-5}[bits]
    assert torch.allclose((high + low) / scale, codebook, rtol=0, atol=1e-7)


@pytest.mark.parametrize("bits", BITS)
def test_lookup_assembly_finds_every_pair(bits):
    terms = gpu_constants.centroid_terms(bits)
    generator = torch.Generator().manual_seed(bits)
    for numbers in terms:
        assembly = gpu_lookup.assembly(bits, numbers)
        for _ in range(100):
            codes = torch.randint(0, 2**bits, (8,), generator=generator).tolist()
            word = sum(code << (bits * place) for place, code in enumerate(codes))
            word |= 0xA5C3E7 << (8 * bits) & 0xFFFFFFFF
            assert run_ptx(assembly, word) == [numbers[code] for code in codes]


def test_lookup_assembly_wants_a_mirrored_table():
    with pytest.raises(ValueError, match="mirrors"):
        gpu_lookup.assembly(4, tuple(range(16)))
    with pytest.raises(ValueError, match="bits 2 to 4"):
        gpu_lookup.assembly(3, tuple(range(16)))


def run_ptx(assembly: str, word: int) -> list[int]:
    """Interpret the few PTX instructions of a lookup."""
    registers = {"$8": word}
    outputs: list[int] = []

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    def permute(low: int, high: int, selector: int) -> int:
        table = (low | high << 32).to_bytes(8, "little")
        picks = [selector >> (4 * place) & 0xF for place in range(4)]
        assert max(picks) < 8
        return int.from_bytes(bytes(table[pick] for pick in picks), "little")

    operations: dict[str, Callable[..., int]] = {
        "mov.b32": lambda a: a,
        "not.b32": lambda a: ~a,
        "and.b32": lambda a, b: a & b,
        "xor.b32": lambda a, b: a ^ b,
        "sub.u32": lambda a, b: a - b,
        "shl.b32": lambda a, b: a << b,
        "shr.u32": lambda a, b: a >> b,
        "lop3.b32": lambda a, b, mask, table: a & mask | b & ~mask,
        "prmt.b32": permute,
    }
    for line in assembly.splitlines():
        if not line.endswith(";") or line.startswith(".reg"):
            continue
        operation, operands = line.rstrip(";").split(" ", 1)
        if operands.startswith("{"):
            pair = value(operands.split(",")[-1].strip())
            outputs += [pair & 0xFFFF, pair >> 16]
            continue
        target, *sources = (name.strip() for name in operands.split(","))
        result = operations[operation](*(value(source) for source in sources))
        registers[target] = result & 0xFFFFFFFF
    return outputs
