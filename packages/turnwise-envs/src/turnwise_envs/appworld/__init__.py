"""AppWorld: code that uses the apps of a simulated person."""
