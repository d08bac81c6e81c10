"""The kinds of code that a recipe may name, and what each of them looks like.

Whatever a recipe names is a registered name, `package.module:name` or `path/to/file.py:name`. The kind says what is required of it: the
methods of its class, or the arguments that it is called with. `example` is shown in the message for anything else.
"""

from __future__ import annotations

from dataclasses import dataclass

NUMBERS = ("float", "int", "bool", "number", "mapping", "dict")


@dataclass(frozen=True)
class Kind:
    """What a reference must be.

    methods         what its class has; empty for a plain function
    takes           the arguments that a function is called with, if they are fixed
    gives           a function of an installed package returns one of these types (names in its annotation)
    callable_class  a class is also allowed: it is made once, and the object is called like the function
    alone           a file with a single class of this kind can be named without the class
    example         a line of code that is correct
    family          the name under which a recipe refers to it, if it is not `word`
    """

    word: str
    methods: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    callable_class: bool = False
    alone: bool = False
    example: str = ""
    family: str = ""

    @property
    def wanted(self) -> str:
        """What is needed, as text."""
        if self.methods:
            text = f"A class with {', '.join(self.methods)} is needed, or a function that returns one"
        else:
            also = ", or a class whose objects are called like it" if self.callable_class else ""
            text = f"A function of ({', '.join(self.takes) or '…'}) is needed{also}; one of an installed package must be annotated with "
            text += "what it returns"
        return text + (f". For example: {self.example}" if self.example else "")


ENVIRONMENT = Kind("environment", ("reset", "step"), alone=True)
GYM = Kind("Gymnasium environment", ("reset", "step"))
DESCRIBER = Kind("describer", takes=("env", "observation"), gives=("str",), example="def mine(env, observation) -> str")
CONTEXT = Kind("context", ("start", "prompt", "record"), example="class Mine(turnwise.agent.Window)")
TRACKER = Kind("tracker", ("open", "log", "close"))
ENGINE = Kind("engine", ("submit", "poll", "release", "refresh", "close"))
PLAN = Kind("plan", ("gather",), example="class Mine: def gather(self, slots, groups): …")
SOURCE = Kind(
    "source", ("batches", "publish"), example="class Mine(turnwise.collect.source.OwnSource): def batches(self, plan, n, begins): …"
)
REWARD = Kind(
    "reward term",
    family="reward",
    takes=("turn", "transition", "trajectory"),
    gives=NUMBERS,
    example="def mine(turn, transition, trajectory) -> float",
)
ORACLE = Kind("oracle", takes=("turn", "trajectory"), gives=NUMBERS, example="def mine(turn, trajectory) -> float")
SCORE = Kind("score", gives=NUMBERS)
CREDIT = Kind(
    "credit algorithm",
    family="credit",
    takes=("rollouts",),
    gives=("array", "floats", "perturn", "pertoken", "mapping", "dict"),
    example="def mine(rollouts, *, gamma: float = 0.95) -> numpy.ndarray  # one number per turn",
)
OBJECTIVE = Kind(
    "objective",
    takes=("tokens",),
    gives=("tokenloss", "tensor", "tuple"),
    callable_class=True,
    example="def mine(tokens, *, bound: float = 0.2) -> TokenLoss",
)
IMPORTANCE = Kind(
    "importance correction",
    family="importance",
    takes=("tokens",),
    gives=("correction", "tensor", "tuple"),
    callable_class=True,
    example="def mine(tokens, *, high: float = 2.0) -> Correction",
)
SIGNAL = Kind(
    "signal",
    takes=("batch", "models"),
    gives=("mapping", "dict"),
    callable_class=True,
    example='def mine(batch, models, *, scale: float = 1.0) -> dict  # {"turn.mine": array}',
)
SCHEDULE = Kind(
    "schedule",
    takes=("view",),
    gives=("generator", "iterator", "iterable", "list", "sequence", "steps"),
    callable_class=True,
    example="def mine(view, *, epochs: int = 1): yield Step(rows=…)",
)
METHOD = Kind("method", gives=("mapping", "dict"), example='def mine(*, scale: float = 1.0): return {"credit.name": "file.py:credit"}')
PARSER = Kind(
    "parser",
    takes=("response", "actions"),
    gives=("parsed", "str"),
    callable_class=True,
    example="def mine(response: str, actions) -> Parsed  # actions: the admissible ones, or None",
)
MODEL = Kind("model kind", ("loss",), example="class Mine: def loss(self, said): return -said.logprob.mean()")

LISTED = (
    CREDIT,
    OBJECTIVE,
    IMPORTANCE,
    PLAN,
    SOURCE,
    SIGNAL,
    SCHEDULE,
    METHOD,
    MODEL,
    REWARD,
    CONTEXT,
    PARSER,
    ENGINE,
    TRACKER,
    ENVIRONMENT,
)
KINDS = {kind.family or kind.word: kind for kind in LISTED}  # by the family that a recipe names them in
