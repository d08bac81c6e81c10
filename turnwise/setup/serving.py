"""A trained model behind the endpoint: what `turnwise serve` does."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from turnwise.agent.chat import Chat
from turnwise.engines.base import Engine, Sampling
from turnwise.engines.batch_forward import check_batches
from turnwise.engines.native import NativeEngine, supports
from turnwise.engines.serve import Endpoint, Limits, Opened
from turnwise.engines.transformers import TransformersEngine
from turnwise.learn.models import check_family, choose_device, load_folder, use_threads, warn_of_slow_dtype
from turnwise.recipe.schema import Config
from turnwise.runs.folder import CONFIG, Run
from turnwise.setup.evaluated import model_of
from turnwise.util.errors import TurnwiseError

KEY_VARIABLE = "TURNWISE_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_TOKENS = 1024  # per response, of a model folder
AT_ONCE = 256  # calls that may run at the same time
LOOK_SECONDS = 0.5


def serve_model(
    source: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    name: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    device: str = "auto",
    max_batch: int = 64,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Endpoint, Opened]:
    """Serve a run's trained model, or a model folder. `key` is what clients send; by default that of the environment, or a new one.
    `max_tokens` and `temperature` are what a client gets that does not ask for others; a run's are those of its recipe."""
    secret = _key(key)
    folder, config = _folder(Path(source))
    check_family(folder)
    model, tokenizer = load_folder(folder)
    if supports(model) is not None:
        check_batches(model)
    kind = choose_device(device)
    dtype = "bfloat16" if kind == "cuda" else "float32"
    warn_of_slow_dtype(dtype, kind)
    model = model.to(kind, getattr(torch, dtype))
    use_threads(model)
    chat = Chat(tokenizer, template_options=None if config is None else config.agent.template_options)
    warmth = (1.0 if config is None else config.eval.temperature) if temperature is None else temperature
    most = (MAX_TOKENS if config is None else config.engine.max_tokens) if max_tokens is None else max_tokens
    sampling = Sampling(temperature=warmth, max_tokens=most)
    shown = name or Path(source).resolve().name or "turnwise"
    engine = _engine(model, tokenizer, chat, max_batch, say)
    endpoint = Endpoint(engine, chat, sampling, Limits(at_once=AT_ONCE), host, port, honour=True, model=shown)
    return endpoint, endpoint.open_alone(secret)


def run_server(endpoint: Endpoint, opened: Opened, source: str, say: Callable[[str], None]) -> None:
    """Say where the model is served, and wait for Ctrl-C."""
    say(f"{source} at {opened.base_url}   (Ctrl-C ends)")
    say(f"export OPENAI_BASE_URL={opened.base_url} OPENAI_API_KEY={opened.key}")
    if endpoint.host not in LOOPBACK:
        say(f"It listens on {endpoint.host}, so other machines can reach it: the key is all that protects it, and it is sent unencrypted.")
    try:
        wait(endpoint)
    except KeyboardInterrupt:
        pass
    finally:
        endpoint.shutdown()
        endpoint.driver.engine.close()


def wait(endpoint: Endpoint) -> None:
    """Until the engine fails, or somebody interrupts."""
    while True:
        endpoint.check()
        time.sleep(LOOK_SECONDS)


def _key(key: str | None) -> str:
    secret = key if key is not None else os.environ.get(KEY_VARIABLE)
    if secret is None:
        return f"tw-{secrets.token_urlsafe(24)}"
    if not secret.strip() or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise TurnwiseError("the key must be one word of plain letters, digits and signs; leave it out for a new one")
    return secret


def _folder(path: Path) -> tuple[Path, Config | None]:
    """The model's folder, and the recipe if it is a run's."""
    if (path / CONFIG).is_file():
        run = Run.open(path)
        config = Config.load(run.folder / CONFIG)
        if not config.engine.declared.in_process:
            raise TurnwiseError(f"{path} used a model on a server, and has none of its own to serve")
        return model_of(run, config), config
    if not (path / "config.json").is_file():
        raise TurnwiseError(f"{path} is neither a run (no {CONFIG}) nor a model folder (no config.json)")
    return path, None


def _engine(model: Any, tokenizer: Any, chat: Chat, max_batch: int, say: Callable[[str], None]) -> Engine:
    """The native engine, or the one of transformers for a model that it does not know."""
    kind: Callable[..., Engine] = NativeEngine
    if (reason := supports(model)) is not None:
        say(f"the native engine does not take this model ({reason}): the transformers engine serves it")
        kind = TransformersEngine
    return kind(model, tokenizer, max_batch, stop_token_ids=chat.stop_ids)
