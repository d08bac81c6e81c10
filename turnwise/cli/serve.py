"""`turnwise serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.util.errors import need_training
from turnwise.util.terminal import say


def serve(
    source: Annotated[str, typer.Argument(metavar="RUN", help="A run, or a model folder.")],
    host: Annotated[str, typer.Option(help="The address to listen on. Others than 127.0.0.1 can be reached from outside.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 selects a free one.")] = 8000,
    key: Annotated[
        str | None, typer.Option(help="The key that clients have to send. Default: TURNWISE_API_KEY, or a new one, which is printed.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model's name for clients. Default: the folder's.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The most tokens of a response. Default: the run's recipe, or 1024.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="If a client asks for none. Default: that of the run's evaluations, or 1.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    max_batch: Annotated[int, typer.Option(min=1, help="How many responses are generated at once.")] = 64,
) -> None:
    """Serve a trained model in the form of OpenAI's API."""
    need_training("turnwise serve")
    from turnwise.setup.serving import run_server, serve_model

    endpoint, opened = serve_model(
        source,
        host=host,
        port=port,
        key=key,
        name=name,
        max_tokens=max_tokens,
        temperature=temperature,
        device=device,
        max_batch=max_batch,
        say=lambda text: say(text, err=True),
    )
    run_server(endpoint, opened, source, say)
