# SPDX-License-Identifier: Apache-2.0
"""Every check, what it is done on, and mutants that it rejects."""

# Standard
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

# First Party
from tests.v1.distributed.serde.turboquant.paper import (
    distortion,
    inputs,
    products,
    residual_signs,
    retrieval,
    sizes,
)
from tests.v1.distributed.serde.turboquant.paper.mutants import (
    KEY_MUTANTS,
    PRODUCT_MUTANTS,
    SIZE_MUTANTS,
    TABLE_MUTANTS,
)
from tests.v1.distributed.serde.turboquant.paper.product_codec import PRODUCT
from tests.v1.distributed.serde.turboquant.paper.result import Result
from tests.v1.distributed.serde.turboquant.paper.subjects import (
    CPU_KERNELS,
    REFERENCE,
    TABLES,
)

Subject = TypeVar("Subject")


@dataclass(frozen=True, eq=False)
class Check(Generic[Subject]):
    """A claim, what has to meet it, and what must not.

    Attributes:
        run: Measures a subject.
        subjects: What the claim holds for, by name.
        mutants: What it must not hold for, by name: some of those that the check
            finds, so that the tests stay short.
    """

    run: Callable[[Subject], list[Result]]
    subjects: Mapping[str, Subject]
    mutants: Mapping[str, Subject]

    @property
    def name(self) -> str:
        """Name of the function that measures."""
        return self.run.__name__


def _of_keys(run: Callable, *mutants: str) -> Check:
    """A check of the codecs of keys."""
    subjects = {"reference": REFERENCE, "CPU kernels": CPU_KERNELS}
    return Check(run, subjects, {name: KEY_MUTANTS[name] for name in mutants})


def _of_products(run: Callable, *mutants: str) -> Check:
    """A check of Algorithm 2."""
    return Check(
        run,
        {"Algorithm 2": PRODUCT},
        {name: PRODUCT_MUTANTS[name] for name in mutants},
    )


CHECKS: tuple[Check, ...] = (
    Check(distortion.table_distortion, {"tables": TABLES}, TABLE_MUTANTS),
    _of_keys(
        distortion.exact_distortion,
        "signs of layer 0",
        "halved",
        "times sqrt 2",
        "zeros",
        "swapped nibbles",
        "next index",
        "narrow table",
        "uniform table",
        "all-knowing",
    ),
    _of_keys(
        distortion.distortion_bounds, "halved", "zeros", "next index", "all-knowing"
    ),
    _of_keys(
        distortion.corrected_distortion, "halved", "norm not corrected", "narrow table"
    ),
    _of_keys(
        distortion.norms_kept,
        "halved",
        "times sqrt 2",
        "norm lost",
        "norm not corrected",
    ),
    _of_keys(
        products.conditional_products,
        "no rotation",
        "no random signs",
        "signs of layer 0",
        "halved",
        "times sqrt 2",
        "zeros",
        "swapped nibbles",
        "next index",
        "norm not corrected",
        "narrow table",
        "uniform table",
        "all-knowing",
    ),
    _of_keys(products.one_bit_bias, "halved", "zeros", "norm not corrected"),
    _of_products(
        residual_signs.conditional_unbiasedness,
        "QJL dropped",
        "QJL negated",
        "QJL over pi / 2",
    ),
    _of_products(residual_signs.product_distortion, *PRODUCT_MUTANTS),
    _of_products(residual_signs.product_penalty, *PRODUCT_MUTANTS),
    _of_keys(retrieval.recall_at_8, "zeros", "swapped nibbles", "narrow table"),
    _of_keys(
        retrieval.rank_correlation,
        "zeros",
        "swapped nibbles",
        "next index",
        "narrow table",
        "uniform table",
    ),
    _of_keys(retrieval.needle, "zeros", "swapped nibbles", "next index"),
    _of_keys(
        inputs.sparse_keys, "no rotation", "signs of layer 0", "halved", "uniform table"
    ),
    _of_keys(inputs.outlier_channels, "no rotation", "times sqrt 2", "narrow table"),
    _of_keys(inputs.constant_keys, "no rotation", "no random signs", "halved"),
    Check(sizes.compression_ratio, {"serde": sizes.stored_bytes}, SIZE_MUTANTS),
)
