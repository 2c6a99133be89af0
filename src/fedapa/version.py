"""The version of the numbers that runs give, beside that of the package. Needs nothing, so that anybody may ask."""

# Raised by one whenever a change alters the numbers of a run, in the last digit or more. What every raise changed:
# docs/decisions/0009-numerics-version.md. Runs of different versions are neither resumed nor paired.
NUMERICS = 2
