"""The smallest environment of one's own: two kinds of action, one of them right. Nothing but `reset` and `step`."""

from turnwise import Observation, Transition


class Bandit:
    """Words that start before "n" are left, all others are right; left is better. So even a model that babbles picks one of the two."""

    max_turns = 2

    def reset(self, task, seed=0):
        self.turn = 0
        return Observation("pick left or right", actions=("left", "right"))

    def step(self, action):
        self.turn += 1
        left, done = action[:1].lower() < "n", self.turn == 2
        info = {"measures": {"turns taken": self.turn}} if done else {}
        return Transition(Observation("pick left or right again", actions=("left", "right")), float(left), done, done and left, info)


class Broken(Bandit):
    def step(self, action):
        raise RuntimeError("the lever came off")


class Fickle(Bandit):
    """Breaks in every other task."""

    def reset(self, task, seed=0):
        self.breaks = sum(map(ord, task.id)) % 2 == 1
        return super().reset(task, seed)

    def step(self, action):
        if self.breaks:
            raise RuntimeError("the lever came off")
        return super().step(action)
