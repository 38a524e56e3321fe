"""How much room each GPU of this machine has for another program, and who has taken which for one that is to come."""
