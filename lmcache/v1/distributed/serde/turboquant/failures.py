# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a payload, and what an operator does about it."""

# Third Party
import torch


class PayloadError(ValueError):
    """Bytes that are not the payload that was asked for.

    Attributes:
        reason: Label of the failure in metrics and logs.
        advice: What to do about it.
    """

    reason: str
    advice: str


class UnframedPayloadError(PayloadError):
    """The bytes carry no frame of ours, or one of another version."""

    reason = "not_framed"
    advice = (
        "something else wrote it, or the storage lost it: give every serde a "
        "base_path, bucket or Redis of its own"
    )


class ChangedSettingsError(PayloadError):
    """The payload was written with other settings, or from other tensors."""

    reason = "changed_settings"
    advice = (
        "what other settings wrote stays until it is deleted or evicted: give new "
        "settings a base_path, bucket or Redis of their own, or set the old ones"
    )


class WrongKeyError(PayloadError):
    """The payload is that of another object."""

    reason = "wrong_key"
    advice = "check the storage: it returned another object's bytes"


class CorruptPayloadError(PayloadError):
    """Bytes have changed since they were written."""

    reason = "corrupt"
    advice = (
        "check the storage: bytes changed after they were written; 'lmcache tool "
        "turboquant verify DIRECTORY' lists such files, which may be deleted"
    )


class TruncatedPayloadError(PayloadError):
    """Bytes are missing at the end."""

    reason = "truncated"
    advice = CorruptPayloadError.advice


MISFIT_ADVICE = "compare head_dim, kv_layout and groups of the serde with the model's"
MEMORY_ADVICE = "lower the serde's max_workers, or free memory on that device"
DEFECT_ADVICE = "please report it, with the traceback that LMCache logs"


def reason_and_advice(error: Exception) -> tuple[str, str]:
    """Classify what an operation of the serde raised.

    Args:
        error: The exception.

    Returns:
        A label, of which there are few, and what an operator does about it.
    """
    if isinstance(error, PayloadError):
        return error.reason, error.advice
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return "out_of_memory", MEMORY_ADVICE
    if isinstance(error, ValueError):
        return "misfit", MISFIT_ADVICE
    return "defect", DEFECT_ADVICE
