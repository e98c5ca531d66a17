# SPDX-License-Identifier: Apache-2.0
"""The claims of TurboQuant (arXiv 2504.19874) as checks that can fail."""
