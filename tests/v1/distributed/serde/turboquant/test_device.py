# SPDX-License-Identifier: Apache-2.0
"""Which device an operation runs on, on hosts with and without an accelerator."""

# Standard
from types import SimpleNamespace

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import device as device_module
from lmcache.v1.distributed.serde.turboquant.device import (
    parse_device,
    working_device,
)

CPU = torch.device("cpu")


def on(name: str) -> torch.Tensor:
    """Stand in for a tensor on a device that the host need not have."""
    tensor = SimpleNamespace(device=torch.device(name))
    return tensor  # type: ignore[return-value]


@pytest.fixture
def host_with_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the module see two devices of type ``cuda``, the second current."""
    accelerator = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, current_device=lambda: 1
    )
    monkeypatch.setattr(device_module, "torch_dev", accelerator)
    monkeypatch.setattr(device_module, "torch_device_type", "cuda")


@pytest.fixture
def host_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the module see no accelerator."""
    accelerator = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setattr(device_module, "torch_dev", accelerator)


@pytest.mark.usefixtures("host_with_two_gpus")
@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("", None),
        ("0", torch.device("cuda:0")),
        ("cuda:1", torch.device("cuda:1")),
        ("cuda", torch.device("cuda:1")),
    ],
)
def test_names_resolve(name: str, device: torch.device | None) -> None:
    assert parse_device(name) == device


@pytest.mark.usefixtures("host_with_two_gpus")
@pytest.mark.parametrize("name", ["2", "cuda:7"])
def test_an_index_beyond_the_host_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not one of .*: 2 of type cuda"):
        parse_device(name)


@pytest.mark.usefixtures("host_with_two_gpus")
@pytest.mark.parametrize("name", ["xpu:0", "foo", "cpu"])
def test_another_kind_of_device_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not available"):
        parse_device(name)


@pytest.mark.usefixtures("host_without_gpu")
@pytest.mark.parametrize("name", ["0", "cuda", "cuda:0"])
def test_a_host_without_accelerator_refuses_one(name: str) -> None:
    with pytest.raises(ValueError, match="not available, .*: none"):
        parse_device(name)


def test_the_accelerator_that_holds_a_tensor_works() -> None:
    gpu = torch.device("cuda:1")
    assert working_device(None, on("cpu"), on("cuda:1")) == gpu
    assert working_device(gpu, on("cuda:1"), on("cuda:1")) == gpu


def test_host_tensors_go_to_the_configured_device_or_stay() -> None:
    assert working_device(None, on("cpu"), on("cpu")) == CPU
    gpu = torch.device("cuda:0")
    assert working_device(gpu, on("cpu"), on("cpu")) == gpu


def test_tensors_on_two_accelerators_are_refused() -> None:
    with pytest.raises(ValueError, match="one accelerator .* got cuda:0, cuda:1"):
        working_device(None, on("cuda:1"), on("cuda:0"))


def test_a_tensor_off_the_configured_device_is_refused() -> None:
    with pytest.raises(ValueError, match="is cuda:1, got a tensor on cuda:0"):
        working_device(torch.device("cuda:1"), on("cuda:0"), on("cpu"))
