# SPDX-License-Identifier: Apache-2.0
"""Backends that write and read the bytes that ``reference`` specifies."""
