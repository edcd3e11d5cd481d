"""``tacit watch``: a local page that follows a run while it goes on."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Final

import typer

from tacit.cli import options
from tacit.cli.exit_messages import explained
from tacit.cli.screens.terminal import console, print_line

_LARGEST_PORT: Final = 65535


@explained
def watch_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run; it may not exist yet.")],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; by default only this machine can connect.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=_LARGEST_PORT,
            help="Port to listen on; 0: any free one.",
            show_default="the first free one from 8350",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Allow a --host that other machines can reach. There is no password.")
    ] = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Follow a run on a local page while it goes on.

    Shows loss, period, where the time of the workers goes, the slowest
    worker, the bytes saved, and the progress next to the plan if the run has
    one. Reads the files of the run and changes nothing. Of a run that has
    ended it shows the final state.

    tacit train writes its progress into its folder. In a script, give
    tacit.attach(…, progress_folder=FOLDER).

    [bold]Examples[/]

    \b
      tacit watch runs/real
      tacit watch runs/real --port 9000 --no-browser
    """
    from tacit.watch.server import WatchServer, check_host  # draws with the report's styles

    check_host(host, allows_remote=allow_remote)
    screen = console(quiet)
    with WatchServer(folder, host, port) as server:
        server.followed.read()
        print_line(screen, f"Watching {folder} at {server.address} (Ctrl-C ends).")
        if missing := server.followed.what_is_missing:
            print_line(screen, missing.replace("This page waits", "The page waits"))
        sys.stdout.flush()
        if browser and _has_screen():
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _has_screen() -> bool:
    """Whether a browser would open in a window; a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
