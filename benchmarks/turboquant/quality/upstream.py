# SPDX-License-Identifier: Apache-2.0
"""LMCache 0.5.6's own encoder on a sample of the same KV.

Without a GPU its kernels run in Triton's interpreter, a thousand times slower than
they should, so a sample it is: enough to show that the presets' plain encoder, whose
bytes the whole comparison measures, makes the same bytes.
"""

# Standard
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality.schemes import (
    EFFORTS,
    has_effort,
)
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.presets import PRESETS
from quality import relative_error
from tests.v1.distributed.serde.turboquant.interchange.cases import Case
from tests.v1.distributed.serde.turboquant.interchange.exchange import (
    Exchange,
    decode,
    exchange_all,
)
from tests.v1.distributed.serde.turboquant.interchange.pristine import pristine_folder


@dataclass(frozen=True)
class Agreement:
    """How far both encoders agree on a sample.

    Attributes:
        preset: The preset.
        condition: What was added to the keys.
        rows: Head vectors in the sample.
        equal_bytes: Share of payload bytes that are equal.
        our_key_error: Relative error of keys encoded and decoded by us.
        their_key_error: The same by LMCache 0.5.6.
        our_value_error: Of values.
        their_value_error: Of values.
    """

    preset: str
    condition: str
    rows: int
    equal_bytes: float
    our_key_error: float
    their_key_error: float
    our_value_error: float
    their_value_error: float


@dataclass(frozen=True, kw_only=True)
class _Sample(Case):
    """Real KV as a case of the interchange."""

    condition: str
    kv: torch.Tensor

    @property
    def name(self) -> str:
        return f"{self.preset}-{self.condition}"

    @property
    def config(self) -> TurboQuantSerdeConfig:
        """Our configuration that takes upstream's choices."""
        effort = {"effort": EFFORTS[0]} if has_effort() else {}
        settings = {**self.settings, **effort}
        return TurboQuantSerdeConfig(**settings)  # type: ignore[arg-type]

    def source(self) -> torch.Tensor:
        return self.kv


def compare(
    samples: Sequence[tuple[str, torch.Tensor]], head_dim: int
) -> list[Agreement]:
    """Encode samples on both sides with every preset that LMCache 0.5.6 has.

    Args:
        samples: Name of the condition and KV, ``[2, layers, tokens, hidden]``.
        head_dim: Width of one head, a power of two.

    Returns:
        One agreement for each preset and sample.

    Raises:
        RuntimeError: If LMCache's process fails.
    """
    cases = [
        _sample(preset, condition, kv, head_dim)
        for condition, kv in samples
        for preset in PRESETS
    ]
    with TemporaryDirectory() as folder:
        exchanges = exchange_all(cases, pristine_folder(), Path(folder))
    return [_agreement(case, exchanges[case.name]) for case in cases]


def _sample(preset: str, condition: str, kv: torch.Tensor, head_dim: int) -> _Sample:
    _, layers, tokens, hidden = kv.shape
    return _Sample(
        preset=preset,
        head_dim=head_dim,
        dtype=kv.dtype,
        layers=layers,
        tokens=tokens,
        heads=hidden // head_dim,
        block_size=tokens,
        skip=0,
        condition=condition,
        # Each case owns its memory, as the file that is exchanged wants it.
        kv=kv.clone(memory_format=torch.contiguous_format),
    )


def _agreement(case: _Sample, exchange: Exchange) -> Agreement:
    """Compare the payloads and what each side restores of its own."""
    ours = decode(case, exchange.our_payload)
    theirs = exchange.upstream_by_upstream
    equal = exchange.our_payload == exchange.upstream_payload
    return Agreement(
        preset=case.preset,
        condition=case.condition,
        rows=case.layers * case.tokens * case.heads,
        equal_bytes=float(equal.double().mean()),
        our_key_error=relative_error(case.kv[0], ours[0]),
        their_key_error=relative_error(case.kv[0], theirs[0]),
        our_value_error=relative_error(case.kv[1], ours[1]),
        their_value_error=relative_error(case.kv[1], theirs[1]),
    )
