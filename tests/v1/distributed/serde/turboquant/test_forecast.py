# SPDX-License-Identifier: Apache-2.0
"""What the serde says of itself when it is made."""

# Standard
import logging

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde import SerdeConfig, create_serde_processor
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantSerdeConfig,
    create_turboquant_serde,
)
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.distributed.serde.turboquant.forecast import forecast
from tests.v1.distributed.serde.turboquant.helpers import PRESET_NAMES


def default_forecast(**settings: object) -> str:
    """What the serde says of settings."""
    return forecast(TurboQuantSerdeConfig.from_kwargs({"framed": True} | settings))


def test_the_forecast_names_ratio_and_skips() -> None:
    assert default_forecast() == (
        "turboquant_k8v4, head_dim 128 unless LMCache declares another, kv_layout "
        "auto; float16 and bfloat16 KV shrink 2.61 times but for the first 2 and last "
        "2 layers of an object, which stay raw: 2.17 times with 32 layers; stored with "
        "header and checksum"
    )
    assert default_forecast(kv_layout="opaque", framed=False) == (
        "opaque, stored bit for bit, ratio 1.00; stored without a frame"
    )
    latent = {"kv_layout": "latent", "head_dim": 512, "value_head_dim": 64}
    groups = default_forecast(groups=[latent, {"kv_layout": "opaque"}])
    assert groups.startswith("tensor 0: turboquant_k8v4, head_dim 512, kv_layout lat")
    assert groups.endswith(
        ". tensor 1: opaque, stored bit for bit, ratio 1.00. "
        "Stored with header and checksum"
    )


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_forecast_is_what_objects_take(preset: str, head_dim: int) -> None:
    tensor = MemoryLayoutDesc([torch.Size([2, 32, 256, 8 * head_dim])], [torch.half])
    for skipped in (0, 2):
        config = TurboQuantSerdeConfig(
            preset=preset,
            head_dim=head_dim,
            skip_first_layers=skipped,
            skip_last_layers=skipped,
        )
        raw_bytes = tensor.shapes[0].numel() * torch.half.itemsize
        ratio = raw_bytes / container_of(tensor, config).total_bytes
        assert f" {ratio:.2f} times" in forecast(config)


def test_the_serde_says_once_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(create_turboquant_serde.__module__)
    settings: dict[str, object] = {"preset": "turboquant_4bit_nc"}
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, logger.name):
        create_serde_processor(SerdeConfig("turboquant", settings)).close()
    logger.removeHandler(caplog.handler)
    lines = {record.getMessage() for record in caplog.records}
    assert lines == {f"TurboQuant serde: {default_forecast(**settings)}"}
