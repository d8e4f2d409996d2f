"""`turnwise serve` serves a model by the APIs of others; `turnwise view` shows runs."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import secrets
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import say, working
from turnwise.cli.run_paths import find_source, not_a_run
from turnwise.cli.settings import Overrides, open_settings
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError, import_extra
from turnwise.runs.run_folder import run_containing
from turnwise.user_code import settings_from

if TYPE_CHECKING:
    from turnwise.agents.requests import ServedRequest


def serve(
    ctx: typer.Context,
    model: opt.ModelArgument,
    backend: opt.BackendOption = opt.BackendName.local,
    checkpoint: opt.CheckpointOption = "last",
    host: opt.HostOption = "127.0.0.1",
    port: opt.PortOption = 8000,
    api_key: Annotated[
        str | None,
        opt.option(
            "Key that clients must send.", "SECRET", default="a new one", envvar="TURNWISE_API_KEY"
        ),
    ] = None,
    no_api_key: Annotated[bool, opt.flag("--no-api-key", "Serve all that reach the port.")] = False,
    name: Annotated[
        str | None, opt.option("Model name that clients send.", default="the folder's name")
    ] = None,
    parser: opt.ParserOption = None,
    template: opt.TemplateOption = None,
    tokenizer: opt.TokenizerOption = None,
    max_conversations: Annotated[
        int, opt.option("Conversations kept in memory; the oldest are dropped.", min=1)
    ] = 128,
    dtype: opt.DtypeOption = "auto",
    device: opt.DeviceOption = "auto",
    trust_remote_code: opt.TrustRemoteCode = False,
) -> None:
    """Serve a model by the APIs of OpenAI (chat completions, responses), Anthropic and Google.

    A conversation that a request continues keeps its exact tokens and its KV cache. The model of a
    run is served with the run's parser of tool calls, and sampled with its temperature unless a
    request has its own. Replies differ from call to call unless a request has a seed. Ctrl-C ends
    the server.

    [bold]Examples[/bold]

    turnwise serve runs/mine
    turnwise serve runs/mine --checkpoint best --port 8001
    turnwise serve smollm2-135m --port 0
    turnwise serve http://localhost:30000 --backend sglang --tokenizer models/mine --name mine
    TURNWISE_API_KEY=secret turnwise serve models/mine --host 0.0.0.0 --backend vllm
    """
    key = _key(host, api_key, no_api_key)
    from turnwise.agents.gateway import Gateway

    name = name or Path(model).expanduser().absolute().name
    gateway = Gateway(name, host, port, on_request=_log)
    with contextlib.ExitStack() as closing:
        closing.callback(gateway.stop)
        gateway.listen()  # before the model is loaded: a port may be in use
        with working(f"loading {model}"):
            from turnwise.cli.agents import open_chat_model

            options = opt.ModelOptions.typed(ctx)
            overrides = Overrides(parser=parser)
            opened = open_chat_model(
                options, closing, overrides, max_conversations, has_tools=False
            )
        gateway.start()
        llm = gateway.open_at_root(opened.session, key)
        url = llm.base_url
        for everywhere in ("//0.0.0.0:", "//[::]:"):
            url = url.replace(everywhere, f"//{socket.gethostname()}:")
        shown = "..." if api_key is not None else llm.api_key
        body = {"model": llm.model, "messages": [{"role": "user", "content": "Hello"}]}
        which = "" if opened.step is None else f" after step {opened.step:,}"
        say(
            f"{model}{which} is served as {llm.model} at {url} (Ctrl-C ends it)\n\n"
            f"  export OPENAI_BASE_URL={url} OPENAI_API_KEY={shown}\n"
            f"  export ANTHROPIC_BASE_URL={url.removesuffix('/v1')} ANTHROPIC_API_KEY={shown}\n\n"
            '  curl $OPENAI_BASE_URL/chat/completions -H "Authorization: Bearer $OPENAI_API_KEY" '
            f"\\\n    -H 'Content-Type: application/json' -d '{json.dumps(body)}'\n"
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as by Ctrl-C
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        say("stopping", err=True)
        asyncio.run(gateway.close(llm))


def serve_env(
    ctx: typer.Context,
    env: Annotated[str, opt.argument("ENV_OR_RUN", opt.ENV_OR_RUN)],
    param: opt.Parameters = None,
    max_steps: opt.MaxSteps = None,
    other_env: opt.EnvironmentOption = None,
    dataset: opt.DatasetOption = None,
    host: opt.HostOption = "127.0.0.1",
    port: opt.PortOption = 8000,
    max_sessions: Annotated[int, opt.option("Most episodes at once.", min=1)] = 64,
    trust_remote_code: opt.TrustRemoteCode = False,
) -> None:
    """Serve an environment by OpenEnv's protocol, for trainers and agents that speak it.

    Each session plays episodes of its own, with the run's or the default time limits. The rows of
    the dataset are the tasks of the split train. Whoever reaches the port can use the environment
    and its tools. Ctrl-C ends the server.

    [bold]Examples[/bold]

    turnwise serve-env guess-number
    turnwise serve-env my_env.py:MyEnvironment --dataset rows.jsonl --port 8001
    turnwise train openenv:http://localhost:8000
    """
    source = find_source(env)
    overrides = Overrides.typed(ctx.params, env=env if source is None else other_env)
    overrides.allow_code()
    with settings_from(source, is_trusted=trust_remote_code):
        config = open_settings(source, overrides)
        from turnwise.agents.environment_server import EnvironmentServer
        from turnwise.http_server import AppServer, listen
        from turnwise.trainer.components import UserComponents

        user = UserComponents().filled_from(config)
        given = [rows for rows in (user.dataset, user.eval_dataset) if rows is not None]
        tasks = dict(zip(("train", "test"), given, strict=False))
        name = config.environment.name.rpartition(":")[2]
        factory = user.factory(config)
        app = EnvironmentServer(name, factory, config.limits, tasks, max_sessions).app
        listener, address = listen(host, port)
        say(f"{name} is served at {address} (Ctrl-C ends it)")
        AppServer(app, has_lifespan=False, has_sockets=True).run([listener])


def _key(host: str, given: str | None, is_open: bool) -> str | None:
    """Return the key that clients must send; None: none."""
    if is_open and given is None:
        return None
    if is_open or (given is not None and not given.strip()):
        raise ConfigError("--api-key and --no-api-key exclude each other. Name a key, or none.")
    is_local = host == "localhost"
    with contextlib.suppress(ValueError):
        is_local = ipaddress.ip_address(host).is_loopback
    if given is None and not is_local:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and there is no API key. Name one "
            "with --api-key or TURNWISE_API_KEY, or serve everyone with --no-api-key."
        )
    return given or f"sk-{secrets.token_urlsafe(24)}"


def _log(request: ServedRequest) -> None:
    """Print a line about a request that was answered."""
    tokens = ""
    if request.num_sampled_tokens:
        tokens = f"{request.num_prompt_tokens} + {request.num_sampled_tokens} tokens  "
    asked = f"{time.strftime('%H:%M:%S')}  {request.method} {request.path}"
    say(f"{asked}  {request.status}  {tokens}{1000 * request.seconds:.0f} ms", err=True)


def view(
    runs: Annotated[
        list[Path] | None, opt.argument("[RUN]...", "Runs, or folders that contain runs.", "runs")
    ] = None,
    port: Annotated[
        int | None, opt.option("Port.", default="the first free one from 8765", min=1, max=65535)
    ] = None,
    no_open: Annotated[bool, opt.flag("--no-open", "Do not open a browser.")] = False,
    read_only: Annotated[bool, opt.flag("--read-only", "Do not save tags and notes.")] = False,
) -> None:
    """Show runs in the browser: curves, conversations, every token that was trained on, timing.

    The page updates while a run is training. It is served on this machine only, and changes nothing
    but your own notes on runs.

    [bold]Examples[/bold]

    turnwise view
    turnwise view runs/guess-number runs/guess-number-2
    turnwise view /data/experiments --port 9000 --no-open
    """
    for package in ("starlette", "uvicorn"):
        import_extra(package, "view")
    from turnwise.view.server import serve as serve_page

    folders = [folder.expanduser() for folder in runs or ()]
    for folder in folders:
        if not folder.is_dir():
            raise not_a_run(folder)
    folders = folders or [Path(ConfigStore().checkpoint.output_dir)]
    serve_page([run_containing(folder) for folder in folders], port, not no_open, say, read_only)
