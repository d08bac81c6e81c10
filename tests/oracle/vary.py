"""Games that no file has: a published game with its house or its rules changed, to hold the simulator to the rules and not to the sample.

Houses are changed by facts that the published ones never or rarely have (the agent begins beside a receptacle or with something in its
hands, receptacles stand together or are open, objects are in two places at once or already treated). Rules are changed where both engines
must read them: in the domain's conditions, in the commands' spelling and in the answers' wording.
"""

from __future__ import annotations

import random
import re

Game = dict[str, str]  # pddl_problem, pddl_domain, grammar
_FACT = re.compile(r"\((\w+) ([^()]*)\)")


def vary(game: Game, rng: random.Random) -> Game:
    changed = dict(game)
    changed["pddl_problem"] = _vary_house(game["pddl_problem"], rng)
    for old, new in RULES:
        if rng.random() < 0.4:
            part = "pddl_domain" if old in game["pddl_domain"] else "grammar"
            assert old in changed[part], old
            changed[part] = changed[part].replace(old, new)
    return changed


RULES = [
    ("(exists (?l - location, ?r - receptacle)", "(exists (?l - location ?r - receptacle)"),
    ('template :: "move {o} to {r}"', 'template :: "put {o} in/on {r}"'),
    ('template :: "take {o} from {r}"', 'template :: "grab {o.name} [{r.name | inreceptacle(o:object, r:receptacle)}]"'),
    ('"rhs": "You close the {r.name}."', '"rhs": "  {r.definite} {r.name} ({r.id}) is closed; never seen"'),
    ('"rhs": "{r.indefinite} {r.name or r.id}"', '"rhs": "{r.indefinite} {r.name or r.id}#overview_state(r)#"'),
    ('"rhs": ", and "', '"rhs": "\\t and"'),
    (
        "(not (opened ?r))\n                (increase",
        "(not (opened ?r))\n                (when (checked ?r) (not (checked ?r)))\n (increase",
    ),
]


def _vary_house(problem: str, rng: random.Random) -> str:
    facts = [(name, rest.split()) for name, rest in _FACT.findall(problem.partition("(:init")[2].partition("(:goal")[0])]
    receptacles = [args for name, args in facts if name == "receptacleAtLocation"]
    objects = [args[0] for name, args in facts if name == "inReceptacle"]
    openable = [args[0] for name, args in facts if name == "openable"]
    extra: list[str] = []
    if rng.random() < 0.4:
        problem = re.sub(r"\(atLocation agent1 [^()]*\)", f"(atLocation agent1 {rng.choice(receptacles)[1]})", problem)
    if rng.random() < 0.5:
        one, other = rng.sample(receptacles, 2)
        problem = problem.replace(f"(receptacleAtLocation {one[0]} {one[1]})", f"(receptacleAtLocation {one[0]} {other[1]})")
    if openable and rng.random() < 0.5:
        extra += [f"(opened {name})" for name in rng.sample(openable, min(3, len(openable)))]
    if rng.random() < 0.6:
        extra += [f"(inReceptacle {rng.choice(objects)} {rng.choice(receptacles)[0]})" for _ in range(4)]
    if rng.random() < 0.3:
        extra += [f"(holds agent1 {rng.choice(objects)})", "(holdsAny agent1)"]
    for trait in ("isClean", "isHot", "isCool", "isSliced", "isToggled", "isOn", "toggleable", "sliceable", "isReceptacleObject"):
        if rng.random() < 0.3:
            extra += [f"({trait} {name})" for name in rng.sample(objects, 3)]
    if rng.random() < 0.4:
        extra += [f"(inReceptacleObject {rng.choice(objects)} {rng.choice(objects)})" for _ in range(4)]
    extra = [fact for fact in dict.fromkeys(extra) if fact not in problem]
    return problem.replace("(:init", "(:init\n        " + "\n        ".join(extra), 1)
