#!/usr/bin/env python3
"""Runs conformance scenarios on the reference SDK (PyPI: openai-agents==0.24.0) and prints the outcome.

    python reference.py scenario.json …        # one JSON outcome a line
    python reference.py --write DIR …          # DIR/<name>.json for each scenario
    python reference.py --simulated            # scenarios from standard input, one a line, in simulated time

FORMAT.md, beside this file, defines scenarios and outcomes.
"""
from __future__ import annotations

import asyncio
import json
import os
import selectors
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENAI_API_KEY", "unused")
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

import logging  # noqa: E402

logging.disable(logging.CRITICAL)

from agents import (  # noqa: E402
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    ModelSettings,
    OutputGuardrail,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    SQLiteSession,
    ToolExecutionConfig,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    function_tool,
)
from agents.agent import StopAtTools  # noqa: E402
from agents.mcp import MCPServer  # noqa: E402
from agents.testing import ScriptedModel  # noqa: E402
from agents.testing.model import ModelStep, assistant_message, function_call  # noqa: E402
from agents.tool_context import ToolContext  # noqa: E402
from agents.usage import Usage  # noqa: E402
from mcp import types as mcp_types  # noqa: E402

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "strings": list[str], "object": dict}


class Boom(Exception):
    """What a scenario's tool raises."""


SCHEMAS = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "strings": {"type": "array", "items": {"type": "string"}},
    "object": {"type": "object"},
}


class Served(MCPServer):
    """A scenario's MCP server, in this process."""

    def __init__(self, world: "World", name: str, spec: dict[str, Any]):
        super().__init__(require_approval=spec.get("approval"))
        self.world, self.spec, self.named = world, spec, name

    @property
    def name(self) -> str:
        return self.named

    async def connect(self) -> None:
        pass

    async def cleanup(self) -> None:
        pass

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Any]:
        tools = []
        for name in sorted(self.spec["tools"]):
            params = self.spec["tools"][name].get("params", {})
            schema = {
                "type": "object",
                "properties": {key: SCHEMAS[kind.rstrip("?")] for key, kind in params.items()},
                "required": [key for key, kind in params.items() if not kind.endswith("?")],
            }
            tools.append(mcp_types.Tool(name=name, description=name, inputSchema=schema))
        return tools

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        does = self.spec["tools"][tool_name].get("does", {"return": "ok"})
        log = self.world.log
        log.append(f"start {tool_name} {self.named}/{tool_name}")
        text = does.get("return", "ok")
        if "raise" in does:
            text = does["raise"]
        else:
            self.world.context.update(does.get("set", {}))
            log.append(f"done {tool_name} {self.named}/{tool_name}")
        if does.get("echo"):
            text = json.dumps(arguments or {}, sort_keys=True, separators=(",", ":"))
        content = [mcp_types.TextContent(type="text", text=text)]
        return mcp_types.CallToolResult(content=content, isError="raise" in does)

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


class World:
    """One scenario being run: its agents, its log and its context."""

    def __init__(self, scenario: dict[str, Any]):
        self.scenario = scenario
        self.log: list[str] = []
        self.running = 0
        self.peak = 0
        self.context: dict[str, Any] = dict(scenario.get("context", {}))
        self.models: dict[str, ScriptedModel] = {}
        self.agents: dict[str, Agent] = {}
        self.servers = {name: Served(self, name, spec) for name, spec in scenario.get("mcp_servers", {}).items()}
        for name in scenario["agents"]:
            self.build(name)
        for name, spec in scenario["agents"].items():
            self.agents[name].handoffs = [self.agents[other] for other in spec.get("handoffs", [])]

    def build(self, name: str) -> Agent:
        if name in self.agents:
            return self.agents[name]
        spec = self.scenario["agents"][name]
        steps = [self.step(step, index) for index, step in enumerate(spec.get("script", []))]
        self.models[name] = ScriptedModel(steps)
        settings = ModelSettings(tool_choice=spec.get("tool_choice"))
        behavior: Any = spec.get("tool_use_behavior", "run_llm_again")
        if isinstance(behavior, dict):
            behavior = StopAtTools(stop_at_tool_names=behavior["stop_at"])
        agent = Agent(
            name=name,
            instructions=spec.get("instructions"),
            model=self.models[name],
            model_settings=settings,
            tools=[],
            mcp_servers=[self.servers[server] for server in spec.get("mcp_servers", [])],
            mcp_config={"include_server_in_tool_names": True} if spec.get("mcp_prefix") else {},
            tool_use_behavior=behavior,
            reset_tool_choice=spec.get("reset_tool_choice", True),
            input_guardrails=[self.run_guardrail(g, InputGuardrail) for g in spec.get("input_guardrails", [])],
            output_guardrails=[self.run_guardrail(g, OutputGuardrail) for g in spec.get("output_guardrails", [])],
        )
        self.agents[name] = agent
        agent.tools = [self.tool(tool) for tool in spec.get("tools", [])]
        return agent

    def step(self, step: dict[str, Any], index: int) -> Any:
        if "error" in step:
            return ModelStep.raise_error(Boom(step["error"]))
        output = []
        if "text" in step:
            output.append(assistant_message(step["text"], item_id=f"msg_{index}"))
        for call in step.get("calls", []):
            args = call.get("args", {})
            output.append(function_call(call["name"], args, call_id=call["id"], item_id=f"fc_{index}_{call['id']}"))
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelStep(output=output, usage=usage, response_id=f"resp_{index}")

    def run_guardrail(self, spec: dict[str, Any], kind: Any) -> Any:
        async def check(_context: Any, _agent: Any, value: Any) -> GuardrailFunctionOutput:
            self.log.append(f"guardrail {spec['name']}")
            if "sleep_ms" in spec:
                await asyncio.sleep(spec["sleep_ms"] / 1000)
            if spec.get("raise"):
                raise Boom(spec["raise"])
            text = value if isinstance(value, str) else json.dumps(value)
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=spec["trips_on"] in text)

        if kind is InputGuardrail:
            return InputGuardrail(guardrail_function=check, name=spec["name"], run_in_parallel=spec.get("parallel", True))
        return OutputGuardrail(guardrail_function=check, name=spec["name"])

    def tool(self, name: str) -> FunctionTool:
        spec = self.scenario["tools"][name]
        if spec.get("kind") == "agent":
            return self.build(spec["agent"]).as_tool(
                tool_name=name, tool_description=spec.get("description", name), needs_approval=self.approval(spec)
            )
        params = spec.get("params", {})
        parts, names = [], []
        for key, kind in params.items():
            optional = kind.endswith("?")
            annotation = f"TYPES[{kind.rstrip('?')!r}]" + (" | None = None" if optional else "")
            parts.append(f"{key}: {annotation}")
            names.append(key)
        keyword = "def" if spec.get("sync") else "async def"
        args = ", ".join(f"{n!r}: {n}" for n in names)
        call = "body(ctx, {" + args + "})"
        source = f"{keyword} tool(ctx: ToolContext{', *' if parts else ''}, {', '.join(parts)}):\n    return {'' if spec.get('sync') else 'await '}{call}\n"
        space: dict[str, Any] = {"TYPES": TYPES, "ToolContext": ToolContext}
        space["body"] = self.sync_body(name, spec) if spec.get("sync") else self.async_body(name, spec)
        exec(source, space)
        options: dict[str, Any] = {}
        failure = spec.get("on_failure", "default")
        if failure == "propagate":
            options["failure_error_function"] = None
        elif failure != "default":
            options["failure_error_function"] = lambda _ctx, error: failure["message"].replace("{error}", str(error))
        if "timeout_ms" in spec:
            options["timeout"] = spec["timeout_ms"] / 1000
            options["timeout_behavior"] = spec.get("on_timeout", "error_as_result")
        enabled = spec.get("enabled", True)
        if isinstance(enabled, dict):
            options["is_enabled"] = lambda _ctx, _agent: bool(self.context.get(enabled["context"]))
        else:
            options["is_enabled"] = enabled
        return function_tool(
            space["tool"],
            name_override=name,
            description_override=spec.get("description", name),
            strict_mode=not any(kind.endswith("?") for kind in params.values()),
            needs_approval=self.approval(spec),
            tool_input_guardrails=[self.input_guardrail(g) for g in spec.get("input_guardrails", [])] or None,
            tool_output_guardrails=[self.output_guardrail(g) for g in spec.get("output_guardrails", [])] or None,
            **options,
        )

    def approval(self, spec: dict[str, Any]) -> Any:
        rule = spec.get("approval", False)
        if isinstance(rule, bool):
            return rule

        async def check(_ctx: Any, params: dict[str, Any], call_id: str) -> bool:
            self.log.append(f"approval check {call_id}")
            return params.get(rule["arg"], 0) > rule["above"]

        return check

    def effect(self, name: str, spec: dict[str, Any], call_id: str, args: dict[str, Any]) -> dict[str, Any]:
        does = spec.get("does_for", {}).get(call_id, spec.get("does", {"return": "ok"}))
        return does

    def begin(self, name: str, ctx: ToolContext) -> None:
        self.log.append(f"start {name} {ctx.tool_call_id}")
        self.running += 1
        self.peak = max(self.peak, self.running)

    def finish(self, name: str, does: dict[str, Any], ctx: ToolContext, args: dict[str, Any]) -> Any:
        self.context.update(does.get("set", {}))
        if "raise" in does:
            raise Boom(does["raise"])
        self.log.append(f"done {name} {ctx.tool_call_id}")
        if does.get("echo"):
            return json.dumps(args, sort_keys=True, separators=(",", ":"))
        return does.get("return", "ok")

    def async_body(self, name: str, spec: dict[str, Any]) -> Any:
        async def body(ctx: ToolContext, args: dict[str, Any]) -> Any:
            does = self.effect(name, spec, ctx.tool_call_id, args)
            self.begin(name, ctx)
            try:
                if "sleep_ms" in does:
                    await asyncio.sleep(does["sleep_ms"] / 1000)
                return self.finish(name, does, ctx, args)
            except asyncio.CancelledError:
                self.log.append(f"cancelled {name} {ctx.tool_call_id}")
                raise
            finally:
                self.running -= 1

        return body

    def sync_body(self, name: str, spec: dict[str, Any]) -> Any:
        def body(ctx: ToolContext, args: dict[str, Any]) -> Any:
            does = self.effect(name, spec, ctx.tool_call_id, args)
            self.begin(name, ctx)
            try:
                if "sleep_ms" in does:
                    time.sleep(does["sleep_ms"] / 1000)
                return self.finish(name, does, ctx, args)
            finally:
                self.running -= 1

        return body

    def verdict(self, spec: dict[str, Any], text: str) -> ToolGuardrailFunctionOutput:
        if spec["when"] != "always" and spec["when"] not in text:
            return ToolGuardrailFunctionOutput.allow()
        then = spec["then"]
        if then == "raise":
            return ToolGuardrailFunctionOutput.raise_exception()
        if then == "allow":
            return ToolGuardrailFunctionOutput.allow()
        return ToolGuardrailFunctionOutput.reject_content(then["reject"])

    def input_guardrail(self, spec: dict[str, Any]) -> ToolInputGuardrail:
        async def check(data: Any) -> ToolGuardrailFunctionOutput:
            self.log.append(f"input guardrail {spec['name']} {data.context.tool_call_id}")
            return self.verdict(spec, data.context.tool_arguments or "")

        return ToolInputGuardrail(guardrail_function=check, name=spec["name"])

    def output_guardrail(self, spec: dict[str, Any]) -> ToolOutputGuardrail:
        async def check(data: Any) -> ToolGuardrailFunctionOutput:
            self.log.append(f"output guardrail {spec['name']} {data.context.tool_call_id}")
            return self.verdict(spec, str(data.output))

        return ToolOutputGuardrail(guardrail_function=check, name=spec["name"])


class LogHooks(RunHooks):
    def __init__(self, world: World):
        self.log = world.log

    async def on_agent_start(self, context, agent):
        self.log.append(f"agent start {agent.name}")

    async def on_agent_end(self, context, agent, output):
        self.log.append(f"agent end {agent.name}")

    async def on_handoff(self, context, from_agent, to_agent):
        self.log.append(f"handoff {from_agent.name} {to_agent.name}")

    async def on_tool_start(self, context, agent, tool):
        self.log.append(f"tool start {tool.name} {context.tool_call_id}")

    async def on_tool_end(self, context, agent, tool, result):
        self.log.append(f"tool end {tool.name} {context.tool_call_id}")

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        self.log.append(f"llm start {agent.name}")

    async def on_llm_end(self, context, agent, response):
        self.log.append(f"llm end {agent.name}")


def get(item: Any, key: str) -> Any:
    return item.get(key) if isinstance(item, dict) else getattr(item, key, None)


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(get(part, "text") or get(part, "refusal") or "" for part in content or [])


PARTS = {"are_text": False}


def show_output(output: Any) -> str:
    """An output as text. The text of an MCP server's tool is a part, and shown as the text that it is."""
    if isinstance(output, str):
        return output
    if not PARTS["are_text"]:
        return json.dumps(output)
    parts = output if isinstance(output, list) else [output]
    if parts and all(get(part, "type") in ("text", "input_text") and isinstance(get(part, "text"), str) for part in parts):
        return "".join(get(part, "text") for part in parts)
    return json.dumps(output)


def show_item(item: Any) -> dict[str, Any]:
    raw, agent = item.raw_item, item.agent.name
    if item.type == "message_output_item":
        return {"type": "message", "text": text_of(get(raw, "content")), "agent": agent}
    if item.type == "tool_call_item":
        return {"type": "call", "name": get(raw, "name"), "id": get(raw, "call_id"), "agent": agent}
    if item.type == "tool_call_output_item":
        return {"type": "output", "id": get(raw, "call_id"), "output": show_output(item.output), "agent": agent}
    if item.type == "handoff_call_item":
        return {"type": "handoff_call", "name": get(raw, "name"), "id": get(raw, "call_id"), "agent": agent}
    if item.type == "handoff_output_item":
        return {"type": "handoff", "from": item.source_agent.name, "to": item.target_agent.name}
    if item.type == "tool_approval_item":
        return {"type": "approval", "name": item.name, "id": get(raw, "call_id"), "agent": agent}
    return {"type": item.type}


def show_input(item: Any) -> str:
    kind = get(item, "type")
    if kind == "function_call":
        return f"call {get(item, 'call_id')} {get(item, 'name')} {get(item, 'arguments')}"
    if kind == "function_call_output":
        return f"output {get(item, 'call_id')} {show_output(get(item, 'output'))}"
    return f"{get(item, 'role')}: {text_of(get(item, 'content'))}"


def show_calls(world: World) -> list[dict[str, Any]]:
    seen = []
    for name, model in world.models.items():
        for call in model.calls:
            given = [{"role": "user", "content": call.input}] if isinstance(call.input, str) else call.input
            seen.append(
                {
                    "agent": name,
                    "input": [show_input(item) for item in given],
                    "tools": [tool.name for tool in call.tools],
                    "handoffs": [handoff.tool_name for handoff in call.handoffs],
                    "tool_choice": call.model_settings.tool_choice,
                }
            )
    return seen


async def once(world: World, given: Any, session: Any, run: dict[str, Any], config: RunConfig) -> tuple[Any, list[str]]:
    agent = world.agents[world.scenario["start"]]
    options = dict(
        context=world.context, max_turns=run.get("max_turns", 10), hooks=LogHooks(world), run_config=config, session=session
    )
    if isinstance(given, RunState):
        options.pop("context")
    events: list[str] = []
    if not run.get("stream"):
        return await Runner.run(agent, given, **options), events
    result = Runner.run_streamed(agent, given, **options)
    async for event in result.stream_events():
        if event.type == "run_item_stream_event":
            events.append(event.name)
        elif event.type == "agent_updated_stream_event":
            events.append(f"agent {event.new_agent.name}")
        if run.get("cancel_on") and events and events[-1] == run["cancel_on"]:
            result.cancel(mode=run.get("cancel_mode", "after_turn"))
    return result, events


async def play(scenario: dict[str, Any], sessions: Path | str | None = None) -> dict[str, Any]:
    world = World(scenario)
    PARTS["are_text"] = "mcp_servers" in scenario
    run = scenario.get("run", {})
    config = RunConfig(
        tracing_disabled=True,
        tool_not_found_behavior=run.get("tool_not_found", "raise_error"),
        tool_execution=ToolExecutionConfig(
            max_function_tool_concurrency=run.get("concurrency"),
            pre_approval_tool_input_guardrails=run.get("pre_approval_guardrails", False),
        ),
    )
    session = None
    if run.get("session"):
        session = SQLiteSession("scenario", sessions or Path(tempfile.mkdtemp()) / "session.db")
    outcome: dict[str, Any] = {"name": scenario["name"]}
    rounds: list[list[dict[str, Any]]] = []
    events: list[str] = []
    result: Any = None
    inputs = scenario["input"] if isinstance(scenario["input"], list) else [scenario["input"]]
    decisions = list(scenario.get("decisions", []))
    try:
        for given in inputs:
            result, seen = await once(world, given, session, run, config)
            events += seen
            while result.interruptions and decisions:
                rounds.append([show_item(item) for item in result.interruptions])
                decision = decisions.pop(0)
                state = result.to_state()
                if run.get("serialise", True):
                    state = await RunState.from_string(
                        world.agents[scenario["start"]], state.to_string(), context_override=world.context
                    )
                for item in state.get_interruptions():
                    call_id = get(item.raw_item, "call_id")
                    if call_id in decision.get("approve", []):
                        state.approve(item)
                    elif call_id in decision.get("always", []):
                        state.approve(item, always_approve=True)
                    elif call_id in decision.get("never", []):
                        state.reject(item, always_reject=True)
                    elif call_id in decision.get("reject", {}):
                        state.reject(item, rejection_message=decision["reject"][call_id])
                result, seen = await once(world, state, session, run, config)
                events += seen
        outcome["status"] = "interrupted" if result.interruptions else "completed"
        outcome["pending"] = [show_item(item) for item in result.interruptions]
        outcome["final_output"] = result.final_output
        outcome["last_agent"] = result.last_agent.name
        outcome["items"] = [show_item(item) for item in result.new_items]
        outcome["usage"] = {"requests": result.context_wrapper.usage.requests, "total_tokens": result.context_wrapper.usage.total_tokens}
    except Exception as error:
        outcome["status"] = "failed"
        outcome["error"] = {"kind": type(error).__name__, "message": str(error)}
    await asyncio.sleep(scenario.get("settle_ms", 20) / 1000)
    outcome["rounds"] = rounds
    if run.get("stream"):
        outcome["events"] = events
    outcome["model_calls"] = show_calls(world)
    outcome["log"] = world.log
    outcome["peak_concurrency"] = world.peak
    outcome["context"] = world.context
    if session is not None:
        outcome["session"] = [show_input(item) for item in await session.get_items()]
    return outcome


class JumpingSelector(selectors.DefaultSelector):
    """A selector that moves its loop's clock forward instead of waiting for a timer."""

    loop: "SimulatedLoop"

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.threads:
            return super().select(None)
        if timeout is None:
            raise RuntimeError("the scenario waits for nothing")
        self.loop.now += timeout
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps from timer to timer, and stands still while a thread works."""

    def __init__(self) -> None:
        self.now, self.threads = 0.0, 0
        selector = JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: setattr(self, "threads", self.threads - 1))
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self.threads += 1
        await super().shutdown_default_executor()


async def play_to_text(scenario: dict[str, Any]) -> str:
    return json.dumps(await play(scenario, ":memory:"), ensure_ascii=False)


def play_simulated() -> None:
    """Plays the scenarios of standard input, and answers each with a line."""
    for line in sys.stdin:
        try:
            with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
                answer = runner.run(play_to_text(json.loads(line)))
        except Exception as error:
            answer = json.dumps({"unplayable": f"{type(error).__name__}: {error}"})
        print(answer, flush=True)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments == ["--simulated"]:
        play_simulated()
        return
    out = None
    if arguments and arguments[0] == "--write":
        out = Path(arguments[1])
        arguments = arguments[2:]
    for path in arguments:
        scenario = json.loads(Path(path).read_text())
        outcome = asyncio.run(play(scenario))
        if out is None:
            print(json.dumps(outcome, ensure_ascii=False))
        else:
            target = out / f"{scenario['name']}.json"
            target.write_text(json.dumps(outcome, indent=1, ensure_ascii=False) + "\n")
            print(target.name, outcome["status"])


if __name__ == "__main__":
    main()
