"""How a run folder keeps its promises: durable writes, sealed JSON, tensor files, generations, and the stores."""
