"""A sound environment that the broken ones of the checker's tests derive from."""

from turnwise.env.base import BaseEnvironment
from turnwise.env.checker import CheckReport, Finding


class Doors(BaseEnvironment):
    """Three doors, one of them right: a sound environment that the broken ones derive from."""

    max_steps = 6

    def reset(self):
        self.right = self.rng.choice("ABC")
        self.opened = []
        return "Which door, A, B or C?"

    def step(self, action):
        door = action.strip().upper()
        if door not in ("A", "B", "C"):
            return "Say A, B or C.", 0.0, False, {"invalid_action": True}
        self.opened.append(door)
        found = door == self.right
        return "Yes!" if found else "No.", float(found), found, {"success": found}

    def get_state_description(self):
        return f"opened {self.opened}"

    def sample_action(self, rng):
        return rng.choice("ABC")

    def expert_action(self):
        return self.right


def only_finding(report: CheckReport, check: str, level: str = "error") -> Finding:
    """The one finding of a report, which must be of this check and nothing else."""
    assert [f.check for f in report] == [check], str(report)
    assert report.findings[0].level == level
    assert report.ok is (level != "error")
    return report.findings[0]
