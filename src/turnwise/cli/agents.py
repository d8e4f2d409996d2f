"""Who plays episodes: a model, the expert, the random player, a function, a model behind a URL."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from turnwise.cli.run_paths import which_checkpoint
from turnwise.deadlines import call_with_deadline
from turnwise.env.base import BaseEnvironment
from turnwise.env.players import Player, expert_player, random_player
from turnwise.episode.seeds import derive_seed
from turnwise.errors import ConfigError
from turnwise.reward.chat_server import Answer, ChatServer
from turnwise.user_code import import_object

if TYPE_CHECKING:
    from turnwise.chat import Message
    from turnwise.config import ConfigStore
    from turnwise.inference import BaseInferenceEngine, GenerationRequest
    from turnwise.models import LoadedModel

SCRIPTED = ("expert", "random")
AgentMaker: TypeAlias = Callable[[int, int], Player]
"""Makes the player of an episode from the seed of the task and the index of the attempt."""

_EXPECTED = (
    "expected a function (observation) or (observation, state) that returns the action as text, "
    "plain or async; or a class with such a __call__, of which each episode gets an object"
)


def load_player(
    name: str | None,
    source: Path | None,
    checkpoint: str,
    config: ConfigStore,
    model: str | None,
    trust_remote_code: bool,
) -> LoadedModel:
    """Return the model of a run or a checkpoint, or the model `name`; None: only a tokenizer.

    The actions of a player without a model become tokens too. `model` overrides the base model of
    the run's weights. The sections `model` and `inference` become those of the model that plays.
    """
    from turnwise.models import LoadedModel
    from turnwise.trainer import state

    if name is None:
        if model is not None:
            state.use_model(config, model)
        return LoadedModel(None, state.load_configured_tokenizer(config))
    if source is None:
        config.model.model_name, config.model.local_path = name, None
        config.model.trust_remote_code = trust_remote_code
        return state.load_configured_model(config)
    player, trained = state.load_trained_model(
        source, which_checkpoint(checkpoint), trust_remote_code=trust_remote_code, model=model
    )
    config.model, config.inference = trained.model, trained.inference
    return player


def load_policies(
    source: Path | None, checkpoint: str, config: ConfigStore, trust_remote_code: bool
) -> dict[str, LoadedModel]:
    """Return the models of a run's players that have their own."""
    from turnwise.trainer.state import load_trained_model

    if source is None:
        return {}
    which = which_checkpoint(checkpoint)
    return {
        player: load_trained_model(
            source, which, trust_remote_code=trust_remote_code, policy=player
        )[0]
        for player in config.policies
    }


def engine_for(player: LoadedModel) -> BaseInferenceEngine:
    """Return the engine of a model; of a scripted player, one that only has the tokenizer."""
    from turnwise.inference import ScriptedEngine, create_inference_engine

    if player.model is None:
        return ScriptedEngine(player.tokenizer)
    return create_inference_engine(player.model, tokenizer=player.tokenizer)


def agent_by_name(who: str) -> AgentMaker:
    """Return the player `expert`, `random`, or the user's `file.py:function`."""
    if who == "expert":
        return lambda seed, attempt: expert_player
    if who == "random":
        return lambda seed, attempt: random_player(
            derive_seed(seed, "attempt", attempt) if attempt else seed
        )
    if ":" not in who:
        raise ConfigError(f"--agent got {who!r}, expected expert, random or path/to/file.py:name")
    agent = import_object(who, option="--agent")
    if not callable(agent):
        raise ConfigError(
            f"--agent got {who!r}, which is of type {type(agent).__name__}; {_EXPECTED}"
        )
    is_class = isinstance(agent, type)
    parameters = list(inspect.signature(agent.__call__ if is_class else agent).parameters.values())
    parameters = parameters[int(is_class) :]  # without self
    others = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in others]
    takes_state = len(needed) == 2 or any(p.name == "state" for p in parameters[1:2])
    if not parameters or len(needed) > 2:
        given = ", ".join(str(parameter) for parameter in parameters)
        raise ConfigError(f"--agent got {who!r} with the arguments ({given}); {_EXPECTED}")

    def make(seed: int, attempt: int) -> Player:
        function = agent() if is_class else agent

        async def play(env: BaseEnvironment, observation: str) -> str:
            arguments = [observation]
            if takes_state:
                arguments.append(env.get_state_description())
            # In a thread: a plain function may wait for a server, and other episodes must not.
            action = await call_with_deadline(function, *arguments, timeout=None, waiting_for=who)
            if not isinstance(action, str):
                raise ConfigError(
                    f"{who} returned {action!r:.80} of type {type(action).__name__}, expected the "
                    "action as text"
                )
            return action

        return play

    return make


class ServedModel:
    """A model behind a URL, which plays episodes through OpenAI's chat interface.

    Tools are described in the prompt, and calls are text: so every server can play.
    """

    def __init__(
        self, url: str, model: str | None, *, sends_temperature: bool, max_tokens: int | None
    ) -> None:
        """Without `model`, the only one that the server offers.

        What the user did not set is not sent: the server has its own, and may refuse others'.
        """
        self._server = ChatServer(url, os.environ.get("OPENAI_API_KEY"), timeout=600.0)
        if model is None:
            offered = self._server.models()
            if len(offered) != 1:
                raise ConfigError(
                    f"{url} offers {len(offered)} models. Name one with --model: "
                    f"{', '.join(offered[:10])}"
                )
            (model,) = offered
        self.model = model
        self.name = f"{model} at {url}"
        self._sends_temperature = sends_temperature
        self._max_tokens = max_tokens

    async def reply(self, messages: Sequence[Message], request: GenerationRequest) -> Answer:
        """Return the server's next message of a conversation."""
        # Without its own calls; results of tools are the user's.
        sent = [
            {"role": "user", "content": f"{message['name']}: {message['content']}"}
            if message["role"] == "tool"
            else {"role": message["role"], "content": message["content"]}
            for message in messages
        ]
        options: dict[str, Any] = {}
        if self._max_tokens is not None:
            options["max_tokens"] = self._max_tokens
        if self._sends_temperature:
            options["temperature"] = request.sampling.temperature
            if request.sampling.top_p < 1.0:
                options["top_p"] = request.sampling.top_p
        answer: Answer = await call_with_deadline(
            lambda: self._server.complete(self.model, sent, **options),
            timeout=request.timeout,
            waiting_for=self.name,
        )
        return answer
