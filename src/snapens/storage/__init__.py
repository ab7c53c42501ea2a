"""How snapshots lie on a disk: durable files, the tensor format, the manifest, the folder."""
