# SPDX-License-Identifier: Apache-2.0
"""Payloads exchanged with the codec of the pristine LMCache 0.5.6."""
