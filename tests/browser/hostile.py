"""What a model might write to take over the page that shows it."""

from turnwise.types import EpisodeStatus
from view.runs_to_view import said

SCRIPTS = [
    "<script>window.owned = 1; alert(1)</script>",
    "</script><script>window.owned = 1</script>",
    '<img src=x onerror="window.owned = 1; alert(1)">',
    "<svg onload=window.owned=1><animate onbegin=alert(1) attributeName=x dur=1s>",
    '"><body onload=alert(1)>',
    "${window.owned=1}{{constructor.constructor('alert(1)')()}}",
    "<a href='javascript:window.owned=1'>click</a> javascript:alert(1)",
    "<base href=//evil.example/><form action=//evil.example><button>go</button></form>",
    "<img src=//evil.example/pixel.png><video src=http://evil.example/v.mp4 autoplay>",
    "&lt;b&gt; &#60;script&#62; \\u003cscript\\u003e",
]
UNSEEN = [
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J",
    "abc\u202edcba\u202c \u2066isolate\u2069 \u200fright",
    "zero\u200bwidth\ufeff soft\u00adhyphen \u2028line",
    "nul\x00 bell\x07 backspace\x08\x7f",
    "tag\U000e0041\U000e0042",
]


def hostile_episodes():
    """The corpus as what the model said, what it was told, tool names, arguments and errors."""
    words = [*SCRIPTS, *UNSEEN]
    episodes = [said(text, seed=number, told=text) for number, text in enumerate(words)]
    calls = said("call", seed=98, tools=[SCRIPTS[2]], told=SCRIPTS[0])
    calls.agents[0].turns[0].info = {SCRIPTS[2]: SCRIPTS[0]}
    calls.agents[0].turns[0].malformed = SCRIPTS[0]
    failed = said("x", seed=99, status=EpisodeStatus.TOOL_ERROR, error=SCRIPTS[2] + UNSEEN[0])
    return [*episodes, calls, failed]
