"""Writes the logs in tests/logs/data/: the same four attempts in every format, each made by the package whose format it is.

python tests/logs/make_logs.py NAME …    in an environment with the package: openai, opentelemetry-util-genai with the OTLP encoders and
opentelemetry-instrumentation-openai-v2, langfuse, langsmith, harbor (0.25, its models need only pydantic), verifiers (0.4)

Two tasks, each won once and lost once. In the lost attempts of the first task a tool fails and is called again.
"""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

DATA = Path(__file__).parent / "data"
SYSTEM = "You are a shop assistant."
START = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
FOUND = ("I look it up.", "find", {"order": 17}, "paid on Monday")
FAILED = ("", "refund", {"order": 17}, "Error: find the order first")
# id, task, question, turns (said, tool, arguments, result), answer, won
ATTEMPTS = [
    ("a1", "refund-17", "Refund order 17.", [FOUND, ("", "refund", {"order": 17, "full": True}, '{"ok": true}')], "Refunded.", True),
    ("a2", "refund-17", "Refund order 17.", [FAILED, FAILED], "Sorry.", False),
    ("b1", "stock-pear", "How many pears are left?", [("", "stock", {"item": "pear"}, "4")], "4", True),
    ("b2", "stock-pear", "How many pears are left?", [], "Many.", False),
]


def messages(turns, answer):
    """The dialogue in the form of Chat Completions."""
    for number, (said, tool, arguments, result) in enumerate(turns):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        yield {"role": "assistant", "content": said or None, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": call["id"], "content": result}
    yield {"role": "assistant", "content": answer}


def dialogue(question, turns, answer):
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}, *messages(turns, answer)]


def write(name, lines):
    DATA.mkdir(exist_ok=True)
    (DATA / name).write_text("".join(json.dumps(line, default=str) + "\n" for line in lines), encoding="utf-8")


def make_openai():
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

    whole, requests, responses = [], [], []
    for name, task, question, turns, answer, won in ATTEMPTS:
        told = dialogue(question, turns, answer)
        whole.append({"id": name, "task_id": task, "messages": told, "success": won})
        sent = told[:2]
        items = [{"role": "user", "content": question}]
        for number, message in enumerate(message for message in told[2:] if message["role"] == "assistant"):
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            completion = {"id": f"c{number}", "object": "chat.completion", "created": 1_790_000_000 + number, "model": "m"}
            completion["choices"] = [{"index": 0, "finish_reason": finish, "message": message}]
            completion = ChatCompletion.model_validate(completion)
            row = {"session_id": name, "task_id": task, "request": {"model": "m", "messages": list(sent)}}
            requests.append(row | {"response": completion.model_dump(mode="json", exclude_none=True)})
            output = [{"type": "reasoning", "id": "r", "summary": []}]
            if message.get("content"):
                part = {"type": "output_text", "text": message["content"], "annotations": []}
                output.append({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]})
            output += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls", [])]
            response = {"id": "r", "object": "response", "created_at": 1_790_000_000 + number, "model": "m", "output": output}
            response |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
            done = Response.model_validate(response).model_dump(mode="json", exclude_none=True)
            responses.append({"session_id": name, "task_id": task, "instructions": SYSTEM, "input": list(items), **done})
            sent.append(message)
            items += [item for item in output if item["type"] != "reasoning"]
            for result in [each for each in told if each.get("tool_call_id") == f"call_{number}"]:
                sent.append(result)
                items.append({"type": "function_call_output", "call_id": result["tool_call_id"], "output": result["content"]})
        requests[-1]["reward"] = responses[-1]["reward"] = float(won)
    write("messages.jsonl", whole)
    write("requests.jsonl", requests)
    write("responses.jsonl", responses)


def make_otel():
    """Three logs: messages in attributes of spans, in one event per call, and in one event per message."""
    import os

    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    for mode in ("SPAN_ONLY", "EVENT_ONLY", "MESSAGES"):
        os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY" if mode == "MESSAGES" else mode
        write(f"otel_{mode.lower()}.jsonl", otel_lines(mode))


def otel_lines(mode):
    from google.protobuf.json_format import MessageToDict
    from opentelemetry._logs import LogRecord
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.util.genai.handler import TelemetryHandler
    from opentelemetry.util.genai.types import InputMessage, OutputMessage, Text, ToolCallRequestPart, ToolCallResponsePart

    events = events_of_openai()
    spans, logs = InMemorySpanExporter(), InMemoryLogRecordExporter()
    tracers, loggers = TracerProvider(), LoggerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    loggers.add_log_record_processor(SimpleLogRecordProcessor(logs))
    handler = TelemetryHandler(tracer_provider=tracers, logger_provider=loggers)
    tracer, logger = tracers.get_tracer("agent"), loggers.get_logger("agent")

    def part(message):
        if message["role"] == "tool":
            return InputMessage("tool", [ToolCallResponsePart(message["content"], message["tool_call_id"])])
        texts = [Text(message["content"])] if message.get("content") else []
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls", [])]
        return InputMessage(message["role"], texts + [ToolCallRequestPart(json.loads(f["arguments"]), f["name"], i) for i, f in calls])

    for name, task, question, turns, answer, won in ATTEMPTS:
        told = dialogue(question, turns, answer)
        with tracer.start_as_current_span(name, attributes={"task.id": task, "app.attempt": name}):
            for place, message in enumerate(told):
                if message["role"] != "assistant":
                    continue
                if mode == "MESSAGES":
                    with tracer.start_as_current_span("chat m", attributes={"gen_ai.operation.name": "chat"}):
                        for before in told[:place]:
                            logger.emit(events.message_to_event(before, True))
                        logger.emit(events.choice_to_event(choice(message), True))
                else:
                    with handler.inference("openai", request_model="m") as call:
                        call.input_messages = [part(before) for before in told[:place]]
                        call.output_messages = [OutputMessage("assistant", part(message).parts, "stop")]
                for asked in message.get("tool_calls", []):
                    result = told[place + 1]["content"]
                    with handler.tool(asked["function"]["name"]) as tool:
                        tool.tool_call_id, tool.arguments, tool.tool_result = asked["id"], asked["function"]["arguments"], result
            attributes = {"gen_ai.evaluation.name": "solved", "gen_ai.evaluation.score.value": float(won)}
            logger.emit(LogRecord(event_name="gen_ai.evaluation.result", attributes=attributes))
    for encoded in (encode_spans(spans.get_finished_spans()), encode_logs(logs.get_finished_logs())):
        yield with_hex_ids(MessageToDict(encoded))


def events_of_openai():
    """The module that writes the events of messages. The package around it does not import with the newest opentelemetry-util-genai."""
    import importlib.util

    import opentelemetry.instrumentation as package

    path = Path(next(iter(package.__path__))) / "openai_v2" / "utils.py"
    spec = importlib.util.spec_from_file_location("events_of_openai", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def choice(message):
    from openai.types.chat.chat_completion import Choice

    return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message})


def with_hex_ids(value):
    """OTLP's JSON has ids in hex where protobuf's has base64."""
    import base64

    if isinstance(value, list):
        return [with_hex_ids(each) for each in value]
    if isinstance(value, dict):
        ids = ("traceId", "spanId", "parentSpanId")
        return {key: base64.b64decode(each).hex() if key in ids else with_hex_ids(each) for key, each in value.items()}
    return value


def make_langsmith():
    from uuid import UUID, uuid5

    from langsmith.schemas import Feedback, Run

    space, runs, feedback = UUID(int=0), [], []

    def run(root, kind, label, given, done, start, **more):
        more = {"id": uuid5(root, f"{start}"), "trace_id": root, "parent_run_id": root, **more}
        return Run(name=label, run_type=kind, inputs=given, outputs=done, start_time=start, **more).model_dump(mode="json")

    for name, task, question, turns, answer, won in ATTEMPTS:
        told, root = dialogue(question, turns, answer), uuid5(space, name)
        times = (START + timedelta(seconds=second) for second in range(1000))
        more = {"id": root, "parent_run_id": None, "reference_example_id": uuid5(space, task)}
        runs.append(run(root, "chain", "agent", {"question": question}, {"output": answer}, next(times), **more))
        for place, message in enumerate(told):
            if message["role"] == "assistant":
                done = {"choices": [{"index": 0, "message": message}]}
                runs.append(run(root, "llm", "ChatOpenAI", {"messages": told[:place]}, done, next(times)))
            elif message["role"] == "tool":
                failed = message["content"] if message["content"].startswith("Error") else None
                runs.append(run(root, "tool", "tool", {"input": "…"}, {"output": message["content"]}, next(times), error=failed))
        about = {"run_id": root, "trace_id": root, "created_at": START, "modified_at": START}
        feedback.append(Feedback(id=uuid5(space, f"f{name}"), key="correct", score=won, **about).model_dump(mode="json"))
    write("langsmith.jsonl", [*reversed(runs), *feedback])


def make_langfuse():
    from langfuse.api.commons.types import BooleanScore, ObservationV2

    rows, scores = [], []

    def observation(trace, kind, label, given, done, start, parent=None, **more):
        common = {"id": f"{trace}-{start.timestamp():.0f}", "trace_id": trace, "project_id": "p", "start_time": start, "type": kind}
        row = ObservationV2(**common, name=label, input=given, output=done, parent_observation_id=parent, **more)
        return json.loads(row.json(by_alias=True))

    for name, task, question, turns, answer, won in ATTEMPTS:
        told = dialogue(question, turns, answer)
        times = (START + timedelta(seconds=second) for second in range(1000))
        root = observation(name, "AGENT", "agent", question, answer, next(times), metadata={"dataset_item_id": task})
        rows.append(root)
        for place, message in enumerate(told):
            if message["role"] == "assistant":
                rows.append(observation(name, "GENERATION", "llm", json.dumps(told[:place]), message, next(times), root["id"]))
            elif message["role"] == "tool":
                level = {"level": "ERROR", "status_message": message["content"]} if message["content"].startswith("Error") else {}
                rows.append(observation(name, "TOOL", "tool", "…", message["content"], next(times), root["id"], **level))
        common = {"id": f"s{name}", "trace_id": name, "name": "correct", "source": "API", "environment": "default", "timestamp": START}
        score = BooleanScore(**common, created_at=START, updated_at=START, value=float(won), string_value=str(won))
        scores.append(json.loads(score.json(by_alias=True)))
    write("langfuse_observations.jsonl", rows)
    write("langfuse_scores.jsonl", scores)


def make_harbor():
    from harbor.models.trajectories import Agent, Observation, ObservationResult, Step, ToolCall, Trajectory

    for name, task, question, turns, answer, won in ATTEMPTS:
        steps = [Step(step_id=1, source="system", message=SYSTEM), Step(step_id=2, source="user", message=question)]
        for number, (said, tool, arguments, result) in enumerate(turns):
            call = ToolCall(tool_call_id=f"call_{number}", function_name=tool, arguments=arguments)
            seen = Observation(results=[ObservationResult(source_call_id=call.tool_call_id, content=result)])
            steps.append(Step(step_id=number + 3, source="agent", message=said, tool_calls=[call], observation=seen))
        steps.append(Step(step_id=len(steps) + 1, source="agent", message=answer))
        document = Trajectory(session_id=name, agent=Agent(name="terminus", version="1"), steps=steps).to_json_dict()
        folder = DATA / "harbor" / name
        (folder / "agent").mkdir(parents=True, exist_ok=True)
        (folder / "agent" / "trajectory.json").write_text(json.dumps(document, indent=2), encoding="utf-8")
        result = {"trial_name": name, "task_name": task, "verifier_result": {"rewards": {"reward": float(won)}}}  # of TrialResult
        (folder / "result.json").write_text(json.dumps(result, indent=2), encoding="utf-8")


def make_verifiers():
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.episode import Episode
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import AgentInfo, Reward, Trace, TraceTask

    lines = []
    for name, task, question, turns, answer, won in ATTEMPTS:
        told, nodes = dialogue(question, turns, answer), []
        for place, message in enumerate(told):
            message = dict(message)
            if message.get("tool_calls"):
                message["tool_calls"] = [{"id": call["id"], **call["function"]} for call in message["tool_calls"]]
            parent = place - 1 if place else None
            nodes.append(MessageNode(parent=parent, message=message, sampled=message["role"] == "assistant", timestamp=0.0))
        of = TraceTask(type="Shop", data=TaskData(prompt=question), key=task)
        trace = Trace(id=name, task=of, agent=AgentInfo(config=AgentConfig()), nodes=nodes, ok=True)
        trace.rewards = {"right": Reward(score=float(won), weight=1.0), "form": Reward(score=0.5, weight=0.0)}
        lines.append(Episode(id=f"e{name}", task=of, traces=[trace], ok=True).to_record())
    write("verifiers.jsonl", lines)


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        globals()[f"make_{chosen}"]()
