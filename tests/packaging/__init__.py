# SPDX-License-Identifier: Apache-2.0
"""Tests of the patch set, of the fork's wheel and of the pull request."""
