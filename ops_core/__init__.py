"""What an operator is: the core op table, its NumPy meaning, and the way from every ATen overload to it."""
