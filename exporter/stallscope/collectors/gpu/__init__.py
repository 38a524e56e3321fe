"""What is the same for every maker's GPUs: the driver interface, the questions that are asked, the life of a GPU."""
