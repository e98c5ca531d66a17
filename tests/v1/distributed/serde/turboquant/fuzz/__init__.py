# SPDX-License-Identifier: Apache-2.0
"""Changed payloads: what is changed, how, and what a decoder makes of it."""
