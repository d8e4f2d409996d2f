"""Sub-agents: conversations that a tool holds with the policy while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from turnwise.chat import ConversationTree, Message, TokenStream
from turnwise.chat.tree import SampledTurn, StreamPlaces
from turnwise.episode.engine_sessions import EngineSessions
from turnwise.episode.messages import TemplateWriter
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.sampling import sample_turn, too_slow
from turnwise.episode.seeds import derive_seed
from turnwise.episode.types import TurnRecord
from turnwise.errors import ConfigError, ToolError
from turnwise.inference import FinishReason, GenerationRequest
from turnwise.tools import answer_of, get_parser


class SubAgents:
    """The conversations that the tools of one agent hold; owned by the event loop of the episode.

    Their turns are sampled as the agent's own. They become branches of the agent's stream when the
    turn whose tools asked for them was carried out.
    """

    def __init__(self, setup: EpisodeSetup, stream: TokenStream, seeds: str) -> None:
        self._setup = setup
        self._stream = stream
        self._seeds = seeds
        parser = setup.parser
        if isinstance(parser, str):
            parser = get_parser(parser, template=setup.chat.template)
        self._tree = ConversationTree(TemplateWriter(setup.messages, parser), "keep")
        self._places = StreamPlaces(stream)
        self._sessions = EngineSessions(setup.engine)
        self._waiting: dict[SampledTurn, TurnRecord] = {}
        """Turns that are not in the stream yet."""
        self.failure: Exception | None = None
        """What the engine raised, if it did: the episode fails, whatever the tool makes of it."""

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        context_length: int,
        timeout: float | None,
        max_tokens: int | None = None,
    ) -> str:
        """Samples the answer to these messages; returns it without its thoughts."""
        setup = self._setup
        if setup.chat.is_longer_than(context_length, messages):
            raise ToolError(
                "the messages are too long: a conversation may have "
                f"{context_length} tokens (limits.max_tokens)"
            )
        try:
            prompt = self._tree.prompt(messages)
        except ConfigError as error:
            raise ToolError(f"the chat template cannot write these messages: {error}") from error
        with contextlib.ExitStack() as undo:
            undo.callback(self._tree.cancel, prompt)
            num_left = context_length - len(prompt.ids)
            if num_left < 1:
                raise ToolError(
                    f"the messages have {len(prompt.ids)} tokens, and a conversation may have "
                    f"{context_length} (limits.max_tokens)"
                )
            session = self._sessions.open(prompt.parent)
            undo.callback(self._sessions.release, session)
            wanted = (max_tokens, setup.limits.max_tokens_per_turn, num_left)
            request = GenerationRequest(
                prompt.ids,
                min(n for n in wanted if n is not None),
                setup.sampling,
                stop_ids=setup.chat.stop_ids,
                stop_strings=setup.chat.stop_strings,
                seed=derive_seed(self._seeds, "sub-agent", prompt.key),
                timeout=timeout,
                session=session.name,
                branch_of=session.branch_of,
            )
            try:
                result = await sample_turn(setup, request)
                if result.finish_reason is FinishReason.DEADLINE:
                    raise too_slow(timeout)
            except Exception as error:
                self.failure = error
                raise
            undo.pop_all()
        text = setup.chat.decode(result.ids, setup.thought_marks)
        in_thought = setup.begins_in_thought(prompt.ids)
        answer = answer_of(text, in_thought=in_thought)
        reply = {"role": "assistant", "content": answer}
        turn = self._tree.add(prompt, result.ids, result.log_probs, reply, result.inserted)
        self._sessions.add(session, turn)
        self._waiting[turn] = TurnRecord(
            (0, 0),
            text,
            result.finish_reason,
            result.weight_version,
            kind="sub_agent",
            in_thought=in_thought,
            later_versions=result.later_versions,
        )
        return answer

    def place(self) -> list[tuple[TurnRecord, Sequence[Message]]]:
        """Appends the new turns to the stream, each with the messages that it answers."""
        after = len(self._stream)
        placed: list[tuple[TurnRecord, Sequence[Message]]] = []
        for turn in sorted(self._waiting, key=lambda turn: turn.order):
            record = self._waiting[turn]
            record.tokens = self._places.add(turn)
            placed.append((record, turn.messages))
        self._waiting.clear()
        self._stream.begin_branch(after)  # the agent's own conversation continues
        return placed

    def close(self) -> None:
        """Frees what the engine has kept."""
        self._sessions.close()
