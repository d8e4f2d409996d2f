"""Converts messages into token ids and back: chat templates, token streams, conversations."""

from turnwise.chat.conversation import Conversation
from turnwise.chat.format import TEMPLATES, ChatFormat
from turnwise.chat.rendering import Message
from turnwise.chat.stream import TokenStream
from turnwise.chat.tree import ConversationTree

__all__ = ["TEMPLATES", "ChatFormat", "Conversation", "ConversationTree", "Message", "TokenStream"]
