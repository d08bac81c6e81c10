"""The airline, retail and telecom domains of τ²-bench: tools, a policy, and a simulated user."""
