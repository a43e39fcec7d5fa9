"""Command `sweep dashboard`: serves the sweeps of a storage to browsers. It imports neither torch nor Ax."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from sweeps.cli.options import Sweep, sweep_option
from sweeps.cli.output import echo
from sweeps.cli.prices import price_options
from sweeps.operations.opening import exists, is_named, storage_url
from sweeps.storage.urls import open_store

if TYPE_CHECKING:
    from analysis.summaries.costs import Rate
    from sweeps.dashboard.site import Site


@click.command()
@sweep_option
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--control", is_flag=True, help="Let the page pause, resume, stop, retry, abandon, confirm and scale."
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further name under which browsers may ask for it, such as a proxy's. Repeat it for more.",
)
@click.option("--token", "with_token", is_flag=True, help="Ask for a token on 127.0.0.1, too.")
@price_options
def dashboard(
    sweep: Sweep,
    host: str,
    port: int,
    control: bool,
    hosts: tuple[str, ...],
    with_token: bool,
    rate: Rate | None,
) -> None:
    """Serve live pages about the sweeps under a storage, until Ctrl-C.

    Without --name, and unless --storage is one sweep's URL, all sweeps of the storage. The pages only read,
    unless --control is given. On any address but this machine's own, the printed address holds a token that
    browsers need.
    """
    from sweeps.dashboard.catalog import Catalog
    from sweeps.dashboard.security import guard_for
    from sweeps.dashboard.site import Site

    url, only = storage_url(sweep.storage), False
    if is_named(sweep.storage, sweep.name) or exists(open_store(url)):
        url, only = sweep.open().store.url, True
    site = Site(
        catalog=Catalog(url, only=only),
        guard=guard_for(host, hosts, with_token=with_token),
        rate=rate,
        control=control,
    )
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(site, host, port))


async def _serve(site: Site, host: str, port: int) -> None:
    from sweeps.dashboard.server import serve

    ended = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, ended.set)
    async with serve(site, host, port) as at:
        shown = f"[{host}]" if ":" in host else host
        token = "" if site.guard.token is None else f"?token={site.guard.token}"
        # Not through `echo`, which would star the token: it is printed here once, and nowhere else.
        click.echo(f"http://{shown}:{at}/{token}")
        echo(f"sweep: {site.catalog.url}; Ctrl-C ends it", err=True)
        reading = asyncio.create_task(site.catalog.begin())  # while a browser opens
        await ended.wait()
        reading.cancel()
