"""Test kit for implementers of the contracts: suites that a part must pass, and small real parts to test with."""
