"""The command ``fedapa``: one small file per verb, loaded when it is called."""

from __future__ import annotations

import importlib
import os
import sys

import click

from fedapa.errors import FedapaError, closest

VERBS = {
    "demo": "See it work: Local, FedAvg and FedAPA on handwritten digits",
    "ls": "List methods, presets, datasets or models",
    "cp": "Copy a preset into a file of your own",
    "plan": "Check a config and say what it will cost",
    "run": "Run a config or preset",
    "sweep": "Run many runs over all cores, scenario by scenario",
    "tune": "Choose hyper-parameters on held-out train data",
    "resume": "Continue runs that were cut off",
    "compare": "Compare the runs of a folder",
    "watch": "Watch runs in the browser, or in the terminal",
    "report": "Make one HTML page about the runs of a folder",
    "submit": "Check runs and add them to a leaderboard",
    "data": "Fetch data sets and look at how they are split",
    "silo": "Simulate a federation of your own sites on one machine",
    "site": "What a site does: see what would leave it, take part",
    "predict": "Use a site's model on new rows",
    "export": "Take a client's model out of a run",
    "onboard": "Add a client to a finished federation",
    "coordinator": "Coordinate real sites: enrol them, run a config with them",
    "audit": "Verify and show the audit log of a coordinator or a site",
    "cite": "How to cite a method",
    "verify": "Check a method of your own against the laws",
    "theory": "Measure the convergence analysis on a small smooth problem",
    "bench": "Measure the engines against a plain loop",
    "new": "Start a method, a data set or a federation of your own",
    "completion": "Print the completion of a shell",
    "doctor": "Say what this installation can do",
}
INTERRUPTED = 3


class Lazy(click.Group):
    """Commands by name. The module of a command is imported when it is used, so that help needs no PyTorch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        found: click.Command = importlib.import_module(f"fedapa.cli.{name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            hint = f" Did you mean {close!r}?" if (close := closest(args[0], VERBS)) else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="fedapa")
def group() -> None:
    """Personalized federated learning: one model per client, compared with a shared one and with training alone.

    Start with `fedapa demo`. Exit codes: 0 ok, 1 the run failed, 2 bad input, 3 interrupted but resumable.
    """


def main() -> None:
    """Entry point: user mistakes become one line and a hint, never a traceback."""
    try:
        group(standalone_mode=False)
    except FedapaError as error:
        fail(error.message, error.hint, error.exit_code)
    except click.ClickException as error:
        explain(error)
    except (KeyboardInterrupt, click.Abort):
        fail("interrupted", "", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain(error: click.ClickException) -> None:
    """A mistake on the command line; without arguments, the help text is shown."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        sys.exit(2)
    context = getattr(error, "ctx", None)
    fail(error.format_message(), f"see {context.command_path if context else 'fedapa'} --help", 2)


def fail(message: str, hint: str, code: int) -> None:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    sys.exit(code)
