"""A stand-in."""

JAR_PATH = "/nonexistent/textworld-express.jar"
