"""The two kinds of user-facing errors; everything else is a bug and may show a traceback."""

from collections.abc import Iterable


class FedapaError(Exception):
    """One line that says what is wrong and where, and a hint that says what to do next."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # where Python shows a traceback


class InputError(FedapaError, ValueError):
    """The user asked for something that cannot be done: a bad config, a bad file, a bad value."""

    exit_code = 2


class RunError(FedapaError, RuntimeError):
    """The request was valid but the run failed: a full disk, no network, divergence."""

    exit_code = 1


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that this one resembles most, if it resembles any."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), 1)), None)


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """A hint for a word that is not known; ``otherwise`` where it resembles none that is."""
    return f"did you mean {close}?" if (close := closest(word, known)) else otherwise
