"""Property tests that compare every engine with a model: equal commands at equal times must give equal results."""
