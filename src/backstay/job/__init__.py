"""Jobs: durable work. `definition.py` is what people touch, `store.py` the contract, `worker.py` what runs them."""
