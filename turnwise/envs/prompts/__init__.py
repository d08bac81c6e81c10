"""Your own prompts: a file of them and a function that scores responses, without writing an environment."""

from turnwise.envs.registry import Need, register

register(
    "prompts",
    "turnwise.envs.prompts.env:PromptsEnv",
    summary="your own prompts (JSONL) and a function that scores responses; a second function makes dialogues of them",
    splits={"train": None, "valid": None, "test": None},
    needs=[Need("prompts and a score function", lambda: False, "the options file and score: see docs/environments/prompts.md")],
)
