"""Houses described in Python, the expert on them, and the parts of the rules' languages that published games hardly use."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from turnwise.envs.household.expert import Expert
from turnwise.envs.household.grammar import Literal, Symbol, read_text
from turnwise.envs.household.house import TASK_TYPES, Goal, House, Item, Receptacle
from turnwise.envs.household.pddl import parse_problem
from turnwise.envs.household.world import Play, State, World
from turnwise.util.errors import TurnwiseError


def small_house(rng: random.Random, task_type: str) -> House:
    receptacles = [
        Receptacle("cabinet 1", "cabinet", openable=True, opened=rng.random() < 0.3),
        Receptacle("cabinet 2", "cabinet", openable=True, location=rng.choice(["", "cabinet 1", "desk 1"])),
        Receptacle("desk 1", "desk"),
        Receptacle("sinkbasin 1", "sinkbasin", location=rng.choice(["", "desk 1"])),
        Receptacle("microwave 1", "microwave", openable=True),
        Receptacle("fridge 1", "fridge", openable=True, location=rng.choice(["", "microwave 1"])),
    ]
    mug = {"pickupable", "cleanable", "heatable", "coolable"}
    objects = [Item(f"mug {i}", "mug", rng.choice(receptacles).name, mug, rng.choice([(), ("clean",), ("hot",)])) for i in (1, 2, 3)]
    objects += [Item("pen 1", "pen", rng.choice(receptacles).name), Item("desklamp 1", "desklamp", "desk 1", {"toggleable"})]
    fits = {receptacle.kind: {"mug", "pen"} for receptacle in receptacles}
    return House(receptacles, objects, fits, Goal(task_type, "mug", "desklamp" if "light" in task_type else "cabinet"))


def distance(start: State) -> int:
    """The true number of commands to the goal, by trying everything."""
    seen, level, steps = {start.key()}, [start], 0
    while level:
        if any(state.won() for state in level):
            return steps
        following = []
        for state in level:
            for command in state.commands().values():
                after = state.copy()
                after.apply(command)
                if after.key() not in seen:
                    seen.add(after.key())
                    following.append(after)
        level, steps = following, steps + 1
    raise AssertionError("no way to win")


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_expert_is_as_short_as_trying_everything(task_type: str) -> None:
    rng = random.Random(task_type)
    for _ in range(5):
        house = small_house(rng, task_type)
        world = house.world()
        play = Play(world)
        for _ in range(rng.randrange(8)):
            play.step(rng.choice([action for action in play.actions if action.startswith(("take", "go", "open"))] or ["look"]))
        plan = Expert(world).plan(play.state)
        if len(plan) <= 6:  # further away, trying everything takes minutes
            assert len(plan) == distance(play.state), (house, play.text, plan)
        for command in plan:
            assert command in play.commands
            play.step(command)
        assert play.won


def test_what_is_moved_beside_its_old_place_is_seen_next_to_it() -> None:
    house = House(
        [Receptacle("desk 1", "desk"), Receptacle("shelf 1", "shelf", location="desk 1")],
        [Item("pen 1", "pen", "desk 1")],
        {"shelf": {"pen"}},
        Goal("pick_two_obj_and_place", "pen", "shelf"),
    )
    play = Play(house.world())
    assert play.step("go to desk 1") == "You arrive at desk 1. On the desk 1, you see a pen 1."
    assert play.step("look") == "You are facing the desk 1, and shelf 1. Next to it, you see nothing."
    play.step("take pen 1 from desk 1")
    play.step("move pen 1 to shelf 1")
    assert play.step("look") == "You are facing the desk 1, and shelf 1. Next to it, you see a pen 1."


def test_a_kind_may_be_both_object_and_receptacle() -> None:
    house = House(
        [Receptacle("box 1", "box"), Receptacle("desk 1", "desk")],
        [Item("box 2", "box", "desk 1"), Item("pen 1", "pen", "desk 1")],
        {"box": {"pen"}, "desk": {"pen", "box"}},
        Goal("pick_and_place_simple", "pen", "box"),
    )
    play = Play(house.world())
    for command in Expert(play.world).plan(play.state):
        play.step(command)
    assert play.won


def test_equal_houses_have_states_with_equal_keys() -> None:
    one, same = (small_house(random.Random(3), TASK_TYPES[0]) for _ in range(2))
    other = replace(one, sentence="another task.")
    assert State(one.world()).key() == State(same.world()).key() != State(other.world()).key()


@pytest.mark.parametrize(
    "change, said",
    [
        ({"objects": [Item("mug 1", "mug", "shelf 1")]}, "Known: cabinet 1"),
        ({"objects": [Item("mug 1", "mug", "desk 1", {"washable"})]}, "trait of 'mug 1'"),
        ({"objects": [Item("mug 1", "mug", "desk 1", states={"shiny"})]}, "state of 'mug 1'"),
        ({"objects": [Item("Mug 1", "mug", "desk 1")]}, "lower-case"),
        ({"objects": [Item("desk 1", "mug", "desk 1")]}, "two things are called 'desk 1'"),
        ({"goal": Goal("juggle", "mug", "desk")}, "unknown task type 'juggle'"),
        ({"receptacles": [Receptacle("desk 1", "desk", opened=True)], "objects": []}, "openable=True"),
    ],
)
def test_an_impossible_house_is_refused(change: dict[str, object], said: str) -> None:
    house = replace(small_house(random.Random(0), TASK_TYPES[0]), **change)  # type: ignore[arg-type]
    with pytest.raises(TurnwiseError) as caught:
        house.world()
    assert said in str(caught.value)


TOY_DOMAIN = """
(define (domain toy) (:types agent lamp - thing thing)
  (:action press :parameters (?x - agent ?l - lamp)
    :precondition (forall (?m - lamp) (imply (locked ?m) (not (= ?m ?l))))
    :effect (and (when (on ?l) (not (on ?l))) (when (not (on ?l)) (on ?l))))
  (:action check :parameters (?x - agent) :effect (checked ?x))
  (:action rest :parameters (?x - agent) :precondition (tired ?x) :effect (tired ?x)))
"""
TOY_GRAMMAR = """
grammar :: \"\"\"{"intro": [{"rhs": "A toy. #task#"}], "task": [{"rhs": "  Light all."}],
  "list_empty": [{"rhs": "none"}], "list_separator": [{"rhs": ", "}], "list_last_separator": [{"rhs": ", and "}]}\"\"\";
# a comment
action press { template :: "press {l}"; feedback :: "Click at {l.name}. Lamps: [{m.definite + ' ' + m.name | lamp(m:lamp)}]."; }
action check { template :: "check [{m.name | locked(m:lamp)}]"; feedback :: "{x.type} is #task#"; }
action rest { template :: "rest"; feedback :: "Zzz."; }
"""


def test_rules_of_another_world_are_played_too() -> None:
    """Quantifiers, conditional effects, subtypes, an action that can change nothing and one that only some lamps allow."""
    problem = """(define (problem p) (:domain toy) (:objects me - agent red blue green - lamp)
      (:init (lamp red) (lamp blue) (lamp green) (locked green) (on green) (tired me) (at me))
      (:goal (forall (?l - lamp) (on ?l))))"""
    play = Play(
        World(parse_problem(problem), TOY_DOMAIN, TOY_GRAMMAR, names={"red": "red lamp", "blue": "blue lamp", "green": "green lamp"})
    )
    assert play.text == "A toy. Light all."
    assert play.actions == ("check green lamp", "press blue lamp", "press red lamp"), "resting when tired changes nothing; green is locked"
    assert play.step("check green lamp") == "agent is Light all."
    # Two placeholders of a query never stand for the same thing, so the lamp that was pressed is not listed.
    assert play.step("press red lamp") == "Click at red lamp. Lamps: the blue lamp, and the green lamp."
    play.step("press red lamp")
    play.step("press blue lamp")
    assert not play.won
    play.step("press red lamp")
    assert play.won


def test_texts_are_read_with_the_habits_of_the_reference() -> None:
    assert read_text("\n  leading space") == (Literal("leading space"),)
    assert read_text("#a#\n\n#b#") == (Symbol("a"), Literal("\n\n"), Symbol("b"))
    assert read_text("stops here; and says no more") == (Literal("stops here"),)
    assert read_text('say "hi" twice') == (Literal("say "), Literal("hi"), Literal(" twice"))
    with pytest.raises(TurnwiseError, match="more than names"):
        read_text("{r.name.upper()}")
