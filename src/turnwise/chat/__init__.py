"""Messages into token ids and back: chat templates, streams that only grow, conversations."""

from turnwise.chat.conversation import Conversation
from turnwise.chat.format import ChatFormat
from turnwise.chat.rendering import Message
from turnwise.chat.stream import TokenStream
from turnwise.chat.templates import TEMPLATES

__all__ = ["TEMPLATES", "ChatFormat", "Conversation", "Message", "TokenStream"]
