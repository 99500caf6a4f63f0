# SPDX-License-Identifier: LGPL-2.1-or-later
#
# packages.mk - make check-packages: Debian packages, installed into a fresh Debian and removed

.PHONY: check-packages
check-packages: deb
	@$(RUN_ENV) tests/run 'tests/packages/fresh_debian.py:1500'
