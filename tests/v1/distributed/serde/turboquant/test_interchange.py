# SPDX-License-Identifier: Apache-2.0
"""Payloads are interchangeable with LMCache 0.5.6, whose own kernels run here."""

# Third Party
from scipy.stats import poisson
import numpy as np
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.interchange.bounds import (
    POSITION_SLACK,
    coordinate_slack,
    disagreement_rate,
    rotated_units,
    stored_position_slack,
    value_positions,
)
from tests.v1.distributed.serde.turboquant.interchange.cases import (
    CASES,
    SPECIAL_TOKENS,
    Case,
)
from tests.v1.distributed.serde.turboquant.interchange.compare import (
    boundaries,
    heads,
    key_misses,
    steps_apart,
    table_error,
    ulps_apart,
    value_misses,
)
from tests.v1.distributed.serde.turboquant.interchange.exchange import (
    Exchange,
    decode,
    exchange_all,
)
from tests.v1.distributed.serde.turboquant.interchange.pristine import (
    pristine_folder,
)
from tests.v1.distributed.serde.turboquant.interchange.slots import (
    raw_bytes,
    read_slots,
    slot_bytes,
)

LOW_BIT_CASES = [case for case in CASES if not case.config.key_fp8]
FLOAT8_CASES = [case for case in CASES if case.config.key_fp8]
DEEP_CASES = [case for case in LOW_BIT_CASES if len(case.compressed_layers) > 1]

UPSTREAM_TABLE_ERROR = 0.0017
"""Largest error of upstream's codebooks, in standard deviations: the outermost."""

FALSE_ALARM = 1e-6
"""Probability that correct codecs disagree on more indices than is allowed."""


def each(cases: list[Case]) -> pytest.MarkDecorator:
    """Parametrise a test over cases."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def exchanges(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exchange]:
    """Exchange all cases with upstream, once."""
    folder = tmp_path_factory.mktemp("interchange")
    return exchange_all(CASES, pristine_folder(), folder)


@pytest.fixture
def exchange(case: Case, exchanges: dict[str, Exchange]) -> Exchange:
    """Return the exchange of the test's case."""
    return exchanges[case.name]


@each(CASES)
def test_upstream_restores_our_payload_as_we_do(exchange: Exchange) -> None:
    ours = decode(exchange.case, exchange.our_payload)
    assert key_misses(exchange, ours, exchange.ours_by_upstream).max() <= 1
    assert value_misses(exchange, ours, exchange.ours_by_upstream).max() <= 1


@each(CASES)
def test_we_restore_upstreams_payload_as_it_does(exchange: Exchange) -> None:
    ours = decode(exchange.case, exchange.upstream_payload)
    assert key_misses(exchange, ours, exchange.upstream_by_upstream).max() <= 1
    assert value_misses(exchange, ours, exchange.upstream_by_upstream).max() <= 1


@each(FLOAT8_CASES)
def test_float8_keys_restore_exactly(exchange: Exchange) -> None:
    ours = decode(exchange.case, exchange.our_payload)
    assert torch.equal(ours[0], exchange.ours_by_upstream[0])


@each(CASES)
def test_raw_layers_are_bit_exact(exchange: Exchange) -> None:
    case = exchange.case
    ends = (
        exchange.source[:, : case.skip],
        exchange.source[:, case.layers - case.skip :],
    )
    for payload in (exchange.our_payload, exchange.upstream_payload):
        for layers, stored in zip(ends, raw_bytes(payload, case), strict=True):
            expected = layers.contiguous().view(torch.uint8).flatten()
            assert np.array_equal(stored, expected.numpy())
    restored = exchange.ours_by_upstream, decode(case, exchange.upstream_payload)
    for tensor in restored:
        assert torch.equal(tensor[:, : case.skip], ends[0])
        assert torch.equal(tensor[:, case.layers - case.skip :], ends[1])


@each(CASES)
def test_sizes_agree_and_our_padding_is_zero(exchange: Exchange) -> None:
    assert exchange.our_payload.shape == exchange.upstream_payload.shape
    assert not read_slots(exchange.our_payload, exchange.case).padding.any()


@each(FLOAT8_CASES)
def test_float8_keys_are_the_same_bytes(exchange: Exchange) -> None:
    ours = read_slots(exchange.our_payload, exchange.case)
    upstream = read_slots(exchange.upstream_payload, exchange.case)
    assert np.array_equal(ours.key_codes, upstream.key_codes)


@each(CASES)
def test_row_parameters_are_within_one_ulp(exchange: Exchange) -> None:
    ours = read_slots(exchange.our_payload, exchange.case)
    upstream = read_slots(exchange.upstream_payload, exchange.case)
    assert ulps_apart(ours.value_scales, upstream.value_scales) <= 1
    assert ulps_apart(ours.value_zeros, upstream.value_zeros) <= 1
    if ours.key_norms is not None and upstream.key_norms is not None:
        assert ulps_apart(ours.key_norms, upstream.key_norms) <= 1


@each(CASES)
def test_levels_are_nearest_to_their_values(exchange: Exchange) -> None:
    bits = exchange.case.config.value_quant_bits
    ours = read_slots(exchange.our_payload, exchange.case).value_levels
    upstream = read_slots(exchange.upstream_payload, exchange.case).value_levels
    _, values = heads(exchange.source, exchange.case).numpy()
    positions = value_positions(values, bits)
    slack = stored_position_slack(values, bits)
    assert np.all(np.abs(upstream - positions) <= 0.5 + POSITION_SLACK)
    assert np.all(np.abs(ours - positions) <= 0.5 + slack)
    ordinary = slice(SPECIAL_TOKENS, None)
    differ = (ours != upstream)[:, ordinary]
    expected = 2 * slack[:, ordinary].mean() * differ.size
    assert differ.sum() <= poisson.ppf(1 - FALSE_ALARM, expected)


@each(LOW_BIT_CASES)
def test_indices_differ_only_next_to_a_boundary(exchange: Exchange) -> None:
    case = exchange.case
    ours = read_slots(exchange.our_payload, case).key_codes
    upstream = read_slots(exchange.upstream_payload, case).key_codes
    assert steps_apart(ours, upstream) <= 1
    keys, _ = heads(exchange.source, case).numpy()
    coordinates = np.stack(
        [
            rotated_units(rows, layer)
            for rows, layer in zip(keys, case.compressed_layers, strict=True)
        ]
    )
    differ = ours != upstream
    crossed = np.minimum(ours, upstream)[differ]
    nearest = np.sort([bounds[crossed] for bounds in boundaries(exchange)], axis=0)
    slack = np.broadcast_to(coordinate_slack(keys), keys.shape)[differ]
    assert np.all(coordinates[differ] >= nearest[0] - slack)
    assert np.all(coordinates[differ] <= nearest[1] + slack)


@pytest.mark.parametrize("bits", [3, 4])
def test_few_indices_differ(bits: int, exchanges: dict[str, Exchange]) -> None:
    differing = 0
    expected = 0.0
    for case in LOW_BIT_CASES:
        if case.config.key_quant_bits == bits:
            exchange = exchanges[case.name]
            ours = read_slots(exchange.our_payload, case).key_codes
            upstream = read_slots(exchange.upstream_payload, case).key_codes
            differ = (ours != upstream)[:, SPECIAL_TOKENS:]
            differing += int(differ.sum())
            deviations = case.head_dim**0.5 * boundaries(exchange)
            expected += differ.size * disagreement_rate(*deviations)
    assert differing <= poisson.ppf(1 - FALSE_ALARM, expected)


@each(LOW_BIT_CASES)
def test_upstreams_codebook_is_off_by_its_known_error(exchange: Exchange) -> None:
    error = table_error(exchange)
    assert 0.9 * UPSTREAM_TABLE_ERROR <= error <= UPSTREAM_TABLE_ERROR


@each(LOW_BIT_CASES)
def test_bound_sees_one_wrong_index_bit(exchange: Exchange) -> None:
    wrong = exchange.our_payload.clone()
    slot_bytes(wrong, exchange.case)[..., 0] ^= 1
    restored = decode(exchange.case, wrong)
    seen = key_misses(exchange, restored, exchange.ours_by_upstream)
    assert seen[heads(exchange.source, exchange.case)[0].any(dim=-1)].min() > 1


@each(DEEP_CASES)
def test_bound_sees_the_neighbours_signs(exchange: Exchange) -> None:
    wrong = exchange.our_payload.clone()
    slots = slot_bytes(wrong, exchange.case)
    slots[...] = slots[::-1].copy()
    restored = decode(exchange.case, wrong)
    first, last = (
        exchange.case.compressed_layers[0],
        exchange.case.compressed_layers[-1],
    )
    restored[:, first : last + 1] = restored[:, first : last + 1].flip(1)
    seen = key_misses(exchange, restored, exchange.ours_by_upstream)
    assert seen[heads(exchange.source, exchange.case)[0].any(dim=-1)].min() > 1


@each(CASES)
def test_bound_sees_one_wrong_level_bit(exchange: Exchange) -> None:
    case = exchange.case
    wrong = exchange.our_payload.clone()
    slot_bytes(wrong, case)[..., case.config.key_packed_size] ^= 1
    restored = decode(case, wrong)
    seen = value_misses(exchange, restored, exchange.ours_by_upstream)[..., 0]
    scaled = read_slots(exchange.our_payload, case).value_scales > 0
    assert seen[torch.from_numpy(scaled)].min() > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_key_bound_is_tight(dtype: torch.dtype, exchanges: dict[str, Exchange]) -> None:
    worst = 0.0
    for case in LOW_BIT_CASES:
        if case.dtype == dtype:
            exchange = exchanges[case.name]
            ours = decode(case, exchange.our_payload)
            seen = key_misses(exchange, ours, exchange.ours_by_upstream)
            worst = max(worst, seen.max().item())
    assert worst >= 1 / 6
