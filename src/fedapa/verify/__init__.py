"""The laws that every method obeys, as something anybody can run on a method of their own."""

from fedapa.verify.suite import LAWS, Finding, load_method, verify

__all__ = ["LAWS", "Finding", "load_method", "verify"]
