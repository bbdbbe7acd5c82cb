"""For those who write a part of their own: suites that it must pass, and small real parts to test with."""
