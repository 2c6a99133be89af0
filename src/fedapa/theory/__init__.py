"""The convergence analysis as something one can run: measured constants, measured changes, bounds (docs/theory.md)."""

from fedapa.theory.bound import Constants, Steps, corrected, printed
from fedapa.theory.measure import Measured, measure
from fedapa.theory.problem import PROBLEMS, Problem

__all__ = ["PROBLEMS", "Constants", "Measured", "Problem", "Steps", "corrected", "measure", "printed"]
