"""Triangle meshes: exact distances to them, files, level sets, and how far a field is from one."""
