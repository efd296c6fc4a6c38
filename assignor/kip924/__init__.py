"""Behind `muster.assignor.api`: the group as plug-ins see it, and checks of their answers."""
