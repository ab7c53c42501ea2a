"""The files of a run folder: durable writes, sealed JSON, tensor files, generations, and the stores."""
