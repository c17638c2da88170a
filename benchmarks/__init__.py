"""The measured suite: the same scripts on eager CPU, torch.compile and lazy, interleaved in one run."""
