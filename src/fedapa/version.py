"""The numerics version, beside the version of the package; imports nothing."""

# Raised by one whenever a change alters the numbers of a run, in the last digit or more. What every raise changed:
# docs/decisions/0009-numerics-version.md. Runs of different versions are neither resumed nor paired. A change that
# alters the numbers of some methods alone raises their ``revision`` instead.
NUMERICS = 2
