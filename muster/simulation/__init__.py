"""A fleet played by honest members against the real coordinator, on a clock of its own."""
