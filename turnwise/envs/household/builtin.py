"""The household's rules in our own form, for houses that are made in memory without any.

It uses the vocabulary of ALFWorld's games and has the same consequences: a published game played under these rules gives the same answers
as under the rules in its file, except for the welcome line. A test checks this.
"""

from __future__ import annotations

import json

from turnwise.envs.household.grammar import TASK_MARK

DOMAIN = """
(define (domain household)
  (:types agent location receptacle rtype otype)

  ; Looking changes nothing that anything reads; the fact only says that the action is not void.
  (:action look
    :parameters (?a - agent ?l - location)
    :precondition (atLocation ?a ?l)
    :effect (noticed ?l))
  (:action inventory
    :parameters (?a - agent)
    :effect (noticed ?a))
  (:action help
    :parameters (?a - agent)
    :effect (noticed ?a))
  (:action examineReceptacle
    :parameters (?a - agent ?r - receptacle)
    :precondition (exists (?l - location) (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l)))
    :effect (noticed ?r))
  (:action examineObject
    :parameters (?a - agent ?o - object)
    :precondition (holds ?a ?o)
    :effect (noticed ?o))

  (:action GotoLocation
    :parameters (?a - agent ?lStart - location ?lEnd - location ?r - receptacle)
    :precondition (and (atLocation ?a ?lStart) (receptacleAtLocation ?r ?lEnd))
    :effect (and (not (atLocation ?a ?lStart)) (atLocation ?a ?lEnd)))
  (:action OpenObject
    :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (openable ?r) (not (opened ?r)))
    :effect (opened ?r))
  (:action CloseObject
    :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (openable ?r) (opened ?r))
    :effect (not (opened ?r)))

  ; One thing in the hands at a time; a receptacle that can be opened must be open.
  (:action PickupObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r) (pickupable ?o)
                       (not (holdsAny ?a)) (or (not (openable ?r)) (opened ?r)))
    :effect (and (holds ?a ?o) (holdsAny ?a) (not (inReceptacle ?o ?r)) (not (objectAtLocation ?o ?l))))
  (:action PutObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle ?ot - otype ?rt - rtype)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (holds ?a ?o) (or (not (openable ?r)) (opened ?r))
                       (objectType ?o ?ot) (receptacleType ?r ?rt) (canContain ?rt ?ot))
    :effect (and (not (holds ?a ?o)) (not (holdsAny ?a)) (inReceptacle ?o ?r) (objectAtLocation ?o ?l)))

  ; What is held can be treated beside the right receptacle, open or not.
  (:action CleanObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (holds ?a ?o) (cleanable ?o)
                       (or (receptacleType ?r SinkType) (receptacleType ?r SinkBasinType)))
    :effect (isClean ?o))
  (:action HeatObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (holds ?a ?o) (heatable ?o) (receptacleType ?r MicrowaveType))
    :effect (and (isHot ?o) (not (isCool ?o))))
  (:action CoolObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (holds ?a ?o) (coolable ?o) (receptacleType ?r FridgeType))
    :effect (and (isCool ?o) (not (isHot ?o))))
  (:action ToggleObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r) (toggleable ?o))
    :effect (isToggled ?o))
  (:action SliceObject
    :parameters (?a - agent ?l - location ?co - object ?ko - object)
    :precondition (and (atLocation ?a ?l) (objectAtLocation ?co ?l) (sliceable ?co) (holds ?a ?ko)
                       (or (objectType ?ko KnifeType) (objectType ?ko ButterKnifeType)))
    :effect (isSliced ?co)))
"""

_HELP = """
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""

_HERE = "atlocation(a:agent, l:location)"
_BESIDE = f"{_HERE} & receptacleatlocation(r:receptacle, l:location)"
_FALLEN = (
    f"{_HERE} & objectatlocation(o:object, l:location) & receptacleatlocation(r:receptacle, l:location)"
    " & not_inreceptacle(o:object, r:receptacle)"
)
_INSIDE = "[{o.indefinite + ' ' + o.name | inreceptacle(o:object, r:receptacle)}]"

# The description of a held thing: the first line whose conditions all hold.
_LOOKS = [
    ("isclean ishot issliced", "This is a hot and clean sliced {o.name}."),
    ("isclean iscool issliced", "This is a cool and clean sliced {o.name}."),
    ("isclean issliced", "This is a clean sliced {o.name}."),
    ("ishot issliced", "This is a hot sliced {o.name}."),
    ("iscool issliced", "This is a cool sliced {o.name}."),
    ("isclean ishot", "This is a hot and clean {o.name}."),
    ("isclean iscool", "This is a cool and clean {o.name}."),
    ("ishot", "This is a hot {o.name}."),
    ("isclean", "This is a clean {o.name}."),
    ("iscool", "This is a cold {o.name}."),
    ("toggleable istoggled", "This {o.name} is on."),
    ("sliceable issliced", "This is a sliced {o.name}."),
]


def _looks() -> list[dict[str, str]]:
    contents = "[{o2.indefinite + ' ' + o2.name | inreceptacleobject(o2:object, o:object)}]"
    rules = [{"condition": "isreceptacleobject(o:object)", "rhs": f"This is a normal {{o.name}}. In it, you see {contents}."}]
    for names, text in _LOOKS:
        rules.append({"condition": " & ".join(f"{name}(o:object)" for name in names.split()), "rhs": text})
    return [*rules, {"rhs": "There's nothing special about {o.name}."}]


PRODUCTIONS: dict[str, list[dict[str, str]]] = {
    "intro": [{"rhs": "-= Welcome to the household! =-\n\n#around#\n\n#task#"}],
    "task": [{"rhs": TASK_MARK}],
    "around": [
        {"condition": _BESIDE, "rhs": f"You are facing the [{{r.name | {_BESIDE}}}]. Next to it, you see #fallen#."},
        {
            "rhs": "You are in the middle of a room. Looking quickly around you, you see "
            "[{r.indefinite + ' ' + r.name | receptacleatlocation(r:receptacle, l:location)}]."
        },
    ],
    "fallen": [{"condition": _FALLEN, "rhs": f"[{{o.indefinite + ' ' + o.name | {_FALLEN}}}]"}, {"rhs": "nothing"}],
    "contents": [
        {"condition": "openable(r:receptacle) & opened(r:receptacle)", "rhs": f"The {{r.name}} is open. In it, you see {_INSIDE}."},
        {"condition": "openable(r:receptacle)", "rhs": "The {r.name} is closed."},
        {"rhs": f"On the {{r.name}}, you see {_INSIDE}."},
    ],
    "carried": [
        {
            "condition": "holdsany(a:agent)",
            "rhs": "You are carrying: [{o.indefinite + ' ' + o.name | holds(a:agent, o:object)}].",
        },
        {"rhs": "You are not carrying anything."},
    ],
    "thing": _looks(),
    "list_empty": [{"rhs": "nothing"}],
    "list_separator": [{"rhs": ", "}],
    "list_last_separator": [{"rhs": ", and "}],
}

COMMANDS: dict[str, tuple[str, str]] = {
    "look": ("look", "#around#"),
    "inventory": ("inventory", "#carried#"),
    "help": ("help", _HELP),
    "examineReceptacle": ("examine {r}", "#contents#"),
    "examineObject": ("examine {o}", "#thing#"),
    "GotoLocation": ("go to {r}", "You arrive at {r.name}. #contents#"),
    "OpenObject": ("open {r}", "You open the {r.name}. #contents#"),
    "CloseObject": ("close {r}", "You close the {r.name}."),
    "PickupObject": ("take {o} from {r}", "You pick up the {o.name} from the {r.name}."),
    "PutObject": ("move {o} to {r}", "You move the {o.name} to the {r.name}."),
    "CleanObject": ("clean {o} with {r}", "You clean the {o.name} using the {r.name}."),
    "HeatObject": ("heat {o} with {r}", "You heat the {o.name} using the {r.name}."),
    "CoolObject": ("cool {o} with {r}", "You cool the {o.name} using the {r.name}."),
    "ToggleObject": ("use {o}", "You turn on the {o.name}."),
    "SliceObject": ("slice {co} with {ko}", "You sliced the {co.name} with the {ko.name}."),
}


def _grammar() -> str:
    line = 'action {} {{ template :: "{}"; feedback :: "{}"; }}\n'
    actions = "".join(line.format(name, command, answer) for name, (command, answer) in COMMANDS.items())
    return f'grammar :: """{json.dumps(PRODUCTIONS)}""";\n{actions}'


GRAMMAR = _grammar()  # TASK_MARK is the placeholder of the task's sentence
