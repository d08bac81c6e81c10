"""The agent: builds prompts from the history, and extracts actions from responses."""

from turnwise.agent.agent import Agent
from turnwise.agent.base import Context, Parsed, Prompt
from turnwise.agent.chat import Chat
from turnwise.agent.context import Full, PromptMaker, Window, make_context, register_context
from turnwise.agent.parse import Parser
from turnwise.agent.prompts import Past, PromptTemplate, View
from turnwise.agent.settings import AgentSettings
