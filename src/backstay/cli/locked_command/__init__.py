"""`backstay lock NAME -- COMMAND`: run a process under a lock."""
