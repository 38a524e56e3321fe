"""Without a GPU: a simulated node, the stack on one machine, and recordings that are judged again."""
