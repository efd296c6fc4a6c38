"""`muster doctor`: reads facts about a cluster and a job, and judges them."""
