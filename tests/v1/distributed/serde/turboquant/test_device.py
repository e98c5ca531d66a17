# SPDX-License-Identifier: Apache-2.0
"""Which device an operation runs on, on hosts with and without an accelerator."""

# Standard
from types import SimpleNamespace

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant import device as device_module
from lmcache.v1.distributed.serde.turboquant.device import DeviceChoice, parse_device

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
    assert parse_device("cuda_device", name) == device


@pytest.mark.usefixtures("host_with_two_gpus")
@pytest.mark.parametrize("name", ["2", "cuda:7"])
def test_an_index_beyond_the_host_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not one of .*: 2 of type cuda"):
        parse_device("cuda_device", name)


@pytest.mark.usefixtures("host_with_two_gpus")
@pytest.mark.parametrize("name", ["xpu:0", "foo", "cpu"])
def test_another_kind_of_device_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not available"):
        parse_device("cuda_device", name)


@pytest.mark.usefixtures("host_without_gpu")
@pytest.mark.parametrize("name", ["0", "cuda", "cuda:0"])
def test_a_host_without_accelerator_refuses_one(name: str) -> None:
    with pytest.raises(ValueError, match="not available, .*: none"):
        parse_device("cuda_device", name)


def choice(**settings: object) -> DeviceChoice:
    """The choice of a configuration."""
    return DeviceChoice(TurboQuantSerdeConfig(**settings))  # type: ignore[arg-type]


@pytest.fixture
def second_is_idle(
    host_with_two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Make the second GPU the least used; return what is asked for."""
    asked: list[int] = []

    def least_used(num_bytes: int, held: torch.device | None = None) -> torch.device:
        asked.append(num_bytes)
        return torch.device("cuda:1")

    monkeypatch.setattr(device_module, "least_used", least_used)
    monkeypatch.setattr(device_module, "has_kernels", lambda: True)
    return asked


@pytest.mark.usefixtures("host_with_two_gpus")
@pytest.mark.parametrize(
    "settings", [{}, {"device": "cuda"}, {"device": "cuda:1"}, {"cuda_device": "1"}]
)
def test_the_accelerator_that_holds_a_tensor_works(settings: dict) -> None:
    gpu = torch.device("cuda:1")
    assert choice(**settings).working_device([on("cpu"), on("cuda:1")]) == gpu
    assert choice(**settings).holding_device([on("cuda:1"), on("cuda:1")]) == gpu


@pytest.mark.usefixtures("second_is_idle")
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"device": "cpu"}, "cpu"),
        ({"device": "cuda:0"}, "cuda:0"),
        ({"cuda_device": "0"}, "cuda:0"),
        ({"device": "cuda", "cuda_device": "0"}, "cuda:0"),
        ({"device": "cuda:0", "cuda_device": "0"}, "cuda:0"),
        ({"device": "cuda"}, "cuda:1"),
        ({}, "cuda:1"),
    ],
)
def test_host_tensors_go_where_the_settings_say(settings: dict, name: str) -> None:
    device = choice(**settings).working_device([on("cpu"), on("cpu")])
    assert device == torch.device(name)
    assert choice(**settings).holding_device([on("cpu")]) is None


def test_the_staging_memory_is_what_a_device_must_have(
    second_is_idle: list[int],
) -> None:
    choice(staging_mib=3).working_device([on("cpu")])
    assert second_is_idle == [3 << 20]


def test_auto_stays_on_the_host_without_kernels(
    second_is_idle: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "has_kernels", lambda: False)
    assert choice().working_device([on("cpu")]) == CPU
    assert not second_is_idle


@pytest.mark.usefixtures("host_with_two_gpus")
def test_tensors_on_two_accelerators_are_refused() -> None:
    with pytest.raises(ValueError, match="one accelerator .* got cuda:0, cuda:1"):
        choice().working_device([on("cuda:1"), on("cuda:0")])


@pytest.mark.usefixtures("host_with_two_gpus")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"device": "cuda:1"}, "cuda:1"), ({"device": "cpu"}, "cpu")],
)
def test_a_tensor_off_the_configured_device_is_refused(
    settings: dict, expected: str
) -> None:
    with pytest.raises(ValueError, match=f"for {expected}, got a tensor on cuda:0"):
        choice(**settings).working_device([on("cuda:0"), on("cpu")])


@pytest.mark.usefixtures("host_with_two_gpus")
@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_settings_that_disagree_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match=f"is '{device}', but cuda_device is '0'"):
        choice(device=device, cuda_device="0")


@pytest.mark.usefixtures("host_without_gpu")
def test_the_setting_of_a_missing_device_is_named() -> None:
    with pytest.raises(ValueError, match="TurboQuant device 'cuda' is not available"):
        choice(device="cuda")
