"""An endpoint in the form of OpenAI's for programs that call the model themselves: every call is recorded as it was sampled.

Importing this loads no web server; `Endpoint` does when it is made.
"""

from turnwise.engines.serve.calls import Call, Limits, Recorder
from turnwise.engines.serve.endpoint import Endpoint, Opened

__all__ = ["Call", "Endpoint", "Limits", "Opened", "Recorder"]
