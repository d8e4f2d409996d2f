from turnwise import BaseEnvironment, tool


class Plain(BaseEnvironment):
    """Find the gold."""

    def reset(self):
        self.where = self.task["where"] if self.task else self.rng.choice(["north", "south"])
        return f"Dig, not {self.task['not']}." if self.task else "Dig."

    def step(self, action):
        if action == "explode":
            raise RuntimeError("boom")
        is_right = self.where in action
        return "You dug.", float(is_right), True, {"success": is_right}

    def get_state_description(self):
        return "dig"


class Dig(Plain):
    """Find the gold, with a look before."""

    @tool
    def look(self, place: str) -> str:
        """Look at a place."""
        return "gold" if place == self.where else "sand"
