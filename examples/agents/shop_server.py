"""An MCP server with three tools about a small shop. It only reads, so one server serves all attempts of a worker.

python examples/agents/shop_server.py          over stdin and stdout
python examples/agents/shop_server.py 8765     over HTTP, as http://127.0.0.1:8765/mcp
"""

import sys

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

PRICES = {"apple": 3, "bread": 4, "cheese": 7, "milk": 2, "pear": 5, "rice": 6}
STOCK = {"apple": 9, "bread": 0, "cheese": 2, "milk": 8, "pear": 4, "rice": 1}
READS = ToolAnnotations(read_only_hint=True)

server = MCPServer("shop", log_level="ERROR")


@server.tool(annotations=READS)
def items() -> str:
    """List what the shop sells."""
    return ", ".join(PRICES)


@server.tool(annotations=READS)
def price(item: str) -> str:
    """The price of one item, in coins."""
    return str(PRICES.get(item, f"The shop does not sell {item}."))


@server.tool(annotations=READS)
def stock(item: str) -> str:
    """How many of an item are left."""
    return str(STOCK.get(item, f"The shop does not sell {item}."))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
