"""`muster demo`: the processes, the story and two ways to show it."""
