"""An environment whose attempts are won or lost by the seed alone: all attempts of a group end alike, on every machine."""

from turnwise import Observation, Transition


class Fated:
    """Two turns. Whatever is said, even seeds win."""

    max_turns = 2

    def reset(self, task, seed=0):
        self.turn, self.won = 0, seed % 2 == 0
        return Observation("say a or b", actions=("a", "b"))

    def step(self, action):
        self.turn += 1
        done = self.turn == 2
        return Transition(Observation("once more", actions=("a", "b")), float(done and self.won), done, done and self.won, {})
